"""What a stack serving-NAME must hold, whatever its shape."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import stack_rules
from infra.constructs.sidecars import GROUP_PROGRAM, WATCH
from infra.constructs.task import NODE_PROGRAM
from infra.stacks.serving import read
from llm_serving import paths
from llm_serving.catalog import signals
from llm_serving.fleet import loading
from llm_serving.services.service import START_WAIT_VARIABLE, STOP_DELAY_VARIABLE
from llm_serving.targets import probe
from tests.infra import aws_calls, dashboards, deployments, needed_actions, started_tasks
from tests.infra.serving.conftest import CERTIFICATE, SHAPES, WEB_ACL, write_blueprint

Stack = dict[str, Any]
Stacks = dict[str, Stack]

each_shape = pytest.mark.parametrize("shape", SHAPES)


def filter_by_type(stack: Stack, kind: str) -> dict[str, Stack]:
    resources: dict[str, Stack] = stack["resource"].get(kind, {})
    return resources


@each_shape
def test_what_ran_before_stays_there_for_ecs_to_roll_back_to(stacks: Stacks, shape: str) -> None:
    stack = stacks[shape]
    services = filter_by_type(stack, "aws_ecs_service")
    names = {
        service["task_definition"].removeprefix("${aws_ecs_task_definition.").removesuffix(".arn}")
        for service in services.values()
    }
    assert names
    definitions = filter_by_type(stack, "aws_ecs_task_definition")
    assert all(definitions[name]["skip_destroy"] for name in names), "ECS updates no service to an inactive one"


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


def test_compiled_programs_lie_on_the_instances_disk_where_they_are_kept(stacks: Stacks) -> None:
    definition = filter_by_type(stacks["single"], "aws_ecs_task_definition")["worker-task"]
    [volume] = [row for row in definition["volume"] if row["name"] == "compile-cache"]
    assert re.fullmatch(r"/mnt/instance-store/compile-cache/single/[0-9a-f]{16}", volume["host_path"])
    worker = parse_containers(stacks["single"], "worker")["worker"]
    mount = {"sourceVolume": "compile-cache", "containerPath": "/compile-cache", "readOnly": False}
    assert mount in worker["mountPoints"]
    environment = {row["name"]: row["value"] for row in worker["environment"]}
    assert environment["VLLM_CACHE_ROOT"] == "/compile-cache/vllm"
    others = filter_by_type(stacks["aggregated"], "aws_ecs_task_definition")["worker-task"]
    assert not any(row["name"] == "compile-cache" for row in others.get("volume", ()))


@pytest.mark.parametrize(("shape", "seconds"), [("aggregated", 1800), ("single", 7200)])
def test_clients_reach_the_router_for_as_long_as_it_lets_a_request_take(
    stacks: Stacks, shape: str, seconds: int
) -> None:
    router = filter_by_type(stacks[shape], "aws_ecs_service")["router-0"]
    assert router["service_connect_configuration"]["service"][0]["timeout"] == {
        "idle_timeout_seconds": seconds,
        "per_request_timeout_seconds": 0,
    }


def test_service_connect_runs_on_fargate_alone(stacks: Stacks) -> None:
    """On an instance, ECS's agent fetches the proxy's settings from ecs-sc.REGION.api.aws, which closed networks lack."""
    connected = [
        service
        for stack in stacks.values()
        for service in filter_by_type(stack, "aws_ecs_service").values()
        if service.get("service_connect_configuration")
    ]
    assert connected
    assert all(service.get("launch_type") == "FARGATE" for service in connected)


def test_a_strategy_of_seven_providers_is_reported(stacks: Stacks) -> None:
    stack = copy.deepcopy(stacks["aggregated"])
    filter_by_type(stack, "aws_ecs_service")["worker-0"]["capacity_provider_strategy"] *= 4
    assert list(stack_rules.check_provider_counts(stack)) == [
        "aws_ecs_service.worker-0: 8 capacity providers: ECS takes at most 6. Fix: use fewer providers."
    ]


@each_shape
def test_task_definitions_fit_and_a_larger_one_is_reported(stacks: Stacks, shape: str) -> None:
    stack = copy.deepcopy(stacks[shape])
    assert not list(stack_rules.check_task_sizes(stack))
    for definition in filter_by_type(stack, "aws_ecs_task_definition").values():
        definition["container_definitions"] = definition["container_definitions"].ljust(65_537)
    assert {line.partition(": ")[2] for line in stack_rules.check_task_sizes(stack)} == {
        "65,537 bytes: ECS takes at most 65,536. Fix: shorten the containers' commands and environment."
    }


@each_shape
def test_every_alarm_notifies_a_topic_and_one_that_does_not_is_reported(
    stacks: Stacks, fleet: Path, shape: str
) -> None:
    fleet_value = loading.load_fleet(fleet).value
    stack = copy.deepcopy(stacks[shape])
    alarms = filter_by_type(stack, "aws_cloudwatch_metric_alarm")
    for_people = {name: alarm for name, alarm in alarms.items() if "ok_actions" in alarm}
    known = {"errors", "queue", "running", "late", "maximum", "unmeasured", "certificate", "transfers"}
    assert {name.rpartition("-")[0].rpartition("-")[2] for name in for_people} <= known
    assert all(
        alarm["alarm_actions"] == alarm["ok_actions"] == [fleet_value.alarms_to] for alarm in for_people.values()
    )
    actions = {signal.action for signal in signals.load().values()}
    assert {alarm["alarm_description"].partition(". To do: ")[2] for alarm in for_people.values()} <= actions
    assert list(stack_rules.check_alarm_actions(stack, fleet_value)) == []
    del alarms["errors-alarm"]["alarm_actions"]
    assert list(stack_rules.check_alarm_actions(stack, fleet_value)) == [
        "aws_cloudwatch_metric_alarm.errors-alarm: no alarm_actions: nobody would be notified. "
        "Fix: arn:aws:sns:us-west-2:123456789012:on-call."
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
    assert len(own_weights) == (2 if shape in ("multi-model", "shared") else 1)
    key = "arn:aws:kms:us-west-2:210987654321:key/12345678-1234-1234-1234-123456789012"
    assert [key] in [
        resources for _, actions, resources in find_statements(stacks[shape]) if actions == ["kms:Decrypt"]
    ]


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


def parse_health_checks(stack: Stack, task: str) -> dict[str, Any]:
    """The health checks of a task's containers, that of the group program apart, which only says that it runs."""
    return {
        name: container["healthCheck"]
        for name, container in parse_containers(stack, task).items()
        if "healthCheck" in container and name != WATCH
    }


