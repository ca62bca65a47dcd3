"""The rollout server: an ASGI app around a backend.

```python
backend = LocalBackend(workflow=MyWorkflow, grader=MyGrader)
app = create_rollout_server(backend=backend)  # `uvicorn main:app`
```
"""

from osmosis_ai.rollout.server.app import RolloutServer, create_rollout_server
from osmosis_ai.rollout.server.auth import ControllerAuth

__all__ = ["ControllerAuth", "RolloutServer", "create_rollout_server"]
