"""Answers a `load` frame: imports the entrypoint and says what was found."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from osmosis_ai.areal.http_clients import has_aiohttp, has_httpx
from osmosis_ai.areal.own_grader import OwnGrader
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.rollout.discovery import Discovered, Location, discover_rollout
from osmosis_ai.rollout.entrypoint import EntrypointError
from osmosis_ai.rollout.execution import GraderRunner, WorkflowRunner
from osmosis_ai.rollout.failure import user_traceback
from osmosis_ai.rollout.types import AgentWorkflowConfig, GraderConfig
from osmosis_ai.worker.frames import Found, Load, Loaded, LoadFailed, Manifest, Problem
from osmosis_ai.worker.process import reason_not_to_fork


@dataclass(frozen=True)
class UserCode:
    """A workflow and its grader."""

    workflow: WorkflowRunner
    grader: GraderRunner


@dataclass(frozen=True)
class Rollout:
    """A loaded entrypoint, ready to run tasks."""

    load: Load
    loaded: Loaded
    code: UserCode | OwnGrader


def load_rollout(load: Load) -> Rollout | LoadFailed:
    """Imports the entrypoint in this process. Blocks, starts no thread and no event loop."""
    try:
        os.chdir(load.project_path)
        found = discover_rollout(
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
    if isinstance(found, OwnGrader):
        problem = _cannot_generate(found)
        if problem is not None:
            return LoadFailed([problem])
        return Rollout(load, Loaded(_own_manifest(found)), found)
    code = UserCode(
        workflow=WorkflowRunner(found.workflow, found.workflow_config),
        grader=GraderRunner(found.grader, found.grader_config),
    )
    return Rollout(load, Loaded(_manifest(found)), code)


def _cannot_generate(found: OwnGrader) -> Problem | None:
    """`engine.agenerate` goes over HTTP, for which our own package brings nothing along."""
    if found.shape is not WorkflowShape.EPISODE or has_aiohttp() or has_httpx():
        return None
    message = (
        f"`{found.name}.arun_episode` needs an HTTP client: neither aiohttp nor httpx is there"
    )
    hint = "add `osmosis-rs[areal]` to `dependencies` in the rollout's pyproject.toml"
    return Problem("missing_extra", message, hint, None)


def _own_manifest(found: OwnGrader) -> Manifest:
    return Manifest(
        workflow=Found(found.name, found.file, found.line, None, None),
        grader=None,
        warnings=found.warnings,
        not_forkable=reason_not_to_fork(),
        self_graded=True,
    )


def _manifest(found: Discovered) -> Manifest:
    return Manifest(
        workflow=_found(found.workflow, found.workflow_location, found.workflow_config),
        grader=_found(found.grader, found.grader_location, found.grader_config),
        warnings=found.warnings,
        not_forkable=reason_not_to_fork(),
    )


def _found(
    cls: type, location: Location, config: AgentWorkflowConfig | GraderConfig | None
) -> Found:
    return Found(
        name=cls.__name__,
        file=location.file,
        line=location.line,
        config=config.name if config is not None else None,
        max_concurrent=config.concurrency.max_concurrent if config is not None else None,
    )