@each_shape
def test_the_health_of_an_engine_does_not_depend_on_its_queue(stacks: Stacks, shape: str) -> None:
    tasks = [name.removesuffix("-task") for name in filter_by_type(stacks[shape], "aws_ecs_task_definition")]
    probes = {
        task: check["command"][4:6]
        for task in tasks
        for container, check in parse_health_checks(stacks[shape], task).items()
        if container != "orchestrator"
    }
    followers = {
        "distributed": {f"worker-{replica}-1" for replica in range(2)},
        "wide": {"prefill-0-1", *(f"decode-0-{rank}" for rank in (1, 2, 3))},
    }.get(shape, set())
    assert set(probes) == set(tasks) - followers - {"ask"}
    for task, (url, body) in probes.items():
        port_and_path = "8080/liveness" if task == "router" else "8000/health"
        assert (url, body) == (f"http://127.0.0.1:{port_and_path}", "")


@each_shape
def test_every_engine_has_a_program_that_ends_its_task(stacks: Stacks, shape: str) -> None:
    for name in filter_by_type(stacks[shape], "aws_ecs_task_definition"):
        task = name.removesuffix("-task")
        containers = parse_containers(stacks[shape], task)
        assert (WATCH in containers) == (task not in ("router", "ask"))
        if WATCH in containers:
            watch, [engine] = containers[WATCH], [c for c in containers.values() if "portMappings" in c]
            assert watch["essential"]
            assert watch["image"] == engine["image"]
            assert watch["dependsOn"] == [{"containerName": engine["name"], "condition": "START"}]
            # Of a task's essential containers, one without a health check makes the task's own health unknown.
            assert "healthCheck" in watch
            assert watch["entryPoint"] == ["python3", "-c", GROUP_PROGRAM]


def test_the_nodes_of_a_replica_watch_one_another(stacks: Stacks) -> None:
    commands = {
        f"worker-{replica}-{rank}": parse_containers(stacks["distributed"], f"worker-{replica}-{rank}")[WATCH]
        for replica in range(2)
        for rank in range(2)
    }
    leader, follower = commands["worker-1-0"], commands["worker-1-1"]
    health = ["lead", "--health", "http://127.0.0.1:8000/health", "--metrics", "http://127.0.0.1:8000/metrics"]
    health += ["--running", "vllm:num_requests_running", "--steps", "vllm:iteration_tokens_total_count"]
    assert leader["command"] == [*health, "--port", "5701", "--followers", "1"]
    address = "distributed-worker-1-0.fabric.internal"
    assert follower["command"][:5] == ["follow", "--leader", address, "--port", "5701"]
    assert follower["command"][5:7] == ["--requests", "8000"]
    assert float(follower["command"][-1]) < follower["stopTimeout"]
    engine = parse_containers(stacks["distributed"], "worker-1-0")["worker"]
    assert follower["stopTimeout"] == engine["stopTimeout"]
    names = filter_by_type(stacks["distributed"], "aws_service_discovery_service")
    assert {f"{service['name']}.fabric.internal" for service in names.values()} >= {address}


@each_shape
def test_the_router_may_ask_cloud_map_for_its_engines_and_for_nobody_elses(stacks: Stacks, shape: str) -> None:
    [router] = [
        container for container in parse_containers(stacks[shape], "router").values() if "portMappings" in container
    ]
    environment = {item["name"]: item["value"] for item in router["environment"]}
    assert environment["CLOUD_MAP_REGION"] == "us-west-2"
    assert set(json.loads(environment["ENGINE_PROBE"])) == {"path", "body"}
    [(role, statement)] = [
        (address, statement)
        for address, statement in stack_rules.list_statements(stacks[shape])
        if "servicediscovery:DiscoverInstances" in statement["Action"]
    ]
    assert "-route-" in role
    programs = (paths.IMAGES / "router").glob("*.py")
    of_keys = {"secretsmanager:GetSecretValue"}  # test_keys.py has a router that asks for them
    assert set(statement["Action"]) == aws_calls.find_actions(*(file.read_text() for file in programs)) - of_keys
    assert statement["Condition"] == {"StringEquals": {"servicediscovery:NamespaceName": "fabric.internal"}}


