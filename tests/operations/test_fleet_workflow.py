"""A fleet planned, applied and destroyed by the real Terraform against the embedded AWS, its state in a bucket there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.options import confirm
from llm_serving.settings.errors import CheckFailed
from tests.infra import deployments

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
def working_folder(aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a fleet file, in an account with nothing of it."""
    monkeypatch.chdir(tmp_path)
    deployments.synthesize_here(monkeypatch)
    Path("fleet.yaml").write_text(FLEET)


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that ends well prints, its line breaks taken out."""
    code = main.run([*arguments])
    output = capsys.readouterr()
    assert code == 0, output.err
    return " ".join(output.out.split())


@pytest.mark.terraform
@pytest.mark.timeout(900)
def test_the_plan_is_applied_and_bucket_data_outlives_a_destroy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decline(question: str, yes: bool) -> None:
        raise CheckFailed("Cancelled. Nothing was changed")

    s3 = AwsSession(REGION).client("s3")
    before = {item["Name"] for item in s3.list_buckets()["Buckets"]}

    plan = json.loads(run_cli(capsys, "fleet", "plan", "--json"))
    by_stack = {item["stack"]: item for item in plan["stacks"]}
    assert [item["planned"] for item in plan["stacks"]] == [True, True, False]
    assert by_stack["ecs"]["waits"] == "needs stack network"
    assert by_stack["storage"]["add"] == by_stack["storage"]["resources"] > 10
    assert plan["answered_by"] == "the embedded AWS"
    assert {item["Name"] for item in s3.list_buckets()["Buckets"]} == before  # nor was the state's bucket made

    run_cli(capsys, "fleet", "apply", "storage", "--yes")
    assert "kept-state" in {item["Name"] for item in s3.list_buckets()["Buckets"]}
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket="kept-state")["Contents"]]
    assert keys == ["fleets/kept/storage.tfstate"]  # and no lock beside it
    second_plan = json.loads(run_cli(capsys, "fleet", "plan", "storage", "--json", "--exit-code"))["stacks"][0]
    assert (second_plan["add"], second_plan["change"], second_plan["destroy"]) == (0, 0, 0)
    assert (second_plan["changes"], second_plan["plan_file"]) == ({}, None)

    models = f"kept-models-123456789012-{REGION}"
    tags = s3.get_bucket_tagging(Bucket=models)["TagSet"]
    s3.delete_bucket_tagging(Bucket=models)
    assert main.run(["fleet", "plan", "storage", "--json", "--save", "--exit-code"]) == 1, "what drifted is found"
    output = capsys.readouterr()
    assert output.err.splitlines()[-1] == "fleet.yaml: storage: the account differs from the file"
    drift = json.loads(output.out)["stacks"][0]
    assert list(drift["changes"].values()) == ["updated in-place"]
    plan_file = Path(drift["plan_file"])
    assert plan_file.stat().st_mode & 0o777 == 0o600, "a plan may hold secrets"
    with monkeypatch.context() as patch:
        patch.setattr(confirm, "ask", decline)
        assert main.run(["fleet", "apply", "storage", "--yes"]) == 1
    assert "Cancelled" in capsys.readouterr().err
    assert not plan_file.exists(), "a declined plan stays behind"
    run_cli(capsys, "fleet", "apply", "storage", "--yes")
    tags_after = s3.get_bucket_tagging(Bucket=models)["TagSet"]
    assert sorted(tag["Key"] for tag in tags_after) == sorted(tag["Key"] for tag in tags)
    assert not plan_file.exists()

    s3.put_object(Bucket=models, Key="models/x/config.json", Body=b"{}")
    orphan_state = {"outputs": {}, "resources": [{"mode": "managed", "type": "x", "name": "y", "instances": [{}]}]}
    for key in ("fleets/kept/eks.tfstate", "fleets/kept/another/network.tfstate"):  # the latter of `state: .../kept`
        s3.put_object(Bucket="kept-state", Key=key, Body=json.dumps(orphan_state).encode())
    assert main.run(["fleet", "destroy", "--yes"]) == 1
    assert "the state also holds eks: not defined in fleet.yaml and would be orphaned" in capsys.readouterr().err
    s3.delete_object(Bucket="kept-state", Key="fleets/kept/eks.tfstate")
    s3.delete_object(Bucket="kept-state", Key="fleets/kept/another/network.tfstate")

    first_destroy = run_cli(capsys, "fleet", "destroy", "--yes")
    assert f"kept bucket {models}: 1 object with old versions, 2 B" in first_destroy
    assert "To delete it too: blueprint fleet destroy --fleet fleet.yaml --with-data" in first_destroy
    assert models in {item["Name"] for item in s3.list_buckets()["Buckets"]}

    second_destroy = run_cli(capsys, "fleet", "destroy", "--yes", "--with-data")
    assert f"permanently deleted bucket {models}: 1 object with old versions, 2 B" in second_destroy
    assert "blueprint state remove --fleet fleet.yaml" in second_destroy
    run_cli(capsys, "state", "remove", "--yes")
    assert {item["Name"] for item in s3.list_buckets()["Buckets"]} == before
