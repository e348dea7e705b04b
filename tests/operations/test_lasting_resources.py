"""Plans that would replace what holds data, the network of what runs, or capacity that EC2 may not have again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.operations import plan_checks
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.services import inputs
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.plan import parse_plan
from llm_serving.terraform.runner import Terraform
from tests.operations.test_context import FLEET
from tests.terraform.plan_data import build_change, build_plan

VPC = "aws_vpc.vpc"
REPLACED, DELETED = ("delete", "create"), ("delete",)


def check(
    tmp_path: Path,
    address: str,
    *actions: str,
    used: bool = True,
    reason: str = "",
    created: Sequence[str] = (),
    deleted: Sequence[str] = (),
    aws: AwsSession | None = None,
) -> None:
    """Check a plan of the stack `network`, while the stack `ecs` is applied or not."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    folders = {name: tmp_path / "stacks" / name for name in ("network", "ecs")}
    for name, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        backend = {"local": {"path": f"../../{name}.tfstate"}}
        needs = ["network"] if name == "ecs" else []
        (folder / "cdk.tf.json").write_text(json.dumps({"//": {"needs": needs}, "terraform": {"backend": backend}}))
        cluster = {"mode": "managed", "type": "aws_ecs_cluster", "name": "cluster", "instances": [{}]}
        applied = [cluster] if used or name == "network" else []
        (tmp_path / f"{name}.tfstate").write_text(json.dumps({"outputs": {}, "resources": applied}))
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    aws = aws or AwsSession("us-west-2")
    context = FleetContext(inputs.read_fleet(file), tmp_path, folders, program, aws, "123456789012")
    entry = {**build_change(address, *actions), "action_reason": reason}
    others = [build_change(other, "create") for other in created]
    others += [build_change(other, "delete") for other in deleted]
    plan = StackPlan("network", 1, parse_plan(build_plan(entry, *others)))
    plan_checks.require_kept(context, [plan])
    plan_checks.require_logs_kept(context, [plan])
    plan_checks.require_repositories_empty(context, [plan])


@pytest.mark.parametrize("actions", [REPLACED, DELETED], ids=["another range", "a VPC of the user's own"])
def test_the_network_of_what_runs_is_kept(tmp_path: Path, actions: tuple[str, ...]) -> None:
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, VPC, *actions)
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: Terraform would replace network: aws_vpc.vpc, and the network of all that runs in it "
        "would be gone. Nothing was changed. Fix: take back the change that it follows from; for a new one, make another "
        "pool, deployment or fleet beside this one."
    )
    check(tmp_path, VPC, *actions, used=False)


def test_a_cluster_is_kept_where_the_file_names_an_existing_one(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"aws_eks_cluster\.cluster, and all that runs on it would be gone"):
        check(tmp_path, "aws_eks_cluster.cluster", *DELETED)


def test_what_holds_data_is_deleted_by_itself_and_not_replaced(tmp_path: Path) -> None:
    for kind in plan_checks._LOSSES:
        with pytest.raises(CheckFailed, match=f"{kind}.one, and .* would be gone"):
            check(tmp_path, f"{kind}.one", *REPLACED)
        check(tmp_path, f"{kind}.one", "update")
    check(tmp_path, "aws_msk_cluster.kafka", *DELETED)  # a pool or a deployment that the user removes
    check(tmp_path, "aws_launch_template.one", *REPLACED)


@pytest.mark.parametrize("address", [VPC, "aws_eks_cluster.cluster"])
def test_what_an_apply_that_broke_off_left_is_made_anew(tmp_path: Path, address: str) -> None:
    check(tmp_path, address, *REPLACED, reason="replace_because_tainted")
    with pytest.raises(CheckFailed):
        check(tmp_path, address, *REPLACED, reason="replace_because_cannot_update")


def test_reserved_capacity_is_not_given_back_for_another_of_the_same_apply(tmp_path: Path) -> None:
    reservation = "aws_ec2_capacity_reservation.general-p5-a-cr-reservation"
    check(tmp_path, reservation, *DELETED)
    with pytest.raises(CheckFailed, match="capacity that EC2 may not have again would be gone"):
        check(
            tmp_path,
            reservation,
            *DELETED,
            created=["aws_ec2_capacity_reservation.general-p5-48xlarge-a-cr-reservation"],
        )


def test_what_containers_wrote_is_kept_where_logs_go_elsewhere(tmp_path: Path) -> None:
    settings = ["aws_s3_bucket_policy.logs-policy", "aws_s3_bucket_policy.models-policy", "aws_iam_role_policy.logs"]
    with pytest.raises(CheckFailed) as error:
        check(tmp_path, "aws_s3_bucket.logs", *DELETED, deleted=settings)
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml:1:1: logs.to: empty: Terraform would delete network: aws_s3_bucket.logs, with all that "
        f"containers wrote there. Fix: set s3 again, or run `terraform -chdir={tmp_path}/stacks/network state rm "
        "aws_s3_bucket.logs aws_s3_bucket_policy.logs-policy`, which keeps it, and then this again; for s3 later, run "
        f"`blueprint fleet plan`, then `terraform -chdir={tmp_path}/stacks/network import ADDRESS ID` for each of "
        "these, then the apply. Nothing was changed"
    )
    with pytest.raises(CheckFailed, match=r"aws_cloudwatch_log_group\.container-logs, .* set cloudwatch again"):
        check(tmp_path, "aws_cloudwatch_log_group.container-logs", *DELETED)
    kept = r"aws_kms_key\.flow-logs-key aws_s3_bucket\.flow-logs"
    with pytest.raises(
        CheckFailed, match=rf"network\.flow_logs: .* flow logs there\. Fix: set 30d again, or .* rm {kept}`"
    ):
        check(tmp_path, "aws_s3_bucket.flow-logs", *DELETED, deleted=["aws_kms_key.flow-logs-key", "aws_kms_key.other"])
    check(tmp_path, "aws_cloudwatch_log_group.insights-logs", *DELETED)
    check(tmp_path, "aws_s3_bucket.logs", *DELETED, reason="replace_because_tainted")


def test_a_repository_that_goes_has_no_images(tmp_path: Path, aws: str) -> None:
    session = AwsSession("us-west-2")
    ecr, repository = session.client("ecr"), "aws_ecr_repository.image-router"
    ecr.create_repository(repositoryName="kept/router")
    check(tmp_path, repository, *DELETED, aws=session)
    manifest = '{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": []}'
    ecr.put_image(repositoryName="kept/router", imageManifest=manifest, imageTag="1")
    try:
        with pytest.raises(CheckFailed) as error:
            check(tmp_path, repository, *DELETED, aws=session)
    finally:
        ecr.delete_repository(repositoryName="kept/router", force=True)
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml:1:1: storage.repositories: [vllm, vllm-cpu, router, load-driver, llama-cpp, diffusio...: "
        "the plan deletes kept/router (1 image), and ECR deletes no repository that has images. Fix: keep it, or run "
        "`aws ecr delete-repository --force --region us-west-2 --repository-name kept/router`, and then this again. "
        "Nothing was changed"
    )
    check(tmp_path, repository, *DELETED, aws=session)
