from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.catalog import instances
from tests.cli.commands.conftest import RunCommand

pytestmark = pytest.mark.usefixtures("without_aws")


@pytest.fixture
def refresh(run_command: RunCommand) -> RunCommand:
    """Runs `blueprint catalog refresh`."""
    return functools.partial(run_command, "catalog", "refresh")


def _strip_dates(text: str) -> str:
    return re.sub(r'"date": "\d{4}-\d\d-\d\d"', '"date": ""', text)


@pytest.mark.terraform
def test_a_refresh_from_the_embedded_aws_gives_the_committed_file_but_for_the_date(
    tmp_path: Path, refresh: RunCommand
) -> None:
    output = tmp_path / "instances.json"
    result = refresh("--endpoint", "embedded", "--out", str(output))
    assert result.code == 0, result.err
    assert _strip_dates(output.read_text()) == _strip_dates(instances.GENERATED.read_text())
    assert "g6e.xlarge: new" in result.out


@pytest.mark.terraform
def test_a_refresh_lists_changes_and_keeps_other_regions(tmp_path: Path, refresh: RunCommand) -> None:
    file = tmp_path / "instances.json"
    text = instances.GENERATED.read_text()
    changed_text = text.replace('"memory_mib": 4194304', '"memory_mib": 1').replace(
        '"us-west-2": "abcd"', '"us-west-2": "a"'
    )
    file.write_text(changed_text.replace('"us-east-2": "abc"', '"us-east-2": "z"'))
    result = refresh("--endpoint", "embedded", "--region", "us-west-2", "--out", str(file))
    assert result.code == 0, result.err
    assert "p6-b300.48xlarge: memory_mib 1 -> 4194304" in result.out.splitlines()
    assert "g6e.xlarge: zones in us-west-2 a -> abcd" in result.out.splitlines()
    assert '"us-east-2": "z"' in file.read_text()
    repeated = refresh("--endpoint", "embedded", "--region", "us-west-2", "--out", str(file))
    assert repeated.out == f"{file}: 111 types in 30 regions, none changed\n"


def test_without_credentials_one_line_shows_the_fix_and_the_file_is_unchanged(
    tmp_path: Path, refresh: RunCommand
) -> None:
    file = tmp_path / "instances.json"
    file.write_text("{}")
    result = refresh("--region", "us-west-2", "--out", str(file))
    assert result.code == 3
    assert result.err.splitlines()[-1] == (
        "no AWS credentials found. Fix: sign in (`aws sso login`), or set AWS_PROFILE, "
        "or use the embedded AWS's copy of EC2's data: `--endpoint embedded`."
    )
    assert "Traceback" not in result.err
    assert file.read_text() == "{}"


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path, refresh: RunCommand) -> None:
    unreachable_url = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": unreachable_url}
    result = refresh("--region", "us-west-2", "--out", str(tmp_path / "instances.json"), **keys)
    assert result.code == 3
    assert (
        result.err.splitlines()[-1]
        == f'AWS could not be asked: Could not connect to the endpoint URL: "{unreachable_url}/"'
    )
    assert not (tmp_path / "instances.json").exists()


def test_a_missing_profile_is_one_line(refresh: RunCommand) -> None:
    result = refresh("--region", "us-west-2", AWS_PROFILE="nobody")
    assert result.code == 3
    assert result.err.splitlines()[-1] == "AWS could not be asked: The config profile (nobody) could not be found"


def test_an_unknown_endpoint_is_refused(refresh: RunCommand) -> None:
    result = refresh("--endpoint", "http://127.0.0.1:1")
    assert result.code == 2
    assert result.err == '--endpoint: "http://127.0.0.1:1": there is no such source. Fix: use embedded.\n'


def test_a_malformed_region_is_refused_before_any_request(refresh: RunCommand) -> None:
    result = refresh("--region", "us-wset-2!")
    assert result.code == 2
    assert result.err == '--region: "us-wset-2!": it is not an AWS region. Fix: use an AWS region such as us-west-2.\n'


@pytest.mark.parametrize("text", ["", "[]", '{"name": "package"}', "\xff"])
def test_a_file_of_something_else_is_not_replaced(tmp_path: Path, refresh: RunCommand, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="latin-1")
    result = refresh("--endpoint", "embedded", "--out", str(file))
    reason = "it holds no catalog. Fix: use a file of a refresh, or a new one."
    assert (result.code, result.err) == (2, f'--out: "{file}": {reason}\n')
    assert file.read_text(encoding="latin-1") == text


@pytest.mark.terraform
def test_a_region_without_instances_is_refused_and_the_file_is_unchanged(tmp_path: Path, refresh: RunCommand) -> None:
    file = tmp_path / "instances.json"
    file.write_text(instances.GENERATED.read_text())
    result = refresh("--endpoint", "embedded", "--region", "mx-central-1", "--out", str(file))
    assert result.code == 2
    assert result.err.splitlines()[-1] == (
        "--region: mx-central-1: no instance family of the catalog there. Fix: use another region."
    )
    assert file.read_text() == instances.GENERATED.read_text()
