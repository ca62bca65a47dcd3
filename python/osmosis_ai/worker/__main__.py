"""Starts a worker: `python …/osmosis_ai/worker/__main__.py`, in the rollout's folder."""

import os
import sys


def _use_sdk_root() -> None:
    """Puts the SDK on the import path in place of this folder, before anything else is imported.

    Python puts a script's own folder first, where our module names would shadow other people's.
    It names that folder without the links that lead to it.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(here):
        sys.path[0] = root
    else:
        sys.path.insert(0, root)


def _start() -> None:
    try:
        import osmosis_ai.shipped_kinds  # noqa: F401
        from osmosis_ai.worker.main import main
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"osmosis worker: python package `{error.name}` is missing in {sys.executable}; "
            "the worker needs `pydantic` and `msgpack`\n"
        )
        raise SystemExit(4) from None
    main()


if __name__ == "__main__":
    _use_sdk_root()
    _start()
