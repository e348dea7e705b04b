from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import stack_rules
from llm_serving.fleet import endpoints
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from tests.infra.conftest import FLEETS

Stacks = dict[tuple[str, str], dict[str, Any]]

ALL_STACKS = [
    *((shape, name) for shape in FLEETS for name in ("network", "storage")),
    *((shape, "eks") for shape, fleet_body in FLEETS.items() if "orchestrator: ecs" not in fleet_body),
    *((shape, "ecs") for shape, fleet_body in FLEETS.items() if "orchestrator: " in fleet_body),
]
every_stack = pytest.mark.parametrize("stack", ALL_STACKS, ids="/".join)


def test_a_snake_case_dict_that_cdktf_drops_is_reported(tmp_path: Path) -> None:
    from infra.bindings import aws, cdktf

    app = cdktf.App(outdir=str(tmp_path))
    stack = cdktf.TerraformStack(app, "wrong")
    aws.provider.AwsProvider(stack, "aws", region="us-west-2")
    aws.launch_template.LaunchTemplate(stack, "machines", network_interfaces=[{"interface_type": "efa"}])
    aws.security_group.SecurityGroup(stack, "group", ingress=[{"from_port": 1}])
    app.synth()
    synthesized = json.loads((tmp_path / "stacks/wrong/cdk.tf.json").read_text())
    reason = (
        "CDKTF writes a dict with snake_case keys as an empty struct. Fix: use the struct's class, or camelCase keys."
    )
    assert list(stack_rules.check_empty_structs(synthesized)) == [
        f"resource.aws_launch_template.machines.network_interfaces[0]: empty: {reason}",
        f"resource.aws_security_group.group.ingress[0]: empty: {reason}",
    ]


ROOT = Path(__file__).parents[3]
SOURCES = [*ROOT.glob("infra/constructs/*.py"), *ROOT.glob("infra/stacks/*.py")]


def find_dicts_for_structs(source: str) -> Iterator[str]:
    """Lines of Python where a resource is given a dict inside a list.

    CDKTF drops each of its keys that has an underscore; where another key stays, nothing in the result shows it.
    """
    for node in ast.walk(ast.parse(source)):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            items = keyword.value.elts if isinstance(keyword.value, ast.List) else ()
            if any(isinstance(item, ast.Dict) for item in items):
                yield f"line {node.lineno}: {keyword.arg}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_resource_is_given_a_dict_for_a_struct(source: Path) -> None:
    assert list(find_dicts_for_structs(source.read_text())) == []


def test_a_dict_for_a_struct_is_reported() -> None:
    source = 'aws.launch_template.LaunchTemplate(stack, "m", network_interfaces=[{"device_index": 0, "key": 1}])'
    assert list(find_dicts_for_structs(source)) == ["line 1: network_interfaces"]


@pytest.mark.parametrize("shape", ["eks", "ecs", "s3"])
def test_the_network_has_the_endpoints_of_its_orchestrator(stacks: Stacks, shape: str) -> None:
    orchestrator: Any = {"eks": "eks", "ecs": "ecs", "s3": "both"}[shape]
    services = {
        settings["service_name"].rpartition("us-west-2.")[2]
        for _, settings in stack_rules.list_resources(stacks[shape, "network"], "aws_vpc_endpoint")
        if settings["vpc_endpoint_type"] == "Interface"
    }
    assert services == {row.service for row in endpoints.list_required(orchestrator)}


def test_each_zone_has_one_nat_gateway(stacks: Stacks) -> None:
    gateways = [address for address, _ in stack_rules.list_resources(stacks["eks", "network"], "aws_nat_gateway")]
    assert gateways == [f"aws_nat_gateway.nat-us-west-2{letter}" for letter in "abc"]


def test_a_network_without_nat_has_no_route_to_the_internet(stacks: Stacks) -> None:
    resource_types = {
        address.partition(".")[0] for address, _ in stack_rules.list_resources(stacks["closed", "network"])
    }
    assert resource_types.isdisjoint({"aws_nat_gateway", "aws_internet_gateway", "aws_eip", "aws_route"})


