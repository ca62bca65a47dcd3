"""Runs the code blocks of a guide, section by section, for real.

    guide.py GUIDE list                  the headings of sections with blocks, as JSON
    guide.py GUIDE run HEADING           runs a section's blocks in an empty folder
    guide.py GUIDE types HEADING...      checks the Python of these sections with a strict checker

A section is what stands below a `## ` heading. Its blocks are taken in order:

- a block with `title="PATH"` is written to that file;
- a `console` block holds commands (`$ `), each with lines its output must have, in that order. `…`
  in a line stands for anything, and `(exit code N)` for the code of a command that is meant to fail;
- any other block is an error, and so is a file that nothing uses.

`osmosis` is the one in OSMOSIS_BIN and `python` is this one; ports are replaced by free ones.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

SDK = Path(__file__).resolve().parents[4] / "python"
PORTS = ("8000", "9000")
COMMAND_LIMIT_SECONDS = 240


class GuideError(Exception):
    """The guide says something that is not so."""


@dataclass
class Step:
    line: int
    command: str
    expected: list[str] = field(default_factory=list)


@dataclass
class File:
    line: int
    path: str
    text: str


@dataclass
class Section:
    heading: str
    parts: list[Step | File] = field(default_factory=list)

    def files(self) -> list[File]:
        return [part for part in self.parts if isinstance(part, File)]

    def steps(self) -> list[Step]:
        return [part for part in self.parts if isinstance(part, Step)]


def read(guide: Path) -> list[Section]:
    sections = [Section("")]
    lines = guide.read_text().split("\n")
    index = 0
    while index < len(lines):
        line, index = lines[index], index + 1
        if line.startswith("## "):
            sections.append(Section(line[3:].strip()))
        fence = re.match(r"( *)```(.*)", line)
        if fence is None:
            continue
        start, body = index, []
        while index < len(lines) and lines[index].strip() != "```":
            body.append(lines[index])
            index += 1
        if index == len(lines):
            raise GuideError(f"line {start}: the block has no end")
        index += 1
        text = textwrap.dedent("\n".join(body) + "\n")
        sections[-1].parts += block(fence[2].strip(), text, start)
    if sections[0].parts:
        raise GuideError("a block before the first heading: no section runs it")
    return [section for section in sections if section.parts]


def block(info: str, text: str, line: int) -> list[Step | File]:
    titled = re.fullmatch(r'[a-z]+ title="([^"]+)"', info)
    if titled:
        return [File(line, titled[1], text)]
    if info != "console":
        raise GuideError(
            f"line {line}: nothing runs a block of kind `{info}`; "
            "give it a title or make it `console`"
        )
    steps: list[Step] = []
    for number, said in enumerate(text.splitlines(), line + 1):
        if said.startswith("$ "):
            steps.append(Step(number, said[2:]))
        elif not steps:
            raise GuideError(f"line {number}: output before the first command")
        elif steps[-1].command.endswith("\\"):
            steps[-1].command = steps[-1].command[:-1] + said.strip()
        elif said.strip():
            steps[-1].expected.append(said)
    return list(steps)


class Runner:
    """One section in a folder of its own."""

    def __init__(self, section: Section, root: Path) -> None:
        self.section = section
        self.root = root
        self.marks = root / ".executed"
        self.started: list[subprocess.Popen[bytes]] = []
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))

    def run(self) -> None:
        try:
            for part in self.section.parts:
                if isinstance(part, File):
                    self.write(part)
                else:
                    self.link_environments()
                    self.execute(part)
            self.check_files_are_used()
        finally:
            for process in self.started:
                end_group(process.pid)

    def real(self, text: str) -> str:
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(free), text)
        return text

    def write(self, file: File) -> None:
        path = self.root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.real(file.text)
        if path.suffix == ".py":
            self.marks.mkdir(exist_ok=True)
            mark = str(self.marks / file.path.replace("/", "+"))
            # Last, so that no line moves: it shows that everything before it was executed.
            text += f"open({mark!r}, 'w').close()\n"
        path.write_text(text)

    def link_environments(self) -> None:
        """Gives each rollout this environment, which holds what its `pyproject.toml` asks for."""
        for rollout in self.root.glob("rollouts/*/"):
            if not (rollout / ".venv").exists():
                (rollout / ".venv").symlink_to(sys.prefix)

    def execute(self, step: Step) -> None:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["bash", "-c", self.real(step.command)],
                cwd=self.root,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # What it leaves in the background is ended with the section.
            self.started.append(process)
            try:
                code = process.wait(COMMAND_LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            output.seek(0)
            said = output.read().decode(errors="replace")
        shown = f"line {step.line}: $ {step.command}\n{textwrap.indent(said, '    ')}"
        print(shown, flush=True)
        expected = list(step.expected)
        wanted = 0
        if expected and (ending := re.fullmatch(r"\(exit code (\d+)\)", expected[-1].strip())):
            wanted = int(ending[1])
            expected.pop()
        if code != wanted:
            raise GuideError(f"exit code {code} instead of {wanted} of {shown}")
        rest = squeezed(said)
        for line in expected:
            pattern = ".*?".join(map(re.escape, squeezed(line).split("…")))
            found = re.search(pattern, rest)
            if found is None:
                raise GuideError(
                    f"no line `{line.strip()}` (in this order) in the output of {shown}"
                )
            rest = rest[found.end() :]

    def environment(self) -> dict[str, str]:
        binary = Path(os.environ["OSMOSIS_BIN"])
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in {"OPENAI_API_KEY", "VIRTUAL_ENV", "PYTHONHOME"}
            and not name.lower().endswith("_proxy")
        }
        return {
            **kept,
            "PATH": f"{binary.parent}:{Path(sys.executable).parent}:{kept['PATH']}",
            "PYTHONPATH": str(SDK),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
            "TMPDIR": str(self.root),
        }

    def check_files_are_used(self) -> None:
        # Configs, given or made by a command, name what they use.
        naming = [step.command for step in self.section.steps()]
        naming += [path.read_text() for path in self.root.glob("configs/**/*.toml")]
        for file in self.section.files():
            path = Path(file.path)
            if path.suffix == ".py":
                used = (self.marks / file.path.replace("/", "+")).exists()
            elif path.parts[0] == "data":
                used = any(f'dataset = "{path.stem}"' in text for text in naming)
            else:
                used = path.name == "pyproject.toml" or any(file.path in text for text in naming)
            if not used:
                raise GuideError(f"line {file.line}: nothing uses `{file.path}`")


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def check_types(sections: list[Section]) -> None:
    """Puts every section into a package of its own and asks the checker once for all."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for number, section in enumerate(sections):
            python = [file for file in section.files() if file.path.endswith(".py")]
            for file in python:
                path = root / f"s{number}" / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                neighbours = {
                    Path(f.path).stem
                    for f in python
                    if Path(f.path).parent == Path(file.path).parent
                }
                package = ".".join([f"s{number}", *Path(file.path).parent.parts])
                text = file.text
                for name in neighbours:
                    text = re.sub(
                        rf"^from {name} import", f"from {package}.{name} import", text, flags=re.M
                    )
                path.write_text(text)
        # As it is for a user, who has the SDK installed: its own files are not looked into.
        silent = "[mypy-osmosis_ai.*]\nfollow_imports = silent\n"
        (root / "mypy.ini").write_text(f"[mypy]\n\n{silent}")
        command = [sys.executable, "-m", "mypy", "--strict", "--namespace-packages"]
        command += ["--explicit-package-bases", "--cache-dir", os.environ["MYPY_CACHE"], "."]
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, "MYPYPATH": str(SDK)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise GuideError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def chosen(sections: list[Section], headings: list[str]) -> list[Section]:
    by_heading = {section.heading: section for section in sections}
    try:
        return [by_heading[heading] for heading in headings]
    except KeyError as error:
        raise GuideError(f"no section {error} has blocks") from None


def main(guide: str, task: str, *headings: str) -> None:
    sections = read(Path(guide))
    if task == "list":
        print(json.dumps([section.heading for section in sections]))
    elif task == "types":
        check_types(chosen(sections, list(headings)))
    else:
        for section in chosen(sections, list(headings)):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                Runner(section, Path(folder).resolve()).run()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except GuideError as error:
        sys.exit(f"{sys.argv[1]}, {error}")
