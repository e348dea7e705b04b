"""The gateway's program in a container: what it reads from AWS, and what it makes of the database."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from llm_serving import processes
from llm_serving.catalog import own_image
from llm_serving.kinds.gateway import access, cloud, cloud_program, database, gateway_program, meter
from llm_serving.kinds.gateway.cloud_program import Place
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.postgres_program import _AS_NOBODY
from llm_serving.kinds.gateway.stack import DATABASE_PORT, OWNER
from llm_serving.services.service import LOOPBACK
from llm_serving.settings.errors import Unavailable

WAIT_S = 120.0


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "us-west-2", "AWS_ACCESS_KEY_ID": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    forget_clients = cloud_program._connect.cache_clear
    with mock_aws():
        forget_clients()
        yield
    forget_clients()


def make_place(
    connect: Callable[[str], Any] = boto3.client, host: str = "db.example.com", cache: str = "cache.example.com"
) -> Place:
    """What the stack makes: a secret without a value, RDS' secret, and the parameter."""
    secrets = connect("secretsmanager")
    own = secrets.create_secret(Name="cotton-edge-1")["ARN"]
    owner = secrets.create_secret(Name="rds!db-1", SecretString='{"username": "x", "password": "rotated"}')["ARN"]
    place = Place(host, cache, owner, own)
    connect("ssm").put_parameter(Name="/cotton/gateway/edge", Type="String", Value=json.dumps(place._asdict()))
    return place


@pytest.mark.usefixtures("aws")
def test_the_first_gateway_to_start_creates_the_secret_and_all_read_the_same() -> None:
    place = make_place()
    first = cloud_program.create_secret(place.secret)
    assert len(first) == 64 and cloud_program.create_secret(place.secret) == first
    assert cloud_program.read_secret(boto3.client("secretsmanager"), place.secret) == first


@pytest.mark.usefixtures("aws")
def test_of_two_gateways_that_start_at_once_the_second_takes_the_first_s_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = boto3.client("secretsmanager")
    errors, values = client.exceptions, list[str]()

    def get(**_: str) -> dict[str, str]:
        if not values:
            raise errors.ResourceNotFoundException({}, "GetSecretValue")
        return {"SecretString": values[0]}

    def put(**_: str) -> None:
        values.append("the first's")
        raise errors.ResourceExistsException({}, "PutSecretValue")

    fake = SimpleNamespace(exceptions=errors, get_secret_value=get, put_secret_value=put)
    monkeypatch.setattr(cloud_program, "_connect", lambda _: fake)
    assert cloud_program.create_secret("arn") == "the first's"


@pytest.mark.usefixtures("aws")
def test_logins_verify_the_server_by_the_region_s_authority() -> None:
    make_place()
    place = cloud_program.read_place(boto3.client("ssm"), "/cotton/gateway/edge")
    owner, own = cloud_program.read_owner(place), cloud_program.build_login(place, "secret")
    assert (owner.user, owner.password, own.user) == (OWNER, "rotated", "gateway")
    assert own.password != "secret" and own.password != database.derive_key("secret", gateway_program.ADMIN)
    assert own.authority == owner.authority == "/opt/gateway/rds-ca/us-west-2.pem"
    assert database.format_url(own).endswith(
        "@db.example.com:5432/gateway?sslmode=require&sslaccept=strict&sslcert=/opt/gateway/rds-ca/us-west-2.pem"
    )


