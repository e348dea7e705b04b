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
from llm_serving.targets.ecs.manifest import read
from tests.infra.serving.conftest import SHAPES

Stack = dict[str, Any]
Stacks = dict[str, Stack]

each = pytest.mark.parametrize("shape", SHAPES)


def of(stack: Stack, kind: str) -> dict[str, Stack]:
    found: dict[str, Stack] = stack["resource"].get(kind, {})
    return found


def containers(stack: Stack, task: str) -> dict[str, Any]:
    text = of(stack, "aws_ecs_task_definition")[f"{task}-task"]["container_definitions"]
    return {one["name"]: one for one in json.loads(text)}


def allowed(stack: Stack) -> Iterator[tuple[str, list[str], list[str]]]:
    """Role, actions and resources of every statement of a task's own roles."""
    for address, statement in stack_rules.statements(stack):
        if address.startswith("aws_iam_role_policy."):
            actions, on = statement["Action"], statement["Resource"]
            yield address.split(".")[1], actions, on if isinstance(on, list) else [on]


def beyond_reading(stack: Stack) -> Iterator[str]:
    """S3 and KMS rights of the engines' role beyond reading its own places."""
    for role, actions, on in allowed(stack):
        for action in actions:
            if "-read-" in role and action.startswith(("s3:", "kms:")):
                wide = any(one.endswith((":::*", "/*/*")) or one == "*" for one in on)
                if wide or action not in ("s3:GetObject", "s3:ListBucket", "kms:Decrypt"):
                    yield f"{role}: {action}"
            elif action.startswith("s3:"):
                yield f"{role}: {action}"


@each
def test_it_keeps_the_rules_of_every_stack(stacks: Stacks, fleet: Path, shape: str) -> None:
    assert list(stack_rules.broken(loading.read(fleet).value, {shape: stacks[shape]})) == []


def test_a_strategy_of_seven_is_caught(stacks: Stacks) -> None:
    stack = copy.deepcopy(stacks["aggregated"])
    of(stack, "aws_ecs_service")["worker-0"]["capacity_provider_strategy"] *= 4
    assert list(stack_rules.too_many_providers(stack)) == [
        "aws_ecs_service.worker-0 has a strategy of 8, and ECS takes 6"
    ]


@each
def test_every_alarm_calls_somebody_and_one_that_does_not_is_caught(stacks: Stacks, fleet: Path, shape: str) -> None:
    told = loading.read(fleet).value
    stack = copy.deepcopy(stacks[shape])
    alarms = of(stack, "aws_cloudwatch_metric_alarm")
    for_people = {name: one for name, one in alarms.items() if "ok_actions" in one}
    assert {name.rpartition("-")[0].rpartition("-")[2] for name in for_people} <= {"errors", "queue", "running", "late"}
    assert all(one["alarm_actions"] == one["ok_actions"] == [told.alarms_to] for one in for_people.values())
    assert list(stack_rules.unheard(stack, told)) == []
    del alarms["errors-alarm"]["alarm_actions"]
    assert list(stack_rules.unheard(stack, told)) == [
        "aws_cloudwatch_metric_alarm.errors-alarm calls nobody, and alarms_to is arn:aws:sns:us-west-2:123456789012:on-call"
    ]
    assert list(stack_rules.unheard(stack, told.model_copy(update={"alarms_to": None}))) == []


@each
def test_an_engine_reads_its_own_weights_and_nothing_else(stacks: Stacks, shape: str) -> None:
    assert list(beyond_reading(stacks[shape])) == []
    [objects] = [on for role, actions, on in allowed(stacks[shape]) if actions == ["s3:GetObject"]]
    own = [one for one in objects if "fabric-models-123456789012-us-west-2/models/Qwen/Qwen3-" in one]
    adapters = ["arn:${data.aws_partition.partition.partition}:s3:::my-adapters/lora/sql/*"]
    assert sorted(objects) == sorted([*own, *(adapters if shape == "aggregated" else [])])
    assert len(own) == (2 if shape == "multi-model" else 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"s3:GetObject"', '"s3:PutObject"'), ('"kms:Decrypt"', '"kms:Encrypt"'), ("/models/Qwen/Qwen3-0.6B/*", "/*/*")],
)
def test_a_wider_right_is_caught(stacks: Stacks, old: str, new: str) -> None:
    stack = copy.deepcopy(stacks["single"])
    policy = of(stack, "aws_iam_role_policy")["single-read-role-policy"]
    assert old in policy["policy"]
    policy["policy"] = policy["policy"].replace(old, new)
    assert list(beyond_reading(stack)) != []


