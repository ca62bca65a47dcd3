import json
import re
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import discovery
from osmosis_ai.rollout.agent_workflow_kind import LoadedAgentWorkflow
from osmosis_ai.rollout.entrypoint import EntrypointError, Problem

HEAD = "from osmosis_ai.rollout import *\n"
W = "class W(AgentWorkflow):\n    async def run(self, ctx): pass\n"
G = "class G(Grader):\n    async def grade(self, ctx): pass\n"


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an entrypoint imports stays within its test."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def discover(*arguments: Any) -> LoadedAgentWorkflow:
    loaded = discovery.discover(*arguments)
    assert isinstance(loaded, LoadedAgentWorkflow)
    return loaded


def found(
    folder: Path, source: str, entrypoint: str = "main.py", **overrides: Any
) -> LoadedAgentWorkflow:
    (folder / "main.py").write_text(HEAD + source)
    return discover(str(folder), entrypoint, overrides.get("workflow"), overrides.get("grader"))


def problems(
    folder: Path, source: str | bytes, entrypoint: str = "main.py", **overrides: Any
) -> dict[str, Problem]:
    body = source if isinstance(source, bytes) else (HEAD + source).encode()
    (folder / "main.py").write_bytes(body)
    tables = overrides.get("workflow"), overrides.get("grader")
    with pytest.raises(EntrypointError) as caught:
        discover(str(folder), entrypoint, *tables)
    return {problem.code: problem for problem in caught.value.problems}


def test_one_workflow_and_one_grader_are_found_with_their_places(tmp_path: Path):
    rollout = found(tmp_path, W + G)
    assert rollout.workflow.__name__ == "W"
    assert str(rollout.workflow_location) == "main.py:2"
    assert str(rollout.grader_location) == "main.py:4"
    assert rollout.workflow_config is None
    assert rollout.grader_config is None
    assert rollout.warnings == []


def test_a_missing_server_is_a_warning_for_whoever_serves_alone(tmp_path: Path):
    rollout = found(tmp_path, W + G)
    assert rollout.warnings == []
    (warning,) = rollout.serve_warnings
    assert "create_rollout_server" in warning


def test_a_call_of_create_rollout_server_needs_no_warning(tmp_path: Path):
    program = 'if __name__ == "__main__":\n    server.create_rollout_server(backend=None)\n'
    rollout = found(tmp_path, W + G + program)
    assert (rollout.warnings, rollout.serve_warnings) == ([], [])


def test_imported_classes_count_and_aliases_count_once(tmp_path: Path):
    (tmp_path / "parts.py").write_text(HEAD + W + G)
    rollout = found(tmp_path, "from parts import W, G\nAlso = W\nTheGrader = G\n")
    assert str(rollout.workflow_location) == "parts.py:2"


def test_odd_values_in_the_namespace_do_no_harm(tmp_path: Path):
    source = """
class Proxy:
    @property
    def __class__(self): raise RuntimeError("not ready")
proxy = Proxy()
Alias = dict[str, int]
Workflows = AgentWorkflow[AgentWorkflowConfig]
"""
    assert found(tmp_path, source + W + G).workflow.__name__ == "W"


def test_bases_that_stay_abstract_do_not_count(tmp_path: Path):
    source = "class Base(AgentWorkflow):\n    def help(self): pass\n" + W.replace(
        "AgentWorkflow", "Base"
    )
    assert found(tmp_path, source + G).workflow.__name__ == "W"


def test_nothing_found_names_what_is_missing(tmp_path: Path):
    got = problems(tmp_path, "class Half(AgentWorkflow):\n    async def rum(self, ctx): pass\n")
    assert set(got) == {"no_workflow", "no_grader"}
    assert "`Half` (main.py:2) does not implement `run`" in got["no_workflow"].message
    assert "async def run(self, ctx)" in (got["no_workflow"].hint or "")
    assert "async def grade(self, ctx)" in (got["no_grader"].hint or "")


def test_two_of_each_are_all_named_at_once(tmp_path: Path):
    source = (
        W
        + W.replace("W", "V", 1)
        + G
        + G.replace("G", "H", 1)
        + "a = AgentWorkflowConfig(name='a')\nb = AgentWorkflowConfig(name='b')\n"
        + "c = GraderConfig(name='c')\nd = GraderConfig(name='d')\n"
    )
    got = problems(tmp_path, source)
    assert set(got) == {
        "several_workflows",
        "several_graders",
        "several_workflow_configs",
        "several_grader_configs",
    }
    assert "`W` (main.py:2), `V` (main.py:4)" in got["several_workflows"].message
    assert 'entrypoint = "main.py:W"' in (got["several_workflows"].hint or "")
    assert "`G` (main.py:6), `H` (main.py:8)" in got["several_graders"].message
    assert "`a` (main.py:10), `b` (main.py:11)" in got["several_workflow_configs"].message
    assert "`c` (main.py:12), `d` (main.py:13)" in got["several_grader_configs"].message


