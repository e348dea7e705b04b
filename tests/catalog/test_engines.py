"""The engines' rows: what they may ask for, and that the engine's own parsers know every flag that they name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from llm_serving.catalog import engines
from llm_serving.catalog.engines import Part
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import load
from llm_serving.targets import matrix
from llm_serving.workloads.serving import resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment, Place
from llm_serving.workloads.serving.roles import Policy
from tests.engines_own import Asked
from tests.workloads.serving import resolving

ROOT = Path(__file__).parents[2]


def _deployment() -> Deployment:
    names = ("aws", "worker-0", "worker-1", "router", "router-metrics")
    place = Place(
        target="local",
        region="us-west-2",
        bucket="demo-models",
        s3_endpoint="http://127.0.0.1:20000",
        data="/run/mine",
        sockets="/run/mine/tmp",
        ports={name: 20000 + number for number, name in enumerate(names)},
        cores=2,
    )
    return resolve.resolve(
        load(ROOT / "blueprints/aggregated/blueprint.yaml", Blueprint), load(ROOT / "fleet.yaml", Fleet), place
    )


def test_a_value_that_does_not_exist_is_refused_when_the_row_is_read() -> None:
    with pytest.raises(ValidationError, match="no value is called colour"):
        Part.model_validate({"arguments": ["--colour", "{colour}"]})


def test_a_list_of_values_becomes_an_argument_each() -> None:
    assert engines.arguments(["--to", "{workers}"], {"workers": ("a", "b")}) == ("--to", "a", "b")


def test_a_later_part_of_an_environment_wins() -> None:
    assert engines.environment([{"A": "1", "B": "{port}"}, {"A": "2"}], {"port": 3}) == {"A": "2", "B": "3"}


def test_every_policy_of_a_blueprint_is_known_to_every_router() -> None:
    wanted = set(get_args(Policy))
    assert all(set(row.policies) == wanted for row in engines.routers().values())


FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b, us-west-2c]
orchestrator: both
pools:
  general: {types: g6e.12xlarge, size: 0..4}
  on-ecs: {types: g6e.12xlarge, size: 0..4, orchestrator: ecs}
  p5en: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on}
"""
TRAFFIC = "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
SMALL, EXPERTS = "Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3"
TUNED = (
    "tuning: {kv_cache: fp8, prefix_cache: off, chunked_prefill: off, batch_tokens: 8k, sequences: 32, "
    "kv_offload: 8Gi, speculative: {method: SPECULATIVE}}\n"
)
SPECULATIVE = ("ngram", "mtp", f"eagle, model: {SMALL}", f"eagle3, model: {SMALL}", f"draft_model, model: {SMALL}")


def _one(model: str, worker: str, rest: str = "", pattern: str = "aggregated") -> str:
    return f"pattern: {pattern}\nmodel: {model}\nroles: {{worker: {{{worker}}}}}\n{rest}{TRAFFIC}"


def _apart(pool: str) -> str:
    roles = f"prefill: {{pool: {pool}}}, decode: {{pool: {pool}, accelerators: 2}}"
    return f"pattern: disaggregated\nmodel: {SMALL}\nroles: {{{roles}}}\n{TRAFFIC}"


CASES = [
    *((_one(SMALL, "pool: general", TUNED.replace("SPECULATIVE", said)), "eks") for said in SPECULATIVE),
    (_one(SMALL, "pool: general", "tuning: {quantization: fp8}\n"), "eks"),
    (_one(SMALL, "pool: general, accelerators: 4, data: 2, adapters: {sql: 's3://mine/sql'}"), "eks"),
    (_one(SMALL, "pool: on-ecs"), "ecs"),
    *((_one(EXPERTS, f"pool: p5en, accelerators: 16, {how}", pattern="distributed"), "eks") for how in (
        "pipeline: 2, expert: on",
        "pipeline: 2, expert: on, executor: ray",
        "data: 16, expert: on",
    )),
    *((_apart(pool), "eks") for pool in ("general", "p5en")),
    (_apart("general").replace(SMALL, "tiny"), "local"),
    (_one("tiny", "pool: general", "", "aggregated").replace("}}", "}, router: {policy: kv-aware}}"), "local"),
    *((_one(SMALL, f"pool: {pool}").replace("}}", "}, router: {policy: kv-aware}}"), target) for pool, target in (
        ("general", "eks"),
        ("on-ecs", "ecs"),
    )),
    (_one("tiny", "pool: general, accelerators: 2"), "local"),
    (_one("tiny", "pool: general, accelerators: 2, data: 2"), "local"),
]  # fmt: skip
"""Blueprints that ask for every option of the engine between them, and the target of each."""


def _resolved(folder: Path, text: str, target: str) -> Deployment:
    endpoint = "http://127.0.0.1:20000"
    return resolving.resolved(folder, f"name: mine\n{text}", FLEET, target, cores=2, s3_endpoint=endpoint)


def _lines(deployments: Iterable[Deployment]) -> list[list[str]]:
    """What the engine's own parser is given: all after `vllm serve`, whatever joins the machines before it."""
    commands = {process.command for made in deployments for process in made.replicas if "serve" in process.command}
    # Kubernetes fills in a follower's number before the engine sees it.
    filled = ([word.replace("$(LWS_WORKER_INDEX)", "1") for word in command] for command in commands)
    return sorted(command[command.index("serve") + 1 :] for command in filled)


def _asked(folder: Path) -> list[list[str]]:
    every = (cell.deployment for cell in matrix.cells())
    return _lines([*(made for made in every if made), *(_resolved(folder, *case) for case in CASES)])


