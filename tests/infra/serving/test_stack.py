"""What a stack serving-NAME must hold, whatever its shape."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import stack_rules
from llm_serving.fleet import loading
from llm_serving.targets import probe
from llm_serving.targets.ecs.manifest import read
from tests.infra.serving.conftest import SHAPES

Stack = dict[str, Any]
Stacks = dict[str, Stack]

each_shape = pytest.mark.parametrize("shape", SHAPES)


def filter_by_type(stack: Stack, kind: str) -> dict[str, Stack]:
    resources: dict[str, Stack] = stack["resource"].get(kind, {})
    return resources


def parse_containers(stack: Stack, task: str) -> dict[str, Any]:
    text = filter_by_type(stack, "aws_ecs_task_definition")[f"{task}-task"]["container_definitions"]
    return {container["name"]: container for container in json.loads(text)}


def find_statements(stack: Stack) -> Iterator[tuple[str, list[str], list[str]]]:
    """Role, actions and resources of every statement of a task's own roles."""
    for address, statement in stack_rules.list_statements(stack):
        if address.startswith("aws_iam_role_policy."):
            actions, resources = statement["Action"], statement["Resource"]
            yield address.split(".")[1], actions, resources if isinstance(resources, list) else [resources]


def find_write_access(stack: Stack) -> Iterator[str]:
    """S3 and KMS rights of the engines' role beyond reading its own places."""
    for role, actions, resources in find_statements(stack):
        for action in actions:
            if "-read-" in role and action.startswith(("s3:", "kms:")):
                is_wildcard = any(arn.endswith((":::*", "/*/*")) or arn == "*" for arn in resources)
                if is_wildcard or action not in ("s3:GetObject", "s3:ListBucket", "kms:Decrypt"):
                    yield f"{role}: {action}"
            elif action.startswith("s3:"):
                yield f"{role}: {action}"


@each_shape
def test_the_stack_follows_the_rules_of_all_stacks(stacks: Stacks, fleet: Path, shape: str) -> None:
    assert list(stack_rules.find_violations(loading.load_fleet(fleet).value, {shape: stacks[shape]})) == []


def test_a_strategy_of_seven_providers_is_reported(stacks: Stacks) -> None:
    stack = copy.deepcopy(stacks["aggregated"])
    filter_by_type(stack, "aws_ecs_service")["worker-0"]["capacity_provider_strategy"] *= 4
    assert list(stack_rules.check_provider_counts(stack)) == [
        "aws_ecs_service.worker-0 has a strategy of 8, and ECS takes 6"
    ]


@each_shape
def test_every_alarm_notifies_a_topic_and_one_that_does_not_is_reported(
    stacks: Stacks, fleet: Path, shape: str
) -> None:
    fleet_value = loading.load_fleet(fleet).value
    stack = copy.deepcopy(stacks[shape])
    alarms = filter_by_type(stack, "aws_cloudwatch_metric_alarm")
    for_people = {name: alarm for name, alarm in alarms.items() if "ok_actions" in alarm}
    assert {name.rpartition("-")[0].rpartition("-")[2] for name in for_people} <= {"errors", "queue", "running", "late"}
    assert all(
        alarm["alarm_actions"] == alarm["ok_actions"] == [fleet_value.alarms_to] for alarm in for_people.values()
    )
    assert list(stack_rules.check_alarm_actions(stack, fleet_value)) == []
    del alarms["errors-alarm"]["alarm_actions"]
    assert list(stack_rules.check_alarm_actions(stack, fleet_value)) == [
        "aws_cloudwatch_metric_alarm.errors-alarm calls nobody, and alarms_to is arn:aws:sns:us-west-2:123456789012:on-call"
    ]
    assert list(stack_rules.check_alarm_actions(stack, fleet_value.model_copy(update={"alarms_to": None}))) == []