@each_shape
def test_every_container_drops_all_capabilities(stacks: Stacks, shape: str) -> None:
    for name in filter_by_type(stacks[shape], "aws_ecs_task_definition"):
        for container in parse_containers(stacks[shape], name.removesuffix("-task")).values():
            capabilities = container["linuxParameters"]["capabilities"]
            pins_memory = "devices" in container["linuxParameters"]
            assert capabilities == {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if pins_memory else {})}


@each_shape
def test_no_role_can_have_the_family_of_test_requests(stacks: Stacks, shape: str) -> None:
    families = {name: task["family"] for name, task in stacks[shape]["resource"]["aws_ecs_task_definition"].items()}
    assert families.pop("ask-task") == f"fabric-{shape}_ask"
    assert not any("_" in family for family in families.values())


def test_terraform_evaluates_nothing_in_a_test_request(manifests: dict[str, Path], fleet: Path, tmp_path: Path) -> None:
    rendered = yaml.safe_load(manifests["single"].read_text())
    for service in rendered["services"]:
        service["probe"]["body"] = r'{"prompt": "\u0024{file(\"/etc/hostname\")} \u0025{if true}x"}'
    file = tmp_path / "ecs.yaml"
    file.write_text(yaml.safe_dump(rendered))
    stack = deployments.read_stack(deployments.synthesize(tmp_path, fleet, {"serving-single": file}), "serving-single")
    body = parse_containers(stack, "ask")["ask"]["command"][1]
    assert body == json.dumps({"prompt": '$${file("/etc/hostname")} %%{if true}x'})


@each_shape
def test_health_checks_and_test_requests_run_the_one_probe_program(stacks: Stacks, shape: str) -> None:
    program = Path(probe.__file__).read_text()
    for task in filter_by_type(stacks[shape], "aws_ecs_task_definition"):
        for check in parse_health_checks(stacks[shape], task.removesuffix("-task")).values():
            assert check["command"][:4] == ["CMD", "python3", "-c", program]
        for container in parse_containers(stacks[shape], task.removesuffix("-task")).values():
            if container["name"] == "ask":
                assert container["entryPoint"] == ["python3", "-c", program]


@each_shape
def test_the_health_check_allows_for_the_start_time(
    stacks: Stacks, manifests: dict[str, Path], fleet: Path, shape: str
) -> None:
    deadlines = {
        item.name: item.probe.deadline_s
        for item in read(manifests[shape], loading.load_fleet(fleet)).services
        if item.probe and not item.is_entry
    }
    for task, deadline in deadlines.items():
        [check] = parse_health_checks(stacks[shape], task).values()
        assert check["startPeriod"] + check["interval"] * check["retries"] >= deadline
        assert check["startPeriod"] <= 300 and check["interval"] <= 300 and check["retries"] <= 10, "ECS takes no more"


def test_a_tasks_own_address_is_set_in_its_environment(stacks: Stacks) -> None:
    container = parse_containers(stacks["disaggregated"], "prefill")["prefill"]
    assert container["entryPoint"][:2] == ["sh", "-c"]
    assert 'export VLLM_NIXL_SIDE_CHANNEL_HOST="$address"' in container["entryPoint"][2]
    assert container["command"][:3] == ["python3", "-c", NODE_PROGRAM]
    engine = container["command"].index("--") + 1
    check = ["--gpus", "4", "--gpu-memory", "144384", "--efa", "8", "--gpudirect", "--efa-gbps", "200", "--peers"]
    check += [f"disaggregated-{role}.fabric.internal" for role in ("prefill", "decode")]
    assert container["command"][3 : engine - 1] == check, "before NIXL would take TCP"
    assert container["command"][engine : engine + 2] == ["vllm", "serve"]
    assert "LIBFABRIC" in " ".join(container["command"])
    plain = parse_containers(stacks["single"], "worker")["worker"]
    assert (plain["entryPoint"], plain["command"][0]) == (["vllm"], "serve")


def test_adapters_are_copied_before_the_engine_starts(stacks: Stacks) -> None:
    by_name = parse_containers(stacks["aggregated"], "worker")
    assert by_name["worker"]["dependsOn"] == [{"containerName": "fetch", "condition": "SUCCESS"}]
    source, destination = by_name["fetch"]["command"]
    assert source == "s3://my-adapters/lora/sql"
    assert f"sql={destination}" in by_name["worker"]["command"]


