"""The applied ECS stack: an event of ECS's reaches the function by its queue, and the instance is replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator, stacks
from llm_serving.settings.document import Document, load
from llm_serving.terraform import stack_folder
from llm_serving.terraform.runner import Terraform
from tests.infra import deployments
from tests.infra.functions.faulty_cluster import REGION, open_cluster

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]

FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a]
orchestrator: ecs
network: {vpc: vpc-0123456789abcdef0, private_subnets: subnet-0aaaaaaaaaaaaaaaa}
pools:
  general: {types: g6e.2xlarge, size: 3..8}
"""

ARN = "arn:aws:ecs:us-west-2:123456789012"


def build_event(cluster: str, status: str) -> dict[str, Any]:
    """ECS developer guide, "Amazon ECS container instance health change events", the sample for accelerated compute."""
    return {
        "Source": "aws.ecs",
        "DetailType": "ECS Container Instance Health Change",
        "Detail": json.dumps(
            {
                "clusterArn": f"{ARN}:cluster/{cluster}",
                "containerInstanceArn": f"{ARN}:container-instance/{cluster}/a1b2c3d4EXAMPLE",
                "capacityProviderName": "my-capacity-provider",
                "ec2InstanceId": "i-0abcdef1234567890",
                "overallStatus": status,
                "healthChecks": [
                    {
                        "type": "ACCELERATED_COMPUTE",
                        "status": status,
                        "lastStatusChange": "2026-04-11T00:48:53Z",
                        "lastUpdated": "2026-04-11T00:48:09Z",
                        "statusReason": "XID_46",
                    }
                ],
            }
        ),
    }


@dataclass(frozen=True)
class Applied:
    """The stack, applied."""

    fleet: Document[Fleet]
    folders: dict[str, Path]
    program: Terraform
    endpoint: str

    def create_client(self, service: str) -> Any:
        return emulator.create_client(service, self.endpoint, REGION)


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    data = tmp_path_factory.mktemp("ecs")
    (data / "fleet.yaml").write_text(FLEET)
    fleet = load(data / "fleet.yaml", Fleet)
    with pytest.MonkeyPatch.context() as patch:
        deployments.synthesize_here(patch)
        folders = stacks.prepare(fleet, out=data / "out", data=data, stacks=["network", "ecs"])
    with emulator.start(data, bare=True) as endpoint:
        program = stack_folder.find_terraform(folders, data)
        stacks.apply(fleet, folders, program, endpoint)
        yield Applied(fleet, folders, program, endpoint)


def test_an_apply_leaves_the_tag_that_stops_repairs(applied: Applied) -> None:
    ecs = applied.create_client("ecs")
    ecs.tag_resource(resourceArn=f"{ARN}:cluster/demo", tags=[{"key": "gpu-repair", "value": "stopped"}])
    stacks.check_unchanged(applied.fleet, applied.folders, applied.program, applied.endpoint)
    ecs.untag_resource(resourceArn=f"{ARN}:cluster/demo", tagKeys=["gpu-repair"])


def test_an_impaired_instance_is_replaced_and_no_other_event_calls_the_function(
    applied: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions, sqs = applied.create_client("lambda"), applied.create_client("sqs")
    [mapping] = functions.list_event_source_mappings()["EventSourceMappings"]
    # The embedded AWS runs no functions: the test takes Lambda's place.
    functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
    events = applied.create_client("events")
    for rule in ("demo-gpu-repair-minute", "demo-ecs-fallback-minute"):  # moto has every event match a schedule
        ids = [target["Id"] for target in events.list_targets_by_rule(Rule=rule)["Targets"]]
        events.remove_targets(Rule=rule, Ids=ids)
    [queue] = sqs.list_queues()["QueueUrls"]
    cluster = open_cluster(monkeypatch, applied.create_client)
    [group] = cluster.clients["autoscaling"].describe_auto_scaling_groups()["AutoScalingGroups"]
    for instance in group["Instances"]:
        cluster.join(instance["InstanceId"], "general")
    broken = group["Instances"][0]["InstanceId"]
    cluster.fail(broken, "XID_46")

    events.put_events(Entries=[build_event("another", "IMPAIRED"), build_event("demo", "OK")])
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    events.put_events(Entries=[build_event("demo", "IMPAIRED")])
    [message] = sqs.receive_message(QueueUrl=queue, AttributeNames=["MessageGroupId"])["Messages"]
    assert message["Attributes"] == {"MessageGroupId": "demo"}, "one call at a time"

    [line] = cluster.handle(message["Body"])
    assert (line["instance"], line["verdict"], line["action"]) == (broken, "reset", "replace")
    assert cluster.list_draining() == cluster.list_unhealthy() == [broken]
    assert mapping["EventSourceArn"].endswith(":demo-gpu-repair.fifo") and mapping["FunctionArn"].endswith(
        ":demo-gpu-repair"
    )
