"""The engines' rows: what they may ask for, and that the engine's own parsers know every flag that they name."""

from __future__ import annotations

import ipaddress
import itertools
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from llm_serving.catalog import command_parts, engines, frameworks, routers
from llm_serving.catalog.command_parts import CommandPart
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import resolve
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.roles import RouterPolicy
from llm_serving.services.environment import Environment
from llm_serving.settings.document import load
from llm_serving.targets.local.environment import CONVENTIONS
from tests import engines_own, matrix_cells
from tests.engines_own import EngineProbe
from tests.kinds.serving import resolving
from tests.kinds.serving.texts import FLEET

ROOT = Path(__file__).parents[2]


def _resolve_aggregated() -> ServingDeployment:
    names = ("aws", "worker-0", "worker-1", "router", "router-metrics", "router-admin")
    environment = Environment(
        target="local",
        conventions=CONVENTIONS,
        region="us-west-2",
        bucket="demo-models",
        s3_endpoint="http://127.0.0.1:20000",
        data_folder="/run/mine",
        socket_folder="/run/mine/tmp",
        ports={name: 20000 + number for number, name in enumerate(names)},
        cores=2,
    )
    return resolve.resolve(
        load(ROOT / "blueprints/aggregated/blueprint.yaml", Blueprint), load(ROOT / "fleet.yaml", Fleet), environment
    )


def test_a_value_that_does_not_exist_is_refused_when_the_row_is_read() -> None:
    with pytest.raises(ValidationError, match="no value is called colour"):
        CommandPart.model_validate({"arguments": ["--colour", "{colour}"]})


def test_a_list_of_values_becomes_an_argument_each() -> None:
    assert command_parts.fill_arguments(["--to", "{workers}"], {"workers": ("a", "b")}) == ("--to", "a", "b")


def test_a_later_part_of_an_environment_wins() -> None:
    assert command_parts.fill_env([{"A": "1", "B": "{port}"}, {"A": "2"}], {"port": 3}) == {"A": "2", "B": "3"}


def test_every_router_knows_every_policy_of_a_blueprint() -> None:
    """Of aggregated engines; before prefill and decode, `checks` refuses what the engine's other router lacks."""
    policies, rows = set(get_args(RouterPolicy)), engines.load_engines().values()
    assert all(set(routers.load_routers()[row.router].policies) == policies for row in rows)
    defaults = {"cache-aware", "load-aware"}
    for row in routers.load_routers().values():
        assert set(row.policies) <= policies
        # A router that knows no load takes the replicas in turn.
        assert defaults <= set(row.policies) or set(row.policies) == {"round-robin"}


TRAFFIC = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
SMALL, EXPERTS = "Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3"
TUNED = (
    "tuning: {kv_cache: fp8, prefix_cache: off, chunked_prefill: off, batch_tokens: 8k, sequences: 32, "
    "kv_offload: 8Gi, speculative: {method: SPECULATIVE}}\n"
)
SPECULATIVE = ("ngram", f"eagle, model: {SMALL}", f"eagle3, model: {SMALL}", f"draft_model, model: {SMALL}")


def _format_blueprint(model: str, worker: str, extra: str = "", pattern: str = "aggregated") -> str:
    return f"pattern: {pattern}\nmodel: {model}\nroles: {{worker: {{{worker}}}}}\n{extra}{TRAFFIC}"


def _format_disaggregated(pool: str) -> str:
    roles = f"prefill: {{pool: {pool}}}, decode: {{pool: {pool}, accelerators: 2}}"
    return f"pattern: disaggregated\nmodel: {SMALL}\nroles: {{{roles}}}\n{TRAFFIC}"


def _format_wide_halves() -> str:
    roles = (f"{role}: {{pool: p5en, accelerators: 16, data: 16, expert: on}}" for role in ("prefill", "decode"))
    return f"pattern: disaggregated\nmodel: {EXPERTS}\nroles: {{{', '.join(roles)}}}\n{TRAFFIC}"


