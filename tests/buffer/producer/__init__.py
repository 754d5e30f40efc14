"""What producers promise."""
