"""A gateway on AWS: what it resolves to, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.fleet import names
from llm_serving.kinds.gateway import cloud, cloud_program, gateway_program, meter_program
from llm_serving.kinds.gateway.deployment import GatewayDeployment
from llm_serving.services import deployments
from llm_serving.services.deployment import Door, FoundDeployment
from llm_serving.services.service import STOP_DELAY_VARIABLE, Secret, Service
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning

FLEET = """\
name: cotton
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
pools: {general: {types: g6e.2xlarge, size: 0..8, orchestrator: eks}, tasks: {types: g6e.2xlarge, size: 1, orchestrator: ecs}}
"""
ONE_ZONE = """\
name: cotton
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools: {tasks: {types: g6e.2xlarge, size: 1}}
"""
MINIMAL = """\
kind: gateway
pattern: gateway
teams: {search: {models: chat}}
routes: {chat: {deployments: {mock: Hello.}}}
"""
BIG = FoundDeployment(
    name="big", kind="serving", url="http://big.serving.svc:8080", models=("m",), usd_h=4.0,
    metrics_urls=("http://big-engines.serving.svc:9090/metrics",),  # Dynamo's
    metrics={"prompt-tokens": "vllm:prompt_tokens_total", "output-tokens": "vllm:generation_tokens_total"},
)  # fmt: skip


def resolve(root: Path, text: str, target: str, *, fleet: str = FLEET, name: str = "edge") -> GatewayDeployment:
    folder = root / name
    folder.mkdir()
    (root / "fleet.yaml").write_text(fleet)
    (folder / "blueprint.yaml").write_text(text)
    for file in (paths.PATTERNS / "gateway").glob("*.j2"):
        (folder / file.name).write_text(file.read_text())
    deployment = planning.plan_offline(folder, root / "fleet.yaml", target).deployment
    assert isinstance(deployment, GatewayDeployment)
    return deployment


def read_config(gateway: Service) -> Any:
    return json.loads(gateway.env[gateway_program.CONFIG_VARIABLE])


@pytest.mark.parametrize(
    ("target", "url"),
    [("eks", "http://edge-gateway.serving:8080"), ("ecs", "http://edge-gateway.cotton.internal:8080")],
)
def test_clients_reach_it_by_name_on_each_target(tmp_path: Path, target: str, url: str) -> None:
    deployment = resolve(tmp_path, MINIMAL, target)
    meter, gateway = deployment.services
    assert meter.name == "meter"
    assert (deployment.url, gateway.port, gateway.replicas.min) == (url, 8080, 2)
    assert deployment.admin_url == "", "nobody but its own container calls the administration"
    assert {name: call.ranges for name, call in gateway.calls.items()} == {
        "database": ("10.0.0.0/16",),
        "cache": ("10.0.0.0/16",),
    }, "the fleet's network, and no other address"


@pytest.mark.parametrize(("target", "pre_stop_s", "delay_s"), [("eks", 10, None), ("ecs", 0, "45")])
def test_a_gateway_waits_until_clients_know_that_it_goes(
    tmp_path: Path, target: str, pre_stop_s: int, delay_s: str | None
) -> None:
    meter, gateway = resolve(tmp_path, MINIMAL, target).services
    assert (gateway.stop.pre_stop_s, meter.stop.pre_stop_s) == (pre_stop_s, 0)
    assert (gateway.env.get(STOP_DELAY_VARIABLE), meter.env.get(STOP_DELAY_VARIABLE)) == (delay_s, None)


def test_replicas_share_counts_over_tls_at_the_host_that_the_stack_knows(tmp_path: Path) -> None:
    config = read_config(resolve(tmp_path, MINIMAL, "ecs").entries[0])
    host = f"os.environ/{cloud_program.CACHE_VARIABLE}"
    router = config["router_settings"]
    shared = {"host": router["redis_host"], "port": router["redis_port"], **router["cache_kwargs"]}
    assert shared == {"host": host, "port": 6379, "ssl": True, "socket_timeout": 2.0}
    assert config["litellm_settings"]["cache_params"] == {"type": "redis", "supported_call_types": [], **shared}


def test_a_meter_runs_where_the_price_and_the_engines_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "find", lambda *_: BIG)
    meter, gateway = resolve(tmp_path, MINIMAL.replace("mock: Hello.", "deployment: big"), "eks").services
    [metered] = json.loads(meter.env[meter_program.BACKENDS_VARIABLE])
    assert (metered["name"], metered["usd_h"]) == ("big", 4.0)
    assert meter.calls["engines-big"].labels == {"inference/kind": "engine"}
    assert meter.calls["engines-big"].port == 9090
    assert (meter.image, meter.replicas.max, meter.port, meter.probe) == (gateway.image, 1, 0, None)
    assert (gateway.calls["big"].port, gateway.calls["big"].deployment) == (8080, "big")


def test_a_deployment_that_asks_for_keys_gets_the_secret_s_and_what_its_teams_used_is_metered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(keys="secret:llm/keys", usage_address="big-router.cotton.internal:9092")
    # On ECS the engines' counters are unknown.
    keyed = BIG.model_copy(update={"door": door, "metrics_urls": ()})
    monkeypatch.setattr(deployments, "find", lambda *_: keyed)
    text = MINIMAL.replace("mock: Hello.", "deployment: big")
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, text, "ecs", name="open")
    assert str(refused.value) == (
        f'{tmp_path}/open/blueprint.yaml:4:30: routes.chat.deployments: "big": it asks for a key of a team. '
        "Fix: set aws: {api_key: {secret: NAME}}."
    )
    meter, gateway = resolve(tmp_path, f"{text}aws: {{api_key: {{secret: llm/gateway}}}}\n", "ecs").services
    assert gateway.env[cloud_program.API_KEY_VARIABLE] == "llm/gateway"
    assert (gateway.secrets, meter.secrets) == ((Secret(secret="llm/gateway"),), ())
    [model] = read_config(gateway)["model_list"]
    assert model["litellm_params"]["api_key"] == "os.environ/BLUEPRINT_API_KEY"
    [metered] = json.loads(meter.env[meter_program.BACKENDS_VARIABLE])
    assert metered["usage_url"] == "http://big-router.cotton.internal:9092/metrics"
    assert meter.calls["use-big"].port == 9092
    assert "engines-big" not in meter.calls


REFUSALS = {
    "shared_counts: rediss://cache.example.com\n": (
        '5:16: shared_counts: "rediss://cache.example.com": on ECS the stack has a cache of its own. Fix: remove '
        "shared_counts."
    ),
    "load_balancer: {certificate: arn:aws:acm:us-east-1:123456789012:certificate/1}\n": (
        '5:30: load_balancer.certificate: "arn:aws:acm:us-east-1:123456789012:certificate/1": a load balancer takes those of '
        "its own region, us-west-2. Fix: use one in us-west-2."
    ),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_what_aws_does_not_take_is_refused_at_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, MINIMAL + text, "ecs")
    assert str(refused.value) == f"{tmp_path}/edge/blueprint.yaml:{REFUSALS[text]}"


def test_a_model_of_bedrock_answers_by_the_role_s_signature_and_no_key(tmp_path: Path) -> None:
    text = MINIMAL.replace("{mock: Hello.}", "[{mock: Hello.}, {bedrock: us.amazon.nova-lite-v1:0}]")
    deployment = resolve(tmp_path, text, "ecs")
    [_, model] = read_config(deployment.entries[0])["model_list"]
    assert model["model_info"]["id"] == "chat/us.amazon.nova-lite-v1:0"
    assert model["litellm_params"] == {
        "model": "bedrock/converse/us.amazon.nova-lite-v1:0", "aws_region_name": "us-west-2", "order": 2,
        "num_retries": 1, "timeout": 600.0, "input_cost_per_token": 0.0, "output_cost_per_token": 0.0,
    }  # fmt: skip
    assert deployment.stack
    assert deployment.stack.bedrock_models == ("us.amazon.nova-lite-v1:0",)


@pytest.mark.parametrize(
    ("node", "percent"), [("cache.t4g.micro", 50), ("cache.t4g.small", 30), ("cache.t4g.medium", 25), ("cache.r7g.large", 25)]
)  # fmt: skip
def test_meanings_are_compared_by_a_model_of_bedrock_and_small_nodes_set_memory_aside(
    tmp_path: Path, node: str, percent: int
) -> None:
    text = f"{MINIMAL.replace('{mock: Hello.}', '{mock: Hello.}, cache: {semantic: {embedding: {bedrock: amazon.titan-embed-text-v2:0}}}')}"
    deployment = resolve(tmp_path, f"{text}aws: {{cache_type: {node}}}\n", "ecs")
    [_, model] = read_config(deployment.entries[0])["model_list"]
    assert model["litellm_params"] == {
        "model": "bedrock/amazon.titan-embed-text-v2:0", "aws_region_name": "us-west-2", "num_retries": 0,
        "input_cost_per_token": 0.0, "output_cost_per_token": 0.0,
    }  # fmt: skip
    semantic = json.loads(deployment.entries[0].env[gateway_program.SEMANTIC_VARIABLE])
    assert semantic["chat"]["embedding"] == model["model_name"]
    assert deployment.stack
    assert deployment.stack.bedrock_models == ("amazon.titan-embed-text-v2:0",)
    assert deployment.stack.cache_reserve_percent == percent
    plain = resolve(tmp_path, f"{MINIMAL}aws: {{cache_type: {node}}}\n", "ecs", name="plain")
    assert plain.stack and plain.stack.cache_reserve_percent == 25, "a parameter group that goes is refused"


def test_nodes_with_disks_search_nothing(tmp_path: Path) -> None:
    semantic = "cache: {semantic: {embedding: {bedrock: amazon.titan-embed-text-v2:0}}}"
    text = f"{MINIMAL}aws: {{cache_type: cache.r6gd.xlarge}}\n"
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, text.replace("{mock: Hello.}", f"{{mock: Hello.}}, {semantic}"), "eks")
    assert str(refused.value) == (
        f'{tmp_path}/edge/blueprint.yaml:5:19: aws.cache_type: "cache.r6gd.xlarge": its nodes keep a part of the data on '
        "disks, where nothing is searched, and answers are found by meaning. Fix: choose one such as cache.r7g.large."
    )


def test_the_deployment_that_makes_vectors_is_reached_metered_and_gets_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(keys="secret:llm/keys", usage_address="big-router.serving.svc:9092")
    vectors = BIG.model_copy(update={"task": "embed", "door": door})
    monkeypatch.setattr(deployments, "find", lambda *_: vectors)
    semantic = "cache: {semantic: {embedding: {deployment: big}}}"
    text = MINIMAL.replace("{mock: Hello.}", f"{{mock: Hello.}}, {semantic}")
    with pytest.raises(InputError, match=r'routes\.chat\.cache: "big": it asks for a key of a team'):
        resolve(tmp_path, text, "eks", name="open")
    meter, gateway = resolve(tmp_path, f"{text}aws: {{api_key: {{secret: llm/gateway}}}}\n", "eks").services
    assert gateway.calls["big"].port == 8080
    assert {"engines-big", "use-big"} <= meter.calls.keys()
    assert read_config(gateway)["model_list"][1]["litellm_params"]["api_key"] == "os.environ/BLUEPRINT_API_KEY"


def test_requests_pass_bedrock_s_guardrail_and_the_audit_goes_to_the_bucket(tmp_path: Path) -> None:
    text = f"""{MINIMAL}guardrails: {{bedrock: {{id: gr4a1b2c3d4e, version: "1"}}}}
