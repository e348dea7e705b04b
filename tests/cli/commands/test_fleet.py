"""`fleet plan` and `render` in a pipeline: a login that broke is noticed, and another account's number stands nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llm_serving.cli import main
from llm_serving.targets import planning

ROOT = Path(__file__).parents[3]
FLEET = """\
name: kept
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools:
  general: {types: g6.xlarge, size: 1}
"""
ACCOUNT = 'account: "999999999999"\n'


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on a machine where nobody is signed in."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("line", "subject"),
    [(ACCOUNT, 'account: "999999999999"'), ("state: s3://states/fleets\n", 'state: "s3://states/fleets"')],
)
@pytest.mark.parametrize("command", [("fleet", "plan"), ("install", "--target", "ecs", "--yes")], ids=" ".join)
def test_a_fleet_of_an_account_is_not_answered_by_another_without_a_login(
    line: str, subject: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fleet.yaml").write_text(FLEET + line)
    assert main.run([*command, "--fleet", "fleet.yaml"]) == 3
    column = len(subject.split()[0]) + 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"fleet.yaml:7:{column}: {subject}: it is in an AWS account, and no AWS credentials were found. "
        "Fix: sign in (`aws sso login`), or run blueprint rehearse --fleet fleet.yaml."
    )


def test_half_of_the_credentials_is_a_login_that_broke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fleet.yaml").write_text(FLEET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    assert main.run(["fleet", "plan", "--json"]) == 3
    output = capsys.readouterr()
    message = "no AWS credentials found. Fix: sign in (`aws sso login`), or set AWS_PROFILE."
    assert output.err.splitlines()[-1] == message
    assert json.loads(output.out) == {"ok": False, "mistakes": [{"message": message}]}


@pytest.mark.parametrize("command", [("fleet", "show"), ("fleet", "synth")], ids=" ".join)
def test_json_says_what_is_wrong_with_the_file(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text(FLEET.replace("size: 1", "size: some"))
    assert main.run([*command, "--json"]) == 2
    output = capsys.readouterr()
    [mistake] = json.loads(output.out)["mistakes"]
    assert (mistake["file"], mistake["line"], mistake["field"]) == ("fleet.yaml", 6, "pools.general.size")
    assert output.err == f"{mistake['message']}\n"


@pytest.mark.parametrize(("line", "account"), [(ACCOUNT, "999999999999"), ("", "123456789012")])
def test_names_hold_the_fleets_account_where_nobody_is_signed_in(line: str, account: str) -> None:
    fleet = Path("fleet.yaml")
    fleet.write_text(FLEET + line)
    assert main.run(["new", "mine", "--from", "aggregated", "--preset", "one-gpu"]) == 0
    plan = planning.plan(Path("mine"), fleet, target="ecs")
    assert plan.deployment.environment.bucket == f"kept-models-{account}-us-west-2"
    assert bool(plan.deployment.environment.emulated) is (not line), "whose number it is, is said"
