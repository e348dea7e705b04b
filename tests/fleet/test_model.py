"""fleet.yaml: the shipped one and every way to write it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.fleet.model import Eks, ExistingNetwork, Fleet, NewNetwork, Reservation
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Bounds

ROOT = Path(__file__).parents[2]

VALID = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools:
  general:
    types: [g6e.2xlarge]
    size: 0..8
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is an empty one."""
    monkeypatch.chdir(tmp_path)


def parse_fleet(text: str) -> Fleet:
    Path("fleet.yaml").write_text(text)
    return load(Path("fleet.yaml"), Fleet).value


def list_errors(text: str) -> list[str]:
    """The messages about a fleet.yaml that holds `text`."""
    with pytest.raises(InputError) as error:
        parse_fleet(text)
    return str(error.value).splitlines()


def test_the_shipped_fleet_is_valid() -> None:
    value = load(ROOT / "fleet.yaml", Fleet).value
    assert value.name == "demo"
    assert all(value.get_zones(pool) for pool in value.pools.values())


def test_an_omitted_field_has_its_default() -> None:
    value = parse_fleet(VALID)
    assert isinstance(value.network, NewNetwork)
    assert (value.orchestrator, value.state, value.spend_limit, value.tags) == ("eks", "local", None, {})
    assert (value.network.cidr, value.network.nat, value.network.flow_logs) == ("10.0.0.0/16", True, 30 * 86400)
    assert (value.storage.results_kept, value.storage.repositories) == (
        90 * 86400,
        ("vllm", "vllm-cpu", "router", "load-driver", "llama-cpp", "diffusion", "batch-worker", "gateway"),
    )
    pool = value.pools["general"]
    assert (pool.buy, pool.size, pool.efa, value.get_zones(pool)) == (("on-demand",), Bounds(0, 8), False, value.zones)


def test_the_whole_fleet_can_be_serialized() -> None:
    value = parse_fleet(
        """\
name: ads
region: us-gov-west-1
zones: us-gov-west-1a
orchestrator: both
spend_limit: 500 USD/h
state: s3://my-state/fleets/ads
network: {vpc: vpc-0123456789abcdef0, private_subnets: subnet-01234567}
storage: {results_kept: 30d, old_versions_kept: 7d, repositories: [vllm, router]}
pools:
  p5:
    types: p5.48xlarge
    zones: us-gov-west-1a
    buy: {capacity-block: cr-0123456789abcdef0}
    size: 2
    efa: on
  mixed: {types: g6e.2xlarge, buy: [reservation: cr-0123456789abcdef0, spot, on-demand], size: 1..4}
tags: {team: ads, cost-center: "1234", note: ""}
"""
    )
    assert value.network == ExistingNetwork(vpc="vpc-0123456789abcdef0", private_subnets=("subnet-01234567",))
    assert value.pools["p5"].buy == (Reservation.model_validate({"capacity-block": "cr-0123456789abcdef0"}),)
    assert value.pools["p5"].efa is True
    assert value.pools["mixed"].buy[1:] == ("spot", "on-demand")
    assert value.tags == {"team": "ads", "cost-center": "1234", "note": ""}


def add_pool(lines: str) -> str:
    """A fleet with a second pool."""
    return VALID + "  other:\n" + "".join(f"    {line}\n" for line in lines.splitlines())


