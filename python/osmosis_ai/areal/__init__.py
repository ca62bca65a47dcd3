"""AReaL-style workflows: what AReaL's own modules offer to user code, as this engine does it.

In a worker these are also importable as `areal…` (see `alias`) when AReaL is not installed.
"""
