from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.fleet.model import Eks, Fleet
from llm_serving.operations import add_ons as platform
from llm_serving.operations import cluster, kube_api
from llm_serving.operations.kube_api import Kind, KubeApi
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed, Unavailable
from tests.control_plane.control_plane import ControlPlane
from tests.operations.conftest import EXISTING, Recorder

REGION = "us-west-2"
ARN = "arn:aws:eks:us-west-2:123456789012:cluster/small"
FLEET = """\
name: small
region: us-west-2
zones: us-west-2a
orchestrator: eks
{more}pools:
  general: {{types: g6e.2xlarge, size: 0..4}}
"""


def write_fleet(tmp_path: Path, extra_lines: str = "") -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(more=extra_lines))
    return load(file, Fleet).value


def test_missing_programs_are_named_together_with_where_to_get_them(recorder: Recorder) -> None:
    recorder.install("kubectl")  # which nothing needs
    with pytest.raises(Unavailable) as error:
        platform.require_tools(cluster.TOOLS)
    assert str(error.value) == (
        "not on this machine's PATH: helm and aws. Fix: install helm (https://helm.sh/docs/intro/install), "
        "aws (https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)."
    )


@pytest.mark.parametrize(
    ("version", "accepted"), [("v3.22.0+g1234567", True), ("v4.3.1", True), ("v2.17.0", False), ("v5.0.0", False)]
)
def test_a_helm_that_nothing_was_tested_with_is_refused(
    version: str, accepted: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it runs goes where the kubeconfig leads, as all else does."""
    monkeypatch.setenv("HELM_KUBECONTEXT", "prod")
    program = recorder.folder / "helm"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'version --short' ] && echo {version}\n")
    program.chmod(0o755)
    if accepted:
        platform.require_tools()
        assert "HELM_KUBECONTEXT" not in os.environ
        return
    with pytest.raises(Unavailable) as error:
        platform.require_tools()
    assert str(error.value) == (
        f'helm: "{version}": versions 3 and 4 are supported. Fix: install one (https://helm.sh/docs/intro/install).'
    )


@pytest.mark.parametrize(("more", "name"), [("", "small"), (EXISTING, "platform")])
def test_the_api_and_helm_are_led_to_the_fleets_own_cluster_alone(
    recorder: Recorder, tmp_path: Path, more: str, name: str
) -> None:
    recorder.install("aws", "helm")
    cluster.connect(AwsSession(REGION), write_fleet(tmp_path, more), tmp_path)
    environment = cluster.open_session(AwsSession(REGION), tmp_path).child_env
    assert environment == {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    assert recorder.calls == [
        ["aws", "eks", "update-kubeconfig", "--name", name, "--region", "us-west-2"],
        ["api", "open", str(tmp_path / "kubeconfig")],
        ["api", "ready"],
    ]


@pytest.mark.parametrize("command", [("install", "--plan"), ("remove", "--yes"), ("tunnel", "--plan")])
def test_charts_of_an_existing_cluster_are_its_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    write_fleet(tmp_path, EXISTING)
    assert main.run(["platform", *command, "--fleet", str(tmp_path / "fleet.yaml")]) == 2
    assert "eks: cluster: platform: the cluster exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        (
            "",
            "Its endpoint is private, open to the VPC. Fix: run this there, add your network to `eks.private_from` or "
            "`eks.public_from`, or run `blueprint platform tunnel` in another terminal",
        ),
        ("eks: {public_from: [203.0.113.0/24]}\n", "Its endpoint is open to 203.0.113.0/24 only"),
        (EXISTING, "Fix: run this where its endpoint can be reached"),
    ],
)
def test_an_unreachable_cluster_is_reported_with_who_can_reach_it(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, remedy: str
) -> None:
    recorder.install("aws", "helm")
    monkeypatch.setattr(kube_api, "open_api", KubeApi)
    (port,) = processes.claim_free_ports(1)
    write_kubeconfig(tmp_path / "kubeconfig", f"https://127.0.0.1:{port}")
    with pytest.raises(Unavailable) as error:
        cluster.connect(AwsSession(REGION), write_fleet(tmp_path, more), tmp_path)
    message = str(error.value)
    name = "platform" if more == EXISTING else "small"
    assert message.startswith(f"the cluster {name} does not respond (cannot reach the cluster: "), message
    assert "Connection refused" in message and message.endswith(f"). {remedy}"), message


def test_a_cluster_that_does_not_know_the_caller_is_reported_with_whom_it_knows(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> KubeApi:
        raise kube_api.ApiError("cannot reach the cluster: Unauthorized", 401)

    recorder.install("aws", "helm")
    monkeypatch.setattr(kube_api, "open_api", refuse)
    with pytest.raises(Unavailable) as error:
        cluster.connect(AwsSession(REGION), write_fleet(tmp_path), tmp_path)
    assert str(error.value) == (
        "the cluster small refuses this identity (cannot reach the cluster: Unauthorized). Fix: sign in as who applied "
        "the fleet last, or by a role of `eks.admins`"
    )


def write_kubeconfig(file: Path, server: str) -> None:
    """Write what `aws eks update-kubeconfig` would, without a token."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": ARN, "cluster": {"server": server}}],
        "users": [{"name": ARN, "user": {}}],
        "contexts": [{"name": ARN, "context": {"cluster": ARN, "user": ARN}}],
        "current-context": ARN,
    }
    file.write_text(yaml.safe_dump(config))


