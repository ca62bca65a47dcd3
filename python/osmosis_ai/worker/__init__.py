"""The guest side of the worker protocol: a process that runs user code for the engine."""
