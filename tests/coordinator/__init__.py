"""The write coordinator."""