def test_a_real_cluster_loses_only_nodes_and_load_balancers(control_plane: ControlPlane) -> None:
    api = control_plane.api
    assert cluster.fetch_uid(api) == control_plane.read(kube_api.NAMESPACE, "kube-system")["metadata"]["uid"]
    definition = yaml.safe_load(KIND.format(plural="nodepools", kind="NodePool"))
    claims = yaml.safe_load(KIND.format(plural="nodeclaims", kind="NodeClaim"))
    gateways = yaml.safe_load(GATEWAYS)
    cluster.terminate_machines(api)  # where Karpenter never was
    cluster.delete_load_balancers(api)  # nor the Gateway API
    backend = {"service": {"name": "open", "port": {"number": 80}}}
    objects = [
        build_service("open", "LoadBalancer"),
        build_service("inner", "ClusterIP"),
        {**build_manifest("networking.k8s.io/v1", "Ingress", "web"), "spec": {"defaultBackend": backend}},
    ]
    control_plane.api.apply([definition, claims, gateways, *objects])
    kinds = [
        Kind("karpenter.sh/v1", "NodePool"),
        Kind("karpenter.sh/v1", "NodeClaim"),
        Kind("gateway.networking.k8s.io/v1", "Gateway"),
    ]
    processes.wait_until(lambda: all(map(control_plane.api.has_kind, kinds)), "all kinds", 90)
    custom_objects = [
        build_manifest("karpenter.sh/v1", "NodePool", "general", namespace=None),
        build_manifest("gateway.networking.k8s.io/v1", "Gateway", "edge"),
    ]
    control_plane.api.apply(custom_objects)
    try:
        cluster.terminate_machines(api)
        cluster.delete_load_balancers(api)
        assert control_plane.api.list_objects(kinds[0]) == []
        ingress = Kind("networking.k8s.io/v1", "Ingress")
        remaining = control_plane.list_names(kinds[2], ingress, kube_api.SERVICE, namespace="default")
        assert remaining == ["Service/inner", "Service/kubernetes"], "the latter is every cluster's"
    finally:
        control_plane.remove(objects[1], definition, claims, gateways)


def build_manifest(version: str, kind: str, name: str, namespace: str | None = "default") -> dict[str, Any]:
    namespace_field = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **namespace_field}}


def build_service(name: str, kind: str) -> dict[str, Any]:
    return {**build_manifest("v1", "Service", name), "spec": {"type": kind, "ports": [{"port": 80}]}}


GATEWAYS = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gateways.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: gateway.networking.k8s.io
  names: {kind: Gateway, plural: gateways, singular: gateway}
  scope: Namespaced
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""

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