def test_one_container_copies_all_that_is_copied(stacks: Stacks, tmp_path: Path) -> None:
    copier = parse_containers(stacks["aggregated"], "worker")["fetch"]
    assert copier["environment"] == [{"name": "AWS_MAX_ATTEMPTS", "value": "10"}]
    (tmp_path / "aws").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n[ "$5" != s3://mine/broken ]\n')
    (tmp_path / "aws").chmod(0o755)
    pairs = ["s3://mine/a", "/a", "s3://mine/broken", "/broken", "s3://mine/c", "/c"]

    def run(*words: str) -> tuple[int, list[str]]:
        (tmp_path / "calls").unlink(missing_ok=True)
        path = f"{tmp_path}:{os.environ['PATH']}"
        code = subprocess.run([*copier["entryPoint"], *words], env={"PATH": path}, check=False).returncode
        return code, (tmp_path / "calls").read_text().splitlines()

    copy = "s3 cp --recursive --only-show-errors"
    assert run(*pairs[:2], *pairs[4:]) == (0, [f"{copy} s3://mine/a /a", f"{copy} s3://mine/c /c"])
    code, calls = run(*pairs)
    assert (code, len(calls)) == (1, 2), "the first that fails ends the container"


def test_tasks_pull_by_the_fleets_image_cache(stacks: Stacks) -> None:
    containers = parse_containers(stacks["aggregated"], "worker")
    prefix = "/fabric-ecr/"
    assert f"{prefix}aws-cli/aws-cli:2.35.11@sha256:" in containers["fetch"]["image"]
    assert f"{prefix}aws-observability/aws-otel-collector:v0.48.0@sha256:" in containers["collector"]["image"]
    assert containers["worker"]["image"] == "vllm/vllm-openai:v0.32.0", "Docker Hub asks for a login"


def test_a_load_balancer_with_tls_calls_the_routers(stacks: Stacks) -> None:
    resources = stacks["aggregated"]["resource"]
    [balancer] = resources["aws_lb"].values()
    assert (balancer["internal"], balancer["idle_timeout"], len(balancer["subnets"])) == (True, 4000, 2)
    assert balancer["access_logs"] == {"enabled": True, "bucket": "acme-logs", "prefix": "chat"}
    [listener] = resources["aws_lb_listener"].values()
    assert (listener["port"], listener["protocol"], listener["certificate_arn"]) == (443, "HTTPS", CERTIFICATE)
    [group] = resources["aws_lb_target_group"].values()
    assert (group["target_type"], group["deregistration_delay"], group["health_check"]["path"]) == (
        "ip",
        "120",
        "/liveness",
    )
    [association] = resources["aws_wafv2_web_acl_association"].values()
    assert association["web_acl_arn"] == WEB_ACL
    services = resources["aws_ecs_service"]
    targets = {name: service["load_balancer"] for name, service in services.items() if "load_balancer" in service}
    assert list(targets) == ["router-0"]
    assert (targets["router-0"][0]["container_name"], targets["router-0"][0]["container_port"]) == ("router", 8080)
    assert services["router-0"]["health_check_grace_period_seconds"] == 60, "as long as a router may start"
    assert "aws_lb_listener.balancer-https" in services["router-0"]["depends_on"]
    assert "aws_lb" not in stacks["single"]["resource"], "a deployment that asks for none has none"


def test_a_system_prompt_of_several_lines_reaches_the_routers_probe_of_engines(fleet: Path, tmp_path: Path) -> None:
    text = (
        "pattern: real-time\nmodel: Qwen/Qwen3-0.6B\nwarm_prompt: system-prompt.txt\nroles: {worker: {pool: general}}\n"
    )
    folder = write_blueprint(tmp_path, "page", text)
    file = deployments.render(tmp_path, folder, fleet, "ecs")
    out = deployments.synthesize(tmp_path / "out", fleet, {"serving-page": file})
    stack = deployments.read_stack(out, "serving-page")
    prompt = (folder / "system-prompt.txt").read_text()
    assert prompt.count("\n") > 1, "the pattern's own"
    environment = {row["name"]: row["value"] for row in parse_containers(stack, "router")["router"]["environment"]}
    asked = json.loads(environment["ENGINE_PROBE"])
    assert asked["path"] == "/v1/chat/completions"
    assert [message["content"] for message in asked["body"]["messages"]] == [prompt, "ready?"]


def test_the_router_follows_the_names_of_the_engines(stacks: Stacks) -> None:
    aggregated_router = parse_containers(stacks["aggregated"], "router")["router"]
    assert aggregated_router["entryPoint"] == ["router-front"]
    assert "router-dns-discovery" in aggregated_router["command"]
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


def find_peer(rule: Stack) -> str:
    """The range of addresses, or the kind of the other security group, of a rule."""
    return str(rule.get("cidr_ipv4") or re.findall(r"(\w+)-group", rule["referenced_security_group_id"])[0])


@each_shape
def test_load_drivers_reach_the_router_and_metrics_and_nobody_reaches_them(stacks: Stacks, shape: str) -> None:
    rules = {
        direction: list(filter_by_type(stacks[shape], f"aws_vpc_security_group_{direction}_rule").values())
        for direction in ("ingress", "egress")
    }
    assert not [rule for rule in rules["ingress"] if "driver-group" in rule["security_group_id"]]
    outward = [rule for rule in rules["egress"] if "driver-group" in rule["security_group_id"]]
    inward = [rule for rule in rules["ingress"] if "driver-group" in rule.get("referenced_security_group_id", "")]
    reached = {(rule["from_port"], find_peer(rule)) for rule in outward}
    metrics_port = 8081 if shape == "orchestrated" else 9090
    assert reached == {(8080, "router"), (metrics_port, "router"), (8000, "engine"), (443, "0.0.0.0/0")}
    assert {rule["from_port"] for rule in inward} == {metrics_port, 8000}
    group = filter_by_type(stacks[shape], "aws_security_group")["driver-group"]
    assert group["name"] == f"fabric-{shape}-driver"


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
    assert {name for text in texts for name in _find_names(text)} <= registered


def _find_names(text: str) -> Iterator[str]:
    for container in json.loads(text):
        for word in container.get("command", []):
            yield from re.findall(r"([\w-]+)\.fabric\.internal", word)


def test_each_replica_that_the_orchestrator_names_is_a_service_of_one_task(stacks: Stacks) -> None:
    stack = stacks["orchestrated"]
    engines = [*(f"prefill-{replica}" for replica in range(2)), *(f"decode-{replica}" for replica in range(3))]
    services = filter_by_type(stack, "aws_ecs_service")
    # One for each choice of the pool, as of any role: a replica of one node may run on any.
    assert services.keys() == {*(f"{name}-{choice}" for name in engines for choice in (0, 1)), "router-0"}
    for name in engines:
        assert [services[f"{name}-{choice}"]["desired_count"] for choice in (0, 1)] == [1, 0]
        registries = {services[f"{name}-{choice}"]["service_registries"]["registry_arn"] for choice in (0, 1)}
        assert len(registries) == 1, "wherever the task runs, it has the one name"
        assert len(services[f"{name}-0"]["capacity_provider_strategy"]) > 1, "unlike nodes that stay together"
    [config] = re.findall(r'\{"hostname".*\}', parse_containers(stack, "router")["orchestrator"]["command"][3])
    names = filter_by_type(stack, "aws_service_discovery_service").values()
    urls = [url for key in ("context_servers", "generation_servers") for url in json.loads(config)[key]["urls"]]
    assert urls == [f"orchestrated-{name}.fabric.internal:8000" for name in engines]
    assert {url.partition(".")[0] for url in urls} <= {row["name"] for row in names}


def test_the_orchestrator_runs_beside_nginx_on_fargate(stacks: Stacks) -> None:
    task = filter_by_type(stacks["orchestrated"], "aws_ecs_task_definition")["router-task"]
    containers = parse_containers(stacks["orchestrated"], "router")
    router, orchestrator = containers["router"], containers["orchestrator"]
    assert task["requires_compatibilities"] == ["FARGATE"]
    assert task["ephemeral_storage"] == {"size_in_gib": 100}, "each task has 20, and the image takes more"
    assert orchestrator["essential"] and "portMappings" not in orchestrator
    assert orchestrator["image"] == parse_containers(stacks["orchestrated"], "decode-0")["decode"]["image"]
    assert "resourceRequirements" not in orchestrator, "no GPU"
    # Fargate has what its containers have together, of these sizes with 2 vCPUs.
    assert (task["cpu"], task["memory"]) == ("2048", "12288")
    for key in ("cpu", "memory"):
        assert router[key] > 0 and sum(container[key] for container in containers.values()) == int(task[key])
    # It listens once all engines answer, whose machines may have to start first.
    check = orchestrator["healthCheck"]
    assert check["command"][4] == "http://127.0.0.1:8081/health"
    assert check["startPeriod"] + check["interval"] * check["retries"] >= 1800
    assert router["stopTimeout"] == orchestrator["stopTimeout"]
    # ECS stops them in the reverse order: nginx, which goes on until clients have forgotten the address, before it.
    assert router["dependsOn"] == [{"containerName": "orchestrator", "condition": "START"}]
    assert {"name": STOP_DELAY_VARIABLE, "value": "45"} in router["environment"]
    [wait] = [item["value"] for item in router["environment"] if item["name"] == START_WAIT_VARIABLE]
    grace_s = filter_by_type(stacks["aggregated"], "aws_ecs_service")["router-0"]["health_check_grace_period_seconds"]
    assert int(wait) < min(router["healthCheck"]["startPeriod"], grace_s), "ECS would replace it meanwhile"
    [scrape] = read_collector_config(stacks["orchestrated"], "router")["receivers"]["prometheus"]["config"][
        "scrape_configs"
    ]
    assert (scrape["static_configs"][0]["targets"], scrape["metrics_path"]) == (
        ["127.0.0.1:8081"],
        "/prometheus/metrics/",
    )
    others = [shape for shape in SHAPES if "orchestrator" in parse_containers(stacks[shape], "router")]
    assert others == ["orchestrated"]


def test_engines_of_the_orchestrator_reach_one_another_and_only_the_router_calls_them(stacks: Stacks) -> None:
    rules = filter_by_type(stacks["orchestrated"], "aws_vpc_security_group_ingress_rule").values()
    inward = [rule for rule in rules if "engine-group" in rule["security_group_id"]]
    assert {(rule.get("from_port"), find_peer(rule)) for rule in inward} == {
        (8000, "router"),
        (8000, "driver"),
        (None, "engine"),
    }


def test_one_provider_runs_all_machines_of_a_replica(stacks: Stacks) -> None:
    services = filter_by_type(stacks["distributed"], "aws_ecs_service")
    by_replica: dict[str, set[str]] = {}
    for name, service in services.items():
        if name.startswith("worker-"):
            providers = [row["capacity_provider"] for row in service["capacity_provider_strategy"]]
            by_replica.setdefault(name.split("-")[1], set()).update(providers)
    assert {replica: len(replica_providers) for replica, replica_providers in by_replica.items()} == {"0": 1, "1": 1}


@each_shape
def test_a_collector_that_ended_is_started_again_and_no_task_ends_with_it(stacks: Stacks, shape: str) -> None:
    tasks = [name.removesuffix("-task") for name in filter_by_type(stacks[shape], "aws_ecs_task_definition")]
    collectors = [
        found["collector"] for task in tasks if "collector" in (found := parse_containers(stacks[shape], task))
    ]
    assert collectors
    assert not any(collector["essential"] for collector in collectors)
    assert all(collector["restartPolicy"] == {"enabled": True, "restartAttemptPeriod": 60} for collector in collectors)


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
            if metric["namespace"].startswith("Serving/fabric/")
        )
    for policy in filter_by_type(stack, "aws_appautoscaling_policy").values():
        if policy["policy_type"] == "TargetTrackingScaling":
            load = policy["target_tracking_scaling_policy_configuration"]["customized_metric_specification"]
            load_metrics = [
                metric["metric_stat"]["metric"] for metric in load.get("metrics", []) if "metric_stat" in metric
            ] or [load]
            for metric in load_metrics:
                yield {row["name"]: row["value"] for row in metric["dimensions"]}["role"], metric["metric_name"]


