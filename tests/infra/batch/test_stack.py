"""What a stack batch-NAME must hold: rights by the calls of its programs, queues by the names that they look for."""

from __future__ import annotations

import ast
import datetime
import fnmatch
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from moto.iam.access_control import IAMPolicy, PermissionResult

from infra import main, stack_rules
from infra.constructs import task_checks, workflow
from infra.stacks import batch
from llm_serving import paths
from llm_serving.fleet import loading
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from llm_serving.services import rendered
from llm_serving.settings.errors import InputError
from tests.asl_validator.fixtures import FindErrors
from tests.infra import needed_actions, started_tasks
from tests.infra.aws_calls import find_actions
from tests.infra.batch.conftest import ON_ECS, SHAPES
from tests.infra.deployments import ACCOUNT

Stack = dict[str, Any]
Stacks = dict[str, Stack]

IMAGE = paths.IMAGES / "batch-worker"

EXEC = {
    "kms:Decrypt",
    "logs:CreateLogStream",
    "logs:DescribeLogGroups",
    "logs:DescribeLogStreams",
    "logs:PutLogEvents",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
}
"""Of ECS Exec, which a role has beside what its program calls."""

BESIDE_CALLS = {"kms:Decrypt", "kms:GenerateDataKey"}
"""What S3 asks for where a bucket is encrypted with a key of KMS."""

PROGRAMS = ("batch-api", "batch-worker")

CACHE_RULE = "Answers for servers"

READ_SECRET = {"secretsmanager:GetSecretValue"}
"""What a program calls where the blueprint names a secret."""

TELL_OF_CACHE = {"sqs:PurgeQueue", "sqs:SendMessage"}
"""What a worker calls where the blueprint has a cache."""

LOGIN = "arn:aws:secretsmanager:us-west-2:210987654321:secret:cache/login-AbCdEf"


@functools.cache
def list_modules(program: str) -> list[str]:
    """The code of a program's modules on AWS, found by its imports."""
    sources: dict[Path, str] = {}
    pending = [IMAGE / f"{program}.py"]
    while pending:
        file = pending.pop()
        if file in sources or file.stem == "emulated":
            continue
        sources[file] = file.read_text()
        for node in ast.walk(ast.parse(sources[file])):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "batch":
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            files = [IMAGE.joinpath(*name.split(".")).with_suffix(".py") for name in names]
            pending += [module for module in files if module.is_file()]
    return list(sources.values())


def list_statements(stack: Stack, part: str) -> list[dict[str, Any]]:
    [text] = [
        policy["policy"] for name, policy in stack["resource"]["aws_iam_role_policy"].items() if f"-{part}-role" in name
    ]
    return list(json.loads(text)["Statement"])


def list_allowed(stack: Stack, part: str) -> set[str]:
    return {action for statement in list_statements(stack, part) for action in statement["Action"]}


def read_containers(stack: Stack, program: str) -> list[dict[str, Any]]:
    return list(json.loads(stack["resource"]["aws_ecs_task_definition"][f"{program}-task"]["container_definitions"]))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stack_follows_the_rules_of_all_stacks(stacks: Stacks, fleet: Path, shape: str) -> None:
    assert list(stack_rules.find_violations(loading.load_fleet(fleet).value, {shape: stacks[shape]})) == []


