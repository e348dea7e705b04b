"""What a stack streaming-NAME must hold: settings that AWS takes whole, and rights of the job alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra import stack_rules
from infra.constructs import results_table
from llm_serving import paths
from llm_serving.catalog import signals
from llm_serving.fleet import loading
from llm_serving.kinds.streaming import cloud, programs
from tests.catalog import published
from tests.infra import needed_actions
from tests.infra.deployments import Stack
from tests.infra.presumed_names import find_missing
from tests.infra.streaming.conftest import SHAPES

Stacks = dict[str, Stack]

JOB = programs.JOB / "src" / "main" / "java" / "stream"
KAFKA_SETTINGS = Path(programs.__file__).with_name("kafka.properties")
TOPIC = (
    "arn:${data.aws_partition.partition.partition}:kafka:us-west-2:"
    "${data.aws_caller_identity.account.account_id}:topic/cotton-shop/*/shop-"
)


def read_job(stack: Stack) -> dict[str, Any]:
    configuration: dict[str, Any] = stack["resource"]["aws_kinesisanalyticsv2_application"]["job"][
        "application_configuration"
    ]
    return configuration


def read_groups(stack: Stack) -> dict[str, dict[str, str]]:
    """The job's groups of properties."""
    groups = read_job(stack)["environment_properties"]["property_group"]
    return {group["property_group_id"]: group["property_map"] for group in groups}