def test_a_replicas_ranks_come_to_its_requests_and_its_mean_share_of_cache(stacks: Stacks) -> None:
    config = read_collector_config(stacks["aggregated"], "worker")
    transforms = config["processors"]["metricstransform"]["transforms"]
    assert {entry["include"]: entry["operations"] for entry in transforms} == {
        name: [{"action": "aggregate_labels", "label_set": ["deployment", "role"], "aggregation_type": summary}]
        for name, summary in (("vllm:num_requests_waiting", "sum"), ("vllm:kv_cache_usage_perc", "mean"))
    }
    assert config["service"]["pipelines"]["metrics"]["processors"] == ["metricstransform", "batch"]
    router = read_collector_config(stacks["aggregated"], "router")
    assert router["service"]["pipelines"]["metrics"]["processors"] == ["batch"], "its requests are counters"


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
    assert always["job_name"] == "router", "of who does not sleep nothing is missed"


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


def test_whatever_the_stack_starts_counts_against_a_quota_that_preflight_asks_for(stacks: Stacks) -> None:
    started_tasks.assert_counted(stacks, "serving")


def test_preflight_asks_for_what_each_resource_takes(stacks: Stacks, fleet: Path) -> None:
    assert needed_actions.find_unasked_of_kind(stacks, loading.load_fleet(fleet).value, "serving") == {}


