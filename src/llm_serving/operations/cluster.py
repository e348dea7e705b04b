"""The EKS cluster as this machine reaches it, and the instances that Karpenter started in it.

Terraform does not manage those instances, nor the load balancers that controllers created: destroying the cluster first
would leave them running, and costing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_serving import console, processes
from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import names
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons, kube_api, tunnel
from llm_serving.operations.kube_api import NAMESPACE, SERVICE, ApiError, Kind, KubeApi
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.settings.units import format_count

TOOLS: Mapping[str, str] = {
    **add_ons.TOOLS,
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
}
"""Programs that reach a cluster: its token comes from the AWS command line."""

_TIMEOUT_S = 60.0
_MACHINES_TIMEOUT_S = 2400
"""Pods have up to half an hour to drain, and EC2 takes some minutes more."""

_EKS_CLUSTER = re.compile(r"arn:[a-z-]+:eks:(?P<region>[a-z0-9-]+):\d{12}:cluster/(?P<name>.+)")
"""Name of a cluster in a kubeconfig, as `aws eks update-kubeconfig` writes it, under whatever alias of the context."""

_KARPENTER = (Kind("karpenter.sh/v1", "NodePool"), Kind("karpenter.sh/v1", "NodeClaim"))
_GATEWAY = Kind("gateway.networking.k8s.io/v1", "Gateway")
_INGRESS = Kind("networking.k8s.io/v1", "Ingress")


def require_own(fleet: Fleet, kubeconfig: Path | None = None) -> None:
    """Require that a kubeconfig does not lead to another fleet's cluster, where a release may have the same name.

    Raises:
        Unavailable: it does, as far as the name that the cluster has there says.
    """
    name, other = names.find_eks_cluster(fleet), kube_api.read_cluster_name(kube_api.locate_kubeconfig(kubeconfig))
    match = _EKS_CLUSTER.fullmatch(other)
    if match and (match["region"], match["name"]) != (fleet.region, name):
        raise Unavailable(
            f"the kubeconfig leads to {other}, and the fleet's cluster is {name} in {fleet.region}. Nothing was "
            f"changed. Fix: run {console.quote_command(build_kubeconfig_command(fleet))}, or set KUBECONFIG."
        )


def fetch_uid(api: KubeApi) -> str:
    """Return an identity that no other cluster has, not even the next one of the same name."""
    namespace = api.find(NAMESPACE, "kube-system") or {}
    return str(namespace["metadata"]["uid"])


def open_session(aws: AwsSession, data: Path) -> AwsSession:
    """Return the session with the kubeconfig of the fleet's own cluster."""
    return aws.with_kubeconfig(data / "kubeconfig")


def build_kubeconfig_command(fleet: Fleet) -> tuple[str, ...]:
    return ("aws", "eks", "update-kubeconfig", "--name", names.find_eks_cluster(fleet), "--region", fleet.region)


def connect(aws: AwsSession, fleet: Fleet, data: Path) -> KubeApi:
    """Write the fleet's own kubeconfig, which `open_session` has, and require that the cluster responds.

    Raises:
        Unavailable: a program is missing, or the cluster cannot be reached from this machine.
        CommandFailed: there is no such cluster.
    """
    add_ons.require_tools(TOOLS)
    own = open_session(aws, data)
    command, log = build_kubeconfig_command(fleet), data / "kubeconfig.log"
    console.run(command, log=log, environment=own.child_env, timeout_s=_TIMEOUT_S)
    if open_tunnel := tunnel.find_open(data):
        tunnel.redirect(data / "kubeconfig", open_tunnel)
    try:
        api = kube_api.open_api(own.kubeconfig)
        api.require_ready()
    except ApiError as error:
        name = names.find_eks_cluster(fleet)
        if error.status in (401, 403):
            fix = "sign in as who applied the fleet last, or by a role of `eks.admins`"
            raise Unavailable(f"the cluster {name} refuses this identity ({error}). Fix: {fix}") from None
        raise Unavailable(f"the cluster {name} does not respond ({error}). {describe_endpoint_access(fleet)}") from None
    return api


@contextlib.contextmanager
def reach(aws: AwsSession, fleet: Fleet, data: Path) -> Iterator[None]:
    """Open a tunnel for the time of the block; do nothing where this machine reaches the endpoint, or one is open.

    Raises:
        Unavailable: a program is missing, no system node runs, or the session did not start.
    """
    if not can_tunnel(fleet) or tunnel.find_open(data):
        yield
        return
    [port] = processes.claim_free_ports(1)  # another fleet's tunnel may have the usual one
    route = tunnel.plan(aws, fleet, port)
    if tunnel.is_reachable(route.host):
        yield
        return
    add_ons.require_tools(tunnel.TOOLS)
    with console.step(f"Open a tunnel to the cluster {fleet.name} through {route.instance}"):
        open_tunnel = contextlib.ExitStack()
        open_tunnel.enter_context(tunnel.forward(route, aws, data))
    with open_tunnel:
        yield


def can_tunnel(fleet: Fleet) -> bool:
    """Return whether a tunnel may be needed, and has a way: the system nodes of the fleet's own private cluster."""
    return fleet.creates_eks and not fleet.eks.public_from


def describe_endpoint_access(fleet: Fleet) -> str:
    """Return who can reach the cluster's endpoint."""
    if fleet.eks.cluster:
        return "Fix: run this where its endpoint can be reached"
    if fleet.eks.public_from:
        return f"Its endpoint is open to {join_words(fleet.eks.public_from)} only"
    clients = join_words(["the VPC", *fleet.eks.private_from])
    return (
        f"Its endpoint is private, open to {clients}. Fix: run this there, add your network to `eks.private_from` or "
        "`eks.public_from`, or run `blueprint platform tunnel` in another terminal"
    )


