from __future__ import annotations

import dataclasses
import email
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llm_serving.fleet import ecs_node_config, groups
from llm_serving.fleet.groups import Group


def build_group(**overrides: Any) -> Group:
    from llm_serving.fleet.model import Fleet
    from llm_serving.settings.document import load

    path = Path(__file__).parents[2] / "infra/fleets/ecs-multi-az.yaml"
    return dataclasses.replace(groups.resolve_all(load(path, Fleet).value)[0], **overrides)


def parse_parts(text: str) -> dict[str, str]:
    message = email.message_from_string(text)
    return {part.get_content_type(): str(part.get_payload()) for part in message.walk() if not part.is_multipart()}


def build_settings(**overrides: Any) -> dict[str, str]:
    return dict(ecs_node_config.list_agent_settings(build_group(**overrides), "demo"))


def test_the_agent_joins_its_cluster_with_the_groups_labels_as_attributes() -> None:
    agent_settings = build_settings(labels={"fleet/pool": "general", "team": "ads"})
    assert agent_settings["ECS_CLUSTER"] == "demo"
    assert json.loads(agent_settings["ECS_INSTANCE_ATTRIBUTES"]) == {"fleet/pool": "general", "team": "ads"}


@pytest.mark.parametrize(("variant", "support"), [("nvidia", "true"), ("neuron", None), ("standard", None)])
def test_gpu_support_is_for_gpus(variant: str, support: str | None) -> None:
    assert build_settings(variant=variant).get("ECS_ENABLE_GPU_SUPPORT") == support


@pytest.mark.parametrize(
    ("images", "pull", "interval"),
    [("cached", "once", "168h"), ("snapshot", "prefer-cached", None), ("plain", None, None)],
)
def test_cached_images_are_not_pulled_again_and_only_a_snapshot_keeps_those_that_no_task_uses(
    images: str, pull: str | None, interval: str | None
) -> None:
    agent_settings = build_settings(images=images)
    assert agent_settings.get("ECS_IMAGE_PULL_BEHAVIOR") == pull
    assert agent_settings.get("ECS_IMAGE_CLEANUP_INTERVAL") == interval


def test_spot_instances_drain_when_interrupted() -> None:
    assert build_settings(purchase_option="spot")["ECS_ENABLE_SPOT_INSTANCE_DRAINING"] == "true"
    assert "ECS_ENABLE_SPOT_INSTANCE_DRAINING" not in build_settings(purchase_option="on-demand")


def test_a_warm_instance_joins_the_cluster_when_it_enters_service() -> None:
    assert build_settings(warm=1)["ECS_WARM_POOLS_CHECK"] == "true"
    assert "ECS_WARM_POOLS_CHECK" not in build_settings(warm=0)


def test_the_weights_of_a_stopped_task_make_room_for_those_of_the_next_one() -> None:
    """What is copied from S3 lies in a volume of the task, which the agent removes so long after its end."""
    assert build_settings()["ECS_ENGINE_TASK_CLEANUP_WAIT_DURATION"] == "1m"


def test_a_task_cannot_assume_the_instance_role() -> None:
    assert build_settings()["ECS_AWSVPC_BLOCK_IMDS"] == "true"


def test_the_settings_arrive_in_the_agents_file(tmp_path: Path) -> None:
    script = parse_parts(ecs_node_config.render(build_group(), "demo"))["text/x-shellscript"]
    file = tmp_path / "ecs.config"
    subprocess.run(["bash", "-c", script.replace("/etc/ecs/ecs.config", str(file))], check=True, timeout=60)
    assert dict(line.split("=", 1) for line in file.read_text().splitlines()) == build_settings()


def test_a_snapshot_is_mounted_at_dockers_image_store() -> None:
    mime_parts = parse_parts(ecs_node_config.render(build_group(images="snapshot", nvme=False), "demo"))
    assert "/dev/xvdb" in mime_parts["text/cloud-config"]
    assert "/var/lib/docker" in mime_parts["text/cloud-config"]
    assert "text/cloud-boothook" not in mime_parts