def test_a_name_picks_one_of_several(tmp_path: Path):
    source = W + W.replace("W", "V", 1) + G
    assert found(tmp_path, source, "main.py:V").workflow.__name__ == "V"


@pytest.mark.parametrize(
    ("name", "code"),
    [("Nope", "name_missing"), ("json", "name_not_a_workflow"), ("Half", "name_abstract")],
)
def test_a_name_that_is_no_workflow_is_the_only_problem(tmp_path: Path, name: str, code: str):
    source = W + G + "import json\nclass Half(AgentWorkflow): pass\n"
    assert set(problems(tmp_path, source, f"main.py:{name}")) == {code}


def test_run_and_grade_must_be_async(tmp_path: Path):
    source = (
        "class W(AgentWorkflow):\n    def run(self, ctx): pass\n"
        "class G(Grader):\n    async def grade(self, ctx):\n        yield 1\n"
    )
    got = problems(tmp_path, source)
    assert set(got) == {"run_not_async", "grade_not_async"}
    assert got["run_not_async"].message == "`W.run` (main.py:3) is not async"
    assert "async generator" in got["grade_not_async"].message


def test_a_decorated_run_is_judged_by_what_it_wraps(tmp_path: Path):
    source = (
        "import functools\n"
        "def traced(function):\n"
        "    @functools.wraps(function)\n"
        "    def call(*args): return function(*args)\n"
        "    return call\n"
        "class W(AgentWorkflow):\n    @traced\n    async def run(self, ctx): pass\n"
    )
    assert found(tmp_path, source + G).workflow.__name__ == "W"


def test_an_import_that_raises_shows_user_frames_only(tmp_path: Path):
    (tmp_path / "deeper.py").write_text("def fail():\n    raise RuntimeError('no disk')\nfail()\n")
    got = problems(tmp_path, "import deeper\n")
    problem = got["import_failed"]
    assert problem.message == "importing `main.py` raised RuntimeError: no disk"
    assert problem.traceback is not None
    assert 'main.py", line 2' in problem.traceback
    assert 'deeper.py", line 2, in fail' in problem.traceback
    assert "importlib" not in problem.traceback
    assert "osmosis_ai" not in problem.traceback


def test_a_missing_package_comes_with_a_remedy(tmp_path: Path):
    problem = problems(tmp_path, "import no_such_package.deep\n")["import_failed"]
    assert "`no_such_package`" in (problem.hint or "")
    assert "pyproject.toml" in (problem.hint or "")


def test_a_module_that_exits_on_import(tmp_path: Path):
    problem = problems(tmp_path, "import sys\nsys.exit('bye')\n")["exits_on_import"]
    assert "sys.exit('bye')" in problem.message
    assert "__main__" in (problem.hint or "")


@pytest.mark.parametrize("source", ["def f(:\n", "import broken\n"])
def test_a_syntax_error_has_its_place(tmp_path: Path, source: str):
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    problem = problems(tmp_path, source)["syntax_error"]
    place = "broken.py:2" if "broken" in source else "main.py:2"
    assert problem.message.startswith(f"{place}: ")


@pytest.mark.parametrize("source", [b"x = '\xff'\n", b"x = 1\x00\n"])
def test_bytes_that_are_no_source(tmp_path: Path, source: bytes):
    assert set(problems(tmp_path, source)) == {"syntax_error"}


def test_a_missing_file_names_what_is_there(tmp_path: Path):
    problem = problems(tmp_path, W, "mian.py")["entrypoint_missing"]
    assert "`mian.py`" in problem.message
    assert "`main.py`" in (problem.hint or "")


@pytest.mark.parametrize(
    ("entrypoint", "code"),
    [("../main.py", "entrypoint_outside"), ("data.txt", "entrypoint_not_python")],
)
def test_an_entrypoint_must_be_a_python_file_inside(tmp_path: Path, entrypoint: str, code: str):
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "main.py").write_text(HEAD + W + G)
    (project / "data.txt").write_text("")
    assert set(problems(project, W, entrypoint)) == {code}


def test_an_entrypoint_in_a_package_may_import_its_neighbours(tmp_path: Path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(HEAD + W + G)
    (package / "entry.py").write_text("from .parts import W, G\n")
    assert discover(str(tmp_path), "pkg/entry.py").workflow.__name__ == "W"
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "near.py").write_text(HEAD + W + G)
    (folder / "entry.py").write_text("from near import W, G\n")
    assert discover(str(tmp_path), "plain/entry.py").workflow.__name__ == "W"


def test_an_entrypoint_may_have_the_name_of_a_known_module(tmp_path: Path):
    (tmp_path / "json.py").write_text(HEAD + W + G)
    assert discover(str(tmp_path), "json.py").workflow.__name__ == "W"
    assert json.loads("1") == 1