EXISTING_NETWORK = "network: {vpc: vpc-01234567, private_subnets: [subnet-01234567, subnet-01234568]}\n"
CHOICE = "not one of the choices."
EFA = "EFA traffic does not cross an Availability Zone"
RESERVATION_REASON = "a reservation holds instances of one"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        # a key is missing, unknown or twice
        (
            "name: demo\n",
            [
                "fleet.yaml:1:1: region: required field is missing. Fix: set region: us-west-2.",
                "fleet.yaml:1:1: zones: required field is missing. Fix: set zones: [us-west-2a].",
                "fleet.yaml:1:1: pools: required field is missing. Fix: set pools: {general: ...}.",
            ],
        ),
        (VALID + "orchestrater: ecs\n", ["fleet.yaml:8:1: orchestrater: unknown key. Fix: write orchestrator:."]),
        (
            add_pool("types: g6e.2xlarge\nsize: 1\ncount: 2"),
            ["fleet.yaml:11:5: pools.other.count: unknown key. Fix: use one of ami, buy, by, disk, efa, efa_layout, images, labels, orchestrator, os, placement_group, spare, taints, warm, zones."],
        ),
        (VALID + "name: again\n", ["fleet.yaml:8:1: name: duplicate key, first on line 1. Fix: remove one."]),
        (
            add_pool("size: 1"),
            ["fleet.yaml:8:3: pools.other.types: required field is missing. Fix: set types: [g6e.2xlarge]."],
        ),
        (VALID.partition("pools")[0] + "pools: {}\n", ['fleet.yaml:4:8: pools: {}: it is empty. Fix: name at least one.']),
        (VALID + "network:\n", ["fleet.yaml:8:9: network: the key has no value. Fix: write a value, or leave it out."]),
        # a value has the wrong form
        (
            VALID.replace("demo", "Demo_1"),
            [
                'fleet.yaml:1:7: name: "Demo_1": it is not a name of 2 to 32 characters: a-z, 0-9 and -, '
                "a letter first. Fix: use a name of 2 to 32 characters such as general."
            ],
        ),
        (
            VALID.replace("region: us-west-2", "region: uswest2"),
            ['fleet.yaml:2:9: region: "uswest2": it is not an AWS region. Fix: use an AWS region such as us-west-2.'],
        ),
        (
            VALID.replace("[us-west-2a, us-west-2b]", "[us-west-2a, usw2-az2]"),
            [
                'fleet.yaml:3:21: zones[1]: "usw2-az2": it is not an Availability Zone. '
                "Fix: use an Availability Zone such as us-west-2a."
            ],
        ),
        (VALID.replace("[us-west-2a, us-west-2b]", "3"), ['fleet.yaml:3:8: zones: 3: it is not an Availability Zone. Fix: use an Availability Zone such as us-west-2a.']),
        (VALID + "orchestrator: k8s\n", [f"fleet.yaml:8:15: orchestrator: \"k8s\": {CHOICE} Fix: use eks; the choices are 'eks', 'ecs' or 'both'."]),
        (VALID + "tags: {Stack: web}\n", ['fleet.yaml:8:15: tags.Stack: "web": a role has each key once, in whichever case, and the stacks set the keys fleet and stack. Fix: use another key.']),
        (VALID + "tags: {Team: ads, team: ml}\n", ['fleet.yaml:8:25: tags.team: "ml": a role has each key once, in whichever case, and the stacks set the keys fleet and stack. Fix: use another key.']),
        (VALID.replace("general:", "system:"), ['fleet.yaml:5:3: pools.system: the cluster\'s own nodes have this name, and its controllers would run on the pool\'s nodes too. Fix: use another name.']),
        (VALID + "spend_limit: 100\n", ['fleet.yaml:8:14: spend_limit: 100: it has no unit. Fix: use an amount of money an hour such as 500 USD/h.']),
        (VALID + "spend_limit: 0 USD/h\n", ['fleet.yaml:8:14: spend_limit: "0 USD/h": it is not above 0 and up to 10000000USD/h. Fix: use an amount of money an hour such as 500 USD/h.']),
        (VALID + "state: s3\n", ["fleet.yaml:8:8: state: \"s3\": it is not a backend for Terraform's state: local or s3://BUCKET/PREFIX. Fix: use a backend for Terraform's state such as s3://my-terraform-state/fleets."]),
        (VALID + "storage: {model_buckets: [my-models]}\n", ['fleet.yaml:8:27: storage.model_buckets[0]: "my-models": it is a text. Fix: use a mapping of keys to values; the keys are bucket, key.']),
        (VALID + "storage: {tier_buckets: [{bucket: my-kv}, {bucket: my-kv}]}\n", ['fleet.yaml:8:43: storage.tier_buckets[1]: it is listed twice. Fix: remove the duplicate.']),
        (VALID + "network: 10.0.0.0/16\n", ['fleet.yaml:8:10: network: "10.0.0.0/16": it is a text. Fix: use a mapping of keys to values.']),
        (VALID + "network: {cidr: 10.0.0.0}\n", ['fleet.yaml:8:17: network.cidr: "10.0.0.0": it is not an IPv4 network. Fix: use an IPv4 network such as 10.0.0.0/16.']),
        (VALID + "network: {cidr: 10.0.0.1/16}\n", ['fleet.yaml:8:17: network.cidr: "10.0.0.1/16": it is not an IPv4 network: 10.0.0.1/16 has host bits set. Fix: use a range such as 10.0.0.0/16.']),
        (VALID + "network: {cidr: 10.0.0.0/24}\n", ['fleet.yaml:8:17: network.cidr: "10.0.0.0/24": a VPC for a fleet takes /16 to /20. Fix: use a range such as 10.0.0.0/16.']),
        (VALID + "network: {cidr: 8.0.0.0/16}\n", ['fleet.yaml:8:17: network.cidr: "8.0.0.0/16": it is not a private range. Fix: use a range such as 10.0.0.0/16.']),
        (VALID + "network: {flow_logs: 30s}\n", ['fleet.yaml:8:22: network.flow_logs: "30s": it is not a number of days. Fix: use a number of days such as 30d.']),
        # the branch of a union that was meant
        (
            VALID + "network:\n  vpc: vpc-1\n  nat: true\n",
            [
                "fleet.yaml:8:1: network.private_subnets: required field is missing. Fix: set private_subnets: [subnet-0123456789abcdef0].",
                "fleet.yaml:9:8: network.vpc: \"vpc-1\": it is not a VPC's id: vpc- and 8 or 17 of 0-9a-f. Fix: use a VPC's id such as vpc-0123456789abcdef0.",
                "fleet.yaml:10:3: network.nat: unknown key. Fix: use one of private_subnets.",
            ],
        ),
        (VALID + "network: {nta: true}\n", ["fleet.yaml:8:11: network.nta: unknown key. Fix: write nat:."]),
        (add_pool("types: g6e.2xlarge\nsize: 1\nbuy: [spot, ondemand]"), [f"fleet.yaml:11:17: pools.other.buy[1]: \"ondemand\": {CHOICE} Fix: use on-demand; the choices are 'on-demand' or 'spot'."]),
        (add_pool("types: g6e.2xlarge\nsize: 1\nbuy: {capacity-block: cr-1}"), ["fleet.yaml:11:27: pools.other.buy.capacity-block: \"cr-1\": it is not a reservation's id: cr- and 17 of 0-9a-f. Fix: use a reservation's id such as cr-0123456789abcdef0."]),
        (add_pool("types: g6e.2xlarge\nsize: 1\nbuy: {capacity_block: cr-0123456789abcdef0}"), ["fleet.yaml:11:11: pools.other.buy.capacity_block: unknown key. Fix: write capacity-block:."]),
        (add_pool("types: g6e.2xlarge\nsize: 1\nbuy: {}"), ["fleet.yaml:11:10: pools.other.buy: it must name exactly one of capacity-block, reservation and reserve. Fix: write {capacity-block: cr-...}, {reservation: cr-...} or {reserve: INSTANCES}."]),
        (add_pool("types: g6e.2xlarge\nsize: 1\nbuy: 2"), [f"fleet.yaml:11:10: pools.other.buy: 2: {CHOICE} Fix: use one of 'on-demand' or 'spot'."]),
        # a pool
        (add_pool("types: []\nsize: 1"), ['fleet.yaml:9:12: pools.other.types: []: it is empty. Fix: name at least one.']),
        (add_pool("types: G6E\nsize: 1"), ['fleet.yaml:9:12: pools.other.types: "G6E": it is not an EC2 instance type. Fix: use an EC2 instance type such as g6e.2xlarge.']),
        (add_pool("types: g6e.2xlarge\nsize: 8..0"), ['fleet.yaml:10:11: pools.other.size: "8..0": the least, 8, is more than the most, 0. Fix: write 0..8.']),
        (add_pool("types: g6e.2xlarge\nsize: -1"), ['fleet.yaml:10:11: pools.other.size: -1: it is not within 0..100000. Fix: use a number of machines such as 4, or a range such as 0..40.']),
        (add_pool("types: g6e.2xlarge\nsize: some"), ['fleet.yaml:10:11: pools.other.size: "some": it is neither a number of machines nor a range. Fix: use a number of machines such as 4, or a range such as 0..40.']),
        (add_pool("types: g6e.2xlarge\nsize: 1\nefa: yes"), ['fleet.yaml:11:10: pools.other.efa: "yes": it is neither true nor false. Fix: use true or false (on and off mean the same).']),
        (VALID.replace("general:", "General:"), ["fleet.yaml:5:3: pools.General: it is not a name of 2 to 32 characters: a-z, 0-9 and -, a letter first. Fix: use a name of 2 to 32 characters such as general."]),
        # tags
        (VALID + "tags: {year: 2026}\n", ["fleet.yaml:8:14: tags.year: 2026: it is not text. Fix: write it in quotes: '2026'."]),
        (VALID + "tags: {AWS:x: y}\n", ["fleet.yaml:8:8: tags.AWS:x: it is not a tag's key of up to 128 characters: letters, digits, space and _.:/=+@-, without aws: before it. Fix: use a tag's key of up to 128 characters such as team."]),
        (VALID + "tags: {a: 'x;y'}\n", ["fleet.yaml:8:11: tags.a: \"x;y\": it is not a tag's value of up to 256 characters: letters, digits, space and _.:/=+@-, without aws: before it. Fix: use a tag's value of up to 256 characters such as serving."]),
        (VALID + "tags: {a: Aws:y}\n", ["fleet.yaml:8:11: tags.a: \"Aws:y\": it is not a tag's value of up to 256 characters: letters, digits, space and _.:/=+@-, without aws: before it. Fix: use a tag's value of up to 256 characters such as serving."]),
        # contradictions, each at its own field
        (VALID.replace("us-west-2b]", "us-west-2a]"), ['fleet.yaml:3:21: zones[1]: "us-west-2a": it is listed twice. Fix: remove the duplicate.']),
        # alarms that would reach nobody
        (
            VALID + "orchestrator: ecs\nalarms_to: arn:aws:sns:us-east-1:123456789012:on-call\n",
            ['fleet.yaml:9:12: alarms_to: "arn:aws:sns:us-east-1:123456789012:on-call": an alarm can only notify topics in its own region, us-west-2. Fix: use a topic in us-west-2.'],
        ),
        (
            VALID + "orchestrator: ecs\nalarms_to: on-call@example.com\n",
            ["fleet.yaml:9:12: alarms_to: \"on-call@example.com\": it is not a standard SNS topic's ARN. Fix: use a standard SNS topic's ARN such as arn:aws:sns:us-west-2:123456789012:on-call."],
        ),
        # a boundary that no role could have
        (
            VALID + 'account: "123456789012"\npermissions_boundary: arn:aws:iam::999999999999:policy/platform-boundary\n',
            ['fleet.yaml:9:23: permissions_boundary: "arn:aws:iam::999999999999:policy/platform-boundary": a role takes a boundary of its own account, 123456789012, or one of AWS\'s own policies. Fix: use a policy of 123456789012.'],
        ),
        (
            VALID + "permissions_boundary: platform-boundary\n",
            ["fleet.yaml:8:23: permissions_boundary: \"platform-boundary\": it is not an IAM policy's ARN. Fix: use an IAM policy's ARN such as arn:aws:iam::123456789012:policy/platform-boundary."],
        ),
        (
            VALID.replace("us-west-2", "us-west-9"),
            ['fleet.yaml:2:9: region: "us-west-9": the registry of EKS\'s own images is not known there. Fix: use a region such as us-west-2, eu-west-1, or orchestrator: ecs.'],
        ),
        (
            VALID.replace("region: us-west-2", "region: us-wst-2"),
            ['fleet.yaml:2:9: region: "us-wst-2": the registry of EKS\'s own images is not known there. Fix: use a region such as us-west-2, eu-west-1, or orchestrator: ecs.'],
        ),
        (
            VALID.replace("us-west-2", "us-iso-east-1"),
            ['fleet.yaml:2:9: region: "us-iso-east-1": the region is isolated, and engines come from public registries. Fix: use a region such as us-west-2, eu-west-1.'],
        ),
        (VALID.replace("us-west-2b]", "us-east-1b]"), ["fleet.yaml:3:21: zones[1]: \"us-east-1b\": the zone is outside the fleet's region, us-west-2. Fix: name a zone of us-west-2, such as us-west-2a."]),
        (add_pool("types: g6e.2xlarge\nsize: 1\nzones: [us-west-2a, us-west-2c]"), ["fleet.yaml:11:25: pools.other.zones[1]: \"us-west-2c\": the fleet has only the zones us-west-2a, us-west-2b. Fix: use one of the fleet's zones, or add this zone to the fleet."]),
        (add_pool("types: p5.48xlarge\nsize: 2\nzones: [us-west-2a, us-west-2b]\nefa: true"), [f"fleet.yaml:11:12: pools.other.zones: {EFA}, and the pool names 2. Fix: set zones: us-west-2a in the pool, or efa: false."]),
        (add_pool("types: p5.48xlarge\nsize: 2\nefa: true"), [f"fleet.yaml:11:10: pools.other.efa: true: {EFA}, and the pool takes the fleet's 2. Fix: set zones: us-west-2a in the pool, or efa: false."]),
        (add_pool("types: p5.48xlarge\nsize: 2\nbuy: {capacity-block: cr-0123456789abcdef0}"), [f"fleet.yaml:11:10: pools.other.buy: {RESERVATION_REASON} Availability Zone, and the pool takes the fleet's 2. Fix: set zones: us-west-2a in the pool, or the reservation's own zone."]),
        (add_pool("types: [p5.48xlarge, p5e.48xlarge]\nsize: 2\nzones: us-west-2a\nbuy: {reservation: cr-0123456789abcdef0}"), [f"fleet.yaml:9:12: pools.other.types: {RESERVATION_REASON} type, and the pool lists 2. Fix: set types: p5.48xlarge."]),
        (add_pool("types: p5.48xlarge\nsize: 2\nzones: us-west-2a\nbuy: [spot, {capacity-block: cr-0123456789abcdef0}]"), ["fleet.yaml:12:10: pools.other.buy: a Capacity Block's instances cannot share a pool with other purchase options. Fix: set buy: {capacity-block: cr-...} only, and add a second pool for the rest."]),
        (add_pool("types: p5.48xlarge\nsize: 2\nzones: us-west-2a\nbuy: {capacity-block: cr-0123456789abcdef0, reservation: cr-0123456789abcdef0}"), ["fleet.yaml:12:10: pools.other.buy: it must name exactly one of capacity-block, reservation and reserve. Fix: write {capacity-block: cr-...}, {reservation: cr-...} or {reserve: INSTANCES}."]),
        (VALID + "network: {vpc: vpc-01234567, private_subnets: subnet-01234567}\n", ['fleet.yaml:8:47: network.private_subnets: "subnet-01234567": it names 1 private subnet, and the fleet has 2 zones. Fix: name one private subnet a zone, in the order of `zones`.']),
        (add_pool("types: g6e.2xlarge\nsize: 0..2\nspare: 2"), ['fleet.yaml:11:12: pools.other.spare: 2: of at most 2 instances none would be left for work. Fix: set spare: 1 or less.']),
        (VALID + "eks: {node_security_groups: sg-01234567}\n", ['fleet.yaml:8:29: eks.node_security_groups: "sg-01234567": nodes of a new cluster have the one that EKS makes. Fix: remove it, or name an existing cluster in `cluster`.']),
        (VALID + "eks: {cluster: platform}\n", ['fleet.yaml:8:16: eks.cluster: "platform": it is in a VPC, and `network` does not name that. Fix: set network: {vpc: vpc-..., private_subnets: [subnet-...]}, one subnet for each of `zones`.']),
        (
            f"{VALID}{EXISTING_NETWORK}eks: {{cluster: platform, version: '1.35', csi_drivers: efs}}\n",
            [
                "fleet.yaml:9:35: eks.version: \"1.35\": the cluster platform exists, and the fleet does not change it. Fix: remove version, or `cluster` for a new one.",
                "fleet.yaml:9:56: eks.csi_drivers: \"efs\": the cluster platform exists, and the fleet does not change it. Fix: remove csi_drivers, or `cluster` for a new one.",
            ],
        ),
        (VALID + "storage: {tier_buckets: {bucket: bb}}\n", ['fleet.yaml:8:34: storage.tier_buckets.bucket: "bb": it is not the name of an S3 bucket without dots. Fix: use the name of an S3 bucket without dots such as my-kv.']),
        # the file as a whole
        ("", ["fleet.yaml: it is empty. Fix: write at least its required keys; `blueprint schema fleet` or `blueprint schema blueprint` lists them."]),
        ("[]", ['fleet.yaml:1:1: []: the file is not a mapping of keys to values. Fix: write KEY: VALUE lines.']),
    ],
)  # fmt: skip
def test_each_mistake_has_a_position_a_reason_and_a_fix(text: str, messages: list[str]) -> None:
    assert list_errors(text) == messages