audit: {{export: s3://acme-audit/gateway}}
"""
    deployment = resolve(tmp_path, text, "ecs")
    [guardrail] = read_config(deployment.entries[0])["guardrails"]
    assert guardrail["litellm_params"] == {
        "guardrail": "bedrock", "mode": "pre_call", "default_on": True, "aws_region_name": "us-west-2",
        "guardrailIdentifier": "gr4a1b2c3d4e", "guardrailVersion": "1",
    }  # fmt: skip
    assert deployment.workers[0].env[meter_program.EXPORT_VARIABLE] == "s3://acme-audit/gateway"
    assert deployment.stack
    assert (deployment.stack.bedrock_guardrail, deployment.stack.audit_export) == (
        "gr4a1b2c3d4e",
        "s3://acme-audit/gateway",
    )
    plain = resolve(tmp_path, MINIMAL, "ecs", name="plain")
    assert "guardrails" not in read_config(plain.entries[0])
    assert meter_program.EXPORT_VARIABLE not in plain.workers[0].env


def test_a_url_of_this_machine_is_refused(tmp_path: Path) -> None:
    backend = '{url: "http://127.0.0.1:8000", model: m}'
    with pytest.raises(
        InputError, match=r'routes\.chat: "http://127\.0\.0\.1:8000": containers on EKS do not reach this'
    ):
        resolve(tmp_path, MINIMAL.replace("{mock: Hello.}", backend), "eks")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my--edge",
            "cotton-my--edge has two hyphens in a row, which ElastiCache refuses. Fix: choose another name of the",
        ),
        (
            "e" * 32,
            f"cotton-{'e' * 32} is too long: ElastiCache takes 38 characters. Fix: choose a shorter name of the",
        ),
    ],
)
def test_a_name_that_no_cache_may_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(names, "MAX_CACHE_NAME", 38)
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, MINIMAL, "ecs", name=name)
    assert (
        str(refused.value) == f'{tmp_path}/{name}/blueprint.yaml:1:1: name: "{name}": {message} blueprint or the fleet.'
    )


def test_a_fleet_of_one_zone_has_no_place_for_a_standby(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the database takes 2 zones, and the fleet cotton has 1\. Fix: add zones"):
        resolve(tmp_path, MINIMAL, "ecs", fleet=ONE_ZONE)


@pytest.mark.parametrize(("own", "other"), [("ecs", "eks"), ("eks", "ecs")])
def test_a_fleet_without_the_target_s_orchestrator_is_refused(tmp_path: Path, own: str, other: str) -> None:
    fleet = ONE_ZONE.replace("ecs", own).replace("us-west-2a", "[us-west-2a, us-west-2b]")
    with pytest.raises(InputError) as refused:
        resolve(tmp_path, MINIMAL, other, fleet=fleet)
    assert str(refused.value) == (
        f'{tmp_path}/edge/blueprint.yaml:1:7: kind: "gateway": {own} runs the fleet\'s containers, and the target is '
        f"{other}. Fix: use --target {own}."
    )


def test_a_region_whose_authority_the_image_does_not_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "IMAGES", tmp_path)
    with pytest.raises(InputError, match=r"no certificate of RDS's authority of us-west-2"):
        resolve(tmp_path, MINIMAL, "ecs")


def test_more_teams_than_a_container_s_environment_holds_are_refused(tmp_path: Path) -> None:
    teams = "".join(f"  team-{number}: {{models: chat}}\n" for number in range(1000))
    text = MINIMAL.replace("teams: {search: {models: chat}}\n", f"teams:\n{teams}")
    assert len(resolve(tmp_path, text, "ecs", name="thousand").teams) == 1000
    text = text.replace("models: chat}", "models: chat, requests_per_minute: 60}")
    with pytest.raises(
        InputError, match=r"and a container 49,152\. Fix: deploy several gateways, each with some of the"
    ):
        resolve(tmp_path, text, "ecs")


def test_every_certificate_in_the_image_is_of_its_region_s_authority_and_valid_for_decades() -> None:
    from cryptography import x509

    folder = paths.IMAGES / cloud.IMAGE / "rds-ca"
    for file in folder.iterdir():
        [certificate] = x509.load_pem_x509_certificates(file.read_bytes())
        [name] = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert name.value == f"Amazon RDS {file.stem} Root CA RSA2048 G1"
        assert certificate.issuer == certificate.subject
        assert certificate.not_valid_after_utc.year >= 2060
