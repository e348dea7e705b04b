"""The published JSON Schemas: generated from the models, complete for an editor, and consistent with the models."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from llm_serving.cli.commands.schema import SchemaFile, render_schema
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.batch.blueprint import Blueprint as BatchBlueprint
from llm_serving.kinds.gateway.blueprint import Blueprint as GatewayBlueprint
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.streaming.blueprint import Blueprint as StreamingBlueprint
from llm_serving.services import kinds
from llm_serving.services.blueprint import DEFAULT_KIND
from llm_serving.settings import yaml_source
from llm_serving.settings.document import FILE_CONTEXT, Settings

ROOT = Path(__file__).parents[2]
SCHEMA_FILES: dict[type[Settings], Path] = {
    Fleet: ROOT / "infra/fleet.schema.json",
    Blueprint: ROOT / "blueprints/blueprint.schema.json",
    BatchBlueprint: ROOT / "blueprints/blueprint.schema.json",  # one file: its key `kind` chooses
    StreamingBlueprint: ROOT / "blueprints/blueprint.schema.json",
    GatewayBlueprint: ROOT / "blueprints/blueprint.schema.json",
}
SCHEMAS = {kind: json.loads(path.read_text()) for kind, path in SCHEMA_FILES.items()}
CHECKS = {kind: jsonschema.Draft7Validator(schema_document) for kind, schema_document in SCHEMAS.items()}
KINDS = pytest.mark.parametrize("kind", SCHEMA_FILES, ids=["fleet", "serving", "batch", "streaming", "gateway"])

EVERY_FLEET_KEY = """\
name: ads
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
spend_limit: 500 USD/h
alarms_to: arn:aws:sns:us-west-2:123456789012:on-call
permissions_boundary: arn:aws:iam::123456789012:policy/platform-boundary
state: s3://my-state/fleets/ads
network: {cidr: 10.0.0.0/16, nat: on, flow_logs: 30d}
storage: {results_kept: 30d, old_versions_kept: 7d, repositories: [vllm, router]}
pools:
  p5: {types: p5.48xlarge, zones: us-west-2a, buy: {capacity-block: cr-0123456789abcdef0}, size: 2, efa: true,
       efa_layout: save-addresses, placement_group: none, orchestrator: eks, by: node-groups, os: bottlerocket,
       ami: ami-0123456789abcdef0, images: {snapshot: snap-0123456789abcdef0}, disk: gp3, labels: {team: ads},
       taints: [team=ads:NoSchedule]}
  mixed: {types: [g6e.2xlarge, g6e.4xlarge], buy: [spot, on-demand], size: 1..4, orchestrator: ecs, images: cached,
          warm: 2}
eks: {version: "1.35", public_from: [203.0.113.0/24], admins: ["arn:aws:iam::123456789012:role/platform"],
      applied_by: "arn:aws:iam::123456789012:role/apply",
      al2023: v20260423, bottlerocket: 1.64.0}
ecs: {al2023: 2023.0.20260914}
add_ons: {observability: on, gateway: on, schedulers: off, operators: off}
tags: {team: ads}
"""
ANOTHER_NETWORK = """\
name: ads
region: us-west-2
zones: us-west-2a
network: {vpc: vpc-0123456789abcdef0, private_subnets: [subnet-0123456789abcdef0]}
pools: {general: {types: g6e.2xlarge, size: 0..8}}
"""
EVERY_BLUEPRINT_KEY = """\
name: mine
pattern: aggregated
model: Qwen/Qwen3-0.6B
engine: vllm
weights: s3://my-models/qwen3
context: 8k
roles:
  worker: {pool: general, replicas: 2, accelerators: 1}
  router: {policy: round-robin}
traffic: {arrivals: 20/s, process: constant, requests: 300, time_limit: 10min, deadline: 60s, warm_up: 10, api: chat,
          input_tokens: 2k..4k, output_tokens: 200, shared_prefix: 50%, prefix_groups: 4, data: prompts.jsonl, seed: 1}
slo:
  ttft_ms: {p50: 400, p90: 600, p95: 800, p99: 1500.5, mean: 450}
  itl_ms: {p95: 40}
  e2e_ms: {p99: 9000}
  errors: 0.1%
  output_tokens_per_s: 100
  requests_per_s: 1.5
"""
MINIMAL_BLUEPRINT = """\
pattern: aggregated
model: tiny
roles: {worker: {pool: general}}
traffic: {users: 8}
slo: {}
"""
EVERY_BATCH_KEY = """\
kind: batch
name: mine
pattern: offline-batch
endpoint: {model: tiny, pool: general, replicas: 2, accelerators: 1, context: 2k}
teams: {default: {weight: 50}, ads: {weight: 20, priority: low, tokens_per_day: 50000000}}
workers: {count: 2, concurrency: 16..128}
limits: {deadline: 24h, bad_rows: refuse, long_inputs: truncate-tail, attempts: 5, request_timeout: 10min, chunk: 16Mi,
         failed_chunks: 1%, takeover: 10s}
