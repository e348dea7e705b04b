"""Saved plans as JSON, and the gate that only what was shown is applied."""

from __future__ import annotations

import fcntl
import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_serving import console
from llm_serving.settings.errors import Unavailable
from llm_serving.terraform import runner
from llm_serving.terraform.plan import Plan, find_unapproved, parse_plan
from llm_serving.terraform.runner import Terraform, TerraformFailed
from tests.terraform.plan_data import build_change, build_plan

DATA = Path(__file__).with_name("data")
VPC, SUBNET = build_change("aws_vpc.vpc", "create"), build_change("aws_subnet.a", "update", after={"tags": {"a": "1"}})


def test_the_order_of_changes_in_two_plan_files_makes_no_difference() -> None:
    first, second = parse_plan(build_plan(VPC, SUBNET)), parse_plan(build_plan(SUBNET, VPC))
    assert first == second
    assert find_unapproved(first, second) == {}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([VPC, SUBNET, build_change("aws_eip.a", "create")], {"aws_eip.a": "created"}),
        ([VPC, build_change("aws_subnet.a", "delete", "create")], {"aws_subnet.a": "replaced"}),
        (
            [VPC, build_change("aws_subnet.a", "update", after={"tags": {"a": "2"}})],
            {"aws_subnet.a": "updated in-place"},
        ),
        ([VPC], {}),
    ],
)
def test_a_change_that_was_not_shown_is_named_even_where_only_its_values_differ(
    changed: list[dict[str, Any]], expected: Mapping[str, str]
) -> None:
    approved = parse_plan(build_plan(VPC, SUBNET))
    assert find_unapproved(approved, parse_plan(build_plan(*changed))) == expected


def test_lookups_and_unchanged_resources_are_no_changes() -> None:
    plan = parse_plan(
        build_plan(build_change("aws_eip.a", "no-op"), build_change("data.aws_vpc.vpc", "read", mode="data"))
    )
    assert plan == Plan()
    assert plan.is_empty


def test_a_deposed_object_is_destroyed_beside_its_replacement() -> None:
    deposed = {**build_change("aws_instance.a", "delete"), "deposed": "00000000"}
    plan = parse_plan(build_plan(build_change("aws_instance.a", "create"), deposed))
    assert (plan.add, plan.destroy) == (1, 1)
    assert plan.affected == {"aws_instance.a (deposed 00000000)": "destroyed"}


def test_a_plan_of_opentofu_reads_the_same() -> None:
    text = (DATA / "opentofu-1.10.plan.json").read_text(encoding="utf-8")
    assert "registry.opentofu.org/hashicorp/aws" in text
    plan = parse_plan(text)
    assert (plan.add, plan.change, plan.destroy) == (2, 1, 1)
    assert plan.affected == {"aws_s3_bucket.results": "updated in-place", "aws_vpc.vpc": "replaced"}
    assert list(plan.outputs) == ["vpc_id"]
    assert find_unapproved(plan, parse_plan(text)) == {}


@pytest.mark.parametrize("version", ["2.0", "0.1", ""])
def test_a_format_of_another_major_version_is_refused(version: str) -> None:
    with pytest.raises(Unavailable, match="format 1 of a complete plan is needed"):
        parse_plan(build_plan(VPC, format_version=version))
    assert parse_plan(build_plan(VPC, format_version="1.9", later_property=1)).add == 1


def test_a_plan_that_failed_half_way_is_refused() -> None:
    with pytest.raises(Unavailable, match="a complete plan is needed"):
        parse_plan(build_plan(VPC, errored=True))


@pytest.mark.parametrize("text", ["", "no JSON", "{half", "[]"])
def test_a_file_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(Unavailable, match="Terraform's JSON cannot be read"):
        parse_plan(text)


STACK: dict[str, Any] = {
    "resource": {"terraform_data": {"a": {"input": "secret-1"}, "b": {"input": "${terraform_data.a.id}"}}},
    "output": {"a": {"value": "${terraform_data.a.output}"}},
}


@pytest.fixture
def terraform() -> Terraform:
    return Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "built in")


@pytest.fixture
def folder(tmp_path: Path, terraform: Terraform) -> Path:
    """A stack of the provider that is built into Terraform."""
    (tmp_path / "main.tf.json").write_text(json.dumps(STACK))
    runner.run(terraform, {"small": tmp_path}, ("init", "-input=false"))
    return tmp_path


@pytest.mark.terraform
def test_the_saved_plan_is_read_and_applied_and_the_logs_are_text(terraform: Terraform, folder: Path) -> None:
    folders = {"small": folder}
    plan = runner.plan(terraform, folders, "fleet.tfplan")["small"]
    assert {change.address: change.verb for change in plan.resources.values()} == {
        "terraform_data.a": "created",
        "terraform_data.b": "created",
    }
    assert (folder / "fleet.tfplan").stat().st_mode & 0o777 == 0o600
    assert not list(folder.glob("show.*")), "what a plan holds may be secret"
    assert (folder / "plan.jsonl").stat().st_mode & 0o777 == 0o600
    notes: list[str] = []
    result = runner.run(terraform, folders, ("apply", "-input=false", "fleet.tfplan"), on_progress=notes.append)[
        "small"
    ]
    assert "Apply complete! Resources: 2 added, 0 changed, 0 destroyed." in result.output
    assert (folder / "apply.log").read_text() == result.output
    assert "@message" not in result.output
    assert "terraform_data.a: Plan to create" in (folder / "plan.log").read_text()
    assert runner.plan(terraform, folders, "fleet.tfplan")["small"].is_empty


