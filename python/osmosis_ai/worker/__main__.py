"""Starts a worker: `python …/osmosis_ai/worker/__main__.py`, in the rollout's folder."""

import sys


def _use_sdk_root() -> None:
    """Puts the SDK on the import path in place of this folder, before anything else is imported.

    Python puts a script's own folder first, where our module names would shadow other people's.
    """
    here = __file__.replace("\\", "/").rpartition("/")[0]
    root = here.rpartition("/")[0].rpartition("/")[0]
    if sys.path and sys.path[0].replace("\\", "/") == here:
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
