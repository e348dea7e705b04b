"""nccl-tests between instances of a pool: run them, and judge their output."""

from __future__ import annotations

from llm_serving.aws.preflight import identity
from llm_serving.catalog import images, instances
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import image_cache, network_test
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.operations import cluster, context
from llm_serving.operations.network_test import ecs, kubernetes, output
from llm_serving.operations.network_test.output import Verdict


def run(fleet: Fleet, group: Group, *, nodes: int, limit_s: int) -> str:
    """Run nccl-tests on instances of a group, and return the output.

    Args:
        limit_s: seconds for everything, with the start of instances.

    Raises:
        CheckFailed: it did not finish in time.
        Unavailable: the cluster cannot be reached.
    """
    aws = context.open_session(fleet.region)
    with context.lock_fleet(fleet) as data_folder:
        if group.orchestrator == "ecs":
            return ecs.run(aws, fleet, group, nodes=nodes, limit_s=limit_s)
        registry = format_registry(identity.fetch_identity(aws).account, fleet.region)
        image = image_cache.rewrite(images.pin(images.NCCL_TESTS), image_cache.build_prefixes(fleet, registry))
        manifests = network_test.build_manifests(group, image=image, nodes=nodes, limit_s=limit_s)
        return kubernetes.run(cluster.connect(aws, fleet, data_folder), manifests, limit_s=limit_s)


def judge(text: str, group: Group) -> Verdict:
    """Judge the output of nccl-tests on instances of a group."""
    return output.judge(output.parse(text), instances.load()[group.types[0]], efa=group.efa)
