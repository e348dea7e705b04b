from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.aws.session import Aws
from llm_serving.catalog import instances
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as platform
from llm_serving.operations import cluster
from llm_serving.settings.document import load
from llm_serving.settings.errors import AnswerIsNo, Unavailable
from tests.control_plane.control_plane import ControlPlane
from tests.operations.conftest import Recorder

FLEET = """\
name: small
region: us-west-2
zones: us-west-2a
orchestrator: eks
{more}pools:
  general: {{types: g6e.2xlarge, size: 0..4}}
"""


def fleet(tmp_path: Path, more: str = "") -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(more=more))
    return load(file, Fleet).value


def test_missing_programs_are_named_together_with_where_to_get_them(recorder: Recorder) -> None:
    recorder.lend("kubectl")
    with pytest.raises(Unavailable) as refused:
        platform.require_tools(cluster.TOOLS)
    assert str(refused.value) == (
        "not on this machine's PATH: helm and aws. Install helm (https://helm.sh/docs/intro/install), "
        "aws (https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)"
    )


def test_kubectl_and_helm_are_led_to_the_fleets_own_cluster_alone(recorder: Recorder, tmp_path: Path) -> None:
    recorder.lend("aws", "kubectl", "helm")
    reached = cluster.connect(fleet(tmp_path), tmp_path)
    assert reached.environment == {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    assert recorder.calls == [
        ["aws", "eks", "update-kubeconfig", "--name", "small", "--region", "us-west-2"],
        ["kubectl", "get", "--raw", "/readyz", "--request-timeout=15s"],
    ]


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ("", "Its endpoint is private: run this inside the VPC, or write your range in `eks.public_from`"),
        ("eks: {public_from: [203.0.113.0/24]}\n", "Its endpoint is open to 203.0.113.0/24 alone"),
    ],
)
def test_a_cluster_that_does_not_answer_is_said_with_who_can_reach_it(
    recorder: Recorder, tmp_path: Path, more: str, remedy: str
) -> None:
    recorder.lend("aws", "kubectl", "helm", failing=("/readyz",))
    with pytest.raises(Unavailable) as refused:
        cluster.connect(fleet(tmp_path, more), tmp_path)
    assert str(refused.value) == (
        "the cluster small does not answer kubectl (Unable to connect to the server: dial tcp 10.0.0.1:443: "
        f"i/o timeout). {remedy}"
    )


def test_a_real_cluster_loses_what_machines_and_load_balancers_were_made_for_and_nothing_else(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", control_plane.environment["PATH"])
    led = {"KUBECONFIG": str(control_plane.kubeconfig)}
    reached = cluster.Cluster(fleet(tmp_path), tmp_path, led)
    assert reached.identity() == control_plane.read("namespace", "kube-system")["metadata"]["uid"]
    definition = yaml.safe_load(KIND.format(plural="nodepools", kind="NodePool"))
    claims = yaml.safe_load(KIND.format(plural="nodeclaims", kind="NodeClaim"))
    cluster.end_machines(reached)  # where Karpenter never was
    backend = {"service": {"name": "open", "port": {"number": 80}}}
    objects = [
        service("open", "LoadBalancer"),
        service("inner", "ClusterIP"),
        {**of("networking.k8s.io/v1", "Ingress", "web"), "spec": {"defaultBackend": backend}},
    ]
    control_plane.do("create", "--filename=-", told=[definition, claims, *objects])
    processes.wait_until(lambda: control_plane.ask("get", "nodepools,nodeclaims").returncode == 0, "both kinds", 30)
    control_plane.do("create", "--filename=-", told=[of("karpenter.sh/v1", "NodePool", "general", namespace=None)])
    try:
        cluster.end_machines(reached)
        cluster.end_load_balancers(reached)
        left = control_plane.do("get", "nodepools,services,ingresses", "--namespace=default", "--output=name")
        assert left.split() == ["service/inner", "service/kubernetes"], "the latter is every cluster's"
    finally:
        control_plane.do(
            "delete", "service/inner", f"crd/{definition['metadata']['name']}", f"crd/{claims['metadata']['name']}"
        )


def of(version: str, kind: str, name: str, namespace: str | None = "default") -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where}}