def test_nodes_end_before_load_balancers_and_these_before_charts(recorder: Recorder, tmp_path: Path) -> None:
    recorder.install("aws", "helm")
    demo_fleet = write_fleet(tmp_path)
    kubeconfig = tmp_path / "kubeconfig"
    api = kube_api.open_api(kubeconfig)
    cluster.terminate_machines(api)
    cluster.delete_load_balancers(api)
    removals = platform.build_remove_commands(demo_fleet, tmp_path / "platform", tmp_path / "fleet.yaml")
    platform.run_commands(removals, tmp_path / "platform", verb="Remove", kubeconfig=kubeconfig)
    calls = [" ".join(call[:4]) for call in recorder.calls if call[:2] != ["api", "open"]]
    assert calls == [
        "api delete NodePool",
        "api delete NodeClaim",
        "api delete Gateway",
        "api delete Ingress",
        "api delete Service",
        "api delete Deployment PriorityClass",
        "api delete EC2NodeClass NodePool",
        "helm uninstall karpenter --namespace",
        "helm uninstall aws-load-balancer-controller --namespace",
        "helm uninstall nvidia-device-plugin --namespace",
        "api delete StorageClass",
    ]


def test_removal_is_the_installation_backwards(tmp_path: Path) -> None:
    demo_fleet = write_fleet(tmp_path)
    commands = platform.build_install_commands(demo_fleet, tmp_path, tmp_path / "fleet.yaml")
    installed = [command.selected.add_on.name for command in commands]
    removals = platform.build_remove_commands(demo_fleet, tmp_path, tmp_path / "fleet.yaml")
    removed = [command.selected.add_on.name for command in removals]
    added_to = ("node-monitoring", "gpu-health")  # what EKS and a chart have made
    assert removed == [name for name in reversed(installed) if name not in added_to]
    assert installed.index("karpenter") < installed.index("node-pools")


def test_karpenters_instances_are_found_in_ec2(aws: str, tmp_path: Path) -> None:
    demo_fleet = write_fleet(tmp_path)
    clients = AwsSession(demo_fleet.region)
    cluster.require_no_instances(clients, demo_fleet)
    tags = {"karpenter.sh/nodepool": "general-spot", "kubernetes.io/cluster/small": "owned"}
    images = clients.client("ec2").describe_images(Owners=["amazon"])["Images"]
    launched = clients.client("ec2").run_instances(
        ImageId=images[0]["ImageId"],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    )
    name = launched["Instances"][0]["InstanceId"]
    try:
        assert cluster.list_karpenter_instances(clients, demo_fleet) == [name]
        with pytest.raises(CheckFailed) as error:
            cluster.require_no_instances(clients, demo_fleet)
        assert str(error.value) == (
            "1 instance of the fleet small is running, and costs. Fix: run "
            f"aws ec2 terminate-instances --region us-west-2 --instance-ids {name}"
        )
        # Those of an existing cluster of the same name are its owner's.
        existing = demo_fleet.model_copy(update={"eks": Eks(cluster="small")})
        assert cluster.list_karpenter_instances(clients, existing) == []
        cluster.require_no_instances(clients, existing)
    finally:
        clients.client("ec2").terminate_instances(InstanceIds=[name])
    cluster.require_no_instances(clients, demo_fleet)


def test_the_clusters_load_balancers_are_distinguished_from_others(aws: str, tmp_path: Path) -> None:
    demo_fleet = write_fleet(tmp_path)
    clients = AwsSession(demo_fleet.region)
    balancers, ec2 = clients.client("elbv2"), clients.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24", AvailabilityZone="us-west-2a")["Subnet"]["SubnetId"]
    created = []
    for name, tags in (
        ("k8s-one", {"elbv2.k8s.aws/cluster": "small"}),
        ("k8s-two", {"elbv2.k8s.aws/cluster": "other"}),
    ):
        tag_list = [{"Key": key, "Value": value} for key, value in tags.items()]
        response = balancers.create_load_balancer(Name=name, Type="network", Subnets=[subnet], Tags=tag_list)
        created.append(response["LoadBalancers"][0]["LoadBalancerArn"])
    try:
        assert cluster.list_load_balancers(clients, demo_fleet) == ["k8s-one"]
    finally:
        for arn in created:
            balancers.delete_load_balancer(LoadBalancerArn=arn)
        ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=vpc)
    assert cluster.list_load_balancers(clients, demo_fleet) == []
