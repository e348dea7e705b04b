"""What runs of a fleet in its account: versions of Kubernetes and its add-ons, AMIs, charts, images."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.fleet import names
from llm_serving.fleet.add_ons import load_add_ons
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.upgrade import Installed
from llm_serving.operations import cluster, ecs_tasks
from llm_serving.operations.kube_api import POD, KubeApi
from llm_serving.settings.errors import BlueprintError

_HELM_TIMEOUT_S = 60.0


def read(aws: AwsSession, fleet: Fleet, data: Path) -> tuple[Installed, list[str]]:
    """Return what runs, and what could not be read with the reason.

    Args:
        data: the fleet's data directory, for its kubeconfig and logs.
    """
    with session.translate_errors():
        kubernetes = _read_kubernetes(aws, fleet) if fleet.creates_eks else None
        add_ons = dict(_read_add_ons(aws, fleet)) if kubernetes and not aws.is_emulated else {}
        images = set(_read_task_images(aws, fleet)) if "ecs" in fleet.orchestrators else set()
    amis = _count_amis(aws, fleet)
    unread = ["add-ons of EKS: the embedded AWS has none"] if kubernetes and aws.is_emulated else []
    charts: dict[str, str] = {}
    if kubernetes:
        try:
            with cluster.reach(aws, fleet, data):
                api = cluster.connect(aws, fleet, data)
                charts = _read_charts(aws, data)
                images |= set(_read_pod_images(api))
        except BlueprintError as error:
            unread.append(f"charts, and images of pods: {error}")
    return Installed(kubernetes, add_ons, amis, charts, frozenset(images)), unread


def _read_kubernetes(aws: AwsSession, fleet: Fleet) -> str | None:
    with session.ignore_errors("ResourceNotFoundException"):
        described = aws.client("eks").describe_cluster(name=names.format_cluster_name(fleet))
        return str(described["cluster"]["version"])
    return None


def _read_add_ons(aws: AwsSession, fleet: Fleet) -> Iterator[tuple[str, str]]:
    eks, name = aws.client("eks"), names.format_cluster_name(fleet)
    for add_on in session.list_all(eks, "list_addons", "addons", clusterName=name):
        described = eks.describe_addon(clusterName=name, addonName=add_on)
        yield add_on, str(described["addon"]["addonVersion"])


def _count_amis(aws: AwsSession, fleet: Fleet) -> dict[str, int]:
    """Count the fleet's instances by the name of their AMI; one that was taken back has no name."""
    counts = Counter(str(instance["ImageId"]) for instance in cluster.list_instances(aws, fleet))
    if not counts:
        return {}
    with session.translate_errors():
        filters = [{"Name": "image-id", "Values": sorted(counts)}]
        named_images = aws.client("ec2").describe_images(Filters=filters, IncludeDeprecated=True)["Images"]
    return {str(image["Name"]): counts[str(image["ImageId"])] for image in named_images}


def _read_task_images(aws: AwsSession, fleet: Fleet) -> Iterator[str]:
    tasks = ecs_tasks.list_tasks(aws.client("ecs"), names.format_cluster_name(fleet))
    return _list_images(container for task in tasks for container in task["containers"])


def _read_charts(aws: AwsSession, data: Path) -> dict[str, str]:
    output = console.run(
        ["helm", "list", "--all-namespaces", "--output", "json"],
        log=data / "helm-list.log",
        environment=cluster.open_session(aws, data).child_env,
        timeout_s=_HELM_TIMEOUT_S,
    )
    releases = {row["name"]: str(row["chart"]) for row in json.loads(output)}
    return {
        add_on.name: releases[add_on.name].removeprefix(f"{str(add_on.chart).rsplit('/', 1)[-1]}-")
        for add_on in load_add_ons()
        if add_on.chart and add_on.name in releases
    }


def _read_pod_images(api: KubeApi) -> Iterator[str]:
    for pod in api.list_objects(POD):
        yield from _list_images(pod["spec"]["containers"])


def _list_images(containers: Iterable[Any]) -> Iterator[str]:
    return (str(container["image"]) for container in containers if container.get("image"))
