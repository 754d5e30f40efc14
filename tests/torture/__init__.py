"""What `make torture` runs: every `*_scenarios.py` here has a list `SCENARIOS`."""