def test_the_image_cache_has_a_rule_and_a_template_for_each_registry(stacks: Stacks) -> None:
    resources = stacks["closed", "storage"]["resource"]
    rules = resources["aws_ecr_pull_through_cache_rule"]
    assert {name: (rule["ecr_repository_prefix"], rule["upstream_registry_url"]) for name, rule in rules.items()} == {
        "cache-ecr": ("demo-ecr", "public.ecr.aws"),
        "cache-hub": ("demo-hub", "registry-1.docker.io"),
        "cache-k8s": ("demo-k8s", "registry.k8s.io"),
        "cache-quay": ("demo-quay", "quay.io"),
    }
    assert [name for name, rule in rules.items() if "credential_arn" in rule] == ["cache-hub"]
    templates = resources["aws_ecr_repository_creation_template"].values()
    assert {template["prefix"] for template in templates} == {rule["ecr_repository_prefix"] for rule in rules.values()}
    assert "aws_ecr_pull_through_cache_rule" not in stacks["eks", "storage"]["resource"]


def test_nodes_may_import_images_into_the_cache_alone(stacks: Stacks) -> None:
    def read_statements(shape: str) -> dict[str, Any]:
        policy = stacks[shape, "eks"]["resource"]["aws_iam_role_policy"]["node-role-policy"]["policy"]
        return {statement["Sid"]: statement for statement in json.loads(policy)["Statement"]}

    statement = read_statements("closed")["PullThroughCache"]
    assert {"ecr:BatchImportUpstreamImage", "ecr:CreateRepository"} < set(statement["Action"])
    assert all(resource.endswith(("-ecr/*", "-hub/*", "-k8s/*", "-quay/*")) for resource in statement["Resource"])
    assert set(read_statements("eks")) == {"SessionManager"}


@pytest.mark.parametrize(("stack", "role"), [("eks", "node-role"), ("ecs", "instance-role")])
def test_instances_take_their_role_in_china_too(stacks: Stacks, stack: str, role: str) -> None:
    """EKS refuses a node role there whose trust does not name ec2.amazonaws.com.cn (cdk-eks-blueprints#558)."""
    trust = json.loads(stacks[stack, stack]["resource"]["aws_iam_role"][role]["assume_role_policy"])
    assert trust["Statement"][0]["Principal"] == {"Service": "ec2.${data.aws_partition.partition.dns_suffix}"}


def test_endpoints_serve_the_organization_alone_and_s3_its_buckets(stacks: Stacks) -> None:
    endpoint_rows = stacks["closed", "network"]["resource"]["aws_vpc_endpoint"]
    own, public_buckets = json.loads(endpoint_rows["s3"]["policy"])["Statement"]
    assert own["Condition"] == {
        "StringEquals": {"aws:PrincipalOrgID": "o-a1b2c3d4e5", "aws:ResourceOrgID": "o-a1b2c3d4e5"}
    }
    assert "Condition" not in public_buckets and public_buckets["Action"] == "s3:GetObject"
    assert [arn.rpartition(":")[2] for arn in public_buckets["Resource"]] == [
        "prod-us-west-2-starport-layer-bucket/*",
        "al2023-repos-us-west-2-de612dc2/*",
        "aws-ssm-us-west-2/*",
        "amazon-ssm-us-west-2/*",
        "prod-registry-k8s-io-us-west-2/*",
        "quayio-production-s3/*",
    ]
    interface_policies = {name: row["policy"] for name, row in endpoint_rows.items() if name != "s3"}
    assert set(interface_policies) >= {"ecr-api", "sts", "sqs"}
    for name, policy in interface_policies.items():
        assert policy.startswith(f"${{data.aws_vpc_endpoint_service.{name}-service.vpc_endpoint_policy_supported ? ")
        assert '"aws:PrincipalOrgID": "o-a1b2c3d4e5"' in policy
    assert not [row for row in stacks["eks", "network"]["resource"]["aws_vpc_endpoint"].values() if "policy" in row]


def test_flow_logs_have_the_fleets_retention(stacks: Stacks) -> None:
    network = stacks["closed", "network"]["resource"]
    rules = network["aws_s3_bucket_lifecycle_configuration"]["flow-logs-lifecycle"]["rule"]
    assert [rule["expiration"] for rule in rules if "expiration" in rule] == [[{"days": 365}]]
    assert network["aws_flow_log"]["flow-log"]["log_destination_type"] == "s3"
    assert network["aws_s3_bucket"]["flow-logs"]["force_destroy"] is True


def test_flow_logs_that_are_off_leave_no_bucket_key_or_role(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\nnetwork: {flow_logs: off}\n"
        "pools:\n  general: {types: g6e.2xlarge, size: 0..8}\n"
    )
    from infra import main

    folders = main.synthesize(load(file, Fleet), tmp_path / "out", stack_names=("network",))
    kinds = json.loads((folders["network"] / "cdk.tf.json").read_text())["resource"]
    assert not kinds.keys() & {"aws_flow_log", "aws_s3_bucket", "aws_kms_key", "aws_iam_role"}