def read_statements(stack: Stack, part: str) -> dict[str, Any]:
    """Statements of a role, by their names."""
    [policy] = [policy for name, policy in stack["resource"]["aws_iam_role_policy"].items() if f"-{part}-role-" in name]
    return {statement["Sid"]: statement for statement in json.loads(policy["policy"])["Statement"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stack_follows_the_rules_of_all_stacks(stacks: Stacks, fleet: Path, shape: str) -> None:
    assert list(stack_rules.find_violations(loading.load_fleet(fleet).value, {shape: stacks[shape]})) == []


def test_what_a_stream_names_is_made_by_its_own_stack_or_the_fleets(all_stacks: Stacks) -> None:
    assert find_missing(all_stacks) == []


def test_preflight_asks_for_what_each_resource_takes(stacks: Stacks, fleet: Path) -> None:
    assert needed_actions.find_unasked_of_kind(stacks, loading.load_fleet(fleet).value, "streaming") == {}


def test_the_archive_has_none_of_the_fleets_tags_of_which_an_object_takes_ten(stacks: Stacks) -> None:
    archive = stacks["shop"]["resource"]["aws_s3_object"]["job-archive"]
    assert archive["override_provider"] == {"default_tags": {"tags": {}}}


def test_the_job_reads_its_settings_whole_from_parts_that_a_property_holds(stacks: Stacks) -> None:
    groups = read_groups(stacks["outside"])
    assert max(len(value) for value in groups["settings"].values()) <= cloud.MAX_PROPERTY
    assert len(groups["settings"]) <= cloud.MAX_PROPERTIES
    job = json.loads("".join(groups["settings"][name] for name in sorted(groups["settings"])))
    assert job["kafka"]["properties"]["sasl.mechanism"] == "AWS_MSK_IAM"
    assert (job["kafka"]["replicas"], job["kafka"]["partitions"]) == (3, 12)
    assert (job["endpoint"]["url"], job["endpoint"]["model"]) == ("https://llm.example.com:8443", "tiny")
    assert groups["place"] == {
        "brokers": "${aws_msk_cluster.kafka.bootstrap_brokers_sasl_iam}",
        "cache": "rediss://${aws_elasticache_replication_group.cache.primary_endpoint_address}:6379",
    }


def test_the_apply_waits_for_an_update_of_every_broker_one_after_the_other(stacks: Stacks) -> None:
    timeouts = {shape: stacks[shape]["resource"]["aws_msk_cluster"]["kafka"]["timeouts"]["update"] for shape in SHAPES}
    assert timeouts == {"shop": "120m", "outside": "360m"}, "three brokers and twelve"


def test_brokers_stay_in_their_zones_when_the_fleet_gets_another_one(stacks: Stacks) -> None:
    kafka = stacks["shop"]["resource"]["aws_msk_cluster"]["kafka"]
    assert kafka["lifecycle"] == {"ignore_changes": ["broker_node_group_info[0].client_subnets"]}, "or all events go"


def test_brokers_let_a_transaction_live_as_long_as_the_job_may_take_to_start_and_forget_it_soon_after(
    stacks: Stacks,
) -> None:
    asked = re.search(r"TRANSACTION_TIMEOUT = Duration.ofHours\((\d+)\)", (JOB / "StreamJob.java").read_text())
    assert asked
    msk = stacks["shop"]["resource"]["aws_msk_configuration"]["kafka-configuration"]["server_properties"]
    for text in (msk, KAFKA_SETTINGS.read_text(), (paths.CHARTS / "streaming/templates/kafka.yaml").read_text()):
        times = {name: int(ms) for name, ms in re.findall(r"^ *([a-z.]+\.ms)[=:] *(\d+)$", text, re.MULTILINE)}
        longest = times["transaction.max.timeout.ms"]
        assert longest == int(asked[1]) * 3_600_000
        assert longest < times["transactional.id.expiration.ms"] <= 2 * longest
        # MSK takes no such setting. Elsewhere it is longer than a producer tries again, delivery.timeout.ms.
        assert times.get("producer.id.expiration.ms") == (None if text == msk else 900_000)


def test_only_clients_reach_kafka_and_the_cache(stacks: Stacks) -> None:
    ingress = stacks["shop"]["resource"]["aws_vpc_security_group_ingress_rule"]
    assert {
        (rule["security_group_id"], rule["referenced_security_group_id"], rule["from_port"])
        for rule in ingress.values()
    } == {
        ("${aws_security_group.kafka-group.id}", "${aws_security_group.clients-group.id}", 9098),
        ("${aws_security_group.cache-group.id}", "${aws_security_group.clients-group.id}", 6379),
    }


@pytest.mark.parametrize(
    ("shape", "address", "port"), [("shop", "${data.aws_vpc.range.cidr_block}", 8080), ("outside", "0.0.0.0/0", 8443)]
)
def test_the_job_reaches_its_endpoint_alone_beside_them(stacks: Stacks, shape: str, address: str, port: int) -> None:
    rules = stacks[shape]["resource"]["aws_vpc_security_group_egress_rule"]
    further = {"job-to-s3", "job-to-secrets"} if shape == "outside" else {"job-to-endpoint-secondary"}
    assert set(rules) == {"clients-to-kafka", "clients-to-cache", "job-to-endpoint", "driver-https", *further}
    rule = rules["job-to-endpoint"]
    assert (rule["cidr_ipv4"], rule["from_port"], rule["to_port"]) == (address, port, port)
    if shape == "shop":  # the endpoint may be in a subnet of the VPC's further ranges
        further_ranges = rules["job-to-endpoint-secondary"]
        assert "data.aws_vpc.range.cidr_block_associations[*].cidr_block" in further_ranges["for_each"]
        assert (further_ranges["cidr_ipv4"], further_ranges["to_port"]) == ("${each.value}", port)


def test_the_job_reads_events_and_writes_answers_and_dead_letters(stacks: Stacks) -> None:
    statements = read_statements(stacks["shop"], "job")
    assert statements["Read"]["Resource"] == [f"{TOPIC}events"]
    assert statements["Write"]["Resource"] == [f"{TOPIC}results", f"{TOPIC}dead-letters"]
    assert statements["Topics"]["Action"] == [f"kafka-cluster:{verb}Topic" for verb in ("Alter", "Create", "Describe")]


def test_the_driver_of_validations_writes_events_reads_the_rest_and_may_do_nothing_else(stacks: Stacks) -> None:
    statements = read_statements(stacks["shop"], "send")
    assert statements["Write"]["Resource"] == [f"{TOPIC}events"]
    assert statements["Read"]["Resource"] == [f"{TOPIC}results", f"{TOPIC}dead-letters"]
    assert sorted(action for statement in statements.values() for action in statement["Action"]) == [
        "kafka-cluster:AlterGroup",
        "kafka-cluster:Connect",
        "kafka-cluster:DescribeGroup",
        "kafka-cluster:DescribeTopic",
        "kafka-cluster:ReadData",
        "kafka-cluster:WriteData",
        "kafka-cluster:WriteDataIdempotently",
    ]
    # What AWS asks for beside each. Source: MSK developer guide, kafka-actions.html, 2026-11.
    assert statements["Offsets"]["Resource"].endswith(":group/cotton-shop/*/shop-driver")


def test_the_driver_is_started_with_the_secret_of_its_load_alone_and_logs_where_the_job_does(stacks: Stacks) -> None:
    statements = read_statements(stacks["shop"], "start")
    assert statements["Secrets"]["Resource"].endswith(":secret:cotton/shop/load-tests/*")
    assert statements["Log"]["Resource"] == "${aws_cloudwatch_log_group.logs.arn}:*"
    groups = stacks["shop"]["resource"]["aws_security_group"]
    assert groups["driver-group"]["name"] == "cotton-shop-driver"
    assert groups["clients-group"]["name"] == "cotton-shop-clients"


def test_the_job_reads_the_key_of_its_endpoint_and_the_stack_never_has_it(stacks: Stacks) -> None:
    statements = read_statements(stacks["outside"], "job")
    assert statements["Secrets"]["Resource"] == ["${data.aws_secretsmanager_secret.secret-0.arn}"]
    assert "aws_secretsmanager_secret_version" not in stacks["outside"]["data"], "which has its text"
    groups = read_groups(stacks["outside"])["settings"]
    job = json.loads("".join(groups[name] for name in sorted(groups)))
    assert job["endpoint"]["apiKey"] == {"secret": "llm/keys", "field": "stream", "region": "us-west-2"}
    assert "Secrets" not in read_statements(stacks["shop"], "job")


def test_a_job_without_files_of_answers_starts_from_the_state_of_one_that_wrote_them(stacks: Stacks) -> None:
    [run] = read_job(stacks["shop"])["run_configuration"]["flink_run_configuration"].items()
    assert run == ("allow_non_restored_state", True)


def test_answers_go_to_s3_only_where_the_blueprint_says_so_and_the_table_has_their_columns(stacks: Stacks) -> None:
    assert "aws_glue_catalog_table" not in stacks["shop"]["resource"]
    [table] = stacks["outside"]["resource"]["aws_glue_catalog_table"].values()
    columns = json.loads(results_table.ANSWER_COLUMNS_FILE.read_text())
    assert table["storage_descriptor"]["columns"] == columns
    assert [key["name"] for key in table["partition_keys"]] == ["date"]
    assert table["parameters"]["projection.date.range"] == "NOW-92DAYS,NOW"
    groups = read_groups(stacks["outside"])["settings"]
    job = json.loads("".join(groups[name] for name in sorted(groups)))
    assert re.fullmatch(r"s3a://cotton-results-\S+/streaming/outside/answers/", job["answerFiles"])
    assert table["storage_descriptor"]["location"] == job["answerFiles"].replace("s3a:", "s3:")


def test_the_job_writes_files_below_its_own_prefix_alone(stacks: Stacks) -> None:
    assert not {"Files", "ListFiles", "Encrypt"} & set(read_statements(stacks["shop"], "job"))
    files = read_statements(stacks["outside"], "job")["Files"]
    assert files["Resource"].endswith("/streaming/outside/answers/*")
    assert "s3:DeleteObject" in files["Action"]


def test_every_alarm_reads_metrics_by_the_dimensions_that_their_service_publishes(stacks: Stacks) -> None:
    rows = published.read()
    queries = [
        query["metric"]
        for alarm in stacks["shop"]["resource"]["aws_cloudwatch_metric_alarm"].values()
        for query in alarm["metric_query"]
        if "metric" in query
    ]
    assert {query["namespace"] for query in queries} == {"AWS/ElastiCache", "AWS/Kafka", "AWS/KinesisAnalytics"}
    for query in queries:
        row = rows[query["namespace"]]
        expected = row.get("other_dimensions", {}).get(query["metric_name"], row["dimensions"])
        assert sorted(query["dimensions"]) == expected, query["metric_name"]
    flink = read_job(stacks["shop"])["flink_application_configuration"]
    assert flink["monitoring_configuration"]["metrics_level"] == "APPLICATION", "another level adds dimensions"


def test_the_job_counts_what_the_alarms_read_in_the_one_group_that_is_published() -> None:
    sources = "".join(file.read_text() for file in (programs.JOB / "src" / "main").rglob("*.java"))
    counters = set(re.findall(r'add\(getRuntimeContext\(\), "(\w+)"\)', sources))
    names = {signal.name for signal in signals.load().values() if signal.program == "AWS/KinesisAnalytics"}
    assert counters == {name for name in names if name.startswith("stream")}
    assert re.findall(r'addGroup\("(\w+)"\)\.(\w+)', sources) == [("kinesisanalytics", "counter")]


def test_a_job_that_is_stopped_and_reports_nothing_is_down(stacks: Stacks) -> None:
    alarms = stacks["shop"]["resource"]["aws_cloudwatch_metric_alarm"]
    assert {name for name, alarm in alarms.items() if alarm["treat_missing_data"] == "breaching"} == {"down-alarm"}


def test_the_line_of_each_request_is_in_the_log_where_the_blueprint_says_so(stacks: Stacks) -> None:
    found = {}
    for shape in SHAPES:
        groups = read_groups(stacks[shape])["settings"]
        job = json.loads("".join(groups[name] for name in sorted(groups)))
        monitoring = read_job(stacks[shape])["flink_application_configuration"]["monitoring_configuration"]
        found[shape] = (job["logsRequests"], monitoring["log_level"])
    assert found == {"shop": (False, "WARN"), "outside": (True, "INFO")}
    assert "LOG.info(" in (JOB / "CallEndpoint.java").read_text()


def test_every_alarm_goes_by_its_expression_and_notifies(stacks: Stacks) -> None:
    alarms = stacks["outside"]["resource"]["aws_cloudwatch_metric_alarm"]
    found = {
        name: (alarm["metric_query"][-1]["expression"], alarm["threshold"], alarm["alarm_actions"])
        for name, alarm in alarms.items()
    }
    topic = ["arn:aws:sns:us-west-2:123456789012:on-call"]
    assert found == {
        "lag-alarm": ("m", 60 + 10, topic),  # what is answered counts as lag until the next checkpoint
        "checkpoints-alarm": ("RATE(m)", 0, topic),
        "down-alarm": ("m", 0, topic),
        "dead-letters-alarm": ("RATE(m) / RATE(n)", 0.05, topic),
        "deadlines-alarm": ("RATE(m) / RATE(n)", 0.05, topic),
        "cache-alarm": ("MAX(METRICS())", 80, topic),
        "disk-alarm": ("MAX(METRICS())", 80, topic),
        "disk-11-alarm": ("MAX(METRICS())", 80, topic),
    }
    # Of checkpoints that run into Flink's limit of ten minutes one fails in ten, here with a pause of ten seconds.
    checkpoints = alarms["checkpoints-alarm"]
    assert (checkpoints["datapoints_to_alarm"], checkpoints["evaluation_periods"]) == (3, 31)
    assert checkpoints["metric_query"][0]["metric"]["stat"] == "Maximum", "of a number that only grows"


def test_an_alarm_rings_before_the_storage_of_any_broker_is_full(stacks: Stacks) -> None:
    """CloudWatch takes ten metrics an alarm, and a cluster has up to thirty brokers."""
    watched = {
        shape: [
            [query["metric"]["dimensions"]["Broker ID"] for query in alarm["metric_query"] if "metric" in query]
            for name, alarm in stacks[shape]["resource"]["aws_cloudwatch_metric_alarm"].items()
            if name.startswith("disk")
        ]
        for shape in ("shop", "outside")
    }
    brokers = {
        shape: stacks[shape]["resource"]["aws_msk_cluster"]["kafka"]["number_of_broker_nodes"] for shape in watched
    }
    for shape, groups in watched.items():
        numbers = sorted(int(broker) for group in groups for broker in group)
        assert numbers == list(range(1, brokers[shape] + 1))
    assert max(brokers.values()) > 10, "more than one alarm takes"
    assert all(len(group) <= 10 for groups in watched.values() for group in groups)
