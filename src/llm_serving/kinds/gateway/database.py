"""The gateway's Postgres: its programs on this machine, who logs in, and SQL through psql."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.services.service import LOOPBACK
from llm_serving.settings.errors import Unavailable

USER = "gateway"
PASSWORD_FILE = "password"
INSTALL = "run `sudo apt-get install postgresql`"

_PROGRAMS = ("initdb", "postgres", "psql")
_DEBIAN = Path("/usr/lib/postgresql")
"""Where Debian has the servers' programs, in VERSION/bin, and not on PATH."""

_WRAPPER = "pg_wrapper"
"""What Debian has on PATH for psql: a script in Perl that starts the newest, in 35 ms of CPU where psql takes 6."""

_TIMEOUT_S = 900.0
"""Of statements. Of rows of former versions, which have the counters of each engine, a month with 1,000 engines takes 3
minutes of a core (Postgres 15.18, 2026-11-30)."""

_LOCK = 8_214_001
"""Number of the lock; nobody else takes one in this database."""

_LOCK_TIMEOUT_S, _POLL_S = 900.0, 0.5

_ITERATIONS = 4096
"""Of a password's hash; Postgres' own default."""


class Login(NamedTuple):
    """Who logs in to a database, and where."""

    password: str
    port: int
    host: str = LOOPBACK
    user: str = USER
    authority: str = ""
    """File with the certificate of the authority that signed the server's; empty without TLS, on this machine."""


def find_program(name: str) -> str | None:
    """Find a program of Postgres on PATH, or Debian's newest; None if there is none."""
    installed = _DEBIAN.glob(f"*/bin/{name}")
    newest = max(installed, key=lambda path: int(re.sub(r"\D", "", path.parts[-3]) or 0), default=None)
    on_path = shutil.which(name)
    if on_path and Path(on_path).resolve().name != _WRAPPER:
        return on_path
    return str(newest) if newest else on_path


def find_missing() -> str:
    """Return the first program that this machine lacks; empty if it has all."""
    return next((name for name in _PROGRAMS if find_program(name) is None), "")


def read_login(port: int, data_folder: Path) -> Login:
    """Return the login to a deployment's database on this machine.

    Raises:
        Unavailable: it was never started.
    """
    file = data_folder / PASSWORD_FILE
    try:
        return Login(file.read_text(encoding="utf-8"), port)
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}. Fix: deploy the gateway again.") from None


def derive_key(password: str, purpose: str) -> str:
    """Return the key for a purpose, which only who knows the database's password can."""
    return f"sk-{hashlib.sha256(f'{purpose} {password}'.encode()).hexdigest()}"


def format_url(login: Login) -> str:
    """Return the database's address as Prisma reads it."""
    tls = f"?sslmode=require&sslaccept=strict&sslcert={login.authority}" if login.authority else ""
    return f"postgresql://{login.user}:{login.password}@{login.host}:{login.port}/{USER}{tls}"


def quote(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def read_statement(name: str, **values: object) -> str:
    """Return sql/NAME.sql with `values` in place of {KEYS}."""
    file = Path(__file__).with_name("sql") / f"{name}.sql"
    return file.read_text(encoding="utf-8").rstrip().format(**values)


def query(login: Login, statement: str) -> list[Any]:
    """Return the rows of a SELECT as dictionaries.

    Raises:
        Unavailable: the database does not answer, or refuses.
    """
    wrapped = f"SELECT coalesce(json_agg(rows), '[]') FROM ({statement}) AS rows"
    rows: list[Any] = json.loads(execute(login, wrapped))
    return rows


def execute(login: Login, statements: str, *, as_one: bool = True) -> str:
    """Run SQL by psql, and return its output.

    Args:
        statements: with semicolons between. They go to psql's standard input: Linux takes no argument above 128 KiB,
            and a meter of 3,000 engines writes more at once.
        as_one: all of them in a transaction, or none; False for what cannot run in one.

    Raises:
        Unavailable: the database does not answer, or refuses.
    """
    try:
        done = subprocess.run(
            [*_build_command(login), "--file=-", *(["--single-transaction"] if as_one else [])],
            env=_build_environment(login),
            input=statements,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_TIMEOUT_S:.0f} s"
        raise Unavailable(f"the gateway's database: {reason}. Fix: see `blueprint logs`, process postgres.") from None
    if done.returncode:
        errors = (line for line in done.stderr.splitlines() if "error:" in line.lower())  # further lines are hints
        reason = next(errors, f"psql ended with {done.returncode}")
        raise Unavailable(f"the gateway's database refuses: {reason}. Fix: see `blueprint logs`, process postgres.")
    return done.stdout


@contextlib.contextmanager
def lock(login: Login) -> Iterator[None]:
    """Hold a lock of the database for the block: of programs that prepare it at once, one works and the others wait.

    They ask again and again: CREATE INDEX CONCURRENTLY waits for every statement, also for one that waits for a lock.

    Raises:
        Unavailable: the database does not answer, or another program holds the lock for too long.
    """
    command, variables = _build_command(login), _build_environment(login)
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdin and session.stdout
        deadline, answer = time.monotonic() + _LOCK_TIMEOUT_S, "f"
        while answer == "f" and time.monotonic() < deadline:
            session.stdin.write(f"SELECT pg_try_advisory_lock({_LOCK});\n")
            session.stdin.flush()
            answer = session.stdout.readline().strip()
            if answer == "f":
                time.sleep(_POLL_S)
        if answer != "t":
            reason = "another program prepares it" if answer else "it does not answer"
            raise Unavailable(f"the gateway's database: {reason}. Fix: see `blueprint logs`.")
        yield
        session.stdin.close()  # with which the session and its lock end


def create_user(owner: Login, password: str) -> None:
    """Create the user that owns the database's tables, with a password; again where it exists.

    Args:
        owner: who may create users.

    Raises:
        Unavailable: the database does not answer, or refuses.
    """
    statement = read_statement("create_user", user=USER, password=hash_password(password))
    execute(owner, statement)


def hash_password(password: str) -> str:
    """Return what Postgres keeps of a password, so that no log of statements has the password itself.

    Source: PostgreSQL 17, src/common/scram-common.c, scram_build_secret.
    """
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"


def _build_command(login: Login) -> list[str]:
    program = find_program("psql")
    if program is None:
        raise Unavailable(f"psql: not found on PATH. Fix: {INSTALL}.")
    options = ("--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1")
    address = (f"--host={login.host}", f"--port={login.port}", f"--username={login.user}", f"--dbname={USER}")
    return [program, *options, *address]


def _build_environment(login: Login) -> dict[str, str]:
    tls = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": login.authority} if login.authority else {}
    return {**os.environ, "PGPASSWORD": login.password, **tls}