CASES = [
    *((_format_blueprint(SMALL, "pool: general", TUNED.replace("SPECULATIVE", method)), "eks") for method in SPECULATIVE),
    (_format_blueprint(EXPERTS, "pool: p5en, accelerators: 8", TUNED.replace("SPECULATIVE", "mtp")), "eks"),
    (_format_blueprint(SMALL, "pool: general", "tuning: {quantization: fp8}\n"), "eks"),
    (_format_blueprint("meta-llama/Llama-3.1-405B-Instruct-FP8", "pool: p5en, accelerators: 8"), "eks"),
    (_format_blueprint(SMALL, "pool: general, accelerators: 4, data: 2, adapters: {sql: 's3://demo-models-123456789012-us-west-2/sql'}"), "eks"),
    (_format_blueprint(SMALL, "pool: on-ecs"), "ecs"),
    *((_format_blueprint(EXPERTS, f"pool: p5en, accelerators: 16, {parallelism}", pattern="distributed"), "eks") for parallelism in (
        "pipeline: 2, expert: on",
        "data: 16, expert: on",
    )),
    *((_format_disaggregated(pool), "eks") for pool in ("general", "p5en")),
    (_format_wide_halves(), "eks"),
    (_format_disaggregated("general").replace(SMALL, "tiny"), "local"),
    (_format_blueprint("tiny", "pool: general", "", "aggregated").replace("}}", "}, router: {policy: kv-aware}}"), "local"),
    *((_format_blueprint(SMALL, f"pool: {pool}").replace("}}", "}, router: {policy: kv-aware}}"), target) for pool, target in (
        ("general", "eks"),
        ("on-ecs", "ecs"),
    )),
    (_format_blueprint("tiny", "pool: general, accelerators: 2"), "local"),
    (_format_blueprint("tiny", "pool: general, max_requests: 8"), "local"),
    (_format_blueprint("tiny", "pool: general, accelerators: 2, data: 2"), "local"),
    *((_format_blueprint(SMALL, f"pool: {pool}, accelerators: 2, data: 2").replace("}}", "}, router: {policy: cache-aware}}"), target) for pool, target in (
        ("general", "eks"),
        ("on-ecs", "ecs"),
    )),
    (_format_blueprint("Qwen/Qwen3-0.6B", "pool: general", "tuning: {priority: on}\ntraces: http://collector:4318/v1/traces\nlogs: json\n"), "eks"),
    (_format_blueprint("meta-llama/Llama-3.3-70B-Instruct", "pool: p5en, accelerators: 8"), "eks"),
    (_format_blueprint("Qwen/Qwen3-Reranker-0.6B", "pool: general", "task: rerank\n"), "eks"),
    *((_format_blueprint(SMALL, "pool: general", f"tuning: {{kv_tiers: {{ram: 8Gi, {tiers}}}}}\n"), "eks") for tiers in (
        "disk: 100Gi",
        "shared: {size: 1Ti, claim: kv}",
        "disk: 100Gi, shared: {size: 1Ti, claim: kv}",
    )),
    (f"pattern: multi-model\nroles: {{models: {{one: {{model: {SMALL}, pool: p5en}}, two: {{model: {SMALL}, shares: one}}}}}}\n{TRAFFIC}", "eks"),
]  # fmt: skip
"""Blueprints that ask for every option of the engine between them, and the target of each."""


def _list_serving_deployments() -> list[ServingDeployment]:
    """Every cell of the matrix that has engines behind a router, whose command lines no framework turns into others."""
    rows = frameworks.load_frameworks()
    return [
        cell.deployment
        for cell in matrix_cells.build_all()
        if isinstance(cell.deployment, ServingDeployment)
        and not (rows[cell.framework].module or rows[cell.framework].config)
    ]