@pytest.mark.parametrize(
    ("shape", "beside", "not_called"),
    [
        ("catalog", EXEC, READ_SECRET),
        ("pods", set(), READ_SECRET),
        ("outside", EXEC, set()),
        ("pods-outside", set(), set()),
    ],
)
@pytest.mark.parametrize(("part", "program"), [("work", "batch_worker"), ("api", "batch_api")])
def test_a_role_allows_what_its_program_calls_and_nothing_else(
    stacks: Stacks, shape: str, beside: set[str], not_called: set[str], part: str, program: str
) -> None:
    called = find_actions(*list_modules(program))
    not_called = not_called | (TELL_OF_CACHE if part == "work" and "outside" not in shape else set())
    assert not_called <= called
    called -= not_called
    allowed = list_allowed(stacks[shape], part)
    assert called - allowed == set(), "not allowed"
    assert allowed - called - beside - BESIDE_CALLS == set(), "allowed, and never called"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_program_may_delete_only_what_it_deletes(stacks: Stacks, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import layout
    from batch.layout import Layout

    keys = Layout(f"batch/{shape}")
    deleted = {"work": keys.build(layout.UNCACHED, "batch_1", 0), "api": keys.build(layout.FILE, "file-1")}
    for part, key in deleted.items():
        [resource] = [row["Resource"] for row in list_statements(stacks[shape], part) if "DeleteObject" in str(row)]
        location = resource.partition(":::")[2].partition("/")[2]
        assert fnmatch.fnmatchcase(key, location), part
        others = [other for name, other in deleted.items() if name != part] + [keys.build(layout.JOB, "batch_1")]
        assert not any(fnmatch.fnmatchcase(other, location) for other in others), part


def test_pods_have_the_rights_of_tasks_on_what_is_theirs(stacks: Stacks) -> None:
    for part in ("work", "api", "flow", "time"):
        task = json.dumps([row for row in list_statements(stacks["catalog"], part) if not _is_exec(row)])
        assert json.dumps(list_statements(stacks["pods"], part)) == task.replace("catalog", "pods").replace(
            "my-pods", "my-catalog"
        )


def _is_exec(statement: dict[str, Any]) -> bool:
    return statement.get("Sid", "").startswith("Exec")


def test_each_service_account_of_the_chart_has_the_role_of_its_program(
    stacks: Stacks, manifests: dict[str, Path]
) -> None:
    resources = stacks["pods"]["resource"]
    associations = {
        row["service_account"]: (row["cluster_name"], row["namespace"], row["role_arn"])
        for row in resources["aws_eks_pod_identity_association"].values()
    }
    assert associations == {
        "pods-batch-worker": ("cotton", "serving", "${aws_iam_role.pods-work-role.arn}"),
        "pods-batch-api": ("cotton", "serving", "${aws_iam_role.pods-api-role.arn}"),
    }
    trust = json.loads(resources["aws_iam_role"]["pods-work-role"]["assume_role_policy"])["Statement"][0]
    assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert trust["Condition"]["ArnEquals"]["aws:SourceArn"].endswith(":cluster/cotton"), "pods of this cluster alone"


def test_on_eks_the_stack_has_the_workflow_and_no_tasks(stacks: Stacks) -> None:
    task, pods = (
        {(kind, name) for kind, rows in stacks[shape]["resource"].items() for name in rows}
        for shape in ("catalog", "pods")
    )
    own = {kind for kind, _ in pods - task} - {"aws_iam_role", "aws_iam_role_policy"}
    assert own == {"aws_eks_pod_identity_association"}
    assert {kind for kind, _ in task - pods} - {"aws_iam_role", "aws_iam_role_policy"} == {
        "aws_cloudwatch_log_group",
        "aws_cloudwatch_metric_alarm",
        "aws_ecs_service",
        "aws_ecs_task_definition",
        "aws_security_group",
        "aws_service_discovery_service",
        "aws_vpc_security_group_egress_rule",
        "aws_vpc_security_group_ingress_rule",
    }
    assert {"state_machine", "topic"} == set(stacks["pods"]["output"])


def test_a_batch_that_is_rendered_for_both_targets_is_refused(
    manifests: dict[str, Path], fleet: Path, tmp_path: Path
) -> None:
    document = loading.load_fleet(fleet)
    files = [tmp_path / "rendered" / "mine" / target / f"{target}.yaml" for target in ("ecs", "eks")]
    for file, shape in zip(files, ("catalog", "pods"), strict=True):
        file.parent.mkdir(parents=True)
        file.write_text(manifests[shape].read_text().replace(f'name: "{shape}"\n', "name: mine\n"))
    serving = tmp_path / "rendered" / "chat" / "eks" / "eks.yaml"
    serving.parent.mkdir(parents=True)
    serving.write_text("# chat on EKS: values of charts/inference.\nfleet: cotton\n")
    found = rendered.find(document.value, tmp_path)
    assert found == files, "a chart's values alone are no stack"
    with pytest.raises(InputError) as refusal:
        main.synthesize(document, tmp_path / "out", found)
    assert str(refusal.value) == (
        f"{files[1]}: both targets have the stack batch-mine. Fix: delete the folder of the target that does not "
        "run, or set another name."
    )


def test_a_call_that_is_not_allowed_is_reported(stacks: Stacks) -> None:
    called = find_actions(*list_modules("batch_worker"), "def drop(sqs):\n    sqs.delete_queue(QueueUrl='q')\n")
    assert called - list_allowed(stacks["outside"], "work") == {"sqs:DeleteQueue"}


def test_what_creates_an_emulated_batch_is_in_no_program_on_aws() -> None:
    created = find_actions(*list_modules("batch_api"), (IMAGE / "batch" / "emulated.py").read_text())
    assert "sqs:CreateQueue" in created
    assert "sqs:CreateQueue" not in find_actions(*list_modules("batch_api"))


def test_the_state_machine_may_do_each_of_its_integrations_and_nothing_else(stacks: Stacks) -> None:
    text = STATE_MACHINE_FILE.read_text()
    integrations = {
        "arn:aws:states:::sqs:sendMessage.waitForTaskToken": {"sqs:SendMessage"},
        "arn:aws:states:::s3:getObject": {"s3:GetObject", "kms:Decrypt"},
        # What a map writes it may do in parts. Source: AWS CDK 2.190, ResultWriter.providePolicyStatements.
        "arn:aws:states:::s3:putObject": {
            *("s3:PutObject", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:AbortMultipartUpload"),
            "kms:GenerateDataKey",
        },
        "arn:aws:states:::events:putEvents": {"events:PutEvents"},
    }
    used = {part.split('"')[0] for part in text.split('"Resource": "')[1:]}
    assert used == set(integrations)
    expected = set().union(*integrations.values())
    # Maps in the mode DISTRIBUTED start executions of their own; the log is delivered by a dozen of rights.
    expected |= {f"states:{verb}Execution" for verb in ("Start", "Describe", "Stop", "Redrive")}
    allowed = list_allowed(stacks["catalog"], "flow")
    assert {action for action in allowed if not action.startswith("logs:")} == expected


def list_tasks_in_children(states: dict[str, Any], *, is_in_child: bool = False) -> Iterator[str]:
    """Yield the states that wait for a token in a child execution of a Distributed Map."""
    for name, state in states.items():
        if is_in_child and state.get("Resource", "").endswith(".waitForTaskToken"):
            yield name
        processor = state.get("ItemProcessor", {})
        is_distributed = processor.get("ProcessorConfig", {}).get("Mode") == "DISTRIBUTED"
        yield from list_tasks_in_children(processor.get("States", {}), is_in_child=is_in_child or is_distributed)
        for branch in state.get("Branches", ()):
            yield from list_tasks_in_children(branch["States"], is_in_child=is_in_child)


def test_workers_may_answer_the_children_of_distributed_maps(stacks: Stacks) -> None:
    assert list(list_tasks_in_children(json.loads(STATE_MACHINE_FILE.read_text())["States"])), "there are some"
    inline = {
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "States": {"a": {"Resource": "x.waitForTaskToken"}}}
    }
    assert not list(list_tasks_in_children({"Map": inline})), "only Distributed Maps have children"
    arn = "stateMachine:cotton-catalog"
    policies = stacks["catalog"]["resource"]["aws_iam_role_policy"]
    [answer] = [
        statement
        for policy in policies.values()
        for statement in json.loads(policy["policy"])["Statement"]
        if "states:SendTaskSuccess" in statement["Action"]
    ]
    assert [resource.rpartition(":stateMachine")[2] for resource in answer["Resource"]] == [
        arn.removeprefix("stateMachine"),
        f"{arn.removeprefix('stateMachine')}/*",
    ]
    trusts = [role["assume_role_policy"] for role in stacks["catalog"]["resource"]["aws_iam_role"].values()]
    [trust] = [json.loads(text)["Statement"][0] for text in trusts if "states.amazonaws.com" in text]
    assert [source.rpartition("/")[2] == "*" for source in trust["Condition"]["ArnLike"]["aws:SourceArn"]] == [
        False,
        True,
    ]


def list_map_labels(states: dict[str, Any]) -> Iterator[str]:
    """Yield the label of each Distributed Map, which the ARNs of its children have."""
    for state in states.values():
        processor = state.get("ItemProcessor", {})
        if processor.get("ProcessorConfig", {}).get("Mode") == "DISTRIBUTED":
            yield state["Label"]
        yield from list_map_labels(processor.get("States", {}))


def is_permitted(statements: list[dict[str, Any]], action: str, resource: str) -> bool:
    """Judge as moto's IAM does, which asks for no resource of Step Functions itself."""
    text = json.dumps({"Statement": statements}).replace("${data.aws_partition.partition.partition}", "aws")
    document = text.replace("${data.aws_caller_identity.account.account_id}", ACCOUNT)
    return IAMPolicy(document).is_action_permitted(action, resource) is PermissionResult.PERMITTED


@pytest.mark.parametrize("shape", SHAPES)
def test_by_motos_iam_each_role_may_do_its_part_for_every_distributed_map(stacks: Stacks, shape: str) -> None:
    labels = list(list_map_labels(json.loads(STATE_MACHINE_FILE.read_text())["States"]))
    assert labels == ["Scan", "Run"]
    name, states = f"cotton-{shape}", f"arn:aws:states:us-west-2:{ACCOUNT}"
    machines = [f"{states}:stateMachine:{name}{suffix}" for suffix in ("", *(f"/{label}" for label in labels))]
    children = [f"{states}:execution:{name}/{label}:0c2f" for label in labels]
    worker, flow = list_statements(stacks[shape], "work"), list_statements(stacks[shape], "flow")

    for machine in machines:
        assert is_permitted(worker, "states:SendTaskSuccess", machine)
        assert is_permitted(worker, "states:SendTaskFailure", machine)
    assert is_permitted(flow, "states:StartExecution", machines[0])
    for child in children:
        assert is_permitted(flow, "states:DescribeExecution", child)
        assert is_permitted(flow, "states:StopExecution", child)
    assert not is_permitted(worker, "states:SendTaskSuccess", f"{machines[0]}-2/Run"), "another's is refused"

    [answer] = [statement for statement in worker if statement["Sid"] == "Answer"]
    parent_alone = [{**answer, "Resource": answer["Resource"][:1]}]
    assert not is_permitted(parent_alone, "states:SendTaskSuccess", machines[1]), "the check can fail"


def test_the_definition_is_the_one_file_with_the_queue_and_the_name_filled_in(stacks: Stacks) -> None:
    [machine] = stacks["catalog"]["resource"]["aws_sfn_state_machine"].values()
    text = STATE_MACHINE_FILE.read_text()
    filled = text.replace("${control_queue}", "${aws_sqs_queue.queue-control.url}")
    assert machine["definition"] == filled.replace("${deployment}", "cotton-catalog")
    assert "${" not in filled.replace("${aws_sqs_queue.queue-control.url}", "").replace("${deployment}", "")
    json.loads(machine["definition"])


@pytest.mark.parametrize(
    ("region", "partition"), [("us-west-2", "aws"), ("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn")]
)
def test_the_integrations_are_of_the_partition_that_the_state_machine_runs_in(region: str, partition: str) -> None:
    named: Any = SimpleNamespace(workflow="cotton-catalog")
    text = workflow.format_definition(named, "https://sqs.example/control", region)
    assert len(re.findall(f'"arn:{partition}:states:::', text)) == text.count('"arn:') > 8


def test_the_definition_as_the_stack_writes_it_passes_asl_validator(
    stacks: Stacks, find_asl_errors: FindErrors
) -> None:
    machines = {shape: stack["resource"]["aws_sfn_state_machine"]["workflow"] for shape, stack in stacks.items()}
    assert find_asl_errors({shape: machine["definition"] for shape, machine in machines.items()}) == {}


@pytest.mark.parametrize(
    ("shape", "endpoint"),
    [
        ("catalog", "http://chat-router.cotton.internal:8080"),
        ("pods", "http://chat.serving.svc:8080"),
    ],
)
def test_the_programs_find_what_the_stack_makes_by_its_names(
    stacks: Stacks,
    manifests: dict[str, Path],
    fleet: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    endpoint: str,
) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import settings

    value = task_checks.read(manifests[shape], loading.load_fleet(fleet), batch.Batch).value
    batch_settings = settings.read(value.entry.env)
    looked_for = {
        batch_settings.control_queue,
        batch_settings.inbox_queue,
        *batch_settings.run_queues.values(),
    }
    queues = {queue["name"]: queue for queue in stacks[shape]["resource"]["aws_sqs_queue"].values()}
    worker = settings.read(value.services[0].env)
    assert not worker.cache or worker.cache.queue, "the cache has an alarm"
    looked_for |= {worker.cache.queue} if worker.cache else set()
    alarms = stacks[shape]["resource"]["aws_cloudwatch_metric_alarm"]
    assert ("uncached-alarm" in alarms) == bool(worker.cache)
    assert set(queues) == {*looked_for, f"cotton-{shape}-undelivered"}
    assert {queue["visibility_timeout_seconds"] for queue in queues.values()} == {45}
    [machine] = stacks[shape]["resource"]["aws_sfn_state_machine"].values()
    arn = f"arn:aws:states:us-west-2:123456789012:stateMachine:{machine['name']}"
    assert value.entry.env["BATCH_STATE_MACHINE"] == arn
    worker = next(service for service in value.services if not service.port)
    assert settings.read(worker.env).worker, "the host's name, of which each container has its own"
    for environment in (worker.env, value.entry.env):
        assert settings.read(environment).endpoint == endpoint


def test_files_reach_the_inbox_by_events_of_their_prefix(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import inbox, layout

    rule = stacks["catalog"]["resource"]["aws_cloudwatch_event_rule"]["inbox-files"]
    pattern = json.loads(rule["event_pattern"])
    [condition] = pattern["detail"]["object"]["key"]
    key = f"{layout.Layout('batch/catalog').build(layout.INBOXES)}ads/rows.jsonl"
    assert key.startswith(condition["prefix"])
    event = {
        "source": pattern["source"][0],
        "detail-type": pattern["detail-type"][0],
        "detail": {"bucket": {"name": pattern["detail"]["bucket"]["name"][0]}, "object": {"key": key}},
    }
    assert inbox.parse_event(json.dumps(event)) == [("cotton-results-123456789012-us-west-2", key)]


def list_conditions(policies: list[dict[str, Any]], field: str) -> list[set[str]]:
    """The keys of the conditions by which EventBridge may do something."""
    statements = [statement for row in policies for statement in json.loads(row[field])["Statement"]]
    return [
        {key for operator in statement.get("Condition", {}).values() for key in operator}
        for statement in statements
        if statement["Principal"] == {"Service": "events.amazonaws.com"}
    ]


def test_eventbridge_may_publish_a_jobs_end_without_a_condition_that_it_never_meets(stacks: Stacks) -> None:
    """AWS supports none in a topic's policy, and none on the source in the policy of a topic's key.

    Source: EventBridge user guide, "Using resource-based policies for Amazon EventBridge", Amazon SNS permissions; SNS
    developer guide, "Managing Amazon SNS encryption keys and costs"; 2026-11.
    """
    resources = stacks["catalog"]["resource"]
    assert list_conditions([*resources["aws_sns_topic_policy"].values()], "policy") == [set()]
    assert list_conditions([*resources["aws_kms_key"].values()], "policy") == [
        {"kms:EncryptionContext:aws:sns:topicArn"}
    ]
    topic = resources["aws_sns_topic"]["ended"]["name"]
    assert f':{topic}"' in resources["aws_kms_key"]["batch-key"]["policy"], "the key is for this topic"
    queues = [queue for queue in resources["aws_sqs_queue"].values() if "events.amazonaws.com" in queue["policy"]]
    assert list_conditions(queues, "policy") == 2 * [{"aws:SourceArn"}], "the check can fail"


def test_a_merge_of_hours_rings_no_alarm_and_files_that_nobody_takes_do(stacks: Stacks) -> None:
    """SQS counts the age of a message that a worker has, too."""
    alarms = stacks["catalog"]["resource"]["aws_cloudwatch_metric_alarm"]
    for name, queue in (("waiting", "control"), ("files", "inbox")):
        own = alarms[f"{name}-alarm"]
        age, visible, stale = own["metric_query"]
        assert stale["expression"] == f"IF({visible['id']} > 0, {age['id']}, 0)"
        assert [query.get("return_data") for query in own["metric_query"]] == [None, None, True]
        names = ("ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible")
        for query, metric in zip((age, visible), names, strict=True):
            assert query["metric"]["metric_name"] == metric
            assert query["metric"]["dimensions"] == {"QueueName": f"cotton-catalog-{queue}"}
        assert own["alarm_actions"], "somebody is told"


def test_a_schedules_message_is_one_that_the_batch_api_reads(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import inbox

    schedule = stacks["catalog"]["resource"]["aws_scheduler_schedule"]["schedule-nightly"]
    assert schedule["schedule_expression"] == "cron(0 2 * * ? *)"
    assert schedule["schedule_expression_timezone"] == "America/Los_Angeles"
    assert inbox.parse_schedule(schedule["target"]["input"]) == {
        "name": "nightly",
        "file": "all/products.jsonl",
        "team": "ads",
        "priority": "low",
        # Source: EventBridge Scheduler user guide, "Adding context attributes", 2026-11.
        "time": "<aws.scheduler.scheduled-time>",
    }
    assert "aws_scheduler_schedule" not in stacks["outside"]["resource"]


def test_what_a_schedule_could_not_send_is_in_the_queue_with_an_alarm(stacks: Stacks) -> None:
    schedule = stacks["catalog"]["resource"]["aws_scheduler_schedule"]["schedule-nightly"]
    undelivered = schedule["target"]["dead_letter_config"]["arn"]
    assert undelivered.endswith(":cotton-catalog-undelivered")
    [send] = [statement for statement in list_statements(stacks["catalog"], "time") if statement["Sid"] == "Send"]
    assert undelivered in send["Resource"]


def test_workers_run_on_spot_capacity_after_the_first(stacks: Stacks) -> None:
    def list_strategy(shape: str) -> list[tuple[str, int, int]]:
        strategy = stacks[shape]["resource"]["aws_ecs_service"]["batch-worker-0"]["capacity_provider_strategy"]
        return [(row["capacity_provider"], row.get("base", 0), row["weight"]) for row in strategy]

    assert list_strategy("catalog") == [("FARGATE", 1, 0), ("FARGATE_SPOT", 0, 1)]
    assert list_strategy("outside") == [("FARGATE", 0, 1)]
    services = stacks["catalog"]["resource"]["aws_ecs_service"]
    assert (services["batch-worker-0"]["desired_count"], services["batch-api-0"]["desired_count"]) == (6, 1)


def test_a_stopped_worker_has_time_to_hand_back_its_rows(stacks: Stacks) -> None:
    [container] = read_containers(stacks["catalog"], "batch-worker")
    environment = {row["name"]: row["value"] for row in container["environment"]}
    # A spot task has two minutes, as long as Fargate waits at most. Source: ECS developer guide, "Amazon ECS clusters for
    # Fargate", termination notices, 2026-11.
    assert container["stopTimeout"] == 120
    assert json.loads(environment["BATCH_SETTINGS"])["drain_s"] + 20 < 120
    assert "BATCH_WORKER" not in environment


def test_a_worker_is_healthy_once_it_takes_steps(stacks: Stacks) -> None:
    """Without a check, one that ends at its start would count as running, and replace the former workers."""
    [container] = read_containers(stacks["catalog"], "batch-worker")
    environment = {row["name"]: row["value"] for row in container["environment"]}
    assert container["healthCheck"]["command"] == ["CMD", "test", "-e", environment["BATCH_READY_FILE"]]


def test_workers_reach_the_endpoint_and_nobody_reaches_them(stacks: Stacks) -> None:
    rules = stacks["catalog"]["resource"]["aws_vpc_security_group_egress_rule"]
    for program in PROGRAMS:  # the Batch API counts tokens before a job starts
        endpoint = rules[f"{program}-to-endpoint"]
        assert (endpoint["cidr_ipv4"], endpoint["from_port"]) == ("${data.aws_vpc.range.cidr_block}", 8080)
    assert "batch-worker-to-endpoint" not in stacks["outside"]["resource"]["aws_vpc_security_group_egress_rule"]
    for stack in (stacks[shape] for shape in ON_ECS):
        ingress = stack["resource"]["aws_vpc_security_group_ingress_rule"]
        assert {rule["security_group_id"] for rule in ingress.values()} == {"${aws_security_group.batch-api-group.id}"}


def test_named_clients_alone_reach_the_batch_api(stacks: Stacks) -> None:
    sources = {}
    for shape in ON_ECS:
        rules = stacks[shape]["resource"]["aws_vpc_security_group_ingress_rule"].values()
        assert {rule["from_port"] for rule in rules} == {8080}
        sources[shape] = {rule.get("cidr_ipv4") or rule["referenced_security_group_id"] for rule in rules}
    api = "${aws_security_group.batch-api-group.id}"
    assert sources["outside"] == {"10.0.1.0/24", "sg-0123456789abcdef0", api}
    assert "${data.aws_vpc.range.cidr_block}" in sources["catalog"]  # the negative control


@pytest.mark.parametrize("shape", ["outside", "pods-outside"])
def test_each_program_may_read_the_secrets_that_it_is_told_of(
    stacks: Stacks, manifests: dict[str, Path], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import settings

    stack = stacks[shape]
    named = {"llm/keys": "${data.aws_secretsmanager_secret.secret-0.arn}", LOGIN: LOGIN}
    assert stack["data"]["aws_secretsmanager_secret"]["secret-0"]["name"] == "llm/keys"
    environments = {
        service["name"]: service["env"] for service in yaml.safe_load(manifests[shape].read_text())["services"]
    }
    worker, api = (settings.read(environments[program]) for program in ("batch-worker", "batch-api"))
    assert worker.cache is not None
    assert worker.api_key == api.api_key == settings.KeySecret("llm/keys", "batch")
    for part, secrets in (("work", ["llm/keys", worker.cache.login_secret]), ("api", ["llm/keys"])):
        by_sid = {statement.get("Sid"): statement for statement in list_statements(stack, part)}
        assert by_sid["Secrets"]["Action"] == ["secretsmanager:GetSecretValue"]
        assert by_sid["Secrets"]["Resource"] == [named[secret] for secret in secrets]
        if part == "work":
            assert by_sid["SecretKeys"] == {
                "Sid": "SecretKeys",
                "Effect": "Allow",
                "Action": ["kms:Decrypt"],
                "Resource": ["arn:aws:kms:us-west-2:210987654321:key/87654321-4321-4321-4321-210987654321"],
                "Condition": {"StringLike": {"kms:ViaService": "secretsmanager.us-west-2.amazonaws.com*"}},
            }
        else:
            assert "SecretKeys" not in by_sid, "AWS's own key encrypts the one that the Batch API reads"


def test_nobody_else_reads_secrets_and_no_value_gets_into_the_state(stacks: Stacks) -> None:
    for shape, stack in stacks.items():
        readers = [
            name
            for name, policy in stack["resource"]["aws_iam_role_policy"].items()
            if "secretsmanager:" in policy["policy"]
        ]
        parts = sorted(name.removesuffix("-role-policy").rpartition("-")[2] for name in readers)
        assert parts == (["api", "work"] if shape.endswith("outside") else [])
        assert set(stack["data"]).isdisjoint(
            {"aws_secretsmanager_secret_version", "aws_secretsmanager_random_password"}
        )
    assert "aws_secretsmanager_secret" not in stacks["catalog"]["data"]


def test_workers_alone_reach_the_cache_and_in_the_network_alone(stacks: Stacks) -> None:
    def list_cache_rules(shape: str) -> dict[str, tuple[str, int]]:
        rules = stacks[shape]["resource"]["aws_vpc_security_group_egress_rule"]
        return {
            name: (rule["cidr_ipv4"], rule["to_port"])
            for name, rule in rules.items()
            if rule["description"] == CACHE_RULE
        }

    assert list_cache_rules("outside") == {
        "batch-worker-to-cache": ("${data.aws_vpc.range.cidr_block}", 6379),
        "batch-worker-to-cache-secondary": ("${each.value}", 6379),
    }
    assert list_cache_rules("catalog") == {}


PARQUET_TYPES = {"string": ("BYTE_ARRAY", "STRING"), "bigint": ("INT64", "NONE")}
"""Physical and logical type by Athena's names for them. Source: Athena user guide, "Data types in Amazon Athena"; Apache
Parquet, "Types" and "Logical types"; 2026-11."""


def test_the_table_has_the_columns_and_the_places_of_what_the_worker_writes(
    stacks: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(IMAGE)
    from batch import parquet, rows

    table = stacks["catalog"]["resource"]["aws_glue_catalog_table"]["results-table"]
    storage, properties = table["storage_descriptor"], table["parameters"]
    lines = [rows.format_output("a", 200, b"{}")]
    assert parquet.write_results("batch_1", lines, lambda _: (tmp_path / "part").open("wb")) == 1
    written = pq.ParquetFile(tmp_path / "part").schema
    columns = [(column["name"], *PARQUET_TYPES[column["type"]]) for column in storage["columns"]]
    assert columns == [
        (column.name, column.physical_type, column.logical_type.type)
        for column in map(written.column, range(len(columns)))
    ]
    assert len(columns) == len(written)
    key = parquet.get_result_prefix("batch/catalog", "ads", "batch_1", 86400.0)
    location = storage["location"].removeprefix("s3://cotton-results-123456789012-us-west-2/")
    assert key.startswith(location)
    folders = [folder.partition("=") for folder in key.removeprefix(location).rstrip("/").split("/")]
    assert [name for name, _, _ in folders] == [*(row["name"] for row in table["partition_keys"]), "batch"]
    values = {name: value for name, _, value in folders}
    assert values["team"] in properties["projection.team.values"].split(",")
    assert properties["projection.date.format"] == "yyyy-MM-dd"
    assert datetime.date.fromisoformat(values["date"]) == datetime.date(1970, 1, 2)


def test_the_table_is_that_of_all_teams_as_long_as_results_are_kept(stacks: Stacks) -> None:
    resources = stacks["catalog"]["resource"]
    assert resources["aws_glue_catalog_database"]["results-database"]["name"] == "cotton_catalog"
    properties = resources["aws_glue_catalog_table"]["results-table"]["parameters"]
    assert properties["projection.team.values"] == "search,ads"
    assert properties["projection.date.range"] == "NOW-92DAYS,NOW", "the fleet keeps results for 90 days"
    assert "aws_glue_catalog_table" not in stacks["outside"]["resource"], "without Parquet"
    assert not [kind for kind in resources if "crawler" in kind]


def test_preflight_asks_for_what_each_resource_takes(stacks: Stacks, fleet: Path) -> None:
    assert needed_actions.find_unasked_of_kind(stacks, loading.load_fleet(fleet).value, "batch") == {}


def test_whatever_the_stack_starts_counts_against_a_quota_that_preflight_asks_for(stacks: Stacks) -> None:
    started_tasks.assert_counted(stacks, "batch")
