"""What a stack gateway-NAME must hold: servers that its programs alone reach, and no secret in Terraform's state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml

from infra import stack_rules
from llm_serving.fleet import loading
from llm_serving.kinds.gateway.cloud_program import Place
from tests.infra import deployments, needed_actions
from tests.infra.deployments import Stack
from tests.infra.gateway.conftest import CERTIFICATE, SHAPES
from tests.infra.presumed_names import find_missing

Stacks = dict[str, Stack]


def read_statements(stack: Stack, role: str) -> dict[str, dict[str, Any]]:
    """The statements of a role by their Sid."""
    policy = stack["resource"]["aws_iam_role_policy"][f"{role}-role-policy"]["policy"]
    return {statement["Sid"]: statement for statement in json.loads(policy)["Statement"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stack_follows_the_rules_of_all_stacks(stacks: Stacks, fleet: Path, shape: str) -> None:
    assert list(stack_rules.find_violations(loading.load_fleet(fleet).value, {shape: stacks[shape]})) == []


def test_what_a_gateway_names_is_made_by_its_own_stack_or_the_fleets(all_stacks: Stacks) -> None:
    assert find_missing(all_stacks) == []


def test_preflight_asks_for_what_each_resource_takes(stacks: Stacks, fleet: Path) -> None:
    assert needed_actions.find_unasked_of_kind(stacks, loading.load_fleet(fleet).value, "gateway") == {}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_programs_read_where_the_servers_are_from_one_parameter(
    stacks: Stacks, manifests: dict[str, Path], shape: str
) -> None:
    parameter = stacks[shape]["resource"]["aws_ssm_parameter"]["place"]
    services = yaml.safe_load(manifests[shape].read_text())["services"]
    assert {service["env"]["GATEWAY_PLACE"] for service in services} == {parameter["name"]}
    assert Place(**json.loads(parameter["value"])) == Place(
        database="${aws_db_instance.database.address}",
        cache="${aws_elasticache_replication_group.cache.primary_endpoint_address}",
        owner="${aws_db_instance.database.master_user_secret[0].secret_arn}",
        secret="${aws_secretsmanager_secret.secret.arn}",
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_servers_that_are_made_larger_do_not_wait_for_the_maintenance_window(stacks: Stacks, shape: str) -> None:
    resources = stacks[shape]["resource"]
    [database] = resources["aws_db_instance"].values()
    [cache] = resources["aws_elasticache_replication_group"].values()
    assert database["apply_immediately"] is cache["apply_immediately"] is True


@pytest.mark.parametrize("shape", SHAPES)
def test_the_secret_can_be_restored_for_as_long_as_the_key_of_the_backups(stacks: Stacks, shape: str) -> None:
    resources = stacks[shape]["resource"]
    [key], [secret] = resources["aws_kms_key"].values(), resources["aws_secretsmanager_secret"].values()
    assert secret["recovery_window_in_days"] == key["deletion_window_in_days"] == 30


@pytest.mark.parametrize("shape", SHAPES)
def test_terraform_knows_no_secret(stacks: Stacks, shape: str) -> None:
    resources = stacks[shape]["resource"]
    assert resources["aws_db_instance"]["database"]["manage_master_user_password"] is True
    assert not {"aws_secretsmanager_secret_version", "random_password"} & resources.keys()
    assert not {"password", "auth_token"} & {key for rows in resources.values() for row in rows.values() for key in row}


def test_the_gateway_s_programs_alone_reach_its_servers(stacks: Stacks) -> None:
    rules = stacks["edge"]["resource"]["aws_vpc_security_group_ingress_rule"]
    group = "${{aws_security_group.{}-group.id}}".format
    assert {
        (rule["security_group_id"], rule.get("referenced_security_group_id"), rule["from_port"])
        for name, rule in rules.items()
        if not name.startswith(("gateway-from-vpc", "balancer-from-10"))
    } == {
        (group("database"), group("gateway"), 5432),
        (group("database"), group("meter"), 5432),
        (group("cache"), group("gateway"), 6379),
        (group("gateway"), group("balancer"), 8080),
    }


def test_nodes_of_the_cluster_alone_reach_the_servers_of_pods(stacks: Stacks) -> None:
    rules = stacks["pods"]["resource"]["aws_vpc_security_group_ingress_rule"]
    nodes = "${data.aws_eks_cluster.cluster.vpc_config[0].cluster_security_group_id}"
    assert {(name, rule["referenced_security_group_id"]) for name, rule in rules.items()} == {
        ("database-from-nodes", nodes),
        ("cache-from-nodes", nodes),
    }


def test_named_security_groups_of_an_existing_clusters_nodes_reach_the_servers(
    manifests: dict[str, Path], fleet: Path, tmp_path: Path
) -> None:
    nodes = "sg-0123456789abcdef0"
    subnets = "[subnet-0aaaaaaaaaaaaaaaa, subnet-0bbbbbbbbbbbbbbbb]"
    existing = (
        f"network: {{vpc: vpc-0123456789abcdef0, private_subnets: {subnets}}}\n"
        f"eks: {{cluster: platform, node_security_groups: {nodes}}}\n"
    )
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet.read_text() + existing)
    folder = deployments.synthesize(tmp_path, file, {"gateway-pods": manifests["pods"]})
    stack = deployments.read_stack(folder, "gateway-pods")
    rules = stack["resource"]["aws_vpc_security_group_ingress_rule"]
    assert {rule["referenced_security_group_id"] for rule in rules.values()} == {nodes}
    assert "aws_eks_cluster" not in stack["data"]
    associations = stack["resource"]["aws_eks_pod_identity_association"].values()
    assert {row["cluster_name"] for row in associations} == {"platform"}


def test_tasks_connect_to_the_named_deployment_in_the_network_and_to_urls_anywhere(stacks: Stacks) -> None:
    rules = stacks["edge"]["resource"]["aws_vpc_security_group_egress_rule"]
    chat, url = rules["gateway-to-chat"], rules["gateway-to-url-8443"]
    assert (chat["cidr_ipv4"], chat["from_port"]) == ("${data.aws_vpc.range.cidr_block}", 8080)
    assert (url["cidr_ipv4"], url["from_port"]) == ("0.0.0.0/0", 8443)


def test_the_meter_reads_its_login_and_the_gateway_alone_prepares_the_database(stacks: Stacks) -> None:
    gate, meter = (read_statements(stacks["pods"], f"pods-{part}") for part in ("gate", "meter"))
    own, owner = (
        "${aws_secretsmanager_secret.secret.arn}",
        "${aws_db_instance.database.master_user_secret[0].secret_arn}",
    )
    assert gate["Read"]["Resource"] == [own, owner]
    assert gate["Create"]["Resource"] == own
    assert (meter.keys(), meter["Read"]["Resource"]) == ({"Find", "Read", "Decrypt", "Export"}, [own])
    assert "Export" not in gate
    account = "${data.aws_caller_identity.account.account_id}"
    allowed = {
        ":s3:::acme-audit/gateways/pods/*": (meter["Export"], "s3:PutObject"),
        f":us-west-2:{account}:guardrail/gr4a1b2c3d4e": (gate["Guard"], "bedrock:ApplyGuardrail"),
    }
    for resource, (statement, action) in allowed.items():
        assert statement["Resource"].endswith(resource) and action in statement["Action"]
    assert "Export" not in read_statements(stacks["edge"], "edge-meter")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gateway_may_call_the_named_models_of_bedrock_alone(stacks: Stacks, shape: str) -> None:
    """The actions that Bedrock's own service model names, for the operations that LiteLLM calls."""
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    needed = {
        action
        for name in ("Converse", "ConverseStream")
        for action in re.findall(
            r"requires permission for the <code>(.*?)</code>", service.operation_model(name).documentation
        )
    }
    answer = read_statements(stacks[shape], f"{shape}-gate")["Answer"]
    assert set(answer["Action"]) == needed
    partition, account = "${data.aws_partition.partition.partition}", "${data.aws_caller_identity.account.account_id}"
    assert answer["Resource"] == [
        f"arn:{partition}:bedrock:us-west-2::foundation-model/amazon.nova-micro-v1:0",
        f"arn:{partition}:bedrock:*::foundation-model/amazon.nova-lite-v1:0",
        f"arn:{partition}:bedrock:us-west-2:{account}:inference-profile/us.amazon.nova-lite-v1:0",
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_alarms_ring_before_the_servers_are_full_and_once_they_are_gone(stacks: Stacks, shape: str) -> None:
    alarms = stacks[shape]["resource"]["aws_cloudwatch_metric_alarm"]
    found, gone = {}, {}
    for name in ("database-cpu", "database-space", "cache-memory"):
        alarm = alarms[f"{name}-alarm"]
        dimensions = [query["metric"]["dimensions"] for query in alarm["metric_query"] if "metric" in query]
        assert alarm["alarm_actions"] == ["arn:aws:sns:us-west-2:123456789012:on-call"]
        found[name] = (alarm["comparison_operator"], alarm["threshold"], dimensions)
        gone[name] = (alarm["treat_missing_data"], alarm.get("depends_on"))
    database = [{"DBInstanceIdentifier": f"cotton-{shape}"}]
    nodes = [{"CacheClusterId": f"cotton-{shape}-001"}, {"CacheClusterId": f"cotton-{shape}-002"}]
    space_bytes = pytest.approx({"edge": 1.6, "pods": 8}[shape] * 2**30)
    assert found == {
        "database-cpu": ("GreaterThanThreshold", 80, database),
        "database-space": ("LessThanThreshold", space_bytes, database),
        "cache-memory": ("GreaterThanThreshold", 80, nodes),
    }
    assert gone == {
        "database-cpu": ("breaching", ["aws_db_instance.database"]),
        "database-space": ("notBreaching", None),
        "cache-memory": ("breaching", ["aws_elasticache_replication_group.cache"]),
    }


def test_pods_get_the_roles_of_their_service_accounts(stacks: Stacks) -> None:
    associations = stacks["pods"]["resource"]["aws_eks_pod_identity_association"].values()
    assert {row["service_account"] for row in associations} == {"pods-gateway", "pods-meter"}


def test_the_load_balancer_asks_for_a_path_that_needs_no_key(stacks: Stacks) -> None:
    resources = stacks["edge"]["resource"]
    [group], [listener] = resources["aws_lb_target_group"].values(), resources["aws_lb_listener"].values()
    assert (group["health_check"]["path"], listener["protocol"]) == ("/health/liveliness", "HTTPS")
    assert resources["aws_lb"]["balancer"]["internal"] is True
    rules = resources["aws_vpc_security_group_ingress_rule"].values()
    group = "${aws_security_group.balancer-group.id}"
    ranges = [(rule["cidr_ipv4"], rule["to_port"]) for rule in rules if rule["security_group_id"] == group]
    assert ranges == [("10.8.0.0/16", 443), ("10.9.1.0/24", 443)], "the clients that it names, in place of the VPC"
    assert "aws_lb" not in stacks["pods"]["resource"], "on EKS the chart's Ingress has it"


def test_a_gateway_that_prepares_its_database_is_not_stopped_for_the_load_balancers_checks(stacks: Stacks) -> None:
    services = stacks["edge"]["resource"]["aws_ecs_service"]
    grace = {name: service.get("health_check_grace_period_seconds") for name, service in services.items()}
    assert grace == {"gateway-0": 600, "meter-0": None}, "the load balancer calls no meter"


def test_clients_reach_nginx_and_litellm_listens_to_its_own_task_alone(manifests: dict[str, Path]) -> None:
    for file in manifests.values():
        [gateway] = [row for row in yaml.safe_load(file.read_text())["services"] if row["is_entry"]]
        front, _, program = " ".join(gateway["command"]).partition(" -- ")
        assert front == "router-front --listen=0.0.0.0:8080 --router=127.0.0.1:4000 --max-body=32"
        assert program == "python3 -m llm_serving.kinds.gateway.cloud_program gateway 4000"


def test_an_alarm_rings_before_the_load_balancers_certificate_ends(stacks: Stacks) -> None:
    alarm = stacks["edge"]["resource"]["aws_cloudwatch_metric_alarm"]["certificate-alarm"]
    [query] = alarm["metric_query"]
    assert query["metric"]["dimensions"] == {"CertificateArn": CERTIFICATE}
    assert alarm["alarm_name"] == "cotton-edge-certificate"
    assert "certificate-alarm" not in stacks["pods"]["resource"].get("aws_cloudwatch_metric_alarm", {})
