"""Tables written through the catalog of registers."""
