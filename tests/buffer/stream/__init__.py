"""Streams: their register, their schemas, their beginning and end."""
