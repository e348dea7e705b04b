"""What runs is read from the account: moto has clusters and instances, botocore's own model holds the rest's answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.fleet.model import Fleet
from llm_serving.operations import installed
from llm_serving.settings.document import load
from tests.operations.conftest import RecordedApi, Recorder

REGION = "us-west-2"
FLEET = """\
name: upgraded
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: eks
eks: {version: "1.34", public_from: 203.0.113.0/24} # the oldest
pools:
  general: {types: g6e.2xlarge, size: 0..4}
"""
AMI = "amazon-eks-node-al2023-x86_64-nvidia-1.34-v20251023"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    return load(Path("fleet.yaml"), Fleet).value


@pytest.fixture
def account(aws: str) -> Iterator[AwsSession]:
    """A cluster of 1.34 in moto, with one node of Karpenter's and one of another fleet."""
    session = AwsSession(REGION, emulator=aws)
    eks, ec2 = session.client("eks"), session.client("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    role = "arn:aws:iam::123456789012:role/cluster"
    eks.create_cluster(name="upgraded", version="1.34", roleArn=role, resourcesVpcConfig={"subnetIds": [subnet]})
    image = ec2.register_image(Name=AMI, RootDeviceName="/dev/xvda")["ImageId"]
    own = {"karpenter.sh/nodepool": "general", "kubernetes.io/cluster/upgraded": "owned"}
    ids = [_run_instance(ec2, image, own), _run_instance(ec2, image, {"fleet": "other"})]
    yield session
    ec2.terminate_instances(InstanceIds=ids)
    ec2.deregister_image(ImageId=image)
    eks.delete_cluster(name="upgraded")


def _run_instance(ec2: Any, image: str, tags: dict[str, str]) -> str:
    specification = {"ResourceType": "instance", "Tags": [{"Key": key, "Value": tags[key]} for key in tags]}
    instances = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=[specification])
    return str(instances["Instances"][0]["InstanceId"])


class _ListedApi(RecordedApi):
    """A cluster with one pod."""

    def list_objects(self, _: object) -> list[Any]:
        return [{"spec": {"containers": [{"image": "vllm/vllm-openai:v0.1.0"}, {"image": ""}]}}]


@pytest.fixture
def cluster(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs and an API as of a cluster with one chart, and a release of the user's own."""
    recorder.install("aws", "helm")
    releases = [{"name": "karpenter", "chart": "karpenter-1.6.0"}, {"name": "mine", "chart": "mine-1.0.0"}]
    (recorder.folder / "releases").write_text(json.dumps(releases))
    helm = recorder.folder / "helm"
    answer = f'if sys.argv[1:2] == ["list"]:\n    sys.exit(print(open("{recorder.folder}/releases").read()))\n'
    helm.write_text(helm.read_text().replace("with open", f"{answer}with open", 1))
    monkeypatch.setattr("llm_serving.operations.kube_api.open_api", lambda path: _ListedApi(recorder, path))


def test_versions_amis_charts_and_images_are_read(account: AwsSession, fleet: Fleet, cluster: None) -> None:
    running, unread = installed.read(account, fleet, Path())
    assert (running.kubernetes, running.amis) == ("1.34", {AMI: 1})
    assert (running.charts, running.images) == ({"karpenter": "1.6.0"}, {"vllm/vllm-openai:v0.1.0"})
    assert unread == ["add-ons of EKS: the embedded AWS has none"]


def test_a_cluster_out_of_reach_is_said(account: AwsSession, fleet: Fleet, recorder: Recorder) -> None:
    running, unread = installed.read(account, fleet, Path())
    assert (running.kubernetes, running.charts) == ("1.34", {})
    assert unread[1] == (
        "charts, and images of pods: not on this machine's PATH: helm and aws. Fix: install helm "
        "(https://helm.sh/docs/intro/install), aws "
        "(https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)."
    )


def test_a_fleet_that_was_not_applied_has_nothing_running(aws: str, fleet: Fleet) -> None:
    session = AwsSession(REGION, emulator=aws)
    assert installed.read(session, fleet, Path()) == (installed.Installed(), [])


def test_add_ons_are_read_page_by_page(fleet: Fleet) -> None:
    client = boto3.Session("test", "test", region_name=REGION).client("eks")
    with Stubber(client) as stub:
        stub.add_response("list_addons", {"addons": ["coredns"], "nextToken": "2"}, {"clusterName": "upgraded"})
        stub.add_response("list_addons", {"addons": ["vpc-cni"]}, {"clusterName": "upgraded", "nextToken": "2"})
        for name, version in (("coredns", "v1.14.3-eksbuild.14"), ("vpc-cni", "v1.23.0-eksbuild.1")):
            parameters = {"clusterName": "upgraded", "addonName": name}
            stub.add_response("describe_addon", {"addon": {"addonName": name, "addonVersion": version}}, parameters)
        session = AwsSession(REGION)
        session._clients["eks"] = client
        read = dict(installed._read_add_ons(session, fleet))
    assert read == {"coredns": "v1.14.3-eksbuild.14", "vpc-cni": "v1.23.0-eksbuild.1"}


def test_images_of_tasks_are_read_from_ecs(aws: str, fleet: Fleet) -> None:
    """moto places no task here: its answers are recorded in ECS's own shape."""
    client = boto3.Session("test", "test", region_name=REGION).client("ecs")
    with Stubber(client) as stub:
        stub.add_response("list_tasks", {"taskArns": ["arn:1"]}, {"cluster": "upgraded"})
        containers = [{"image": "vllm/vllm-openai:v0.1.0"}, {"name": "pause"}]
        parameters = {"cluster": "upgraded", "tasks": ["arn:1"]}
        stub.add_response("describe_tasks", {"tasks": [{"containers": containers}]}, parameters)
        session = AwsSession(REGION)
        session._clients["ecs"] = client
        assert list(installed._read_task_images(session, fleet)) == ["vllm/vllm-openai:v0.1.0"]
    moto = AwsSession(REGION, emulator=aws)
    assert list(installed._read_task_images(moto, fleet)) == []  # no cluster of the name


def test_write_takes_one_step_and_none_before_it_is_applied(
    account: AwsSession, fleet: Fleet, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    eks = account.client("eks")
    assert main.run(["fleet", "upgrade", "--write", "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in payload["steps"]] == [
        "Platform charts",
        "Kubernetes 1.34",
        "Kubernetes 1.35",
        "Kubernetes 1.36",
        "Deployments",
    ]
    assert Path("fleet.yaml").read_text() == FLEET  # the charts come first, and the file has nothing of them
    assert eks.describe_cluster(name="upgraded")["cluster"]["version"] == "1.34"


def test_write_changes_the_version_by_one_and_keeps_the_comment(
    aws: str, fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was applied, so nothing stands before the next version."""
    assert main.run(["fleet", "upgrade", "--write"]) == 0
    assert Path("fleet.yaml").read_text() == FLEET.replace("1.34", "1.35")
    assert capsys.readouterr().out.splitlines()[-1] == (
        'Next: eks.version: "1.35" in fleet.yaml, then blueprint fleet apply eks --fleet fleet.yaml'
    )


def test_write_without_the_account_is_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main.run(["fleet", "upgrade", "--write"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == (
        "--write: no AWS credentials found, and only the account shows whether the last step was applied. "
        "Fix: sign in (`aws sso login`), or set AWS_PROFILE."
    )
    assert Path("fleet.yaml").read_text() == FLEET