results: {parquet: on, cache: {url: "rediss://cache.example.com:6379", ttl: 7d}}
sample: {team: ads, rows: 300, bad_rows: 6, input_tokens: 16..64, output_tokens: 8..16, model: tiny}
slo: {deadline: 10min, failed_rows: 0%, endpoint_use: 30%}
"""
EVERY_GATEWAY_KEY = """\
kind: gateway
name: edge
pattern: gateway
teams:
  search: {models: [chat, small], budget: {day: 5 USD, month: 50.5 USD}, requests_per_minute: 60, tokens_per_minute: 20k}
  ads: {models: small}
routes:
  chat:
    deployments: [{deployment: big, weight: 3}, {url: "https://llm.example.com/v1", model: org/gpt, weight: 1}]
    price: {input: 0 USD, output: 1.5 USD}
    retries: 2
    timeout: 30s
    fallback: [small]
  small: {deployments: {mock: A mock.}, price: {input: 0.1 USD, output: 0.3 USD}}
shared_counts: rediss://cache.example.com:6379/1
sample: {requests: 3, output_tokens: 8}
slo: {failed_requests: 1%, answer_p95: 2s}
"""
EXAMPLES: list[tuple[type[Settings], str]] = [
    (Fleet, EVERY_FLEET_KEY),
    (Fleet, ANOTHER_NETWORK),
    (Blueprint, EVERY_BLUEPRINT_KEY),
    (Blueprint, MINIMAL_BLUEPRINT),
    (BatchBlueprint, EVERY_BATCH_KEY),
    (GatewayBlueprint, EVERY_GATEWAY_KEY),
    *((Fleet, path.read_text()) for path in sorted({ROOT / "fleet.yaml", *ROOT.glob("infra/fleets/*.yaml")})),
    *(
        (kinds.get(yaml.safe_load(path.read_text()).get("kind", DEFAULT_KIND)).SETTINGS, path.read_text())
        for path in sorted(ROOT.glob("blueprints/*/blueprint.yaml"))
    ),
]


def parse(text: str, folder: Path) -> Any:
    """Plain data, as our reader sees it."""
    path = folder / "file.yaml"
    path.write_text(text)
    return yaml_source.read(path).data


@pytest.mark.parametrize("file", sorted(set(SCHEMA_FILES.values())), ids=lambda file: file.name)
def test_the_published_schema_matches_the_models(file: Path) -> None:
    name = file.name.partition(".")[0]
    assert file.read_text() == render_schema(SchemaFile(name)), f"blueprint schema {name} > {file}"


@KINDS
def test_the_schema_is_valid(kind: type[Settings]) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMAS[kind])
    assert "$ref" not in SCHEMA_FILES[kind].read_text()
    assert '"null"' not in SCHEMA_FILES[kind].read_text()


def walk_fields(node: Any, key_path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of a schema with its dotted name."""
    for name, field in [*node.get("properties", {}).items(), *node.get("patternProperties", {}).items()]:
        yield f"{key_path}.{name}", field
        yield from walk_fields(field, f"{key_path}.{name}")
    single = [node[key] for key in ("items", "then", "else") if key in node]
    for branch in [*node.get("anyOf", []), *node.get("oneOf", []), *single]:
        yield from walk_fields(branch, key_path)


@KINDS
def test_every_field_has_a_description_and_every_shorthand_a_valid_example(kind: type[Settings]) -> None:
    all_fields = list(walk_fields(SCHEMAS[kind]))
    assert len(all_fields) > 20
    for key_path, field in all_fields:
        assert field["description"].endswith("."), key_path
        for given_value in [*field.get("examples", []), *([field["default"]] if "default" in field else [])]:
            assert jsonschema.Draft7Validator(field).is_valid(given_value), (key_path, given_value)
        if "pattern" in field:
            assert field.get("examples"), key_path


@KINDS
def test_the_schema_spells_keys_as_the_file(kind: type[Settings]) -> None:
    names = {key_path.rpartition(".")[2] for key_path, _ in walk_fields(SCHEMAS[kind])}
    assert ("capacity-block" in names) == (kind is Fleet)
    assert "capacity_block" not in names


@pytest.mark.parametrize(("kind", "text"), EXAMPLES)
def test_schema_and_model_accept_every_example(kind: type[Settings], text: str, tmp_path: Path) -> None:
    CHECKS[kind].validate(parse(text, tmp_path))
    kind.model_validate(parse(text, tmp_path), context=FILE_CONTEXT)