def terminate_machines(api: KubeApi) -> None:
    """Have Karpenter terminate every instance that it started, and wait; do nothing without Karpenter.

    Raises:
        ApiError: they were not terminated in time.
    """
    for kind in filter(api.has_kind, _KARPENTER):
        api.delete_all(kind, timeout_s=_MACHINES_TIMEOUT_S)


def delete_load_balancers(api: KubeApi) -> None:
    """Delete gateways, ingresses and services with load balancers, while the controller that ends those still runs.

    Raises:
        ApiError: they were not deleted in time.
    """
    for kind in filter(api.has_kind, (_GATEWAY, _INGRESS)):
        api.delete_all(kind, timeout_s=add_ons.LIMIT_S)
    api.delete_all(SERVICE, fields="spec.type=LoadBalancer", timeout_s=add_ons.LIMIT_S)


_CONTROLLERS_FINALIZER = "k8s.aws/"
"""In the name of each of its finalizers. Source: kubernetes-sigs/aws-load-balancer-controller, pkg/shared_constants,
2026-11."""


def require_no_load_balancers(api: KubeApi) -> None:
    """Require that no object waits for the load balancer controller: without it, its load balancer would cost for ever.

    Raises:
        CheckFailed: some do; names them.
    """
    objects = [
        *(item for kind in filter(api.has_kind, (_GATEWAY, _INGRESS)) for item in api.list_objects(kind)),
        *api.list_objects(SERVICE, fields="spec.type=LoadBalancer"),
    ]
    waiting = [
        f"{item['kind']} {item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in objects
        if any(_CONTROLLERS_FINALIZER in finalizer for finalizer in item["metadata"].get("finalizers", ()))
    ]
    if waiting:
        raise CheckFailed(
            f"{join_words(waiting)}: only aws-load-balancer-controller can delete what AWS has of it. Nothing was "
            "changed. Fix: run `blueprint destroy` for each deployment, and delete what else has a load balancer, first"
        )


def list_karpenter_instances(aws: AwsSession, fleet: Fleet) -> list[str]:
    """Return the ids of the instances that Karpenter started for the fleet and that are not terminated."""
    return [instance["InstanceId"] for instance in _describe_karpenter_instances(aws, fleet)]


def _describe_karpenter_instances(aws: AwsSession, fleet: Fleet) -> list[Mapping[str, Any]]:
    filters = [
        {"Name": "tag-key", "Values": ["karpenter.sh/nodepool"]},
        {"Name": f"tag:kubernetes.io/cluster/{names.format_cluster_name(fleet)}", "Values": ["owned"]},
    ]
    # Those of an existing cluster are not the fleet's, though it may have the fleet's name.
    return _describe_instances(aws, filters) if fleet.creates_eks else []


_TAGS_PER_CALL = 20
"""Load balancers in one call. Source: Elastic Load Balancing API reference, DescribeTags, 2026-11."""


def list_load_balancers(aws: AwsSession, fleet: Fleet) -> list[str]:
    """Return the names of the load balancers that the cluster's controller created, by its tag."""
    client = aws.client("elbv2")
    cluster_tag = {"Key": "elbv2.k8s.aws/cluster", "Value": names.format_cluster_name(fleet)}
    with session.translate_errors():
        entries = session.list_all(client, "describe_load_balancers", "LoadBalancers")
        names_by_arn = {entry["LoadBalancerArn"]: entry["LoadBalancerName"] for entry in entries}
        descriptions = [
            entry
            for arns in session.split(list(names_by_arn), _TAGS_PER_CALL)
            for entry in client.describe_tags(ResourceArns=arns)["TagDescriptions"]
        ]
    return [names_by_arn[entry["ResourceArn"]] for entry in descriptions if cluster_tag in entry["Tags"]]


def list_instances(aws: AwsSession, fleet: Fleet) -> list[Mapping[str, Any]]:
    """Return the fleet's instances that are not terminated, Karpenter's among them, as EC2 describes them."""
    described = [
        *_describe_karpenter_instances(aws, fleet),
        *_describe_instances(aws, [{"Name": "tag:fleet", "Values": [fleet.name]}]),
    ]
    return list({instance["InstanceId"]: instance for instance in described}.values())


def require_no_instances(aws: AwsSession, fleet: Fleet) -> None:
    """Ask EC2 whether any instance of the fleet is still running.

    Raises:
        CheckFailed: some are; the message has the command to terminate them.
    """
    unique_ids = [instance["InstanceId"] for instance in list_instances(aws, fleet)]
    if unique_ids:
        command = console.quote_command(
            ("aws", "ec2", "terminate-instances", "--region", fleet.region, "--instance-ids", *unique_ids)
        )
        raise CheckFailed(
            f"{format_count(len(unique_ids), 'instance')} of the fleet {fleet.name} "
            f"{'is' if len(unique_ids) == 1 else 'are'} running, and cost{'s' * (len(unique_ids) == 1)}. "
            f"Fix: run {command}"
        )


def _describe_instances(aws: AwsSession, filters: Sequence[Mapping[str, object]]) -> list[Mapping[str, Any]]:
    state_filter = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    with session.translate_errors():
        query = {"Filters": [*filters, state_filter]}
        reservations = session.list_all(aws.client("ec2"), "describe_instances", "Reservations", **query)
    return [instance for reservation in reservations for instance in reservation["Instances"]]