@each_shape
def test_an_engine_may_read_only_its_own_weights(stacks: Stacks, shape: str) -> None:
    assert list(find_write_access(stacks[shape])) == []
    [objects] = [
        resources for role, actions, resources in find_statements(stacks[shape]) if actions == ["s3:GetObject"]
    ]
    own_weights = [arn for arn in objects if "fabric-models-123456789012-us-west-2/models/Qwen/Qwen3-" in arn]
    adapters = ["arn:${data.aws_partition.partition.partition}:s3:::my-adapters/lora/sql/*"]
    assert sorted(objects) == sorted([*own_weights, *(adapters if shape == "aggregated" else [])])
    assert len(own_weights) == (2 if shape == "multi-model" else 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"s3:GetObject"', '"s3:PutObject"'), ('"kms:Decrypt"', '"kms:Encrypt"'), ("/models/Qwen/Qwen3-0.6B/*", "/*/*")],
)
def test_a_broader_permission_is_reported(stacks: Stacks, old: str, new: str) -> None:
    stack = copy.deepcopy(stacks["single"])
    policy = filter_by_type(stack, "aws_iam_role_policy")["single-read-role-policy"]
    assert old in policy["policy"]
    policy["policy"] = policy["policy"].replace(old, new)
    assert list(find_write_access(stack)) != []


@each_shape
def test_the_probe_of_every_engine_requests_a_completion(stacks: Stacks, shape: str) -> None:
    tasks = [name.removesuffix("-task") for name in filter_by_type(stacks[shape], "aws_ecs_task_definition")]
    probes = {
        task: container["healthCheck"]["command"][4:6]
        for task in tasks
        for container in parse_containers(stacks[shape], task).values()
        if "healthCheck" in container
    }
    followers = {f"worker-{replica}-1" for replica in range(2)} if shape == "distributed" else set()
    assert set(probes) == set(tasks) - followers - {"ask"}
    for task, (url, body) in probes.items():
        if task == "router":
            assert (url, body) == ("http://127.0.0.1:8080/liveness", "")
        else:
            assert url == "http://127.0.0.1:8000/v1/completions"
            assert json.loads(body)["max_tokens"] == 1


@each_shape
def test_health_checks_and_test_requests_run_the_one_probe_program(stacks: Stacks, shape: str) -> None:
    program = Path(probe.__file__).read_text()
    for task in filter_by_type(stacks[shape], "aws_ecs_task_definition"):
        for container in parse_containers(stacks[shape], task.removesuffix("-task")).values():
            if "healthCheck" in container:
                assert container["healthCheck"]["command"][:4] == ["CMD", "python3", "-c", program]
            if container["name"] == "ask":
                assert container["entryPoint"] == ["python3", "-c", program]


@each_shape
def test_the_health_check_allows_for_the_start_time(
    stacks: Stacks, manifests: dict[str, Path], fleet: Path, shape: str
) -> None:
    deadlines = {
        item.name: item.probe.deadline_s
        for item in read(manifests[shape], loading.load_fleet(fleet)).value.engines
        if item.probe
    }
    for task, deadline in deadlines.items():
        [check] = [
            item["healthCheck"] for item in parse_containers(stacks[shape], task).values() if "healthCheck" in item
        ]
        assert check["startPeriod"] + check["interval"] * check["retries"] >= deadline
        assert check["startPeriod"] <= 300 and check["interval"] <= 300 and check["retries"] <= 10, "ECS takes no more"


def test_a_tasks_own_address_is_set_in_its_environment(stacks: Stacks) -> None:
    container = parse_containers(stacks["disaggregated"], "prefill")["prefill"]
    assert container["entryPoint"][:2] == ["sh", "-c"]
    assert 'export VLLM_NIXL_SIDE_CHANNEL_HOST="$address"' in container["entryPoint"][2]
    assert container["command"][:2] == ["vllm", "serve"]
    assert "LIBFABRIC" in " ".join(container["command"])
    plain = parse_containers(stacks["single"], "worker")["worker"]
    assert (plain["entryPoint"], plain["command"][0]) == (["vllm"], "serve")


def test_adapters_are_copied_before_the_engine_starts(stacks: Stacks) -> None:
    by_name = parse_containers(stacks["aggregated"], "worker")
    assert by_name["worker"]["dependsOn"] == [{"containerName": "fetch-adapter-sql", "condition": "SUCCESS"}]
    source, destination = by_name["fetch-adapter-sql"]["command"][-2:]
    assert source == "s3://my-adapters/lora/sql"
    assert f"sql={destination}" in by_name["worker"]["command"]


