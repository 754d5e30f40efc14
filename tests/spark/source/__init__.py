"""Reading streams, without Spark where it can be done without."""