@each
def test_the_probe_of_every_engine_asks_for_a_completion(stacks: Stacks, shape: str) -> None:
    tasks = [name.removesuffix("-task") for name in of(stacks[shape], "aws_ecs_task_definition")]
    asked = {
        task: one["healthCheck"]["command"][4:6]
        for task in tasks
        for one in containers(stacks[shape], task).values()
        if "healthCheck" in one
    }
    followers = {f"worker-{replica}-1" for replica in range(2)} if shape == "distributed" else set()
    assert set(asked) == set(tasks) - followers - {"ask"}
    for task, (url, body) in asked.items():
        if task == "router":
            assert (url, body) == ("http://127.0.0.1:8080/liveness", "")
        else:
            assert url == "http://127.0.0.1:8000/v1/completions"
            assert json.loads(body)["max_tokens"] == 1


@each
def test_a_start_has_the_time_that_it_may_take(
    stacks: Stacks, rendered: dict[str, Path], fleet: Path, shape: str
) -> None:
    deadlines = {
        one.name: one.probe.deadline_s for one in read(rendered[shape], loading.read(fleet)).value.engines if one.probe
    }
    for task, deadline in deadlines.items():
        [check] = [one["healthCheck"] for one in containers(stacks[shape], task).values() if "healthCheck" in one]
        assert check["startPeriod"] + check["interval"] * check["retries"] >= deadline
        assert check["startPeriod"] <= 300 and check["interval"] <= 300 and check["retries"] <= 10, "ECS takes no more"


def test_an_address_that_only_the_task_knows_is_put_into_its_environment(stacks: Stacks) -> None:
    one = containers(stacks["disaggregated"], "prefill")["prefill"]
    assert one["entryPoint"][:2] == ["sh", "-c"]
    assert 'export VLLM_NIXL_SIDE_CHANNEL_HOST="$address"' in one["entryPoint"][2]
    assert one["command"][:2] == ["vllm", "serve"]
    assert "LIBFABRIC" in " ".join(one["command"])
    plain = containers(stacks["single"], "worker")["worker"]
    assert (plain["entryPoint"], plain["command"][0]) == (["vllm"], "serve")


def test_adapters_are_there_before_the_engine_starts(stacks: Stacks) -> None:
    found = containers(stacks["aggregated"], "worker")
    assert found["worker"]["dependsOn"] == [{"containerName": "fetch-adapter-sql", "condition": "SUCCESS"}]
    from_, to = found["fetch-adapter-sql"]["command"][-2:]
    assert from_ == "s3://my-adapters/lora/sql"
    assert f"sql={to}" in found["worker"]["command"]


def test_the_router_follows_the_names_of_the_engines(stacks: Stacks) -> None:
    together = containers(stacks["aggregated"], "router")["router"]
    assert together["entryPoint"] == ["follow"]
    assert "--worker=aggregated-worker.fabric.internal:8000" in together["command"]
    apart = containers(stacks["disaggregated"], "router")["router"]["command"]
    assert "--prefill=disaggregated-prefill.fabric.internal:8000" in apart
    assert "--decode=disaggregated-decode.fabric.internal:8000" in apart
    many = containers(stacks["multi-model"], "router")["router"]["command"]
    assert [word for word in many if word.startswith("--worker=")] == [
        f"--worker=multi-model-{model}.fabric.internal:8000" for model in ("small", "large")
    ]
    several = containers(stacks["distributed"], "router")["router"]["command"]
    assert [word for word in several if word.startswith("--worker=")] == [
        f"--worker=distributed-worker-{replica}-0.fabric.internal:8000" for replica in range(2)
    ]


def test_the_router_alone_hears_what_the_caches_hold(stacks: Stacks) -> None:
    for direction in ("ingress", "egress"):
        rules = of(stacks["single"], f"aws_vpc_security_group_{direction}_rule").values()
        heard = {rule["from_port"]: rule for rule in rules if rule["description"] == "Events of the cache"}
        assert sorted(heard) == [5557, 5558]
        inward = direction == "ingress"
        at, peer = ("engine", "router") if inward else ("router", "engine")
        for port, rule in heard.items():
            assert rule["to_port"] == port
            assert f"{at}-group" in rule["security_group_id"]
            assert f"{peer}-group" in rule["referenced_security_group_id"]
    engine = of(stacks["aggregated"], "aws_vpc_security_group_ingress_rule").values()
    assert 5557 not in {rule.get("from_port") for rule in engine}, "where nobody listens nothing is open"


@each
def test_the_stack_says_the_same_url_as_the_deployment(stacks: Stacks, shape: str) -> None:
    assert stacks[shape]["output"]["url"]["value"] == f"http://{shape}-router.fabric.internal:8080"


@each
def test_every_name_that_a_task_asks_for_is_registered(stacks: Stacks, shape: str) -> None:
    registered = {one["name"] for one in of(stacks[shape], "aws_service_discovery_service").values()}
    texts = [one["container_definitions"] for one in of(stacks[shape], "aws_ecs_task_definition").values()]
    asked = {
        word.rpartition(".fabric.internal")[0].split("=")[-1].split("/")[-1] for text in texts for word in _words(text)
    }
    assert asked - {""} <= registered