def test_the_command_lines_that_are_parsed_name_every_flag_of_the_catalogue(tmp_path: Path) -> None:
    row = engines.engines()["vllm"]
    parts = [*row.options.values(), *row.transfers.values(), row.streaming, row.other_s3, *row.platforms.values()]
    parts += [option for platform in row.platforms.values() for option in platform.options.values()]
    flags = {text for part in parts for text in part.arguments if text.startswith("--")}
    named = {word for line in _asked(tmp_path) for word in line if word.startswith("--")}
    assert flags - named == set()


@pytest.mark.engine
def test_the_engines_own_parser_takes_every_command_line_and_refuses_an_unknown_flag(
    tmp_path: Path, asked: Asked
) -> None:
    lines = _asked(tmp_path)
    said = asked("vllm", [*lines, [*lines[0], "--no-such-flag", "1"]])
    assert [line for line, answer in zip(lines, said, strict=False) if "said" not in answer] == []
    assert said[-1] == {"refused": 2}
    assert len(said) == len(lines) + 1


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("local", "--worker=127.0.0.1:20002 --worker=127.0.0.1:20003"),
        ("eks", "--worker=mine-one.serving:8000 --worker=mine-two.serving:8000"),
        ("ecs", "--worker=mine-one.demo.internal:8000 --worker=mine-two.demo.internal:8000"),
    ],
)
def test_of_many_models_the_router_is_told_by_what_runs_it(tmp_path: Path, target: str, told: str) -> None:
    pool = "on-ecs" if target == "ecs" else "general"
    model = f"{{model: tiny, pool: {pool}}}"
    text = f"pattern: multi-model\nroles: {{models: {{one: {model}, two: {model}}}}}\n{TRAFFIC}"
    made = _resolved(tmp_path, text, target)
    said = " ".join(made.router.processes[0].command)
    assert said.startswith(f"follow --router=http://127.0.0.1:{made.router.processes[0].port} {told} -- vllm-router ")
    assert said.endswith(" --enable-igw")
    assert made.names == ("one", "two"), "what clients put in `model`"
    assert [flag[flag.index("--served-model-name") + 1] for flag in _lines([made])] == ["one", "two"]


@pytest.mark.parametrize(
    ("target", "pool", "name"),
    [("eks", "general", "mine-worker.serving:8000"), ("ecs", "on-ecs", "mine-worker.demo.internal:8000")],
)
def test_by_events_the_router_is_told_of_replicas_and_they_tell_it_where_to_listen(
    tmp_path: Path, target: str, pool: str, name: str
) -> None:
    made = _resolved(tmp_path, _one(SMALL, f"pool: {pool}").replace("}}", "}, router: {policy: kv-aware}}"), target)
    said = made.router.processes[0].command
    assert said[:4] == ("follow", "--router=http://127.0.0.1:8080", f"--worker={name}", "--")
    assert "--enable-igw" not in said, "with it vllm-router asks no engine for its events"
    registry = "123456789012.dkr.ecr.us-west-2.amazonaws.com/demo"
    assert (made.router.image, made.roles[0].image) == (f"{registry}/router:0.1.17", f"{registry}/vllm:0.32.0-efa")
    [engine] = made.replicas
    assert '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"' in " ".join(engine.command)
    assert engine.command[engine.command.index("--middleware") + 1] == "event_sources.EventSources"
    assert engine.environment["PYTHONPATH"] == "/opt/vllm"
    assert made.roles[0].ports == {"events": 5557, "replay": 5558}


def test_by_events_the_router_is_told_here_too_of_replicas_that_answer_already(tmp_path: Path) -> None:
    """Told of all at its start, it never hears one that answers after the first."""
    text = _one("tiny", "pool: general", "", "aggregated").replace("}}", "}, router: {policy: kv-aware}}")
    made = _resolved(tmp_path, text, "local")
    said = made.router.processes[0].command
    workers = [f"--worker=127.0.0.1:{process.port}" for process in made.replicas]
    at = said.index("--")
    assert said[at - len(workers) : at] == tuple(workers)
    assert "--worker-urls" not in said


def _routers(deployments: Iterable[Deployment]) -> list[list[str]]:
    """What the router's own parser is given, whatever finds the engines for it."""
    commands = [process.command for made in deployments for process in made.router.processes]
    at = [next(number for number, word in enumerate(line) if word.endswith("vllm-router")) for line in commands]
    lines = {line[number + 1 :] for line, number in zip(commands, at, strict=True)}
    return [list(line) for line in sorted(lines)]


@pytest.mark.engine
def test_the_routers_own_parser_takes_every_command_line_with_every_policy_and_refuses_an_unknown_one(
    tmp_path: Path, asked: Asked
) -> None:
    every = [cell.deployment for cell in matrix.cells() if cell.deployment]
    lines = _routers([*every, *(_resolved(tmp_path, *case) for case in CASES)])
    command = list(_deployment().router.processes[0].command[1:])
    at = command.index("--policy") + 1
    words = [*engines.routers()["vllm-router"].policies.values(), "no_such_policy"]
    said = asked("vllm-router", [*lines, *([*command[:at], word, *command[at + 1 :]] for word in words)])
    assert [line for line, answer in zip(lines, said, strict=False) if "said" not in answer] == []
    assert said[len(lines) :] == [{"said": 20003}] * (len(words) - 1) + [{"refused": 2}]
    named = {word.partition("=")[0] for line in lines for word in line}
    assert {"--prefill", "--decode", "--enable-igw", "--selector", "--worker-urls"} <= named
