"""The engine's and its router's own code, in one process for all tests: an import of vLLM takes 8 CPU-seconds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from llm_serving.targets.local import engine_env

EngineProbe = Callable[[str, Sequence[Any]], list[dict[str, Any]]]
"""Takes a handler's name and questions, returns an answer to each; engine_answers.py has the handlers."""


def find_executables() -> Path:
    """Return the directory of the engine's executables, which scripts/test sets up."""
    return engine_env.ROOT / engine_env.FOLDER / "bin"


@contextmanager
def run() -> Iterator[EngineProbe]:
    """Start the process on first use, and end it with the block."""
    with ExitStack() as exit_stack:
        engine_processes: list[subprocess.Popen[str]] = []

        def ask(handler: str, questions: Sequence[Any]) -> list[dict[str, Any]]:
            if not engine_processes:
                engine_processes.append(exit_stack.enter_context(_start()))
            return [_ask(engine_processes[0], [handler, question]) for question in questions]

        yield ask


@contextmanager
def _start() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [find_executables() / "python", Path(__file__).with_name("engine_answers.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": "1",  # a fork has no other threads
            "TORCHINDUCTOR_CACHE_DIR": str(engine_env.ROOT / engine_env.FOLDER / "inductor"),
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str], question: list[Any]) -> dict[str, Any]:
    assert process.stdin and process.stdout
    print(json.dumps(question), file=process.stdin, flush=True)
    line = process.stdout.readline()
    assert line, f"the engine's own code ended at {question}"
    return dict(json.loads(line))