def test_the_router_follows_the_names_of_the_engines(stacks: Stacks) -> None:
    aggregated_router = parse_containers(stacks["aggregated"], "router")["router"]
    assert aggregated_router["entryPoint"] == ["router-dns-discovery"]
    assert "--worker=aggregated-worker.fabric.internal:8000" in aggregated_router["command"]
    disaggregated_command = parse_containers(stacks["disaggregated"], "router")["router"]["command"]
    assert "--prefill=disaggregated-prefill.fabric.internal:8000" in disaggregated_command
    assert "--decode=disaggregated-decode.fabric.internal:8000" in disaggregated_command
    multi_model_command = parse_containers(stacks["multi-model"], "router")["router"]["command"]
    assert [word for word in multi_model_command if word.startswith("--worker=")] == [
        f"--worker=multi-model-{model}.fabric.internal:8000" for model in ("small", "large")
    ]
    several = parse_containers(stacks["distributed"], "router")["router"]["command"]
    assert [word for word in several if word.startswith("--worker=")] == [
        f"--worker=distributed-worker-{replica}-0.fabric.internal:8000" for replica in range(2)
    ]


def test_only_the_router_receives_cache_events(stacks: Stacks) -> None:
    for direction in ("ingress", "egress"):
        rules = filter_by_type(stacks["single"], f"aws_vpc_security_group_{direction}_rule").values()
        rules_by_port = {rule["from_port"]: rule for rule in rules if rule["description"] == "Events of the cache"}
        assert sorted(rules_by_port) == [5557, 5558]
        inward = direction == "ingress"
        listener, peer = ("engine", "router") if inward else ("router", "engine")
        for port, rule in rules_by_port.items():
            assert rule["to_port"] == port
            assert f"{listener}-group" in rule["security_group_id"]
            assert f"{peer}-group" in rule["referenced_security_group_id"]
    engine = filter_by_type(stacks["aggregated"], "aws_vpc_security_group_ingress_rule").values()
    assert 5557 not in {rule.get("from_port") for rule in engine}, "where nobody listens nothing is open"


@each_shape
def test_the_stack_and_the_deployment_output_the_same_url(stacks: Stacks, shape: str) -> None:
    assert stacks[shape]["output"]["url"]["value"] == f"http://{shape}-router.fabric.internal:8080"


@each_shape
def test_every_name_that_a_task_resolves_is_registered(stacks: Stacks, shape: str) -> None:
    registered = {
        resource["name"] for resource in filter_by_type(stacks[shape], "aws_service_discovery_service").values()
    }
    texts = [
        resource["container_definitions"]
        for resource in filter_by_type(stacks[shape], "aws_ecs_task_definition").values()
    ]
    requested_names = {
        word.rpartition(".fabric.internal")[0].split("=")[-1].split("/")[-1]
        for text in texts
        for word in _find_names(text)
    }
    assert requested_names - {""} <= registered


def _find_names(text: str) -> Iterator[str]:
    for container in json.loads(text):
        yield from (word for word in container.get("command", []) if ".fabric.internal" in word)


def test_one_provider_runs_all_machines_of_a_replica(stacks: Stacks) -> None:
    services = filter_by_type(stacks["distributed"], "aws_ecs_service")
    by_replica: dict[str, set[str]] = {}
    for name, service in services.items():
        if name.startswith("worker-"):
            providers = [row["capacity_provider"] for row in service["capacity_provider_strategy"]]
            by_replica.setdefault(name.split("-")[1], set()).update(providers)
    assert {replica: len(replica_providers) for replica, replica_providers in by_replica.items()} == {"0": 1, "1": 1}


def read_collector_config(stack: Stack, task: str) -> dict[str, Any]:
    """Return the configuration of a task's collector."""
    config: dict[str, Any] = json.loads(parse_containers(stack, task)["collector"]["environment"][0]["value"])
    return config


