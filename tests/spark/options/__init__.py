"""What may be asked."""