DOMAIN = f"vpc-logs-{'a1' * 13}.eu-west-1.es.amazonaws.com"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "logs: {keep: 100d}\n",
            'fleet.yaml:8:14: logs.keep: "100d": CloudWatch Logs does not take this number of days. Fix: set keep: 120d.',
        ),
        (
            "orchestrator: ecs\nlogs: {to: cloudwatch}\n",
            'fleet.yaml:9:12: logs.to: "cloudwatch": tasks on ECS write to CloudWatch without a collector. Fix: remove to.',
        ),
        (
            "logs: {to: s3}\n",
            'fleet.yaml:8:12: logs.to: "s3": the bucket is named after the account, which `account` does not say. '
            'Fix: set account: "123456789012", your own.',
        ),
        (
            f"logs: {{to: {DOMAIN}}}\n",
            f'fleet.yaml:8:12: logs.to: "{DOMAIN[:57]}...": the fleet is in us-west-2. Fix: use a domain of the fleet\'s region.',
        ),
        (
            f"logs: {{to: cloudwatch}}\n{EXISTING_NETWORK}eks: {{cluster: platform}}\n",
            'fleet.yaml:8:12: logs.to: "cloudwatch": the collector is an add-on of the cluster, and platform exists. '
            "Fix: remove to, and have a collector of the cluster's own.",
        ),
        (
            "logs: {to: splunk}\n",
            'fleet.yaml:8:12: logs.to: "splunk": it is not a place for logs: cloudwatch, s3, or the host of a domain of '
            "OpenSearch Service. Fix: use a place for logs such as cloudwatch.",
        ),
    ],
)
def test_logs_go_where_the_fleet_can_send_them(text: str, message: str) -> None:
    assert list_errors(VALID + text) == [message]
    fleet = parse_fleet(VALID + f"logs: {{to: {DOMAIN.replace('eu-west-1', 'us-west-2')}, keep: 30d}}\n")
    assert (fleet.logs.domain, fleet.logs.keep_days) == ("logs", 30)


