"""Osmosis for Python users: the rollout SDK and the worker that runs it."""

__version__ = "0.1.0"
