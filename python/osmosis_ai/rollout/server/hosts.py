"""By which names the app may be called.

A web page can reach a server on its reader's own machine under a name that the page's owner
controls. With a key that leads nowhere. Without one, requests that came in on loopback must name
this machine.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import MutableMapping
from typing import Any

KEY_VARIABLE = "OSMOSIS_ROLLOUT_KEY"
HOSTS_VARIABLE = "OSMOSIS_ROLLOUT_HOSTS"


def foreign_host(scope: MutableMapping[str, Any]) -> str | None:
    """The name a request was sent to, when it may not be called that."""
    server = scope.get("server")
    if os.environ.get(KEY_VARIABLE) or not server or not _is_loopback(str(server[0])):
        return None
    named = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    if len(named) == 1 and _is_ours(_without_port(named[0])):
        return None
    return ", ".join(named)


def _is_ours(host: str) -> bool:
    host = host.rstrip(".").lower()
    more = os.environ.get(HOSTS_VARIABLE, "").lower().split(",")
    return (
        host == "localhost" or _is_loopback(host) or host in {name.strip() for name in more if name}
    )


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].split("]")[0]
    return authority.rsplit(":", 1)[0] if authority.count(":") == 1 else authority


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
