"""The leader's side of replication."""
