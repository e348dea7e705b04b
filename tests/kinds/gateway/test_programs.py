"""What a gateway's programs need: what is missing is named with the command that installs it, and what is pinned stays."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import console, paths, processes
from llm_serving.kinds.gateway import database, gateway_program, postgres_program, prisma_types
from llm_serving.kinds.gateway.kind import Postgres
from llm_serving.kinds.gateway.litellm_env import LiteLlmEnv
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import subreaper

LOCK = (paths.ROOT / "requirements" / "gateway.txt").read_text()


def test_the_lock_has_no_package_whose_licence_forbids_production_use() -> None:
    names = re.findall(r"^([a-z0-9._-]+)==", LOCK, re.MULTILINE)
    assert {"litellm", "litellm-proxy-extras", "prisma"} <= set(names)
    assert "litellm-enterprise" not in names


def test_the_lock_has_no_version_that_is_known_to_be_unsafe() -> None:
    version = re.search(r"^litellm==([0-9.]+)", LOCK, re.MULTILINE)
    assert version and tuple(map(int, version[1].split("."))) >= (1, 83, 7)


def test_a_machine_without_postgres_is_told_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "find_program", lambda name: None if name == "initdb" else f"/usr/bin/{name}")
    assert not Postgres().is_installed()
    with pytest.raises(Unavailable) as missing:
        Postgres().install(print)
    assert str(missing.value) == (
        "initdb: not found on this machine; a gateway needs it. Fix: run `sudo apt-get install postgresql`."
    )


def test_debian_s_newest_postgres_is_found_off_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9", "15"):
        program = tmp_path / version / "bin" / "initdb"
        program.parent.mkdir(parents=True)
        program.touch()
    monkeypatch.setattr(database, "_DEBIAN", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert database.find_program("initdb") == str(tmp_path / "15" / "bin" / "initdb")
    assert database.find_program("psql") is None


def test_postgres_ends_with_the_program_that_watches_it_even_while_a_client_is_connected(tmp_path: Path) -> None:
    if missing := database.find_missing():
        pytest.skip(f"{missing}: there is none on this machine. To run this test: {database.INSTALL}")
    (port,) = processes.claim_free_ports(1)
    command = [sys.executable, subreaper.__file__, sys.executable, postgres_program.__file__, str(port), str(tmp_path)]
    watcher = processes.spawn(command)

    def is_connected() -> bool:
        with contextlib.suppress(Unavailable):
            return bool(database.query(database.read_login(port, tmp_path), "SELECT 1 AS one"))
        return False

    try:
        processes.wait_until(is_connected, "Postgres", 120)
        postgres = psutil.Process(int((tmp_path / "data" / "postmaster.pid").read_text().splitlines()[0]))
        with ThreadPoolExecutor() as pool:
            client = pool.submit(database.execute, database.read_login(port, tmp_path), "SELECT pg_sleep(600)")
            watcher.kill()
            try:
                postgres.wait(60)
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):
                    postgres.kill()
            assert isinstance(client.exception(), Unavailable)
    finally:
        processes.stop(watcher)


@pytest.mark.parametrize(("target", "is_debian_s"), [("pg_wrapper", True), ("psql-17", False)])
def test_psql_is_the_program_behind_debian_s_slow_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, is_debian_s: bool
) -> None:
    (tmp_path / "psql").symlink_to(tmp_path / target)
    program = tmp_path / "15" / "bin" / "psql"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(database, "_DEBIAN", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name))
    assert database.find_program("psql") == str(program if is_debian_s else tmp_path / "psql")


def test_a_query_engine_that_cannot_be_downloaded_is_named_with_what_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, log: Path, **__: object) -> None:
        log.write_text("getaddrinfo ENOTFOUND binaries.prisma.sh\n")
        raise console.CommandFailed(["node", "index.js"], log, "exit code 1", 0)

    (tmp_path / "lock").touch()
    env = LiteLlmEnv(tmp_path / "environment", tmp_path / "lock")  # a deploy may hold the real one
    monkeypatch.setattr(env, "_install_packages", lambda _: env.folder.mkdir())
    monkeypatch.setattr(console, "run", lambda *_, **__: None)  # npm
    monkeypatch.setattr(env, "_generate_client", lambda: fail(log=env.log))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(Unavailable) as missing:
        env.ensure()
    text = str(missing.value)
    assert text.startswith("LiteLLM's database client could not be generated: ")
    assert "getaddrinfo ENOTFOUND binaries.prisma.sh" in text
    assert text.endswith(
        "Fix: let this machine reach https://binaries.prisma.sh, or set PRISMA_QUERY_ENGINE_BINARY to the query engine "
        "of Prisma 5.17.0."
    )
    assert not env.is_ready()


def test_the_client_is_generated_with_the_engine_that_python_runs_of_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "lib/python3.11/site-packages/litellm/proxy/schema.prisma"
    packaged.parent.mkdir(parents=True)
    packaged.write_text('generator client {\n  binaryTargets = ["native", "rhel"]\n}\n')
    ran: list[dict[str, str]] = []
    monkeypatch.setattr(console, "run", lambda *_, environment, **__: ran.append(environment))
    LiteLlmEnv(tmp_path)._generate_client()
    assert (tmp_path / "schema.prisma").read_text() == "generator client {\n}\n"
    assert ran[0]["PRISMA_CLI_QUERY_ENGINE_TYPE"] == "binary"
    assert ran[0]["PATH"].startswith(f"{tmp_path}/bin:")  # with the generator prisma-client-py


def test_each_migration_is_applied_once_even_with_spaces_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name / "migration.sql" for name in ("1_first", "2_Add a column")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"-- {file.parent.name}")
    ran: list[tuple[str, bool]] = []
    monkeypatch.setattr(database, "query", lambda *_: [{"name": "1_first"}])
    monkeypatch.setattr(database, "execute", lambda _, statements, as_one=True: ran.append((statements, as_one)))
    gateway_program.migrate(database.Login("", 1), files)
    record = "INSERT INTO blueprint_migrations (name) VALUES ('2_Add a column')"
    assert ran[1:] == [(f"-- 2_Add a column\n;{record};\n", False)]


def test_keys_of_the_administration_follow_from_the_database_s_password_alone() -> None:
    admin, salt = (database.derive_key("secret", purpose) for purpose in (gateway_program.ADMIN, gateway_program.SALT))
    assert admin != salt != database.derive_key("other", gateway_program.SALT)
    assert admin.startswith("sk-") and "secret" not in admin


def test_a_schema_s_types_are_left_out_of_its_client_and_their_names_make_dictionaries(tmp_path: Path) -> None:
    types = tmp_path / "types.py"
    types.write_text("HttpConfig = int\n\n# Team types\nTeamInput = float\n\n# aggregate Team types\n")
    prisma_types.leave_out(tmp_path)
    names: dict[str, Any] = {"__name__": "types"}
    exec(types.read_text(), names)
    assert (names["HttpConfig"], "TeamInput" in names) == (int, False)
    assert names["__getattr__"]("TeamInput")(id=1) == {"id": 1}
    with pytest.raises(AttributeError):
        names["__getattr__"]("__path__")