@each_shape
def test_the_dashboard_draws_what_the_collectors_send_and_nothing_else(stacks: Stacks, shape: str) -> None:
    stack = stacks[shape]
    body = dashboards.read(stack)
    assert dashboards.list_errors(body) == []
    sent = set()
    for task in filter_by_type(stack, "aws_ecs_task_definition"):
        collector = parse_containers(stack, task.removesuffix("-task")).get("collector")
        if collector:
            config = json.loads(collector["environment"][0]["value"])
            exporter = config["exporters"]["awsemf"]
            [scrape, *_] = config["receivers"]["prometheus"]["config"]["scrape_configs"]
            for selector in exporter["metric_declarations"][0]["metric_name_selectors"]:
                role = scrape["static_configs"][0]["labels"]["role"]
                sent.add((exporter["namespace"], selector.strip("^$"), role))
    drawn = dashboards.list_metrics(body)
    own = {(space, name, pairs["role"]) for _, space, name, pairs in drawn if space.startswith("Serving/fabric/")}
    assert own
    assert own <= sent
    services = {row["name"] for row in filter_by_type(stack, "aws_ecs_service").values()}
    assert {pairs["ServiceName"] for _, space, _, pairs in drawn if space == "ECS/ContainerInsights"} == services


def test_each_graph_has_its_signals_words(stacks: Stacks) -> None:
    body = dashboards.read(stacks["aggregated"])
    [queue] = [row for row in body["widgets"] if row["properties"].get("title", "").startswith("queue: ")]
    dimensions = ["deployment", "aggregated", "role", "worker"]
    assert queue["properties"] == {
        "title": "queue: requests that wait",
        "view": "timeSeries",
        "region": "us-west-2",
        "stat": "Average",
        "period": 60,
        "metrics": [["Serving/fabric/aggregated", "vllm:num_requests_waiting", *dimensions, {"label": "worker"}]],
        "yAxis": {"left": {"label": "requests", "min": 0, "showUnits": False}},
    }
    assert "| queue | add replicas, or raise their maximum;" in body["widgets"][-1]["properties"]["markdown"]


