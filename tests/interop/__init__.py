"""Real object stores for the tests that fakes cannot stand in for.

Enters: nothing but the package registries' ordinary clients, a cache folder and loopback ports.
Leaves: a running `Server` with a bucket and the environment variables that reach it.
Always: a server listens on 127.0.0.1 only, has credentials made up at its first start, and does
not outlive its context manager.
"""
