"""Runs LiteLLM's proxy on this machine: gateway_program.py HOST PORT DATABASE_PORT DATA_FOLDER.

It brings the database up to date first: LiteLLM's tables, and the teams of the blueprint.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from llm_serving.kinds.gateway import audit, database, litellm_env, litellm_settings
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import DATABASE
from llm_serving.validation.load import api_key

CONFIG_VARIABLE, TEAMS_VARIABLE = "GATEWAY_CONFIG", "GATEWAY_TEAMS"
"""LiteLLM's config.yaml, and the blueprint's teams, both in JSON."""

ADMIN, SALT = "admin", "salt"
"""Purposes of keys that come from the database's password."""

_APPLIED_TABLE = "blueprint_migrations"


def main(host: str, port: str, database_port: int, data_folder: Path) -> None:
    """Bring the database up to date, then become LiteLLM."""
    login = database.read_login(database_port, data_folder / DATABASE)
    migrate(login)
    database.execute(login, ["--single-transaction", "--command", audit.SCHEMA])
    teams = litellm_settings.load_teams(os.environ[TEAMS_VARIABLE])
    statements = litellm_settings.build_team_sql(teams)
    database.execute(login, ["--single-transaction", "--command", statements])
    folder = data_folder / "gateway"
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(os.environ[CONFIG_VARIABLE], encoding="utf-8")
    shutil.copy(Path(__file__).with_name("request_guard.py"), folder)
    os.environ.update(build_environment(login))
    os.chdir(folder)
    program = str(litellm_env.find_program("litellm"))
    os.execv(program, [program, "--config", str(config), "--host", host, "--port", port, "--num_workers", "1"])


def migrate(login: Login) -> None:
    """Apply those of LiteLLM's migrations that the database has not had. Some cannot run inside a transaction."""
    create = f"CREATE TABLE IF NOT EXISTS {_APPLIED_TABLE} (name text PRIMARY KEY, at timestamptz DEFAULT now())"
    database.execute(login, ["--command", create])
    applied = {row["name"] for row in database.query(login, f"SELECT name FROM {_APPLIED_TABLE}")}
    arguments: list[str] = []
    for file in litellm_env.find_migrations():
        if file.parent.name not in applied:
            record = f"INSERT INTO {_APPLIED_TABLE} (name) VALUES ('{file.parent.name}')"
            arguments += ["--file", str(file), "--command", record]
    if arguments:
        database.execute(login, arguments)


def build_environment(login: Login) -> dict[str, str]:
    """Build LiteLLM's variables."""
    return {
        "DATABASE_URL": database.format_url(login),
        "DISABLE_SCHEMA_UPDATE": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it downloads its list of prices
        "LITELLM_MASTER_KEY": database.derive_key(login.password, ADMIN),
        "LITELLM_SALT_KEY": database.derive_key(login.password, SALT),
        "PYTHONDONTWRITEBYTECODE": "",  # counts as unset: without byte code each start takes 16 CPU-seconds more
        "PATH": f"{os.environ['PATH']}{os.pathsep}{litellm_env.find_program('')}",
        api_key.VARIABLE: os.environ.get(api_key.VARIABLE) or "none",
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