def test_a_body_that_cloudwatch_would_refuse_is_noticed(stacks: Stacks) -> None:
    body = dashboards.read(stacks["aggregated"])
    broken = copy.deepcopy(body)
    broken["widgets"][0]["properties"] |= {"colour": "red", "view": "lines"}
    del broken["widgets"][1]["properties"]["region"]
    broken["widgets"][2] |= {"x": 24}
    assert sorted(error.split(":")[0] for error in dashboards.list_errors(broken)) == [
        "$.widgets[0].properties",
        "$.widgets[0].properties.view",
        "$.widgets[1].properties",
        "$.widgets[2].x",
    ]


def test_a_peak_raises_the_least_tasks_at_its_start_and_lowers_them_at_its_end(stacks: Stacks) -> None:
    actions = filter_by_type(stacks["disaggregated"], "aws_appautoscaling_scheduled_action")
    target = filter_by_type(stacks["disaggregated"], "aws_appautoscaling_target")["decode-scaling"]
    assert {name: (action["schedule"], action["scalable_target_action"]) for name, action in actions.items()} == {
        "decode-peak-0-start": ("cron(30 22 * * ? *)", {"min_capacity": "2", "max_capacity": "3"}),
        "decode-peak-0-end": ("cron(0 6 * * ? *)", {"min_capacity": "1", "max_capacity": "3"}),
    }
    assert {action["timezone"] for action in actions.values()} == {"Europe/Berlin"}
    assert target["lifecycle"] == {"ignore_changes": ["min_capacity"]}
    other = filter_by_type(stacks["aggregated"], "aws_appautoscaling_target")["worker-scaling"]
    assert "lifecycle" not in other, "without a peak the blueprint's least is what counts"


def test_failures_of_either_side_are_errors(stacks: Stacks) -> None:
    alarm = filter_by_type(stacks["disaggregated"], "aws_cloudwatch_metric_alarm")["errors-alarm"]
    names = {query["id"]: query["metric"]["metric_name"] for query in alarm["metric_query"] if "metric" in query}
    prefix = "vllm_router_pd_"
    errors = {key: name for key, name in names.items() if key.startswith("errors")}
    assert set(errors.values()) == {f"{prefix}{part}errors_total" for part in ("", "prefill_", "decode_")}
    total = " + ".join(f"FILL({key}, 0)" for key in errors)
    assert f"({total}) / (FILL(requests, 0) + {total} + 0.001)" in alarm["metric_query"][-1]["expression"]


def test_failing_transfers_ring_where_caches_are_handed_on(stacks: Stacks) -> None:
    alarms = {
        shape: {
            name for name in filter_by_type(stack, "aws_cloudwatch_metric_alarm") if name.endswith("-transfers-alarm")
        }
        for shape, stack in stacks.items()
    }
    assert alarms["disaggregated"] == {"prefill-transfers-alarm", "decode-transfers-alarm"}
    assert alarms["aggregated"] == set()
    settings = filter_by_type(stacks["disaggregated"], "aws_cloudwatch_metric_alarm")["decode-transfers-alarm"]
    [query] = settings["metric_query"]
    assert (query["metric"]["stat"], query["metric"]["period"], settings["evaluation_periods"]) == ("Sum", 600, 1), (
        "one failure within ten minutes rings, as on EKS"
    )


def test_a_role_that_scales_has_an_alarm_at_its_most_tasks_over_all_its_choices(stacks: Stacks) -> None:
    alarms = filter_by_type(stacks["aggregated"], "aws_cloudwatch_metric_alarm")
    assert [name for name in alarms if name.endswith("-maximum-alarm")] == ["worker-maximum-alarm"]
    settings = alarms["worker-maximum-alarm"]
    *queries, total = settings["metric_query"]
    services = [row["name"] for row in filter_by_type(stacks["aggregated"], "aws_ecs_service").values()]
    assert [row["metric"]["dimensions"]["ServiceName"] for row in queries] == [
        name for name in services if "worker" in name
    ]
    assert total["expression"] == " + ".join(f"FILL(choice{number}, 0)" for number in range(len(queries)))
    assert (settings["comparison_operator"], settings["threshold"]) == ("GreaterThanOrEqualToThreshold", 6)
    assert settings["evaluation_periods"] == 15, "a peak of a quarter of an hour"


