"""The published v1 queue behind the contract of queues."""
