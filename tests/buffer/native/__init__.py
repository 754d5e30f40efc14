"""The native queue, part by part."""