def find_sent_metrics(stack: Stack) -> Iterator[tuple[str, str]]:
    """Role and name of each metric that a collector sends."""
    for task in filter_by_type(stack, "aws_ecs_task_definition"):
        if "collector" in parse_containers(stack, task.removesuffix("-task")):
            config = read_collector_config(stack, task.removesuffix("-task"))
            [row] = config["exporters"]["awsemf"]["metric_declarations"]
            names = [name.strip("^$") for name in row["metric_name_selectors"]]
            own_scrape, *other_scrapes = config["receivers"]["prometheus"]["config"]["scrape_configs"]
            yield from ((own_scrape["static_configs"][0]["labels"]["role"], name) for name in names)
            # Of others it can only say that it read nothing.
            yield from (
                (scrape["static_configs"][0]["labels"]["role"], "up") for scrape in other_scrapes if "up" in names
            )


def find_read_metrics(stack: Stack) -> Iterator[tuple[str, str]]:
    """Role and name of each metric that an alarm or tracking reads."""
    for alarm in filter_by_type(stack, "aws_cloudwatch_metric_alarm").values():
        metrics = [metric["metric"] for metric in alarm["metric_query"] if "metric" in metric]
        yield from (
            (metric["dimensions"]["role"], metric["metric_name"])
            for metric in metrics
            if metric["namespace"].startswith("Serving/")
        )
    for policy in filter_by_type(stack, "aws_appautoscaling_policy").values():
        if policy["policy_type"] == "TargetTrackingScaling":
            load = policy["target_tracking_scaling_policy_configuration"]["customized_metric_specification"]
            load_metrics = [
                metric["metric_stat"]["metric"] for metric in load.get("metrics", []) if "metric_stat" in metric
            ] or [load]
            for metric in load_metrics:
                yield {row["name"]: row["value"] for row in metric["dimensions"]}["role"], metric["metric_name"]


@each_shape
def test_metrics_that_scaling_and_alarms_read_are_sent(stacks: Stacks, shape: str) -> None:
    read_metrics, sent_metrics = set(find_read_metrics(stacks[shape])), set(find_sent_metrics(stacks[shape]))
    assert read_metrics and read_metrics <= sent_metrics


def test_the_router_is_configured_for_a_role_scaled_to_zero(stacks: Stacks) -> None:
    own_scrape, absent = read_collector_config(stacks["single"], "router")["receivers"]["prometheus"]["config"][
        "scrape_configs"
    ]
    assert own_scrape["static_configs"][0]["targets"] == ["127.0.0.1:9090"]
    assert absent["static_configs"] == [
        {"targets": ["127.0.0.1:9"], "labels": {"deployment": "single", "role": "worker"}}
    ]
    assert (
        read_collector_config(stacks["single"], "router")["exporters"]["awsemf"]["retain_initial_value_of_delta_metric"]
        is True
    )
    [always] = read_collector_config(stacks["aggregated"], "router")["receivers"]["prometheus"]["config"][
        "scrape_configs"
    ]
    assert always["job_name"] == "router", "who does not sleep costs no metric more"


def test_a_role_that_scales_to_zero_starts_with_one_replica_and_has_no_running_alarm(stacks: Stacks) -> None:
    for shape, role in (("single", "worker"), ("disaggregated", "prefill")):
        assert filter_by_type(stacks[shape], "aws_ecs_service")[f"{role}-0"]["desired_count"] == 1
        assert filter_by_type(stacks[shape], "aws_appautoscaling_target")[f"{role}-scaling"]["min_capacity"] == 0
        alarms = filter_by_type(stacks[shape], "aws_cloudwatch_metric_alarm")
        assert f"{role}-running-alarm" not in alarms
        wake_alarms = [name for name in alarms if name.startswith(f"{role}-wake")]
        assert sorted(wake_alarms) == [f"{role}-wake-errors", f"{role}-wake-requests"]
        assert all(alarms[name]["treat_missing_data"] == "notBreaching" for name in alarms if name.startswith(role))
        expression = alarms["errors-alarm"]["metric_query"][-1]["expression"]
        assert expression.startswith("IF(up0 > 0, "), "who is refused while it sleeps takes no deployment back"
    assert "worker-running-alarm" in filter_by_type(stacks["aggregated"], "aws_cloudwatch_metric_alarm")


def test_an_alarm_uses_no_more_metrics_than_cloudwatch_allows(stacks: Stacks) -> None:
    for stack in stacks.values():
        assert all(
            len(alarm["metric_query"]) <= 10 for alarm in filter_by_type(stack, "aws_cloudwatch_metric_alarm").values()
        )
