"""Several machines on one: network namespaces with addresses of their own, a PostgreSQL in one of them, and processes
that can be killed, paused, cut off from the others, or given another clock. A part of `cluster.py` and of
`python/tests/ray_cluster.py`.

Every process is in one of our namespaces, so that all of them are found, counted and ended. That needs root.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

SUBNET = "10.77.0"
PASSWORD = "only-for-this-bench"
FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
# What is missing is installed: Debian's package for each program.
PROGRAMS = {"ip": "iproute2", "nft": "nftables", "faketime": "faketime"}
_TICKS = os.sysconf("SC_CLK_TCK")


def run(*command: str, quiet: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not quiet:
        raise SystemExit(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def install_missing() -> None:
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root")
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not list(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        config = pathlib.Path("/etc/postgresql-common/createcluster.conf")
        config.parent.mkdir(exist_ok=True)
        config.write_text("create_main_cluster = false\n")
        missing.append("postgresql")
    if missing:
        run("apt-get", "update")
        run("apt-get", "install", "-y", "--no-install-recommends", *missing)


class Network:
    """A bridge in a namespace of its own, and namespaces that are connected with it."""

    def __init__(self) -> None:
        self.prefix = f"osm{os.getpid()}"
        self.hub = f"{self.prefix}-hub"
        self.names: list[str] = []
        self._remove_left()
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.hub, "link", "set", "br0", "up")

    def add(self, name: str) -> Host:
        host = Host(f"{self.prefix}-{name}", f"{SUBNET}.{len(self.names) + 2}", len(self.names))
        self.names.append(host.namespace)
        ours, theirs = f"v{host.number}h", f"v{host.number}"
        run("ip", "netns", "add", host.namespace)
        run("ip", "-n", self.hub, "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", host.namespace)
        run("ip", "-n", self.hub, "link", "set", ours, "master", "br0", "up")
        run("ip", "-n", host.namespace, "link", "set", theirs, "name", "eth0")
        run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", host.namespace, "link", "set", device, "up")
        return host

    @staticmethod
    def can_be_made() -> bool:
        name = f"osm{os.getpid()}-try"
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        run("ip", "netns", "del", name, quiet=True)
        return made.returncode == 0

    def processes(self, host: Host | None = None) -> list[int]:
        """All that are in one of the namespaces, or in one's."""
        names = [self.hub, *self.names] if host is None else [host.namespace]
        inodes = {os.stat(f"/run/netns/{name}").st_ino for name in names}
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if os.stat(entry / "ns/net").st_ino in inodes:
                    found.append(int(entry.name))
        return found

    def cpu_seconds(self) -> float:
        """Of all processes in the namespaces, with those that they have waited for."""
        ticks = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(field) for field in fields[11:15])
        return ticks / _TICKS

    def remove(self) -> None:
        for _ in range(50):
            found = self.processes()
            if not found:
                break
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for name in [*self.names, self.hub]:
            run("ip", "netns", "del", name, quiet=True)

    def _remove_left(self) -> None:
        """Of a bench that was killed."""
        for line in run("ip", "netns", "list").splitlines():
            name = line.split()[0]
            if name.startswith("osm") and "-" in name:
                pid = name[3:].partition("-")[0]
                if pid.isdigit() and not pathlib.Path(f"/proc/{pid}").exists():
                    run("ip", "netns", "del", name, quiet=True)