def test_binary_huge_and_missing_files_are_refused() -> None:
    Path("fleet.yaml").write_bytes(b"\x7fELF\x02\x01\x01\0")
    with pytest.raises(InputError) as error:
        load(Path("fleet.yaml"), Fleet)
    assert str(error.value) == "fleet.yaml: it is binary, not text. Fix: name a YAML file."
    Path("fleet.yaml").write_bytes(b"x" * 10_000_000)
    with pytest.raises(InputError) as error:
        load(Path("fleet.yaml"), Fleet)
    assert str(error.value) == (
        "fleet.yaml: it holds 10,000,000 bytes, and settings hold at most 200,000. "
        "Fix: name settings of a screenful, not a data file."
    )
    Path("fleet.yaml").unlink()
    with pytest.raises(InputError) as error:
        load(Path("fleet.yaml"), Fleet)
    assert str(error.value) == (
        "fleet.yaml: there is no such file. "
        "Fix: go to the folder that holds it, or use --fleet FILE; `blueprint new` creates one."
    )


def test_all_mistakes_of_the_file_are_reported_together_conflicts_included() -> None:
    text = "name: D\nregoin: us-west-2\nzones: [us-west-2a, us-west-2a]\npools:\n  general: {types: [], size: 8..0}\n  p5: {types: p5.48xlarge, size: 1, zones: us-west-2z}\n"
    assert [message.split(": ")[0] for message in list_errors(text)] == [
        "fleet.yaml:1:7",
        "fleet.yaml:2:1",
        "fleet.yaml:3:21",
        "fleet.yaml:5:20",
        "fleet.yaml:5:30",
        "fleet.yaml:6:44",
    ]


@pytest.mark.parametrize("client", ["8.8.8.0/24", "0.0.0.0/0"])
def test_only_private_networks_call_the_private_endpoint(client: str) -> None:
    with pytest.raises(ValueError, match="it is not a private range"):
        Eks(private_from=(client,))


@pytest.mark.parametrize("client", ["10.8.0.0/16", "100.64.0.0/10", "sg-0123456789abcdef0"])
def test_a_vpn_and_a_security_group_call_the_private_endpoint(client: str) -> None:
    assert Eks(private_from=(client,)).private_from == (client,)