def _resolve(folder: Path, text: str, target: str) -> ServingDeployment:
    endpoint = "http://127.0.0.1:20000"
    return resolving.resolve_files(folder, f"name: mine\n{text}", FLEET, target, cores=2, s3_endpoint=endpoint)


def _list_engine_arguments(deployments: Iterable[ServingDeployment]) -> list[list[str]]:
    """What the engine's own parser is given: all after `vllm serve`, whatever joins the machines before it."""
    lines = {
        line
        for deployment in deployments
        for worker in deployment.workers
        for line in (worker.command, worker.worker_command)
    }
    # Several engines in one service.
    commands = [command for line in lines for command in _split_at(line, "--engine") if "serve" in command]
    # Kubernetes fills in a follower's number before the engine sees it, and the templates lie in the engine's image.
    filled = (
        [re.sub(r"^/vllm-workspace/.*", __file__, word.replace("$(LWS_WORKER_INDEX)", "1")) for word in command]
        for command in commands
    )
    return sorted(command[command.index("serve") + 1 :] for command in filled)


def _split_at(words: Sequence[str], divider: str) -> list[list[str]]:
    return [list(group) for is_divider, group in itertools.groupby(words, divider.__eq__) if not is_divider]


def _list_all_engine_arguments(folder: Path) -> list[list[str]]:
    deployments = (cell.deployment for cell in matrix_cells.build_all() if cell.engine == "vllm")
    return _list_engine_arguments(
        [*(deployment for deployment in deployments if deployment), *(_resolve(folder, *case) for case in CASES)]
    )


def test_the_command_lines_that_are_parsed_name_every_flag_of_the_catalog(tmp_path: Path) -> None:
    row = engines.load_engines()["vllm"]
    parts = [*row.options.values(), *row.transfers.values(), row.streaming, row.other_s3, *row.platforms.values()]
    parts += [option for platform in row.platforms.values() for option in platform.options.values()]
    flags = {text for part in parts for text in part.arguments if text.startswith("--")}
    used_flags = {word for line in _list_all_engine_arguments(tmp_path) for word in line if word.startswith("--")}
    assert flags - used_flags == set()


@pytest.mark.engine
def test_the_engine_parses_every_command_line_and_refuses_an_unknown_flag(
    tmp_path: Path, engine_probe: EngineProbe
) -> None:
    lines = _list_all_engine_arguments(tmp_path)
    answers = engine_probe("vllm", [*lines, [*lines[0], "--no-such-flag", "1"]])
    assert [line for line, answer in zip(lines, answers, strict=False) if "result" not in answer] == []
    assert answers[-1] == {"refused": 2}
    assert len(answers) == len(lines) + 1


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("local", "--worker=127.0.0.1:20003 --worker=127.0.0.1:20004"),
        ("eks", "--worker=$(RELEASE)-one.$(NAMESPACE):8000 --worker=$(RELEASE)-two.$(NAMESPACE):8000"),
        ("ecs", "--worker=mine-one.demo.internal:8000 --worker=mine-two.demo.internal:8000"),
    ],
)
def test_router_dns_discovery_registers_the_engines_of_several_models(
    tmp_path: Path, target: str, arguments: str
) -> None:
    pool = "on-ecs" if target == "ecs" else "general"
    model = f"{{model: tiny, pool: {pool}}}"
    text = f"pattern: multi-model\nroles: {{models: {{one: {model}, two: {model}}}}}\n{TRAFFIC}"
    deployment = _resolve(tmp_path, text, target)
    command = " ".join(deployment.entries[0].command)
    admin = f"127.0.0.1:{deployment.environment.ports.get('router-admin', 8081)}"
    assert f"--router={admin} -- router-dns-discovery --router=http://{admin} {arguments} -- vllm-router " in command
    assert command.endswith(" --enable-igw")
    assert deployment.model_names == ("one", "two"), "what clients put in `model`"
    assert [flag[flag.index("--served-model-name") + 1] for flag in _list_engine_arguments([deployment])] == [
        "one",
        "two",
    ]