class Loopback:
    """Where namespaces can't be made: processes on addresses of this machine. They can't be cut off."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []

    def add(self, name: str) -> Host:
        del name
        host = Host("", f"127.0.1.{len(self.hosts) + 2}", len(self.hosts))
        self.hosts.append(host)
        return host

    def processes(self, host: Host | None = None) -> list[int]:
        """All below those that were started."""
        parents: dict[int, list[int]] = {}
        for line in run("ps", "-eo", "pid=,ppid=").splitlines():
            pid, parent = map(int, line.split())
            parents.setdefault(parent, []).append(pid)
        hosts = self.hosts if host is None else [host]
        found = [p.popen.pid for each in hosts for p in each.started if p.code is None]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def remove(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


class Host:
    """One namespace, as a machine; without one, an address of this machine."""

    def __init__(self, namespace: str, address: str, number: int) -> None:
        self.namespace = namespace
        self.address = address
        self.number = number
        self.started: list[Process] = []

    def reaches(self, address: str, port: int) -> bool:
        """Whether something listens there."""
        probe = f"import socket; socket.create_connection(({address!r}, {port}), 1)"
        command = [*self._enter(), sys.executable, "-c", probe]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _enter(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def start(self, command: list[str], log: pathlib.Path, environment: dict[str, str], **more: object) -> Process:
        # It ends with this program, however that ends.
        whole = [*self._enter(), "setpriv", "--pdeathsig", "KILL", *command]
        with log.open("ab") as out:
            popen = subprocess.Popen(
                whole,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                **more,  # type: ignore[call-overload]
            )
        process = Process(popen)
        self.started.append(process)
        return process

    def cut(self, silently: bool) -> None:
        """From all others. Silently: packets get lost, and nobody is told."""
        if silently:
            rules = "add table inet cut; add chain inet cut in { type filter hook input priority 0; policy drop; }; "
            rules += "add chain inet cut out { type filter hook output priority 0; policy drop; }; "
            rules += 'add rule inet cut in iif "lo" accept; add rule inet cut out oif "lo" accept'
            run("ip", "netns", "exec", self.namespace, "nft", rules)
        else:
            run("ip", "-n", self.namespace, "link", "set", "eth0", "down")

    def mend(self) -> None:
        run("ip", "netns", "exec", self.namespace, "nft", "delete table inet cut", quiet=True)
        run("ip", "-n", self.namespace, "link", "set", "eth0", "up")


class Process:
    """A program of ours on one of the hosts."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self.paused = False

    @property
    def code(self) -> int | None:
        return self.popen.poll()

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait()


class Postgres:
    """A server of our own, with fsync, that can be killed and started again."""

    def __init__(self, host: Host, folder: pathlib.Path) -> None:
        self.host = host
        self.folder = folder
        self.data = folder / "data"
        self.bin = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
        self.port = 5432 if host.namespace else 20_000 + os.getpid() % 20_000
        self.url = f"postgres://bench:{PASSWORD}@{host.address}:{self.port}/bench"
        folder.mkdir()
        self.user = ["setpriv", "--reuid", "postgres", "--clear-groups"] if os.geteuid() == 0 else []
        if self.user:
            shutil.chown(folder, "postgres")
        run(*self.user, str(self.bin / "initdb"), "-D", str(self.data), "-E", "UTF8", "-A", "trust", "-U", "postgres")
        with (self.data / "pg_hba.conf").open("w") as rules:
            rules.write("local all all trust\nhost all all all scram-sha-256\n")
        self.process = self._start()
        self.sql(f"CREATE ROLE bench LOGIN CREATEROLE PASSWORD '{PASSWORD}'", "postgres")
        self.sql("CREATE DATABASE bench OWNER bench", "postgres")

    def sql(self, statement: str, database: str = "bench") -> str:
        command = [str(self.bin / "psql"), "-h", str(self.folder), "-p", str(self.port), "-U", "postgres"]
        command += ["-d", database, "-AtXqc", statement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DatabaseAwayError(done.stderr.strip())
        return done.stdout.strip()

    def crash(self) -> None:
        """The server and all its processes at once, as if the machine had lost power."""
        pid = self.process.popen.pid
        children = run("ps", "-o", "pid=", "--ppid", str(pid), quiet=True).split()
        for each in [pid, *map(int, children)]:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        self.process.popen.wait()

    def start_again(self) -> None:
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.process = self._start()

    def stop(self) -> None:
        self.process.signal(signal.SIGQUIT)
        self.process.popen.wait()

    def _start(self) -> Process:
        command = [
            # Changing the user undoes what was asked for before.
            *(*self.user, "setpriv", "--pdeathsig", "KILL", str(self.bin / "postgres"), "-D", str(self.data)),
            *("-k", str(self.folder), "-h", self.host.address, "-p", str(self.port)),
            *("-c", "max_connections=200", "-c", "shared_buffers=64MB"),
        ]
        process = self.host.start(command, self.folder / "log", {})
        for _ in range(600):
            if process.code is not None:
                raise SystemExit(f"PostgreSQL did not start: see {self.folder / 'log'}")
            with contextlib.suppress(DatabaseAwayError):
                self.process = process
                self.sql("SELECT 1", "postgres")
                return process
            time.sleep(0.1)
        raise SystemExit("PostgreSQL did not start within a minute")


class DatabaseAwayError(Exception):
    """The server does not answer."""


@contextlib.contextmanager
def network() -> Iterator[Network]:
    install_missing()
    made = Network()
    try:
        yield made
    finally:
        made.remove()
