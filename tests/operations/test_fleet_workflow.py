"""A fleet planned, applied and destroyed by the real Terraform against the embedded AWS, its state in a bucket there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.aws.session import Aws
from llm_serving.cli import main

REGION = "us-west-2"
FLEET = f"""\
name: kept
region: {REGION}
zones: {REGION}a
orchestrator: ecs
state: s3://kept-state/fleets
pools:
  general: {{types: g6.xlarge, size: 1}}
"""


@pytest.fixture(autouse=True)
def here(aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a fleet file, in an account with nothing of it."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that ends well prints, its line breaks taken out."""
    code = main.run([*arguments])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return " ".join(shown.out.split())


@pytest.mark.terraform
@pytest.mark.timeout(900)
def test_what_is_planned_is_applied_and_what_a_bucket_holds_outlives_a_destroy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    s3 = Aws(REGION).client("s3")
    before = {one["Name"] for one in s3.list_buckets()["Buckets"]}

    plan = json.loads(said(capsys, "fleet", "plan", "--json"))
    by_stack = {one["stack"]: one for one in plan["stacks"]}
    assert [one["planned"] for one in plan["stacks"]] == [True, True, False]
    assert by_stack["ecs"]["waits"] == "looks up the VPC and its subnets, which the stack network makes first"
    assert by_stack["storage"]["add"] == by_stack["storage"]["resources"] > 10
    assert plan["answered_by"] == "the embedded AWS"
    assert {one["Name"] for one in s3.list_buckets()["Buckets"]} == before  # nor was the state's bucket made

    said(capsys, "fleet", "apply", "storage", "--yes")
    assert "kept-state" in {one["Name"] for one in s3.list_buckets()["Buckets"]}
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket="kept-state")["Contents"]]
    assert keys == ["fleets/kept/storage.tfstate"]  # and no lock beside it
    again = json.loads(said(capsys, "fleet", "plan", "storage", "--json"))["stacks"][0]
    assert (again["add"], again["change"], again["destroy"]) == (0, 0, 0)

    models = f"kept-models-123456789012-{REGION}"
    s3.put_object(Bucket=models, Key="models/x/config.json", Body=b"{}")
    stranger = {"outputs": {}, "resources": [{"mode": "managed", "type": "x", "name": "y", "instances": [{}]}]}
    s3.put_object(Bucket="kept-state", Key="fleets/kept/eks.tfstate", Body=json.dumps(stranger).encode())
    assert main.run(["fleet", "destroy", "--yes"]) == 1
    assert "the state also holds eks, which fleet.yaml does not make" in capsys.readouterr().err
    s3.delete_object(Bucket="kept-state", Key="fleets/kept/eks.tfstate")

    kept = said(capsys, "fleet", "destroy", "--yes")
    assert f"stays bucket {models}: 1 object with old versions, 2 B" in kept
    assert "to delete it too: blueprint fleet destroy --fleet fleet.yaml --with-data" in kept
    assert models in {one["Name"] for one in s3.list_buckets()["Buckets"]}

    gone = said(capsys, "fleet", "destroy", "--yes", "--with-data")
    assert f"deleted for ever bucket {models}: 1 object with old versions, 2 B" in gone
    assert "blueprint state remove --fleet fleet.yaml" in gone
    said(capsys, "state", "remove", "--yes")
    assert {one["Name"] for one in s3.list_buckets()["Buckets"]} == before
