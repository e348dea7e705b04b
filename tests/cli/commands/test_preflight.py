from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.rehearsal import emulator

ROOT = Path(__file__).parents[3]
FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
spend_limit: {limit} USD/h
state: s3://my-state/fleets
pools:
  general:
    types: {type}
    size: 0..4
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator.start(tmp_path_factory.mktemp("aws")) as url:
        yield url


def _write_fleet(tmp_path: Path, limit: int = 100, kind: str = "g6e.xlarge") -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(limit=limit, type=kind))
    return str(file)


def _run_cli(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean_environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    isolated = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": os.devnull,
    }
    return subprocess.run(
        [sys.executable, "-c", "from llm_serving.cli.main import main; main()", *arguments],
        env={**clean_environment, **isolated, **(environment or {})},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_credentials_it_is_one_line_and_3(tmp_path: Path) -> None:
    result = _run_cli("preflight", "--fleet", _write_fleet(tmp_path))
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-1] == (
        "no AWS credentials found. Fix: sign in (`aws sso login`), or set AWS_PROFILE."
    )
    assert "Traceback" not in result.stderr


def test_a_server_that_does_not_answer_is_one_line_and_3(tmp_path: Path) -> None:
    unreachable_url = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": unreachable_url}
    result = _run_cli("preflight", "--json", "--fleet", _write_fleet(tmp_path), environment=keys)
    message = f'AWS could not be asked: Could not connect to the endpoint URL: "{unreachable_url}/"'
    assert (result.returncode, result.stderr.splitlines()[-1]) == (3, message)
    assert json.loads(result.stdout) == {"ok": False, "mistakes": [{"message": message}]}


def test_a_missing_profile_is_one_line_and_exits_3(tmp_path: Path) -> None:
    result = _run_cli("preflight", "--fleet", _write_fleet(tmp_path), environment={"AWS_PROFILE": "nobody"})
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1] == "AWS could not be asked: The config profile (nobody) could not be found"


@pytest.mark.terraform
def test_json_has_every_check_and_nothing_else_is_printed(tmp_path: Path, endpoint: str) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = _run_cli("preflight", "--json", "--fleet", _write_fleet(tmp_path), environment=environment)
    response = json.loads(result.stdout)
    assert result.returncode == 0, result.stdout
    assert (response["fleet"], response["region"], response["account"]) == ("demo", "us-west-2", emulator.ACCOUNT)
    assert (response["ok"], response["answered_by"]) == (True, f"the server at {endpoint}")
    titles = [group["title"] for group in response["groups"]]
    assert titles == ["identity", "account", "zones", "quotas", "subnets", "pinned versions", "state", "price"]
    lines = [line for group in response["groups"] for line in group["lines"]]
    keys = ["about", "status", "known", "unanswered", "said", "share", "remedy", "command"]
    assert all(list(line) == keys for line in lines)
    statuses = [line["status"] for line in lines]
    assert response["counts"] == {
        **{status: statuses.count(status) for status in ("pass", "warn", "fail")},
        "unknown": sum(not line["known"] for line in lines),
    }
    # A check that the embedded AWS cannot answer is unknown, and never passes.
    assert all(line["status"] == "warn" for line in lines if not line["known"])
    by_name = {line["about"]: line for line in lines}
    assert by_name["VPCs per Region"]["known"]
    assert not by_name["Running On-Demand G and VT instances"]["known"]


@pytest.mark.terraform
def test_over_the_spend_limit_exits_1_with_the_fix(tmp_path: Path, endpoint: str) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = _run_cli(
        "preflight", "--fleet", _write_fleet(tmp_path, limit=1), environment={**environment, "COLUMNS": "120"}
    )
    assert result.returncode == 1
    assert "✗  spend limit" in result.stdout
    assert "USD/h or more, or use smaller pools" in result.stdout
    assert "1 fail" in result.stdout.splitlines()[-1]


@pytest.mark.terraform
def test_a_type_missing_from_the_catalog_is_one_line_and_the_other_checks_run(tmp_path: Path, endpoint: str) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    result = _run_cli(
        "preflight", "--json", "--fleet", _write_fleet(tmp_path, kind="g6e.7xlarge"), environment=environment
    )
    groups = {group["title"]: group["lines"] for group in json.loads(result.stdout)["groups"]}
    assert result.returncode == 1
    assert "the catalog has no such instance type" in groups["fleet file"][0]["said"]
    assert [line["unanswered"] for line in groups["quotas"]] == [
        "a type is not in the catalog, so usage was not counted"
    ]
    assert groups["zones"][0]["status"] == "pass"


@pytest.mark.terraform
def test_the_state_bucket_is_previewed_created_once_and_removed(tmp_path: Path, endpoint: str) -> None:
    environment = emulator.build_client_env(endpoint, "us-west-2")
    fleet = _write_fleet(tmp_path)
    unanswered = _run_cli("state", "make", "--fleet", fleet, environment=environment)
    assert unanswered.returncode == 2
    assert "$ aws s3api create-bucket --bucket my-state" in unanswered.stderr
    created = _run_cli("state", "make", "--fleet", fleet, "--yes", environment=environment)
    assert created.returncode == 0, created.stderr
    repeated = _run_cli("state", "make", "--fleet", fleet, environment=environment)
    assert repeated.stdout == "s3://my-state/fleets: the bucket is up to date\n"
    removed = _run_cli("state", "remove", "--fleet", fleet, "--yes", environment=environment)
    assert removed.returncode == 0, removed.stderr
    assert _run_cli("state", "remove", "--fleet", fleet, environment=environment).stdout == (
        "s3://my-state/fleets: the bucket does not exist\n"
    )
