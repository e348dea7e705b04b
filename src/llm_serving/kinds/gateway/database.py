"""The gateway's Postgres: its programs on this machine, who logs in, and SQL through psql."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
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

_TIMEOUT_S = 300.0


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
    return shutil.which(name) or (str(newest) if newest else None)


def find_missing() -> str:
    """Return the first program that this machine lacks; empty if it has all."""
    return next((name for name in _PROGRAMS if find_program(name) is None), "")


def read_password(data_folder: Path) -> str:
    """Read the password of a deployment's database.

    Raises:
        Unavailable: there is none: it was never started.
    """
    file = data_folder / PASSWORD_FILE
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}. Fix: deploy the gateway again.") from None


def read_login(port: int, data_folder: Path) -> Login:
    """Return the login to a deployment's database on this machine.

    Raises:
        Unavailable: it was never started.
    """
    return Login(read_password(data_folder), port)


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


def query(login: Login, statement: str) -> list[Any]:
    """Return the rows of a SELECT as dictionaries.

    Raises:
        Unavailable: the database does not answer, or refuses.
    """
    wrapped = f"SELECT coalesce(json_agg(rows), '[]') FROM ({statement}) AS rows"
    rows: list[Any] = json.loads(execute(login, ["--command", wrapped]))
    return rows


def execute(login: Login, arguments: Sequence[str]) -> str:
    """Run psql, and return its output.

    Raises:
        Unavailable: the database does not answer, or refuses.
    """
    options = ("--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1")
    address = (f"--host={login.host}", f"--port={login.port}", f"--username={login.user}", f"--dbname={USER}")
    tls = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": login.authority} if login.authority else {}
    program = find_program("psql")
    if program is None:
        raise Unavailable(f"psql: there is none on this machine. Fix: {INSTALL}.")
    done = subprocess.run(
        [program, *options, *address, *arguments],
        env={**os.environ, "PGPASSWORD": login.password, **tls},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"psql ended with {done.returncode}"]
        raise Unavailable(f"the gateway's database refuses: {lines[-1]}. Fix: see `blueprint logs`, process postgres.")
    return done.stdout
