"""Runs LiteLLM's proxy on this machine: gateway_program.py HOST PORT DATABASE_PORT DATA_FOLDER.

It brings the database up to date first: LiteLLM's tables, and the teams of the blueprint.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from llm_serving.kinds.gateway import audit, database, litellm_settings
from llm_serving.kinds.gateway.blueprint import Blueprint
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import DATABASE
from llm_serving.validation.load import api_key

CONFIG_VARIABLE, TEAMS_VARIABLE = "GATEWAY_CONFIG", "GATEWAY_TEAMS"
"""LiteLLM's config.yaml, and the blueprint's teams, both in JSON."""

PERSONAL_DATA_VARIABLE, CACHED_VARIABLE = "GATEWAY_PERSONAL_DATA", "GATEWAY_CACHED"
SEMANTIC_VARIABLE = "GATEWAY_SEMANTIC"
"""What requests are searched for, for how many seconds routes keep answers, and which of them compare the meaning of
questions, in JSON."""

LOG_VARIABLE = "JSON_LOGS"
"""LiteLLM's own, in place of text."""

_HOOKS = ("litellm_mends.py", "request_guard.py", "personal_data.py", "semantic_cache.py")

ADMIN, SALT = "admin", "salt"
"""Purposes of keys that come from the database's password."""

_RUN_PROGRAM = """\
import gc, runpy, sys
gc.set_threshold(50_000, 20, 20)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Python searches for garbage after each 700 objects that an import makes. With a higher threshold LiteLLM imports in
8.3 and 10.2 CPU-seconds, not 10.6 and 12.2 (two each, in turn, 2026-11-27)."""

_APPLIED_TABLE = "blueprint_migrations"


def build_settings(
    settings: Blueprint, config: Mapping[str, Any], semantic: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Build the variables with LiteLLM's settings.

    Args:
        semantic: what `litellm_settings.build_semantic` builds; nothing where no route compares meanings.
    """
    return {
        CONFIG_VARIABLE: litellm_settings.dump(config),
        TEAMS_VARIABLE: litellm_settings.dump_teams(settings.teams),
        PERSONAL_DATA_VARIABLE: litellm_settings.dump(litellm_settings.find_personal_data(settings)),
        CACHED_VARIABLE: litellm_settings.dump(
            {name: route.cache.keep for name, route in settings.routes.items() if route.cache}
        ),
        SEMANTIC_VARIABLE: litellm_settings.dump(semantic or {}),
        **({LOG_VARIABLE: "true"} if settings.logs == "json" else {}),
    }


def main(host: str, port: str, database_port: int, data_folder: Path) -> None:
    """Start LiteLLM of this machine's environment."""
    from llm_serving.kinds.gateway import litellm_env  # a container has none

    login = database.read_login(database_port, data_folder / DATABASE)
    program = litellm_env.find_program("litellm")
    prepare(login, program)
    start(login, login.password, data_folder / "gateway", (host, port), program)


def prepare(login: Login, program: Path) -> None:
    """Bring the database up to date: LiteLLM's tables, the audit, the teams of the blueprint."""
    migrate(login, find_migrations(program))
    audit.prepare(login)
    database.execute(login, litellm_settings.build_team_sql(os.environ[TEAMS_VARIABLE]))


def start(login: Login, secret: str, folder: Path, address: tuple[str, str], program: Path) -> NoReturn:
    """Write the settings, then become LiteLLM.

    Args:
        secret: what its keys come from.
        address: host and port.
    """
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(os.environ[CONFIG_VARIABLE], encoding="utf-8")
    for hook in _HOOKS:
        shutil.copy(Path(__file__).with_name(hook), folder)
    os.environ.update(build_environment(login, secret))
    os.environ["PATH"] += f"{os.pathsep}{program.parent}"
    os.chdir(folder)
    host, port = address
    python = str(program.with_name("python3"))
    words = [str(program), "--config", str(config), "--host", host, "--port", port, "--num_workers", "1"]
    os.execv(python, [python, "-P", "-c", _RUN_PROGRAM, *words])


def find_migrations(program: Path) -> list[Path]:
    """List LiteLLM's statements for its database, in their order, by its program."""
    package = next(program.parent.parent.glob("lib/python3*/*-packages/litellm_proxy_extras"))
    return sorted(package.glob("migrations/*/migration.sql"))


def migrate(login: Login, files: Sequence[Path]) -> None:
    """Apply those of LiteLLM's migrations that the database has not had. Some cannot run inside a transaction."""
    create = f"CREATE TABLE IF NOT EXISTS {_APPLIED_TABLE} (name text PRIMARY KEY, at timestamptz DEFAULT now())"
    database.execute(login, create)
    applied = {row["name"] for row in database.query(login, f"SELECT name FROM {_APPLIED_TABLE}")}
    statements = [
        f"{file.read_text(encoding='utf-8')}\n;INSERT INTO {_APPLIED_TABLE} (name) VALUES ('{file.parent.name}');\n"
        for file in files
        if file.parent.name not in applied
    ]
    if statements:
        database.execute(login, "".join(statements), as_one=False)


def build_environment(login: Login, secret: str) -> dict[str, str]:
    """Build LiteLLM's variables."""
    return {
        "DATABASE_URL": database.format_url(login),
        # Of OpenAI's client, whatever a route says: an embedding would be sent three times for each attempt.
        "DEFAULT_MAX_RETRIES": "0",
        "DISABLE_SCHEMA_UPDATE": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it downloads its list of prices
        "LITELLM_MASTER_KEY": database.derive_key(secret, ADMIN),
        "LITELLM_SALT_KEY": database.derive_key(secret, SALT),
        # LiteLLM asks its database every 30 s; without an answer for so long it ends the client, and requests under way
        # with it. Its own 5 s pass on a busy machine, where nothing is wrong.
        "PRISMA_HEALTH_WATCHDOG_PROBE_TIMEOUT_SECONDS": "30",
        "PYTHONDONTWRITEBYTECODE": "",  # counts as unset: without byte code each start takes 16 CPU-seconds more
        api_key.VARIABLE: os.environ.get(api_key.VARIABLE) or "none",
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
