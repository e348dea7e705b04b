"""The EKS cluster as kubectl and helm reach it, and the machines that Karpenter started in it.

Terraform knows nothing of those machines, nor of the load balancers that controllers made: whoever destroys the cluster
first leaves them running, and paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.aws.session import Aws
from llm_serving.fleet import names
from llm_serving.fleet.checks import listed
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as platform
from llm_serving.settings.errors import AnswerIsNo, Unavailable

TOOLS: Mapping[str, str] = {
    **platform.TOOLS,
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
}
"""What the way into a cluster takes: kubectl gets its token from the AWS command line."""

_QUICK_S = 60.0
_MACHINES_S = 2400
"""Pods leave by their own grace, half an hour at the most, and then EC2 takes its time."""

_NODE_POOLS = "nodepools.karpenter.sh"


@dataclass(frozen=True)
class Cluster:
    """A cluster that answers."""

    fleet: Fleet
    folder: Path
    """For logs."""

    environment: Mapping[str, str]
    """Leads kubectl and helm to this cluster alone, whatever else the user works with."""

    def kubectl(self, *words: str, limit_s: float = _QUICK_S) -> str:
        """Runs kubectl and returns what it printed.

        Raises:
            CommandFailed: it failed.
        """
        log = self.folder / "kubectl.log"
        return console.run(("kubectl", *words), log=log, environment=self.environment, timeout_s=limit_s)

    def identity(self) -> str:
        """What no other cluster has, not even the next one of the same name."""
        return self.kubectl("get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}").strip()


def kubeconfig(data: Path) -> dict[str, str]:
    """What leads kubectl and helm to the fleet's cluster."""
    return {"KUBECONFIG": str((data / "kubeconfig").absolute())}


def way_in(fleet: Fleet) -> tuple[str, ...]:
    """The command that writes the kubeconfig."""
    return ("aws", "eks", "update-kubeconfig", "--name", names.cluster(fleet), "--region", fleet.region)


def connect(fleet: Fleet, data: Path) -> Cluster:
    """Writes a kubeconfig of the fleet's own, and sees that the cluster answers.

    Raises:
        Unavailable: a program is missing, or the cluster cannot be reached from here.
        CommandFailed: there is no such cluster.
    """
    platform.require_tools(TOOLS)
    found = Cluster(fleet, data, kubeconfig(data))
    console.run(way_in(fleet), log=data / "kubectl.log", environment=found.environment, timeout_s=_QUICK_S)
    try:
        found.kubectl("get", "--raw", "/readyz", "--request-timeout=15s")
    except console.CommandFailed as error:
        last = error.output.strip().splitlines()[-1:] or ["no word"]
        raise Unavailable(
            f"the cluster {names.cluster(fleet)} does not answer kubectl ({last[0]}). {remedy(fleet)}"
        ) from None
    return found


def remedy(fleet: Fleet) -> str:
    """Who can reach the cluster's endpoint."""
    if fleet.eks.public_from:
        return f"Its endpoint is open to {listed(fleet.eks.public_from)} alone"
    return "Its endpoint is private: run this inside the VPC, or write your range in `eks.public_from`"


def end_machines(cluster: Cluster) -> None:
    """Has Karpenter end every machine that it started, and waits; does nothing where Karpenter never was.

    Raises:
        CommandFailed: they did not go in time.
    """
    there = cluster.kubectl("get", "crd", _NODE_POOLS, "--ignore-not-found", "--output=name")
    if not there.strip():
        return
    for kind in (_NODE_POOLS, "nodeclaims.karpenter.sh"):
        words = ("delete", kind, "--all", "--ignore-not-found", f"--timeout={_MACHINES_S}s")
        cluster.kubectl(*words, limit_s=_MACHINES_S + 60)


def end_load_balancers(cluster: Cluster) -> None:
    """Deletes what load balancers were made for, while the controller that takes them down still runs.

    Raises:
        CommandFailed: they did not go in time.
    """
    limit = (f"--timeout={platform.LIMIT_S}s", "--all-namespaces", "--ignore-not-found")
    for words in (("ingresses", "--all"), ("services", "--field-selector=spec.type=LoadBalancer")):
        cluster.kubectl("delete", *words, *limit, limit_s=platform.LIMIT_S + 60)


def started_by_karpenter(aws: Aws, fleet: Fleet) -> list[str]:
    """Ids of the machines that Karpenter started for the fleet and that are paid for.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    return _instances(
        aws,
        [
            {"Name": "tag-key", "Values": ["karpenter.sh/nodepool"]},
            {"Name": f"tag:kubernetes.io/cluster/{names.cluster(fleet)}", "Values": ["owned"]},
        ],
    )


_TAGS_AT_ONCE = 20
"""Load balancers in one call. Source: Elastic Load Balancing API reference, DescribeTags, 2026-11."""


def load_balancers(aws: Aws, fleet: Fleet) -> list[str]:
    """Names of the load balancers that the cluster's controller made, by the tag that it puts on each.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    balancers = aws.client("elbv2")
    own = {"Key": "elbv2.k8s.aws/cluster", "Value": names.cluster(fleet)}
    with clients.refusals():
        pages = balancers.get_paginator("describe_load_balancers").paginate()
        by_arn = {one["LoadBalancerArn"]: one["LoadBalancerName"] for page in pages for one in page["LoadBalancers"]}
        arns = list(by_arn)
        found = [
            one
            for first in range(0, len(arns), _TAGS_AT_ONCE)
            for one in balancers.describe_tags(ResourceArns=arns[first : first + _TAGS_AT_ONCE])["TagDescriptions"]
        ]
    return [by_arn[one["ResourceArn"]] for one in found if own in one["Tags"]]


def require_none_left(aws: Aws, fleet: Fleet) -> None:
    """Asks EC2 itself whether any machine of the fleet still runs.

    Raises:
        AnswerIsNo: some do; says how to end them.
    """
    left = [*started_by_karpenter(aws, fleet), *_instances(aws, [{"Name": "tag:fleet", "Values": [fleet.name]}])]
    if left:
        ids = list(dict.fromkeys(left))
        command = console.quoted(
            ("aws", "ec2", "terminate-instances", "--region", fleet.region, "--instance-ids", *ids)
        )
        raise AnswerIsNo(f"{len(ids)} machine(s) of the fleet {fleet.name} still run, and cost. To end them: {command}")


def _instances(aws: Aws, filters: Sequence[Mapping[str, object]]) -> list[str]:
    paid = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    with clients.refusals():
        pages = aws.client("ec2").get_paginator("describe_instances").paginate(Filters=[*filters, paid])
        return [one["InstanceId"] for page in pages for group in page["Reservations"] for one in group["Instances"]]