CONFIG = """
class C(AgentWorkflowConfig):
    name: str = "c"
    temperature: float = 1.0
    turns: int = 8
class W(AgentWorkflow[C]):
    async def run(self, ctx): pass
"""


def test_overrides_reach_the_config_instance(tmp_path: Path):
    rollout = found(
        tmp_path,
        CONFIG + G + "config = C(turns=3, extra='kept')\ngrading = GraderConfig(name='g')\n",
        workflow={"temperature": 0, "concurrency": {"max_concurrent": 2}},
        grader={"name": "strict"},
    )
    config: Any = rollout.workflow_config
    assert type(config).__name__ == "C"
    assert (config.temperature, config.turns, config.extra) == (0.0, 3, "kept")
    assert config.concurrency.max_concurrent == 2
    assert rollout.grader_config is not None
    assert rollout.grader_config.name == "strict"


def test_without_an_instance_the_declared_config_is_built(tmp_path: Path):
    rollout = found(tmp_path, CONFIG + G, workflow={"turns": 2}, grader={"judge": "j"})
    config: Any = rollout.workflow_config
    assert (type(config).__name__, config.turns, config.temperature) == ("C", 2, 1.0)
    grading: Any = rollout.grader_config
    assert (grading.name, grading.judge) == ("G", "j")
    assert found(tmp_path, CONFIG + G).workflow_config is None


def test_overrides_that_do_not_fit_list_field_and_reason(tmp_path: Path):
    got = problems(
        tmp_path,
        CONFIG + G,
        workflow={"turns": "many", "concurrency": {"max_concurrent": 0}},
        grader={"concurrency": 3},
    )
    assert set(got) == {"workflow_config_invalid", "grader_config_invalid"}
    message = got["workflow_config_invalid"].message
    assert "`C`" in message
    assert "turns: Input should be a valid integer" in message
    assert "concurrency.max_concurrent: Input should be greater than or equal to 1" in message


def test_a_config_that_is_wrong_at_import_names_its_field(tmp_path: Path):
    problem = problems(tmp_path, CONFIG + G + "config = C(turns='many')\n")["import_failed"]
    assert "turns" in problem.message
    assert "valid integer" in problem.message


def test_an_abstract_workflow_alone_is_no_workflow(tmp_path: Path):
    source = "class Base(AgentWorkflow):\n    def help(self): pass\nclass More(Base): pass\n"
    message = problems(tmp_path, source + G)["no_workflow"].message
    for name in ("`Base` (main.py:2)", "`More` (main.py:4)"):
        assert f"{name} does not implement `run`" in message


def test_an_app_that_is_served_needs_no_warning_and_names_the_configs(tmp_path: Path):
    serving = (
        "from rest import app\n",
        "app = create_rollout_server(backend=LocalBackend(workflow=W, workflow_config=two))\n",
        "def serve(): return rollout.create_rollout_server(backend=None)\n",
    )
    (tmp_path / "rest.py").write_text(
        HEAD
        + "from osmosis_ai.rollout.server import create_rollout_server\n"
        + W
        + "app = create_rollout_server(backend=LocalBackend(workflow=W))\n"
    )
    head = "from osmosis_ai.rollout.server import create_rollout_server\n"
    configs = "one = C(turns=1)\ntwo = C(turns=2)\n"
    for line in serving:
        extra = configs if "two" in line else "one = C(turns=2)\n"
        rollout = found(tmp_path, head + CONFIG + G + extra + line)
        assert rollout.warnings == []
        config: Any = rollout.workflow_config
        assert config.turns == 2


def test_an_unknown_key_is_kept_and_remarked(tmp_path: Path):
    rollout = found(tmp_path, CONFIG + G, workflow={"temperatur": 0.5})
    assert any("did you mean `temperature`?" in warning for warning in rollout.warnings)
    config: Any = rollout.workflow_config
    assert config.temperatur == 0.5


def test_a_config_given_to_the_backend_beats_the_discovered_ones(tmp_path: Path):
    source = (
        CONFIG
        + G
        + "one = C(turns=1)\ntwo = C(turns=2)\n"
        + "backend = LocalBackend(workflow=W, workflow_config=two, grader=G)\n"
    )
    config: Any = found(tmp_path, source).workflow_config
    assert config.turns == 2


def test_the_example_of_the_readme_is_a_rollout(tmp_path: Path):
    pytest.importorskip("agents")
    readme = Path(__file__).parent.parent / "README.md"
    (example,) = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.M | re.S)
    (tmp_path / "main.py").write_text(example)
    rollout = discover(str(tmp_path), "main.py")
    assert (rollout.workflow.__name__, rollout.grader.__name__) == ("Answer", "Exact")
