"""How a rollout server proves to a controller who it is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ControllerAuth:
    """The key for a controller's callbacks; never in logs."""

    api_key: str | None = field(default=None, repr=False)

    def as_bearer_headers(self) -> dict[str, str] | None:
        """The header that carries the key, or `None` without one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else None