@pytest.mark.terraform
def test_a_real_plan_made_again_equals_the_first_until_a_value_changes(terraform: Terraform, folder: Path) -> None:
    folders = {"small": folder}
    first = runner.plan(terraform, folders, "fleet.tfplan")["small"]
    again = runner.plan(terraform, folders, "fleet.tfplan")["small"]
    assert find_unapproved(first, again) == {}
    changed = json.loads(json.dumps(STACK).replace("secret-1", "secret-2"))
    (folder / "main.tf.json").write_text(json.dumps(changed))
    second = runner.plan(terraform, folders, "fleet.tfplan")["small"]
    assert find_unapproved(first, second) == {"terraform_data.a": "created"}
    assert "secret" not in repr(second)


@pytest.mark.terraform
def test_a_failure_shows_terraforms_own_diagnostics(
    terraform: Terraform, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    failing = {
        "input": "x",
        "lifecycle": {"precondition": [{"condition": '${path.root == "x"}', "error_message": "Too small."}]},
    }
    (folder / "main.tf.json").write_text(json.dumps({"resource": {"terraform_data": {"a": failing}}}))
    with pytest.raises(TerraformFailed) as error:
        runner.plan(terraform, {"small": folder}, "fleet.tfplan")
    first, second, *rest = str(error.value).splitlines()
    assert first.startswith("terraform -chdir=")
    assert second.endswith("exit code 1; the full log is plan.log:")
    assert [line.strip() for line in rest] == [
        "Error: Resource precondition failed (resource.terraform_data.a.lifecycle.precondition[0])",
        "Too small.",
    ]


@pytest.mark.terraform
def test_a_locked_state_says_how_a_killed_commands_lock_goes(terraform: Terraform, folder: Path) -> None:
    lock_id = "dd2f3144-3065-9be3-baec-f20cd3708093"
    info = {"ID": lock_id, "Operation": "OperationTypeApply", "Info": "", "Who": "root@vm", "Version": "1.11.4"}
    (folder / ".terraform.tfstate.lock.info").write_text(json.dumps(info | {"Created": "2026-11-30T22:40:11Z"}))
    with (folder / "terraform.tfstate").open("w") as state:
        fcntl.lockf(state, fcntl.LOCK_EX)
        with pytest.raises(TerraformFailed) as error:
            runner.plan(terraform, {"small": folder}, "fleet.tfplan")
    unlock = f"`terraform -chdir={console.shorten_path(folder)} force-unlock {lock_id}`"
    expected = f"  Fix: wait for who has the lock; if that command was killed, run {unlock}."
    assert str(error.value).splitlines()[-1] == expected


@pytest.mark.terraform
def test_what_a_killed_apply_left_over_is_imported(terraform: Terraform, folder: Path) -> None:
    """The message is S3's, of an apply after one that ended before its state was written."""
    left_over = "CreateBucket, https response error StatusCode: 409, BucketAlreadyOwnedByYou: "
    condition = {"condition": '${path.root == "x"}', "error_message": f"{left_over}."}
    failing = {"input": "x", "lifecycle": {"precondition": [condition]}}
    (folder / "main.tf.json").write_text(json.dumps({"resource": {"terraform_data": {"a": failing}}}))
    with pytest.raises(TerraformFailed) as error:
        runner.plan(terraform, {"small": folder}, "fleet.tfplan")
    adopt = (
        f"`terraform -chdir={console.shorten_path(folder)} import ADDRESS ID` with its address, which is in brackets"
    )
    assert str(error.value).splitlines()[-1] == (
        f"  Fix: if an apply that was killed left it over, delete it where it is empty, or run {adopt}, and then this "
        "again; else choose another name."
    )


@pytest.mark.terraform
def test_a_stale_plan_is_not_applied(terraform: Terraform, folder: Path) -> None:
    folders = {"small": folder}
    runner.plan(terraform, folders, "first.tfplan")
    runner.plan(terraform, folders, "second.tfplan")
    runner.run(terraform, folders, ("apply", "-input=false", "second.tfplan"))
    with pytest.raises(TerraformFailed, match="Saved plan is stale"):
        runner.run(terraform, folders, ("apply", "-input=false", "first.tfplan"))


@pytest.mark.terraform
def test_the_recorded_form_equals_terraforms_output(terraform: Terraform, folder: Path) -> None:
    subprocess.run(["terraform", f"-chdir={folder}", "plan", "-out=x", "-input=false"], check=True, capture_output=True)
    shown = subprocess.run(
        ["terraform", f"-chdir={folder}", "show", "-json", "x"], check=True, capture_output=True, text=True
    )
    payload = json.loads(shown.stdout)
    assert set(json.loads(build_plan(VPC, outputs={"a": "create"}))) <= set(payload)
    assert set(VPC) <= set(payload["resource_changes"][0])


@pytest.mark.terraform
@pytest.mark.parametrize("depth", [1, 12])
def test_terraforms_temporary_files_are_removed_with_its_directory(
    terraform: Terraform, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """With a folder of a short path and of one that is too long for a socket; the system's directory stays as it is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        system = Path(short, "system")
        system.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(system))
        folder = Path(short, *["folder"] * depth)
        folder.mkdir(parents=True)
        program = folder / "program"
        program.write_text('#!/bin/sh\necho "$TMPDIR"\ntouch "$TMPDIR/plugin1234567890"\n')
        program.chmod(0o755)
        output = runner.run(replace(terraform, program=str(program)), {"small": folder}, ("init",))["small"].output
        used = Path(output.strip())
        assert len(str(used)) < 90
        assert (used.parent == folder) == (depth == 1)
        assert not used.exists()
        assert list(system.iterdir()) == []