def test_nvme_disks_are_striped_before_docker_starts_if_the_pool_uses_them() -> None:
    assert "text/cloud-boothook" in parse_parts(ecs_node_config.render(build_group(nvme=True), "demo"))
    assert "text/cloud-boothook" not in parse_parts(ecs_node_config.render(build_group(nvme=False), "demo"))


def run_boothook(folder: Path, disks: int, mounted: bool = False, assembled: bool = False) -> list[str]:
    """What the boothook runs on a machine with so many NVMe disks, with every program that touches disks replaced."""
    models = "".join(f"/dev/nvme{index + 1}n1 Amazon EC2 NVMe Instance Storage\\n" for index in range(disks))
    outputs = {
        "lsblk": f"""case $* in
            *--nodeps*) printf '/dev/nvme0n1 Amazon Elastic Block Store\\n{models}' ;;
            *) printf '/dev/nvme1n1 disk\\n{"/dev/md127 raid0" * assembled}\\n' ;;
        esac""",
        "mountpoint": f"exit {int(not mounted)}",
        "mdadm": f'echo mdadm "$@" >>{folder}/ran; [ "$1" = --create ]',
        "blkid": f"exit {2 * (not assembled)}",
        **{name: f'echo {name} "$@" >>{folder}/ran' for name in ("mkfs.xfs", "mount", "mkdir", "dnf", "systemctl")},
    }
    for name, output in outputs.items():
        (folder / name).write_text(f"#!/bin/sh\n{output}\n")
        (folder / name).chmod(0o755)
    awk = shutil.which("awk")
    assert awk
    (folder / "awk").symlink_to(awk)
    script = parse_parts(ecs_node_config.render(build_group(nvme=True), "demo"))["text/cloud-boothook"]
    subprocess.run(["/bin/bash", "-c", script], check=True, timeout=60, env={"PATH": f"{folder}:/bin"})
    return (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []


def test_two_disks_form_a_raid_0_array(tmp_path: Path) -> None:
    commands = run_boothook(tmp_path, 2)
    assert (
        commands[1]
        == "mdadm --create /dev/md/instance-store --run --level=0 --raid-devices=2 /dev/nvme1n1 /dev/nvme2n1"
    )
    assert "mkfs.xfs /dev/md/instance-store" in commands
    assert commands[-2:] == [
        "mount --bind /mnt/instance-store/var/lib/containerd /var/lib/containerd",
        "systemctl try-restart containerd",
    ]
    assert not any("nvme0n1" in line for line in commands)


def test_an_array_that_udev_assembled_as_the_machine_restarted_is_mounted_as_it_is(tmp_path: Path) -> None:
    """By a name of udev's: awslabs/amazon-eks-ami, setup-local-disks, "the device symlink has changed on reboot"."""
    commands = run_boothook(tmp_path, 2, assembled=True)
    assert commands[1] == "mount --options noatime /dev/md127 /mnt/instance-store"
    assert not any(line.startswith(("mdadm", "mkfs.xfs")) for line in commands)


def test_a_single_disk_is_formatted_without_raid(tmp_path: Path) -> None:
    commands = run_boothook(tmp_path, 1)
    assert commands[0] == "mkfs.xfs /dev/nvme1n1"
    assert "mount --options noatime /dev/nvme1n1 /mnt/instance-store" in commands


@pytest.mark.parametrize(("disks", "mounted"), [(0, False), (2, True)])
def test_without_disks_or_once_mounted_the_hook_does_nothing(tmp_path: Path, disks: int, mounted: bool) -> None:
    assert run_boothook(tmp_path, disks, mounted) == []


@pytest.mark.parametrize("images", ["cached", "snapshot", "plain"])
def test_the_text_contains_no_terraform_reference(images: str) -> None:
    text = ecs_node_config.render(build_group(images=images), "demo")
    assert "${" not in text
    assert "%{" not in text