@pytest.mark.parametrize(("kind", "text"), EXAMPLES)
def test_an_editor_that_reads_yaml_1_1_agrees(kind: type[Settings], text: str) -> None:
    CHECKS[kind].validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        (Fleet, "name: ads", "name: Ads"),
        (Fleet, "name: ads", "nmae: ads"),
        (Fleet, "zones: [us-west-2a, us-west-2b]", "zones: []"),
        (Fleet, "orchestrator: both", "orchestrator: all"),
        (Fleet, "spend_limit: 500 USD/h", "spend_limit: 500"),
        (Fleet, "state: s3://my-state/fleets/ads", "state: s3"),
        (Fleet, "nat: on", "nat: maybe"),
        (Fleet, "nat: on", "vpc: vpc-01234567"),
        (Fleet, "capacity-block:", "capacity_block:"),
        (Fleet, "size: 1..4", "size: -1"),
        (Fleet, "size: 1..4", "size: 1-4"),
        (Fleet, "  mixed:", "  Mixed:"),
        (Fleet, "team: ads", "aws:team: ads"),
        (Fleet, "team: ads", "team: 1"),
        (Blueprint, "pattern: aggregated", "pattern: aggregate"),
        (Blueprint, "context: 8k", "context: 0"),
        (Blueprint, "replicas: 2", "replicas: -1"),
        (Blueprint, "replicas: 2", "replicas: 2.5"),
        (Blueprint, "arrivals: 20/s", "arrivals: 20"),
        (Blueprint, "arrivals: 20/s", "users: 3, arrivals: 20/s"),
        (Blueprint, "arrivals: 20/s, process: constant,", ""),
        (Blueprint, "shared_prefix: 50%", "shared_prefix: 0.5"),
        (Blueprint, "p95: 40", "p95: -40"),
        (Blueprint, "errors: 0.1%", "errors: 0.1"),
        (Blueprint, "seed: 1", "seed: 4294967296"),
        (BatchBlueprint, "kind: batch", "kind: serving"),
        (BatchBlueprint, "kind: batch", "kind: other"),
        (BatchBlueprint, "model: tiny", "url: ftp://host"),
        (BatchBlueprint, "model: tiny", "model: tiny, url: http://127.0.0.1:8000"),
        (BatchBlueprint, "weight: 50", "weight: 0"),
        (BatchBlueprint, "priority: low", "priority: urgent"),
        (BatchBlueprint, "concurrency: 16..128", "concurrency: 0"),
        (BatchBlueprint, "failed_rows: 0%", "failed_rows: 0"),
        (BatchBlueprint, "rediss://cache", "rediss://user:secret@cache"),
    ],
)
def test_schema_and_model_refuse_every_mistake(kind: type[Settings], good: str, wrong: str, tmp_path: Path) -> None:
    text = {Fleet: EVERY_FLEET_KEY, Blueprint: EVERY_BLUEPRINT_KEY, BatchBlueprint: EVERY_BATCH_KEY}[kind]
    assert good in text
    data = parse(text.replace(good, wrong), tmp_path)
    assert not CHECKS[kind].is_valid(data)
    with pytest.raises(ValidationError):
        kind.model_validate(data, context=FILE_CONTEXT)


def find_paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in plain data."""
    yield path
    if isinstance(data, dict | list):
        for step, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from find_paths(value, (*path, step))


@functools.cache
def list_paths(text: str) -> list[tuple[Any, ...]]:
    return sorted(find_paths(yaml.safe_load(text)), key=str)


def replace_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of `data` with another value at `way`."""
    if not path:
        return value
    data = copy.copy(data)
    data[path[0]] = replace_value(data[path[0]], path[1:], value)
    return data


values = st.one_of(
    st.sampled_from(
        ["", "x", "on", "yes", "spot", "eks", "us-west-2a", "us-west-2", "8k", "0..4", "4..0", "1/s", "0/s", "5%", "500%",
         "30d", "0d", "5min", "1 USD/h", "10.0.0.0/16", "10.0.0.0/30", "cr-0123456789abcdef0", "a.b", "s3://abc/d", "a.jsonl"]
    ),
    st.booleans(),
    st.integers(-3, 10**7),
    # 3.0 is an integer to JSON Schema and a number with a fraction to a person who writes YAML.
    st.floats(0.1, 9.9).filter(lambda number: not number.is_integer()),
    st.just([]),
    st.just({}),
    st.just(["spot"]),
    st.just({"unknown": 1}),
)  # fmt: skip


def _is_beyond_a_schema(detail: Mapping[str, Any]) -> bool:
    """Whether a JSON Schema cannot say it: a contradiction, a text's form, or the bound of a text's number, as of 30d."""
    is_bound = detail["type"] in ("less_than_equal", "greater_than_equal") and isinstance(detail["input"], str)
    return is_bound or detail["type"] in ("contradiction", "wrong")


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_schema_and_model_agree_on_any_change_of_an_example(data: st.DataObject) -> None:
    kind, text = data.draw(st.sampled_from(EXAMPLES))
    path = data.draw(st.sampled_from(list_paths(text)))
    plain = replace_value(yaml.load(text, yaml.CSafeLoader), path, data.draw(values))
    by_schema = CHECKS[kind].is_valid(plain)
    try:
        kind.model_validate(plain, context=FILE_CONTEXT)
    except ValidationError as error:
        # What values contradict each other, or lie outside of what a text's form can say, is beyond a JSON Schema.
        assert all(map(_is_beyond_a_schema, error.errors())) or not by_schema, error
    else:
        assert by_schema
