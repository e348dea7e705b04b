"""The engine's and the router's own parsers of command lines, each in one process for all tests that ask it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from scripts.local import engine_env

Parsed = Callable[[str, Sequence[Sequence[str]]], list[str]]
"""Of a program, vllm or vllm-router, and command lines: `parsed PORT` or `refused STATUS` of each."""

# Runs in the engine's environment: reads command lines from standard input, one of JSON a line, and answers each.
_ANSWERS = """
import json, sys
{imports}
for line in sys.stdin:
    try:
        parsed = {parse}
        print("parsed", parsed.port, flush=True)
    except SystemExit as end:
        print("refused", end.code, flush=True)
"""
_PROGRAMS = {
    "vllm": _ANSWERS.format(
        imports="""\
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
def read(words):
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    validate_parsed_serve_args(parsed)
    return parsed""",
        parse="read(json.loads(line))",
    ),
    "vllm-router": _ANSWERS.format(
        imports="from vllm_router.launch_router import parse_router_args", parse="parse_router_args(json.loads(line))"
    ),
}


@contextmanager
def running() -> Iterator[Parsed]:
    """Starts a program's parser when it is first asked, and ends all of them with the block."""
    with ExitStack() as until_the_end:
        started: dict[str, subprocess.Popen[str]] = {}

        def ask(program: str, lines: Sequence[Sequence[str]]) -> list[str]:
            if program not in started:
                started[program] = until_the_end.enter_context(_start(program))
            return [_answer(started[program], line) for line in lines]

        yield ask


@contextmanager
def _start(program: str) -> Iterator[subprocess.Popen[str]]:
    parser = subprocess.Popen(
        [str(engine_env.executables() / "python"), "-c", _PROGRAMS[program]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    try:
        yield parser
    finally:
        parser.kill()
        parser.communicate()


def _answer(parser: subprocess.Popen[str], line: Sequence[str]) -> str:
    assert parser.stdin and parser.stdout
    print(json.dumps(list(line)), file=parser.stdin, flush=True)
    for said in parser.stdout:
        if said.startswith(("parsed", "refused")):
            return said.strip()
    raise AssertionError(f"the parser ended at {line}")
