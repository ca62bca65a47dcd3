"""Finds the one workflow in an entrypoint, of whatever kind it is."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.agent_workflow_kind import AGENT_WORKFLOWS
from osmosis_ai.rollout.entrypoint import (
    EntrypointError,
    Problem,
    import_entrypoint,
    parse_entrypoint,
    parse_source,
)
from osmosis_ai.rollout.workflow_kinds import (
    Candidate,
    LoadedWorkflow,
    LoadRequest,
    Source,
    WorkflowKind,
    registered,
)


def discover(
    project_path: str,
    entrypoint: str,
    workflow_table: dict[str, Any] | None = None,
    grader_table: dict[str, Any] | None = None,
) -> LoadedWorkflow:
    """Imports the entrypoint and loads its workflow; raises `EntrypointError`."""
    request = LoadRequest(project_path, entrypoint, workflow_table or {}, grader_table or {})
    parsed = parse_entrypoint(project_path, entrypoint)
    tree = parse_source(parsed)
    source = Source(request, parsed, tree, import_entrypoint(parsed))
    chosen = _chosen(source)
    # Without a choice, the SDK's own kind reports what is missing.
    return AGENT_WORKFLOWS.load(source) if chosen is None else chosen.load(source)


def _chosen(source: Source) -> Candidate | None:
    """The one workflow of another kind than the SDK's; `None` when there is none."""
    others = [kind for kind in registered() if kind is not AGENT_WORKFLOWS]
    if source.entrypoint.picked is not None:
        return _picked(source, source.entrypoint.picked, others)
    ours = list(AGENT_WORKFLOWS.candidates(source))
    found = [one for kind in others for one in kind.candidates(source)]
    if any(one.is_declared for one in (*ours, *found)):
        found = [one for one in found if one.is_declared]
    if not found:
        return None
    if len(ours) + len(found) == 1:
        return found[0]
    raise EntrypointError([_several(source, [*ours, *found])])


def _picked(source: Source, name: str, others: list[WorkflowKind]) -> Candidate | None:
    value = getattr(source.module, name, None)
    if value is None:
        return None
    found = (kind.candidate(name, value) for kind in others)
    return next((one for one in found if one is not None), None)


def _several(source: Source, found: list[Candidate]) -> Problem:
    shown = source.entrypoint.shown
    listed = ", ".join(f"`{one.cls.__name__}` ({source.where(one.cls)})" for one in found)
    return Problem(
        "several_workflows",
        f"`{shown}` has {len(found)} workflows: {listed}",
        f'pick one with `entrypoint = "{shown}:{found[0].cls.__name__}"`, '
        "or keep only one in the module",
    )
