"""What an ECS stack must hold, for every fleet on ECS and for the two example fleets."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from infra.functions import ecs_fallback
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from tests.infra import dashboards

Stack = dict[str, Any]
Stacks = dict[tuple[str, str], Stack]

FLEETS = ("ecs", "instances", "ecs-multi-az", "ads-scale")
each_shape = pytest.mark.parametrize("shape", FLEETS)


def list_groups(synthesized: Path, shape: str) -> list[Group]:
    fleet = load(synthesized / shape / "fleet.yaml", Fleet).value
    return [group for group in groups.resolve_all(fleet) if group.orchestrator == "ecs"]


def filter_by_type(stack: Stack, kind: str) -> dict[str, Stack]:
    resources: dict[str, Stack] = stack["resource"].get(kind, {})
    return resources


def find_unprotected(stack: Stack) -> Iterator[str]:
    """Capacity providers whose termination protection, scaling and draining do not work together."""
    machines = filter_by_type(stack, "aws_autoscaling_group")
    for name, provider in filter_by_type(stack, "aws_ecs_capacity_provider").items():
        settings = provider["auto_scaling_group_provider"]
        group = machines[settings["auto_scaling_group_arn"].split(".")[1]]
        tags = {tag["key"]: tag for tag in group["tag"]}
        protections = (
            settings["managed_termination_protection"] == "ENABLED",
            settings["managed_scaling"]["status"] == "ENABLED",
            settings["managed_draining"] == "ENABLED",
            group.get("protect_from_scale_in") is True,
            tags.get("AmazonECSManaged", {}).get("propagate_at_launch") is True,
            "desired_capacity" not in group,
        )
        if not all(protections):
            yield name


@each_shape
def test_every_machine_group_has_a_capacity_provider_an_auto_scaling_group_and_a_template(
    stacks: Stacks, synth_folder: Path, shape: str
) -> None:
    names = [group.name for group in list_groups(synth_folder, shape)]
    stack = stacks[shape, "ecs"]
    assert list(filter_by_type(stack, "aws_ecs_capacity_provider")) == sorted(names)
    assert list(filter_by_type(stack, "aws_autoscaling_group")) == sorted(f"{name}-machines" for name in names)
    assert list(filter_by_type(stack, "aws_launch_template")) == sorted(f"{name}-template" for name in names)
    attached = filter_by_type(stack, "aws_ecs_cluster_capacity_providers")["capacity-providers"]["capacity_providers"]
    assert len(attached) == len(names) + 2
    assert attached[-2:] == ["FARGATE", "FARGATE_SPOT"], "of AWS's own, for batches"


def test_a_cluster_without_pools_has_fargates_capacity_providers_alone(stacks: Stacks) -> None:
    stack = stacks["s3", "ecs"]
    assert set(filter_by_type(stack, "aws_ecs_cluster")) == {"cluster"}
    assert not filter_by_type(stack, "aws_ecs_capacity_provider")
    [association] = filter_by_type(stack, "aws_ecs_cluster_capacity_providers").values()
    assert association["capacity_providers"] == ["FARGATE", "FARGATE_SPOT"], "batches and routers run there"
    assert association["default_capacity_provider_strategy"] == [{"capacity_provider": "FARGATE", "weight": 1}]


@each_shape
def test_scaling_protection_and_draining_work_together(stacks: Stacks, shape: str) -> None:
    assert list(find_unprotected(stacks[shape, "ecs"])) == []


@pytest.mark.parametrize("lost", ["protect_from_scale_in", "tag"])
def test_a_group_without_its_protection_or_its_tag_is_reported(stacks: Stacks, lost: str) -> None:
    stack = copy.deepcopy(stacks["ecs-multi-az", "ecs"])
    group = filter_by_type(stack, "aws_autoscaling_group")["general-g6e-a-od-machines"]
    group[lost] = [] if lost == "tag" else False
    assert list(find_unprotected(stack)) == ["general-g6e-a-od"]


@each_shape
def test_a_provider_is_deleted_after_its_association(stacks: Stacks, shape: str) -> None:
    for provider in filter_by_type(stacks[shape, "ecs"], "aws_ecs_capacity_provider").values():
        assert provider["lifecycle"] == {"create_before_destroy": True}


@each_shape
def test_a_new_ami_reaches_every_instance_and_spot_is_replaced_before_it_goes(stacks: Stacks, shape: str) -> None:
    for name, group in filter_by_type(stacks[shape, "ecs"], "aws_autoscaling_group").items():
        preferences = group["instance_refresh"]["preferences"]
        # With ECS's protection from scale-in a refresh waits an hour and fails, unless it is told to go on.
        assert preferences["scale_in_protected_instances"] == "Refresh"
        assert 0 < preferences["min_healthy_percentage"] < 100 == preferences["max_healthy_percentage"]
        source = (
            group.get("launch_template")
            or group["mixed_instances_policy"]["launch_template"]["launch_template_specification"]
        )
        assert source["version"].endswith(".latest_version}"), "a version that moves with the template starts it"
        assert group.get("capacity_rebalance", False) == name.endswith("-spot-machines")
        assert group["force_delete"] is True


def test_the_fleets_have_efa_in_both_layouts(synth_folder: Path) -> None:
    counts = {
        group.name: (group.efa, len(group.interfaces)) for group in list_groups(synth_folder, "instances") if group.efa
    }
    assert counts == {
        "block-p5en-48xlarge-c-cb": (16, 16),
        "wide-p5-48xlarge-a-od": (32, 39),
        "held-p5-48xlarge-b-cr": (32, 32),
        "held-p5-48xlarge-b-od": (32, 32),
    }


def test_an_alarm_rings_before_waiting_tasks_stop_the_cluster(stacks: Stacks) -> None:
    alarm = filter_by_type(stacks["ads-scale", "ecs"], "aws_cloudwatch_metric_alarm")["ecs-fallback-waiting-alarm"]
    assert (alarm["threshold"], alarm["comparison_operator"]) == (300, "GreaterThanThreshold")
    [query] = alarm["metric_query"]
    assert query["metric"]["dimensions"] == {"cluster": "ads-scale"}
    assert query["metric"]["namespace"] == ecs_fallback.METRIC_NAMESPACE


def test_an_alarm_rings_where_a_function_fails_each_minute_and_sends_nothing_more(stacks: Stacks) -> None:
    stack = stacks["ads-scale", "ecs"]
    functions = {row["function_name"] for row in filter_by_type(stack, "aws_lambda_function").values()}
    alarms = filter_by_type(stack, "aws_cloudwatch_metric_alarm")
    watched = set()
    for name in ("ecs-fallback", "gpu-repair"):
        alarm = alarms[f"{name}-failure-alarm"]
        [query] = alarm["metric_query"]
        assert (query["metric"]["namespace"], query["metric"]["metric_name"]) == ("AWS/Lambda", "Errors")
        assert (query["metric"]["stat"], alarm["threshold"], alarm["evaluation_periods"]) == ("Sum", 0, 5)
        watched.add(query["metric"]["dimensions"]["FunctionName"])
    assert watched == functions


def test_a_pool_of_eight_providers_is_split_into_a_service_for_each_choice(stacks: Stacks) -> None:
    services = stacks["ads-scale", "ecs"]["output"]["strategies"]["value"]["ranking"]
    assert [[row["capacity_provider"].rpartition("g6e-")[2] for row in service] for service in services] == [
        ["a-spot", "b-spot", "c-spot", "d-spot"],
        ["a-od", "b-od", "c-od", "d-od"],
    ]


@each_shape
def test_the_zones_of_a_choice_share_its_tasks_evenly(stacks: Stacks, synth_folder: Path, shape: str) -> None:
    fleet = load(synth_folder / shape / "fleet.yaml", Fleet).value
    choice = {groups.format_provider_name(fleet, group): group.choice for group in list_groups(synth_folder, shape)}
    for services in stacks[shape, "ecs"]["output"]["strategies"]["value"].values():
        order = [{choice[row["capacity_provider"]] for row in service} for service in services]
        assert order == [{choice_index} for choice_index in range(len(services))]
        assert {row["weight"] for service in services for row in service} == {1}


@each_shape
def test_a_fleet_has_the_function_that_falls_back_and_fits_rollouts(stacks: Stacks, shape: str) -> None:
    assert "ecs-fallback" in filter_by_type(stacks[shape, "ecs"], "aws_lambda_function")


@pytest.mark.parametrize("shape", ["ecs-multi-az", "ads-scale"])
def test_the_function_is_deployed_unchanged_from_the_repository(synth_folder: Path, stacks: Stacks, shape: str) -> None:
    function = filter_by_type(stacks[shape, "ecs"], "aws_lambda_function")["ecs-fallback"]
    assert function["handler"] == "ecs_fallback.handler"
    archive = synth_folder / shape / "stacks" / "ecs" / function["filename"].removeprefix("${path.module}/")
    digest = base64.b64encode(hashlib.sha256(archive.read_bytes()).digest()).decode()
    assert function["source_code_hash"] == digest
    with zipfile.ZipFile(archive) as zip_file:
        assert zip_file.namelist() == ["ecs_fallback.py"]
        assert zip_file.read("ecs_fallback.py") == Path(str(ecs_fallback.__file__)).read_bytes()


@each_shape
def test_a_capacity_provider_is_named_after_its_group(stacks: Stacks, shape: str) -> None:
    stack = stacks[shape, "ecs"]
    for provider in filter_by_type(stack, "aws_ecs_capacity_provider").values():
        group = provider["auto_scaling_group_provider"]["auto_scaling_group_arn"].split(".")[1]
        assert provider["name"] == f"cp-{filter_by_type(stack, 'aws_autoscaling_group')[group]['name']}"


def test_the_function_may_not_update_a_first_choice(stacks: Stacks) -> None:
    policy = json.loads(
        filter_by_type(stacks["ads-scale", "ecs"], "aws_iam_role_policy")["ecs-fallback-role-policy"]["policy"]
    )
    by_sid = {statement["Sid"]: statement for statement in policy["Statement"]}
    assert by_sid["Move"]["Condition"] == {
        "StringNotEquals": {"aws:ResourceTag/choice": "0"},
        "Null": {"aws:ResourceTag/fallback": "false"},
    }
    wildcards = [sid for sid, statement in by_sid.items() if statement["Resource"] == "*"]
    assert wildcards == ["List", "ReadDefinitions", "ReadGroups"], "AWS takes no narrower resource for these"


@pytest.mark.parametrize("shape", ["instances", "ecs-multi-az", "ads-scale"])
def test_the_function_hears_of_the_fleets_own_groups_alone(stacks: Stacks, shape: str) -> None:
    stack = stacks[shape, "ecs"]
    pattern = json.loads(filter_by_type(stack, "aws_cloudwatch_event_rule")["ecs-fallback-failed"]["event_pattern"])
    own = [group["name"] for group in filter_by_type(stack, "aws_autoscaling_group").values()]
    assert sorted(pattern["detail"]["AutoScalingGroupName"]) == sorted(own)
    target = filter_by_type(stack, "aws_cloudwatch_event_target")["ecs-fallback-minute-target"]
    assert sorted(json.loads(target["input"])["groups"]) == sorted(own)


def test_the_names_of_all_groups_fit_in_a_pattern(stacks: Stacks, synth_folder: Path) -> None:
    rule = filter_by_type(stacks["ads-scale", "ecs"], "aws_cloudwatch_event_rule")["ecs-fallback-failed"]
    names = json.loads(rule["event_pattern"])["detail"]["AutoScalingGroupName"]
    others = len(rule["event_pattern"]) - len(json.dumps(names))
    suffix = max(len(group.name) - len(group.pool) for shape in FLEETS for group in list_groups(synth_folder, shape))
    longest = "f" * 32 + "-" + "p" * 32 + "s" * suffix
    assert others + len(json.dumps([longest] * 20)) <= 2048


def test_only_instances_of_the_fleets_own_groups_are_replaced(stacks: Stacks) -> None:
    stack = stacks["ads-scale", "ecs"]
    policy = json.loads(filter_by_type(stack, "aws_iam_role_policy")["gpu-repair-role-policy"]["policy"])
    [replace] = [one for one in policy["Statement"] if "autoscaling:SetInstanceHealth" in one["Action"]]
    assert replace["Condition"] == {"StringEquals": {"aws:ResourceTag/fleet": "ads-scale"}}
    for group in filter_by_type(stack, "aws_autoscaling_group").values():
        assert {tag["key"]: tag["value"] for tag in group["tag"]}["fleet"] == "ads-scale"


@pytest.mark.parametrize(("shape", "blocks"), [("instances", {"cr-0123456789abcdef0"}), ("ecs", set())])
def test_a_fleet_with_capacity_blocks_has_their_starts_and_ends_read_each_minute(
    stacks: Stacks, shape: str, blocks: set[str]
) -> None:
    stack = stacks[shape, "ecs"]
    target = filter_by_type(stack, "aws_cloudwatch_event_target")["gpu-repair-minute-target"]
    call = json.loads(target["input_transformer"]["input_template"].replace("<at>", "0"))
    assert {block["id"] for block in call.get("blocks", ())} == blocks
    scaling_groups = filter_by_type(stack, "aws_autoscaling_group").values()
    names = {group["name"] for group in scaling_groups if "ignore_changes" in group.get("lifecycle", {})}
    assert {block["group"] for block in call.get("blocks", ())} == names
    policy = filter_by_type(stack, "aws_iam_role_policy")["gpu-repair-role-policy"]["policy"]
    assert ("ec2:DescribeCapacityReservations" in policy) == bool(blocks)


@each_shape
def test_a_wildcard_resource_is_used_only_for_actions_without_resource_support(stacks: Stacks, shape: str) -> None:
    policy = json.loads(filter_by_type(stacks[shape, "ecs"], "aws_iam_role_policy")["instance-role-policy"]["policy"])
    wildcards = [statement for statement in policy["Statement"] if statement["Resource"] == "*"]
    assert [action for statement in wildcards for action in statement["Action"]] == [
        "ecs:DiscoverPollEndpoint",
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    ]
    assert not any("*" in action for statement in policy["Statement"] for action in statement["Action"])


def test_several_types_or_spot_are_a_mixed_group_and_one_type_on_demand_is_not(stacks: Stacks) -> None:
    machines = filter_by_type(stacks["ecs-multi-az", "ecs"], "aws_autoscaling_group")
    spread = {
        name: group["mixed_instances_policy"]["instances_distribution"]
        for name, group in machines.items()
        if "mixed_instances_policy" in group
    }
    spot = {
        "on_demand_base_capacity": 0,
        "on_demand_percentage_above_base_capacity": 0,
        "spot_allocation_strategy": "price-capacity-optimized",
    }
    purchases = {
        "on_demand_base_capacity": 0,
        "on_demand_percentage_above_base_capacity": 100,
        "on_demand_allocation_strategy": "prioritized",
    }
    assert spread == {
        f"general-g6e-{zone}-{market}-machines": spot if market == "spot" else purchases
        for zone in "abc"
        for market in ("od", "spot")
    }
    kinds = machines["general-g6e-a-od-machines"]["mixed_instances_policy"]["launch_template"]["override"]
    assert [override["instance_type"] for override in kinds] == ["g6e.12xlarge", "g6e.48xlarge"]


def test_spare_instances_run_beside_what_tasks_fill(stacks: Stacks) -> None:
    """One in each of three zones, of three that each may have."""
    resources = stacks["instances", "ecs"]["resource"]
    groups = {name: group for name, group in resources["aws_autoscaling_group"].items() if name.startswith("kept-")}
    assert {(group["min_size"], group["max_size"]) for group in groups.values()} == {(1, 3)}
    percents = {
        name.partition("-")[0]: provider["auto_scaling_group_provider"]["managed_scaling"]["target_capacity"]
        for name, provider in resources["aws_ecs_capacity_provider"].items()
    }
    assert (percents["kept"], percents["warm"]) == (66, 100)
    instances_of = {needed: max(1, math.ceil(100 * needed / percents["kept"])) for needed in (0, 1, 2)}
    assert instances_of == {0: 1, 1: 2, 2: 4}, "of which a group of three starts three"


def test_a_warm_pool_keeps_a_fixed_number_stopped_without_reuse(stacks: Stacks) -> None:
    machines = filter_by_type(stacks["ecs-multi-az", "ecs"], "aws_autoscaling_group")
    warm = {name: group["warm_pool"] for name, group in machines.items() if "warm_pool" in group}
    warm_pool = {"pool_state": "Stopped", "min_size": 1, "max_group_prepared_capacity": 1}
    assert warm == {f"peak-g6e-4xlarge-{zone}-od-machines": warm_pool for zone in "abc"}


def test_launch_templates_target_reserved_capacity(stacks: Stacks) -> None:
    templates = filter_by_type(stacks["ads-scale", "ecs"], "aws_launch_template")
    targets = {
        name: template["capacity_reservation_specification"]
        for name, template in templates.items()
        if "capacity_reservation_specification" in template
    }
    account = "${data.aws_caller_identity.account.account_id}"
    group = "arn:${data.aws_partition.partition.partition}:resource-groups:us-east-1:" + account + ":group/"
    assert targets == {
        "large-p5-b-cr-template": {
            "capacity_reservation_preference": "capacity-reservations-only",
            "capacity_reservation_target": {
                "capacity_reservation_resource_group_arn": f"{group}reserved-ads-scale-large-p5-b-cr"
            },
        },
        "spanning-p6-b200-48xlarge-c-cb-template": {
            "capacity_reservation_target": {"capacity_reservation_id": "cr-0bbbbbbbbbbbbbbb2"}
        },
    }
    markets = {name for name, template in templates.items() if "instance_market_options" in template}
    assert markets == {"spanning-p6-b200-48xlarge-c-cb-template"}


def test_images_are_of_a_pinned_release_or_the_users(stacks: Stacks) -> None:
    stack = stacks["instances", "ecs"]
    names = {item["name"].split("/")[-2] for item in stack["data"]["aws_ssm_parameter"].values()}
    assert names == {
        "al2023-ami-ecs-gpu-hvm-2023.0.20260901-kernel-6.1-x86_64-ebs",
        "al2023-ami-ecs-neuron-hvm-2023.0.20260901-kernel-6.1-x86_64",
    }
    pulled_templates = [
        item for name, item in filter_by_type(stack, "aws_launch_template").items() if name.startswith("pulled-")
    ]
    assert {item["image_id"] for item in pulled_templates} == {"ami-0123456789abcdef0"}
    assert {item["block_device_mappings"][1]["ebs"]["snapshot_id"] for item in pulled_templates} == {
        "snap-0123456789abcdef0"
    }


@each_shape
def test_the_user_data_joins_the_fleets_cluster(stacks: Stacks, synth_folder: Path, shape: str) -> None:
    fleet = load(synth_folder / shape / "fleet.yaml", Fleet).value
    for template in filter_by_type(stacks[shape, "ecs"], "aws_launch_template").values():
        text = template["user_data"]
        assert text.startswith("${base64encode(")
        assert f"ECS_CLUSTER={fleet.name}\\n" in text
        assert "${" not in text[2:]
        assert len(text) < 16 * 1024


@each_shape
def test_only_efa_ingress_is_allowed(stacks: Stacks, synth_folder: Path, shape: str) -> None:
    rows = filter_by_type(stacks[shape, "ecs"], "aws_vpc_security_group_ingress_rule")
    has_efa = any(group.efa for group in list_groups(synth_folder, shape))
    assert set(rows) == ({"efa-ingress"} if has_efa else set())
    for rule in rows.values():
        assert rule["referenced_security_group_id"] == rule["security_group_id"]


def test_pools_with_efa_have_a_task_definition_that_tests_their_network(stacks: Stacks) -> None:
    stack = stacks["ads-scale", "ecs"]
    definitions = filter_by_type(stack, "aws_ecs_task_definition")
    assert [definition["family"] for definition in definitions.values()] == ["ads-scale-spanning-network-test"]
    (definition,) = definitions.values()
    (container,) = json.loads(definition["container_definitions"])
    assert "@sha256:" in container["image"]
    assert "network-test" not in json.dumps(stacks["ecs-multi-az", "ecs"]["resource"])
    keys = json.dumps(filter_by_type(stack, "aws_kms_key")) + json.dumps(stack["data"])
    assert "log-group:/aws/ecs/ads-scale/network-test" in keys


@pytest.mark.parametrize(
    ("shape", "names"),
    [("ecs-multi-az", ["provisioning", "unrepaired"]), ("ads-scale", ["provisioning", "unrepaired"]), ("ecs", None)],
)
def test_with_observability_a_dashboard_draws_what_the_functions_send(
    stacks: Stacks, shape: str, names: list[str] | None
) -> None:
    stack = stacks[shape, "ecs"]
    if names is None:
        assert filter_by_type(stack, "aws_cloudwatch_dashboard") == {}
        return
    body = dashboards.read(stack)
    assert dashboards.list_errors(body) == []
    drawn = dashboards.list_metrics(body)
    assert [name for _, _, name, _ in drawn] == names


def test_the_topic_hears_in_a_sentence_of_each_task_of_a_service_that_ended_by_itself(stacks: Stacks) -> None:
    stack = stacks["ecs", "ecs"]
    rule = filter_by_type(stack, "aws_cloudwatch_event_rule")["task-ended"]
    assert json.loads(rule["event_pattern"]) == {
        "source": ["aws.ecs"],
        "detail-type": ["ECS Task State Change"],
        "detail": {
            "clusterArn": ["${aws_ecs_cluster.cluster.arn}"],
            "lastStatus": ["STOPPED"],
            "group": [{"prefix": "service:"}],
            "$or": [
                {"stoppedReason": [{"prefix": "Task failed container health checks"}]},
                {"stopCode": ["EssentialContainerExited"]},
            ],
        },
    }
    ecs = botocore.session.get_session().get_service_model("ecs")
    assert "EssentialContainerExited" in ecs.shape_for("TaskStopCode").enum
    target = filter_by_type(stack, "aws_cloudwatch_event_target")["task-ended-target"]
    assert target["arn"] == "arn:aws:sns:us-west-2:123456789012:on-call"
    transformer = target["input_transformer"]
    text = json.loads(transformer["input_template"])
    assert text.startswith("demo: A task ended by itself, and ECS starts another: <service>, <reason>.")
    assert set(re.findall(r"<(\w+)>", text)) == set(transformer["input_paths"])
    members = ecs.shape_for("Task").members
    assert {path.removeprefix("$.detail.") for path in transformer["input_paths"].values()} <= members.keys()
    assert "task-ended" not in filter_by_type(stacks["instances", "ecs"], "aws_cloudwatch_event_rule")