def _words(text: str) -> Iterator[str]:
    for one in json.loads(text):
        yield from (word for word in one.get("command", []) if ".fabric.internal" in word)


def test_machines_of_one_replica_stand_with_one_provider(stacks: Stacks) -> None:
    services = of(stacks["distributed"], "aws_ecs_service")
    by_replica: dict[str, set[str]] = {}
    for name, one in services.items():
        if name.startswith("worker-"):
            providers = [row["capacity_provider"] for row in one["capacity_provider_strategy"]]
            by_replica.setdefault(name.split("-")[1], set()).update(providers)
    assert {replica: len(found) for replica, found in by_replica.items()} == {"0": 1, "1": 1}


def told(stack: Stack, task: str) -> dict[str, Any]:
    """What the collector of a task is told."""
    found: dict[str, Any] = json.loads(containers(stack, task)["collector"]["environment"][0]["value"])
    return found


def metrics_sent(stack: Stack) -> Iterator[tuple[str, str]]:
    """Role and name of each metric that a collector sends."""
    for task in of(stack, "aws_ecs_task_definition"):
        if "collector" in containers(stack, task.removesuffix("-task")):
            found = told(stack, task.removesuffix("-task"))
            [row] = found["exporters"]["awsemf"]["metric_declarations"]
            names = [name.strip("^$") for name in row["metric_name_selectors"]]
            own, *others = found["receivers"]["prometheus"]["config"]["scrape_configs"]
            yield from ((own["static_configs"][0]["labels"]["role"], name) for name in names)
            # Of others it can only say that it read nothing.
            yield from ((one["static_configs"][0]["labels"]["role"], "up") for one in others if "up" in names)


def metrics_read(stack: Stack) -> Iterator[tuple[str, str]]:
    """Role and name of each metric that an alarm or tracking reads."""
    for alarm in of(stack, "aws_cloudwatch_metric_alarm").values():
        own = [one["metric"] for one in alarm["metric_query"] if "metric" in one]
        yield from (
            (one["dimensions"]["role"], one["metric_name"]) for one in own if one["namespace"].startswith("Serving/")
        )
    for policy in of(stack, "aws_appautoscaling_policy").values():
        if policy["policy_type"] == "TargetTrackingScaling":
            load = policy["target_tracking_scaling_policy_configuration"]["customized_metric_specification"]
            each = [one["metric_stat"]["metric"] for one in load.get("metrics", []) if "metric_stat" in one] or [load]
            for one in each:
                yield {row["name"]: row["value"] for row in one["dimensions"]}["role"], one["metric_name"]


@each
def test_metrics_that_scaling_and_alarms_read_are_sent(stacks: Stacks, shape: str) -> None:
    read_, sent = set(metrics_read(stacks[shape])), set(metrics_sent(stacks[shape]))
    assert read_ and read_ <= sent


def test_a_role_that_sleeps_is_seen_by_the_router_while_nobody_is_there(stacks: Stacks) -> None:
    own, absent = told(stacks["single"], "router")["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert own["static_configs"][0]["targets"] == ["127.0.0.1:9090"]
    assert absent["static_configs"] == [
        {"targets": ["127.0.0.1:9"], "labels": {"deployment": "single", "role": "worker"}}
    ]
    assert told(stacks["single"], "router")["exporters"]["awsemf"]["retain_initial_value_of_delta_metric"] is True
    [always] = told(stacks["aggregated"], "router")["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert always["job_name"] == "router", "who does not sleep costs no metric more"


def test_a_role_that_sleeps_starts_with_one_replica_and_is_not_missed(stacks: Stacks) -> None:
    for shape, role in (("single", "worker"), ("disaggregated", "prefill")):
        assert of(stacks[shape], "aws_ecs_service")[f"{role}-0"]["desired_count"] == 1
        assert of(stacks[shape], "aws_appautoscaling_target")[f"{role}-scaling"]["min_capacity"] == 0
        alarms = of(stacks[shape], "aws_cloudwatch_metric_alarm")
        assert f"{role}-running-alarm" not in alarms
        wakes = [name for name in alarms if name.startswith(f"{role}-wake")]
        assert sorted(wakes) == [f"{role}-wake-errors", f"{role}-wake-requests"]
        assert all(alarms[name]["treat_missing_data"] == "notBreaching" for name in alarms if name.startswith(role))
        refused = alarms["errors-alarm"]["metric_query"][-1]["expression"]
        assert refused.startswith("IF(up0 > 0, "), "who is refused while it sleeps takes no deployment back"
    assert "worker-running-alarm" in of(stacks["aggregated"], "aws_cloudwatch_metric_alarm")


def test_an_alarm_reckons_with_as_many_metrics_as_cloudwatch_takes(stacks: Stacks) -> None:
    for stack in stacks.values():
        assert all(len(one["metric_query"]) <= 10 for one in of(stack, "aws_cloudwatch_metric_alarm").values())
