"""The engines' rows: what they may ask for, and that the engine's own parsers know every flag that they name."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from blueprints import resolve
from blueprints.blueprint import Blueprint
from blueprints.catalog import engines
from blueprints.catalog.engines import Part
from blueprints.deployment import Deployment, Place
from blueprints.roles import Policy
from infra.fleet import Fleet
from infra.settings import load
from scripts.local import engine_env

ROOT = Path(__file__).parents[3]


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


# Runs in the engine's environment: parses each command line read from standard input, and prints what came of it.
PARSE = {
    "vllm": """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
for line in sys.stdin:
    try:
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(line))
        validate_parsed_serve_args(parsed)
        print("parsed", parsed.port)
    except SystemExit as end:
        print("refused", end.code)
""",
    "vllm-router": """
import json, sys
from vllm_router.launch_router import parse_router_args
for line in sys.stdin:
    try:
        print("parsed", parse_router_args(json.loads(line)).port)
    except SystemExit as end:
        print("refused", end.code)
""",
}


def _parse(program: str, lines: list[list[str]]) -> list[str]:
    answer = subprocess.run(
        [str(engine_env.executables() / "python"), "-c", PARSE[program]],
        input="\n".join(map(json.dumps, lines)) + "\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    return [line for line in answer.stdout.splitlines() if line.startswith(("parsed", "refused"))]


@pytest.mark.engine
def test_the_engines_own_parser_takes_every_command_line_and_refuses_an_unknown_flag() -> None:
    # The program and `serve` are not the parser's.
    lines = [list(process.command[2:]) for process in _deployment().replicas]
    said = _parse("vllm", [*lines, [*lines[0], "--no-such-flag", "1"]])
    assert said == ["parsed 20001", "parsed 20002", "refused 2"]


@pytest.mark.engine
def test_the_routers_own_parser_takes_its_command_line_with_every_policy_and_refuses_an_unknown_one() -> None:
    command = list(_deployment().router.processes[0].command[1:])
    at = command.index("--policy") + 1
    words = [*engines.routers()["vllm-router"].policies.values(), "no_such_policy"]
    said = _parse("vllm-router", [[*command[:at], word, *command[at + 1 :]] for word in words])
    assert said == ["parsed 20003"] * (len(words) - 1) + ["refused 2"]