@pytest.mark.parametrize("target", ["local", "eks", "ecs"])
def test_clients_of_several_models_may_use_hub_ids(tmp_path: Path, target: str) -> None:
    pool = "on-ecs" if target == "ecs" else "general"
    text = (
        "pattern: multi-model\nroles:\n  models:\n"
        f"    one: {{model: tiny, pool: {pool}, served_name: acme/Tiny-0.1}}\n    two: {{model: tiny, pool: {pool}}}\n{TRAFFIC}"
    )
    deployment = _resolve(tmp_path, text, target)
    assert deployment.model_names == ("acme/Tiny-0.1", "two")
    arguments = _list_engine_arguments([deployment])
    assert {line[line.index("--served-model-name") + 1] for line in arguments} == {"acme/Tiny-0.1", "two"}
    assert [role.name for role in deployment.engine_roles] == ["one", "two"], "what services and files are named after"
    assert {process.probe.body["model"] for process in deployment.workers if process.probe} == {
        "acme/Tiny-0.1",
        "two",
    }


@pytest.mark.parametrize(
    ("target", "pool", "name"),
    [("eks", "general", "$(RELEASE)-worker.$(NAMESPACE):8000"), ("ecs", "on-ecs", "mine-worker.demo.internal:8000")],
)
def test_a_kv_aware_router_discovers_replicas_and_subscribes_to_their_events(
    tmp_path: Path, target: str, pool: str, name: str
) -> None:
    deployment = _resolve(
        tmp_path, _format_blueprint(SMALL, f"pool: {pool}").replace("}}", "}, router: {policy: kv-aware}}"), target
    )
    command = deployment.entries[0].command
    assert command[4:8] == ("router-dns-discovery", "--router=http://127.0.0.1:8081", f"--worker={name}", "--")
    assert "--enable-igw" not in command, "with it vllm-router asks no engine for its events"
    registry = "123456789012.dkr.ecr.us-west-2.amazonaws.com/demo"
    assert (deployment.router.image, deployment.roles[0].image) == (
        f"{registry}/router:0.1.17-15",
        f"{registry}/vllm:0.32.0-efa.8",
    )
    [engine] = deployment.workers
    assert '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"' in " ".join(engine.command)
    assert engine.command[engine.command.index("--middleware") + 1] == "event_sources.EventSources"
    assert engine.env["PYTHONPATH"] == "/opt/vllm"
    assert engine.ports == {"events": 5557, "replay": 5558}


@pytest.mark.parametrize("policy", ["load-aware", "kv-aware"])
def test_a_limit_of_requests_at_a_replica_takes_the_image_with_its_module(tmp_path: Path, policy: str) -> None:
    text = _format_blueprint(SMALL, "pool: general, max_requests: 48")
    text = text.replace("}}", f"}}, router: {{policy: {policy}}}}}")
    deployment = _resolve(tmp_path, text, "eks")
    [engine] = deployment.workers
    words = engine.command
    assert words[words.index("--max-num-queued-reqs") + 1] == "48"
    modules = [word for flag, word in itertools.pairwise(words) if flag == "--middleware"]
    assert modules == ["bounded_queue.BoundedQueue", *(["event_sources.EventSources"] if policy == "kv-aware" else [])]
    assert engine.env["PYTHONPATH"] == "/opt/vllm"
    assert deployment.roles[0].image.endswith("/vllm:0.32.0-efa.8")
    without = _resolve(tmp_path, text.replace(", max_requests: 48", ""), "eks")
    assert "--max-num-queued-reqs" not in without.workers[0].command
    assert without.roles[0].image.endswith("/vllm:0.32.0-efa.8") == (policy == "kv-aware")


