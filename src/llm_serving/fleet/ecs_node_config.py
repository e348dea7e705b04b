"""User data of an ECS container instance: the agent's settings, and where its images are stored.

What ECS on EC2 offers to start images fast, and no more: images that are there already (`once`), a volume made from a
snapshot that holds them (`prefer-cached`), a fast volume or the instance's own NVMe disks. Only Fargate has SOCI.

Sources, read 2026-11: ECS developer guide, "Amazon ECS container agent configuration", "Bootstrapping Amazon ECS Linux
container instances", "Configuring pre-initialized instances for your Amazon ECS Auto Scaling group".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from llm_serving.fleet.groups import Group
from llm_serving.fleet.node_config import build_snapshot_mount, render_multipart

IMAGES_DIR = "/var/lib/docker"
"""Where Docker keeps images; a snapshot holds the file system that was mounted here."""

_INSTANCE_STORE = Path(__file__).with_name("instance_store.sh")
"""Two folders: Docker keeps layers in its own or in containerd's, by the store that a release of it takes. Positional
parameters and no arrays: Terraform would take ${...} for one of its references."""


def render(group: Group, cluster: str) -> str:
    """Return the user data of the group's instances, which join the cluster of this name."""
    parts = [("text/x-shellscript", _render_agent_script(group, cluster))]
    if group.nvme:
        # A boothook runs at every start and before Docker's; after a stop the disks are empty again.
        parts.insert(0, ("text/cloud-boothook", _INSTANCE_STORE.read_text(encoding="utf-8")))
    if group.images == "snapshot":
        parts.insert(0, build_snapshot_mount(IMAGES_DIR))
    return render_multipart(parts)


def list_agent_settings(group: Group, cluster: str) -> Iterator[tuple[str, str]]:
    yield "ECS_CLUSTER", cluster
    if group.labels:
        yield "ECS_INSTANCE_ATTRIBUTES", json.dumps(dict(group.labels), separators=(",", ":"))
    if group.variant == "nvidia":
        yield "ECS_ENABLE_GPU_SUPPORT", "true"
    # An image that is there is not asked for again: tags must not move. `prefer-cached` also takes those that the agent
    # did not pull, and with it the agent deletes no image, so that a snapshot keeps its own and other images fill the
    # disk. Source: aws/amazon-ecs-agent, agent/engine/docker_image_manager.go, StartImageCleanupProcess, 2026-11.
    if group.images == "snapshot":
        yield "ECS_IMAGE_PULL_BEHAVIOR", "prefer-cached"
    elif group.images == "cached":
        yield "ECS_IMAGE_PULL_BEHAVIOR", "once"
        # A week apart, for a model that leaves for the night is started from the image that it left. The agent's own
        # half an hour would delete it. Source: the same repository, agent/config/config.go.
        yield "ECS_IMAGE_CLEANUP_INTERVAL", "168h"
        yield "ECS_NUM_IMAGES_DELETE_PER_CYCLE", "50"
    if group.purchase_option == "spot":
        # Tasks get EC2's two minutes of warning, to end in order.
        yield "ECS_ENABLE_SPOT_INSTANCE_DRAINING", "true"
    if group.warm:
        # A warm instance joins the cluster when it is put to service, and not before it is stopped.
        yield "ECS_WARM_POOLS_CHECK", "true"
    # A stopped task keeps its volumes, and with them the weights that were copied for it. The agent's own three hours
    # of that fill the disk: each restart copies them anew. Source: aws/amazon-ecs-agent, README.md, 2026-11.
    yield "ECS_ENGINE_TASK_CLEANUP_WAIT_DURATION", "1m"
    # Tasks have their own roles; the instance's is the agent's.
    yield "ECS_AWSVPC_BLOCK_IMDS", "true"


def _render_agent_script(group: Group, cluster: str) -> str:
    lines = "\n".join(f"{name}={value}" for name, value in list_agent_settings(group, cluster))
    return f"#!/bin/bash\ncat >>/etc/ecs/ecs.config <<'SETTINGS'\n{lines}\nSETTINGS\n"