def test_a_role_of_whose_load_nothing_is_known_rings_unless_it_may_have_no_replica(stacks: Stacks) -> None:
    alarms = {
        shape: {name: row for name, row in rows.items() if name.endswith("-unmeasured-alarm")}
        for shape in ("aggregated", "disaggregated", "single")
        for rows in [filter_by_type(stacks[shape], "aws_cloudwatch_metric_alarm")]
    }
    assert {shape: set(rows) for shape, rows in alarms.items()} == {
        "aggregated": {"router-unmeasured-alarm", "worker-unmeasured-alarm"},
        "disaggregated": {"router-unmeasured-alarm", "decode-unmeasured-alarm"},
        "single": {"router-unmeasured-alarm"},
    }
    settings = alarms["aggregated"]["worker-unmeasured-alarm"]
    assert (settings["comparison_operator"], settings["threshold"]) == ("LessThanThreshold", 0), "no measure is"
    assert settings["treat_missing_data"] == "breaching"
    [query] = settings["metric_query"]
    policy = filter_by_type(stacks["aggregated"], "aws_appautoscaling_policy")["worker-scaling-policy"]
    tracked = policy["target_tracking_scaling_policy_configuration"]["customized_metric_specification"]
    dimensions = {row["name"]: row["value"] for row in tracked["dimensions"]}
    assert (query["metric"]["namespace"], query["metric"]["metric_name"], query["metric"]["dimensions"]) == (
        tracked["namespace"],
        tracked["metric_name"],
        dimensions,
    )


def test_a_certificate_that_was_not_renewed_rings_and_keeps_ringing(stacks: Stacks) -> None:
    settings = filter_by_type(stacks["aggregated"], "aws_cloudwatch_metric_alarm")["certificate-alarm"]
    [query] = settings["metric_query"]
    assert query["metric"] == {
        "namespace": "AWS/CertificateManager",
        "metric_name": "DaysToExpiry",
        "dimensions": {"CertificateArn": CERTIFICATE},
        "period": 86400,
        "stat": "Minimum",
    }
    assert (settings["comparison_operator"], settings["threshold"]) == ("LessThanThreshold", 21)
    assert settings["treat_missing_data"] == "ignore", "ACM sends nothing of a certificate that has ended"
    assert "certificate-alarm" not in filter_by_type(stacks["single"], "aws_cloudwatch_metric_alarm")


def test_engines_alone_send_spans_to_the_receiver_in_the_network(stacks: Stacks) -> None:
    rules = {
        name: rule
        for name, rule in filter_by_type(stacks["multi-model"], "aws_vpc_security_group_egress_rule").items()
        if rule.get("from_port") == 4318
    }
    assert rules
    assert {rule["security_group_id"] for rule in rules.values()} == {"${aws_security_group.engine-group.id}"}
    assert "0.0.0.0/0" not in {rule.get("cidr_ipv4") for rule in rules.values()}
    assert not any(
        rule.get("from_port") == 4318
        for rule in filter_by_type(stacks["aggregated"], "aws_vpc_security_group_egress_rule").values()
    )


def test_the_first_choice_of_a_role_that_gives_way_says_so_and_is_left_to_the_function(stacks: Stacks) -> None:
    services = filter_by_type(stacks["multi-model"], "aws_ecs_service")
    tags = {name: service.get("tags", {}).get("gives-way") for name, service in services.items()}
    assert tags == {"large-0": "2", "large-1": None, "router-0": None, "small-0": None}
    assert services["large-0"]["lifecycle"]["ignore_changes"][0] == "desired_count"
    assert "ignore_changes" not in services["small-0"].get("lifecycle", {}), "an apply sets it"
    alarms = filter_by_type(stacks["multi-model"], "aws_cloudwatch_metric_alarm")
    assert "small-running-alarm" in alarms and "large-running-alarm" not in alarms, "fewer tasks are no fault there"


@pytest.mark.parametrize(
    ("shape", "fitted"),
    [
        ("multi-model", {"large-0", "large-1"}),  # two choices
        ("single", {"worker-0"}),  # one choice, 0..2 tasks
        ("disaggregated", {"prefill-0", "decode-0"}),
    ],
)
def test_the_function_fits_rollouts_where_tasks_come_and_go_and_an_apply_leaves_them(
    stacks: Stacks, shape: str, fitted: set[str]
) -> None:
    services = filter_by_type(stacks[shape], "aws_ecs_service")
    tags = {name: service.get("tags", {}).get("unavailable") for name, service in services.items()}
    assert tags == {name: "1" if name in fitted else None for name in services} and len(services) > len(fitted)
    percent = "deployment_minimum_healthy_percent"
    left = {name for name, row in services.items() if percent in row.get("lifecycle", {}).get("ignore_changes", ())}
    assert left == fitted


def test_models_that_share_accelerators_are_one_task_that_drains_and_starts_in_time(stacks: Stacks) -> None:
    stack = stacks["shared"]
    assert set(filter_by_type(stack, "aws_ecs_task_definition")) == {"one-task", "ask-task", "router-task"}
    container = parse_containers(stack, "one-task".removesuffix("-task"))["one"]
    assert [*container["entryPoint"], *container["command"]][:2] == ["python3", "/opt/vllm/model_switch.py"]
    assert container["command"].count("--enable-sleep-mode") == 2
    assert container["image"].endswith("/vllm:0.32.0-efa.8")
    environment = {row["name"]: row["value"] for row in container["environment"]}
    assert container["stopTimeout"] >= int(environment["DRAIN_S"]) + 7, "END_S and ANSWER_S of the program"
    assert container["resourceRequirements"] == [{"type": "GPU", "value": "1"}]