def test_a_local_kv_aware_router_registers_replicas_once_they_answer(tmp_path: Path) -> None:
    """A router that registers all replicas at its start misses the events of those that answer later."""
    text = _format_blueprint("tiny", "pool: general", "", "aggregated").replace("}}", "}, router: {policy: kv-aware}}")
    deployment = _resolve(tmp_path, text, "local")
    command = deployment.entries[0].command
    workers = [f"--worker={process.host}:{process.port}" for process in deployment.workers]
    separator = command.index("--", command.index("--") + 1)
    assert command[separator - len(workers) : separator] == tuple(workers)
    assert "--worker-urls" not in command


def test_every_router_listens_on_loopback_behind_a_front_that_takes_its_port() -> None:
    deployments = _list_serving_deployments()
    assert {deployment.environment.target for deployment in deployments} == {"local", "eks", "ecs"}
    for deployment in deployments:
        [process] = deployment.entries
        front, listen, router, *rest = process.command
        if deployment.stack and deployment.stack.router_container:
            assert (front, router) == ("router-front", f"--router=127.0.0.1:{deployment.stack.router_container.port}")
            continue
        [arguments] = _list_router_arguments([deployment], ("vllm-router", "sglang_router.launch_router"))
        assert front == "router-front"
        limits = ["--max-requests=64"] if deployment.pattern == "real-time" else []
        assert rest[: rest.index("--")] == limits
        host = deployment.environment.conventions.bind_host
        assert listen == f"--listen={host}:{process.port}"
        router_host, router_port = (arguments[arguments.index(name) + 1] for name in ("--host", "--port"))
        assert router == f"--router={router_host}:{router_port}"
        assert ipaddress.ip_address(router_host).is_loopback
        assert router_port != str(process.port)
        assert arguments[arguments.index("--cors-allowed-origins") + 1] == "http://none.invalid"


def _list_router_arguments(
    deployments: Iterable[ServingDeployment], programs: tuple[str, ...] = ("vllm-router",)
) -> list[list[str]]:
    """What the parser of a router is given, whatever finds the engines for it; of other routers nothing."""
    commands = [process.command for deployment in deployments for process in deployment.entries]
    lines = {line[number + 1 :] for line in commands for number, word in enumerate(line) if word.endswith(programs)}
    return [list(line) for line in sorted(lines)]


@pytest.mark.engine
def test_the_router_parses_every_command_line_and_refuses_an_unknown_policy(
    tmp_path: Path, engine_probe: EngineProbe
) -> None:
    deployments = _list_serving_deployments()
    lines = _list_router_arguments([*deployments, *(_resolve(tmp_path, *case) for case in CASES)])
    [command] = _list_router_arguments([_resolve_aggregated()])
    policy_index = command.index("--policy") + 1
    words = [*routers.load_routers()["vllm-router"].policies.values(), "no_such_policy"]
    answers = engine_probe(
        "vllm-router", [*lines, *([*command[:policy_index], word, *command[policy_index + 1 :]] for word in words)]
    )
    assert [line for line, answer in zip(lines, answers, strict=False) if "result" not in answer] == []
    assert answers[len(lines) :] == [{"result": 20005}] * (len(words) - 1) + [{"refused": 2}]
    used_flags = {word.partition("=")[0] for line in lines for word in line}
    assert {"--prefill", "--decode", "--enable-igw", "--selector", "--worker-urls"} <= used_flags


LOAD_VOCABULARY = """
from openai_harmony import HarmonyEncodingName, load_harmony_encoding
print(load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS).name)
"""


@pytest.mark.engine
def test_the_engine_brings_the_vocabulary_of_gpt_oss_and_downloads_none(tmp_path: Path) -> None:
    """Chat with gpt-oss needs it; a file elsewhere is read where a variable names its folder, here an empty one."""
    python = str(engines_own.find_executables() / "python")
    environment = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "TMPDIR": str(tmp_path)}
    for other, code in (({}, 0), ({"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}, 1)):
        result = subprocess.run(
            [python, "-c", LOAD_VOCABULARY], env=environment | other, capture_output=True, timeout=120, check=False
        )
        assert result.returncode == code, result.stderr
