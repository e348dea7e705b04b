"""Runs the Postgres of a gateway on this machine: postgres_program.py PORT FOLDER."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from llm_serving.kinds.gateway import database
from llm_serving.services.service import LOOPBACK

_AS_NOBODY = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
"""Postgres refuses to run as root. In a user namespace of its own root is nobody, and owns the same files."""

_ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "INT")
"""A signal to end at once, whoever is connected. The one that subreaper.py asks for is lost in the user namespace."""


def main(port: int, folder: Path) -> None:
    """Create the database unless that is done, then become its server."""
    prefix = _AS_NOBODY if os.geteuid() == 0 else ()
    data_folder = folder / "data"
    if not (data_folder / "PG_VERSION").exists():
        _create(folder, data_folder, prefix)
    command = [*prefix, *_ENDS_WITH_PARENT, str(database.find_program("postgres")), "-D", str(data_folder)]
    command += ["-p", str(port), "-c", f"listen_addresses={LOOPBACK}", "-c", "unix_socket_directories="]
    os.execvp(command[0], command)


def _create(folder: Path, data: Path, prefix: tuple[str, ...]) -> None:
    """Create the cluster beside its place, and rename it once it has the database."""
    password_file = folder / database.PASSWORD_FILE
    password_file.touch(mode=0o600)
    password_file.write_text(secrets.token_hex(24), encoding="utf-8")
    partial = folder / "data.part"
    subprocess.run(["rm", "-rf", str(partial)], check=True)
    options = ["--auth=scram-sha-256", f"--username={database.USER}", f"--pwfile={password_file}", "--encoding=UTF8"]
    subprocess.run([*prefix, str(database.find_program("initdb")), "-D", str(partial), *options], check=True)
    subprocess.run(
        [*prefix, str(database.find_program("postgres")), "--single", "-D", str(partial), "postgres"],
        input=f"CREATE DATABASE {database.USER}\n",
        text=True,
        check=True,
    )
    partial.rename(data)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
