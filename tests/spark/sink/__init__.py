"""Writing with Spark."""