def test_only_eks_subnets_have_the_internal_load_balancer_tag(stacks: Stacks) -> None:
    tag = "kubernetes.io/role/internal-elb"
    private = stacks["eks", "network"]["resource"]["aws_subnet"]["private-us-west-2a"]
    public = stacks["eks", "network"]["resource"]["aws_subnet"]["public-us-west-2a"]
    ecs = stacks["ecs", "network"]["resource"]["aws_subnet"]["private-us-west-2a"]
    assert [tag in subnet["tags"] for subnet in (private, public, ecs)] == [True, False, False]


def test_an_existing_network_is_looked_up_and_nothing_is_created(stacks: Stacks) -> None:
    network = stacks["existing", "network"]
    assert "resource" not in network
    assert network["data"]["aws_vpc"]["vpc"]["id"] == "vpc-0123456789abcdef0"
    assert network["data"]["aws_subnet"]["private-us-west-2b"]["id"] == "subnet-0bbbbbbbbbbbbbbbb"


@every_stack
def test_every_resource_has_the_fleets_tags(stacks: Stacks, stack: tuple[str, str]) -> None:
    [provider] = stacks[stack]["provider"]["aws"]
    expected = {"fleet": "demo", "stack": stack[1], **({"team": "serving"} if stack[0] == "eks" else {})}
    assert provider["default_tags"] == [{"tags": expected}]


@pytest.mark.parametrize("name", ["network", "storage"])
def test_local_state_has_a_relative_path_beside_the_fleet_file(stacks: Stacks, name: str) -> None:
    backend = stacks["eks", name]["terraform"]["backend"]
    assert backend == {"local": {"path": f"../../terraform.demo.{name}.tfstate"}}


@pytest.mark.parametrize("name", ["network", "storage"])
def test_state_in_s3_is_encrypted_and_locked_by_a_file(stacks: Stacks, name: str) -> None:
    assert stacks["s3", name]["terraform"]["backend"] == {
        "s3": {
            "bucket": "my-states",
            "key": f"serving/prod/demo/{name}.tfstate",
            "region": "us-west-2",
            "encrypt": True,
            "use_lockfile": True,
        }
    }


@every_stack
def test_no_output_contains_a_secret(stacks: Stacks, stack: tuple[str, str]) -> None:
    text = json.dumps(stacks[stack]["output"])
    assert not re.search(r"password|secret|token|private_key", text, re.IGNORECASE)


def test_every_stack_outputs_the_values_that_others_read(stacks: Stacks) -> None:
    assert set(stacks["eks", "network"]["output"]) == {"vpc_id", "private_subnet_ids"}
    assert set(stacks["existing", "network"]["output"]) == {"vpc_id", "private_subnet_ids"}
    assert set(stacks["eks", "storage"]["output"]) == {"model_bucket", "results_bucket", "kms_key_arn", "repositories"}


@every_stack
def test_stacks_contain_no_path_of_this_machine(synth_folder: Path, stack: tuple[str, str]) -> None:
    text = (synth_folder / stack[0] / "stacks" / stack[1] / "cdk.tf.json").read_text()
    assert str(Path.cwd()) not in text
    assert str(synth_folder) not in text


def test_the_same_fleet_synthesizes_the_same_text(synth_folder: Path) -> None:
    from infra import main

    folder = synth_folder / "eks"
    before = {path: path.read_bytes() for path in folder.glob("stacks/*/cdk.tf.json")}
    main.synthesize(load(folder / "fleet.yaml", Fleet), folder)
    assert before == {path: path.read_bytes() for path in folder.glob("stacks/*/cdk.tf.json")}


def test_settings_that_aws_would_refuse_are_not_synthesized(tmp_path: Path) -> None:
    from infra import main

    file = tmp_path / "fleet.yaml"
    file.write_text(
        "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools:\n  general: {types: g6e.2xlarge, size: 0..8}\n"
    )
    with pytest.raises(InputError, match=r"fleet\.yaml:3:8: zones: "):
        main.run({"BLUEPRINT_FLEET": str(file), "CDKTF_OUTDIR": str(tmp_path / "out"), "BLUEPRINT_DEPLOYMENTS": ""})
    assert not (tmp_path / "out").exists()
