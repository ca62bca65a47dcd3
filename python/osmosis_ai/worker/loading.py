"""Answers a `load` frame: imports the entrypoint and reports what was found."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from osmosis_ai.rollout.discovery import discover
from osmosis_ai.rollout.entrypoint import EntrypointError
from osmosis_ai.rollout.failure import user_traceback
from osmosis_ai.rollout.workflow_kinds import LoadedWorkflow, UserClass
from osmosis_ai.worker.frames import Found, Load, Loaded, LoadFailed, Manifest, Problem
from osmosis_ai.worker.process import reason_not_to_fork


@dataclass(frozen=True)
class Rollout:
    """A loaded entrypoint, ready to run tasks."""

    load: Load
    loaded: Loaded
    workflow: LoadedWorkflow


def load_rollout(load: Load) -> Rollout | LoadFailed:
    """Imports the entrypoint in this process. Blocks, starts no thread and no event loop."""
    try:
        os.chdir(load.project_path)
        workflow = discover(
            load.project_path,
            load.entrypoint,
            json.loads(load.workflow),
            json.loads(load.grader),
        )
    except EntrypointError as error:
        return LoadFailed([Problem(p.code, p.message, p.hint, p.traceback) for p in error.problems])
    except Exception as error:
        message = f"`{load.entrypoint}` could not be loaded: {type(error).__name__}: {error}"
        return LoadFailed([Problem("load_failed", message, None, user_traceback(error))])
    return Rollout(load, Loaded(_manifest(workflow)), workflow)


def _manifest(workflow: LoadedWorkflow) -> Manifest:
    grader = workflow.grader_class
    return Manifest(
        workflow=_found(workflow.workflow_class),
        grader=None if grader is None else _found(grader),
        warnings=workflow.warnings,
        not_forkable=reason_not_to_fork(),
        self_graded=True if grader is None else None,
        serve_warnings=workflow.serve_warnings or None,
    )


def _found(cls: UserClass) -> Found:
    return Found(
        name=cls.name,
        file=cls.location.file,
        line=cls.location.line,
        config=cls.config,
        max_concurrent=cls.max_concurrent,
    )