@contextlib.contextmanager
def run_postgres(folder: Path, host: str = LOOPBACK, authority: str = "") -> Iterator[Login]:
    """Run Postgres with a user as RDS creates one: it may create users and databases, and is no superuser.

    Args:
        host: loopback address; another than this machine's own one has AWS's port, which nobody else has there.
        authority: its certificate, with the key beside it; empty for no TLS.
    """
    prefix = _AS_NOBODY if os.geteuid() == 0 else ()
    data, (port,) = folder / "data", processes.claim_free_ports(1) if host == LOOPBACK else (DATABASE_PORT,)
    programs = {name: [*prefix, str(database.find_program(name))] for name in ("initdb", "postgres")}
    subprocess.run([*programs["initdb"], "-D", str(data), "--auth=trust", "--username=rds", "--no-sync"], check=True)
    statements = f"CREATE ROLE {OWNER} LOGIN CREATEROLE CREATEDB\nCREATE DATABASE gateway OWNER {OWNER}\n"
    subprocess.run(
        [*programs["postgres"], "--single", "-D", str(data), "postgres"], input=statements, text=True, check=True
    )
    (data / "pg_hba.conf").write_text(f"host all {OWNER} 127.0.0.0/8 trust\nhost all all 127.0.0.0/8 scram-sha-256\n")
    settings = {"listen_addresses": host, "unix_socket_directories": "", "fsync": "off"}
    if authority:
        settings |= {"ssl": "on", "ssl_cert_file": authority, "ssl_key_file": str(Path(authority).with_name("key.pem"))}
    options = ["-p", str(port), *(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))]
    with (folder / "log").open("wb") as log:
        server = processes.spawn([*programs["postgres"], "-D", str(data), *options], output=log)
    try:
        login, deadline = Login("", port, host, OWNER, authority), time.monotonic() + WAIT_S
        while True:
            try:
                database.query(login, "SELECT 1 AS one")
                break
            except Unavailable:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
        yield login
    finally:
        processes.stop(server)


def test_the_owner_prepares_the_database_once_for_gateways_that_start_at_once(tmp_path: Path) -> None:
    if missing := database.find_missing():
        pytest.skip(f"{missing}: there is none on this machine. To run this test: {database.INSTALL}")
    migration = tmp_path / "1" / "migration.sql"
    migration.parent.mkdir()
    migration.write_text("CREATE TABLE once (id int);\nCREATE INDEX CONCURRENTLY i ON once (id);\n")
    failures: list[Exception] = []

    def prepare(owner: Login, login: Login) -> None:
        try:
            with database.lock(owner):
                database.create_user(owner, login.password)
                gateway_program.migrate(login, [migration])
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    with run_postgres(tmp_path) as owner:
        login = Login("sk-0123", owner.port)
        threads = [threading.Thread(target=prepare, args=(owner, login)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert failures == []
        assert database.query(login, "SELECT name FROM blueprint_migrations") == [{"name": "1"}]
        [role] = database.query(login, "SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = 'gateway'")
        assert role == {"rolsuper": False, "rolcreaterole": False}
        with pytest.raises(Unavailable, match="password authentication failed"):
            database.query(Login("sk-other", owner.port), "SELECT 1")
        assert "sk-0123" not in (tmp_path / "log").read_text()


def test_a_deployment_s_name_leads_to_the_page_of_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (address, 8000)) for address in ("10.0.1.2", "10.0.1.1", "10.0.1.2")]
    monkeypatch.setattr(meter.socket, "getaddrinfo", lambda *_: found)
    assert meter.list_pages("http://chat-engines.serving.svc:8000/metrics") == [
        "http://10.0.1.1:8000/metrics",
        "http://10.0.1.2:8000/metrics",
    ]


def test_rows_are_found_among_a_session_s_own_lines() -> None:
    records: dict[str, list[Any]] = {"requests": [{"team": "ads"}], "meter": []}
    session = f"\nStarting session with SessionId: x\r\nrows: {json.dumps(records)}\r\n\nExiting session\n"
    assert access.parse_rows(session) == records
    with pytest.raises(Unavailable) as missing:
        access.parse_rows("Starting session\npsql: no route to host\n")
    assert str(missing.value) == (
        "the gateway's database does not answer: psql: no route to host. Fix: see `blueprint logs`."
    )


def test_the_image_has_every_module_that_its_programs_import(tmp_path: Path) -> None:
    image = own_image.IMAGES[cloud.IMAGE]
    package = image.contexts["package"]
    for file in image.list_files():
        if file.is_relative_to(package):
            copy = tmp_path / "llm_serving" / file.relative_to(package)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    code = f"import {cloud_program.__name__}, llm_serving; print(llm_serving.__path__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout, "the copy, and not the package itself"
