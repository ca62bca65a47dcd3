"""Registers the workflow kinds that ship with this package, beside the SDK's own.

Only a process that runs user code imports this module: the core names no kind.
"""

import osmosis_ai.areal.workflow_kind  # noqa: F401