def service(name: str, kind: str) -> dict[str, Any]:
    return {**of("v1", "Service", name), "spec": {"type": kind, "ports": [{"port": 80}]}}


KIND = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.karpenter.sh}}
spec:
  group: karpenter.sh
  scope: Cluster
  names: {{kind: {kind}, plural: {plural}}}
  versions:
    - {{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object}}}}}}
"""
"""Stands for Karpenter's own, of which the names alone matter here."""


def test_machines_go_before_load_balancers_and_these_before_the_charts_that_made_them(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.lend("aws", "kubectl", "helm")
    rented = fleet(tmp_path)
    reached = cluster.Cluster(rented, tmp_path, cluster.kubeconfig(tmp_path))
    cluster.end_machines(reached)
    cluster.end_load_balancers(reached)
    removals = platform.removals(rented, instances.load(), tmp_path / "platform")
    platform.run(removals, tmp_path / "platform", doing="Remove", environment=reached.environment)
    done = [" ".join(call[:4]) for call in recorder.calls]
    assert done == [
        "kubectl get crd nodepools.karpenter.sh",
        "kubectl delete nodepools.karpenter.sh --all",
        "kubectl delete nodeclaims.karpenter.sh --all",
        "kubectl delete ingresses --all",
        "kubectl delete services --field-selector=spec.type=LoadBalancer",
        "kubectl delete --ignore-not-found --timeout=900s",
        "helm uninstall karpenter --namespace",
        "helm uninstall aws-load-balancer-controller --namespace",
        "helm uninstall nvidia-device-plugin --namespace",
    ]


def test_removal_is_the_installation_backwards(tmp_path: Path) -> None:
    rented, catalogue = fleet(tmp_path), instances.load()
    there = [one.step.row.name for one in platform.commands(rented, catalogue, tmp_path)]
    back = [one.step.row.name for one in platform.removals(rented, catalogue, tmp_path)]
    assert back == there[::-1]
    assert there.index("karpenter") < there.index("node-pools")


def test_machines_of_karpenter_are_found_in_ec2_itself_and_are_no_end(aws: str, tmp_path: Path) -> None:
    rented = fleet(tmp_path)
    asked = Aws(rented.region)
    cluster.require_none_left(asked, rented)
    tags = {"karpenter.sh/nodepool": "general-spot", "kubernetes.io/cluster/small": "owned"}
    images = asked.client("ec2").describe_images(Owners=["amazon"])["Images"]
    made = asked.client("ec2").run_instances(
        ImageId=images[0]["ImageId"],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    )
    name = made["Instances"][0]["InstanceId"]
    try:
        assert cluster.started_by_karpenter(asked, rented) == [name]
        with pytest.raises(AnswerIsNo) as refused:
            cluster.require_none_left(asked, rented)
        assert str(refused.value) == (
            "1 machine(s) of the fleet small still run, and cost. To end them: "
            f"aws ec2 terminate-instances --region us-west-2 --instance-ids {name}"
        )
    finally:
        asked.client("ec2").terminate_instances(InstanceIds=[name])
    cluster.require_none_left(asked, rented)


def test_load_balancers_that_the_cluster_made_are_told_from_others(aws: str, tmp_path: Path) -> None:
    rented = fleet(tmp_path)
    asked = Aws(rented.region)
    balancers, ec2 = asked.client("elbv2"), asked.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24", AvailabilityZone="us-west-2a")["Subnet"]["SubnetId"]
    made = []
    for name, tags in (
        ("k8s-one", {"elbv2.k8s.aws/cluster": "small"}),
        ("k8s-two", {"elbv2.k8s.aws/cluster": "other"}),
    ):
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        answer = balancers.create_load_balancer(Name=name, Type="network", Subnets=[subnet], Tags=listed)
        made.append(answer["LoadBalancers"][0]["LoadBalancerArn"])
    try:
        assert cluster.load_balancers(asked, rented) == ["k8s-one"]
    finally:
        for arn in made:
            balancers.delete_load_balancer(LoadBalancerArn=arn)
        ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=vpc)
    assert cluster.load_balancers(asked, rented) == []
