"""llama.cpp beside vLLM on CPU, on the same made model: how soon each answers, its memory, and its tokens a second.

    python -m scripts.benchmarks.engines [--rounds 2]

Both load `tiny`, with the same numbers, as safetensors and as GGUF, from a folder of this machine, with one thread of
computation and the catalog's own settings. The engines run in turn, so that changes of the machine's speed affect both.
Method, of each start:

- first answer: from the start of the process to the first completion, on this process's clock, and CPU-seconds of all
  of its processes until then. On a machine that is busy with other work the CPU-seconds are the number to compare.
- memory: proportional set size of all of its processes after the load.
- tokens/s: one user, then eight at once, with eight prompts each of 250 to 350 tokens and 16 tokens of answer; output
  tokens a second, and the CPU-seconds of 1,000 of them with eight.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.table import Table

from llm_serving import console, processes, program
from llm_serving.catalog import engines, gguf
from llm_serving.hub import make_gguf, make_tiny
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.local import engine_setups

USERS, PROMPTS, ANSWER_TOKENS = (1, 8), 8, 16
START_LIMIT_S = 600.0
CONTEXT = 2048


class Result(NamedTuple):
    """One start and load of an engine."""

    first_answer_s: float
    start_cpu_s: float
    memory_bytes: int
    tokens_per_s: float
    """With one user."""

    tokens_per_s_of_many: float
    """With eight users at once."""

    load_cpu_s: float
    """Of 1,000 output tokens, with eight users."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="engines-") as name:
        folder = Path(name)
        weights = {
            "vllm": str(make_tiny.make("tiny", folder / "tiny")),
            "llama.cpp": str(make_gguf.make("tiny", folder / "gguf") / gguf.FILE),
        }
        for engine in weights:
            engine_setups.find(engine).ensure()
        results: dict[str, list[Result]] = {engine: [] for engine in weights}
        for _ in range(rounds):
            for engine, path in weights.items():
                with console.step(f"Measure {engine}") as step:
                    results[engine].append(measure(engine, path, folder))
                    step.note = f"first answer after {results[engine][-1].first_answer_s:.1f} s"
    console.out.print(render(results))


def measure(engine: str, weights: str, folder: Path) -> Result:
    """Start an engine, load it, and stop it."""
    [port] = processes.claim_free_ports(1)
    command, environment = build_command(engine, weights, folder, port)
    start = time.monotonic()
    with (folder / f"{engine}.log").open("wb") as output:
        child = processes.spawn(command, cwd=folder, environment=environment, output=output)
    try:
        processes.wait_until(lambda: _answers(port, child.poll()), engine, START_LIMIT_S)
        first_answer_s, start_cpu_s = time.monotonic() - start, _sum_cpu(child.pid)
        rates = []
        for users in USERS:
            cpu_before, load_start = _sum_cpu(child.pid), time.monotonic()
            with ThreadPoolExecutor(users) as pool:
                tokens = sum(pool.map(lambda user: _run_user(port, user), range(users)))
            rates.append(tokens / (time.monotonic() - load_start))
            load_cpu_s = (_sum_cpu(child.pid) - cpu_before) / tokens * 1000
        return Result(first_answer_s, start_cpu_s, _sum_memory(child.pid), rates[0], rates[1], load_cpu_s)
    finally:
        processes.stop(child)


def build_command(engine: str, weights: str, folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The engine's command line and environment by its row of the catalog, for weights in a folder."""
    row = engines.load_engines()[engine]
    platform, cache = row.platforms["cpu"], folder / f"cache-{engine}"
    options = [platform.options[name] for name in ("one-rank",) if name in platform.options]
    values: engines.Values = {
        # A row that reads a folder adds the file's name itself.
        "weights": weights.removesuffix(f"/{gguf.FILE}"),
        "served_model": "tiny",
        "host": "127.0.0.1",
        "port": port,
        "context": CONTEXT,
        "slots_context": max(USERS) * CONTEXT,
        "sequences": max(USERS),
        "threads": 1,
        "kv_bytes": 64 * 2**20,
        "cache": str(cache),
        "socket_folder": str(folder),
        "start_limit_s": int(START_LIMIT_S),
    }
    parts = (platform, *options)
    words = engines.fill_arguments((*row.command, *(text for part in parts for text in part.arguments)), values)
    environment = engines.fill_env((row.environment, *(part.environment for part in parts)), values)
    setup = engine_setups.find(engine)
    setup.prepare([cache])
    return [str(setup.executables / words[0]), *words[1:]], {**os.environ, **environment}


def _run_user(port: int, user: int) -> int:
    """Send a user's prompts; returns the tokens that were answered."""
    text = make_tiny.CORPUS.read_text(encoding="utf-8")
    starts = [7919 * (user * PROMPTS + number) % (len(text) - 1200) for number in range(PROMPTS)]
    return sum(_complete(port, text[start : start + 1200])["usage"]["completion_tokens"] for start in starts)


def _complete(port: int, prompt: str) -> Any:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def _answers(port: int, exit_code: int | None) -> bool:
    if exit_code is not None:
        raise CheckFailed(f"the engine ended with {exit_code} before it answered. Fix: run its command by hand.")
    try:
        return bool(_complete(port, "ready?"))
    except (OSError, urllib.error.URLError):
        return False


def _list_processes(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _sum_cpu(pid: int) -> float:
    times = [process.cpu_times() for process in _list_processes(pid)]
    return sum(time_.user + time_.system + time_.children_user + time_.children_system for time_ in times)


def _sum_memory(pid: int) -> int:
    return sum(process.memory_full_info().pss for process in _list_processes(pid))


def render(results: dict[str, list[Result]]) -> Table:
    """Render the medians of each engine, and how they differ."""
    columns = ("first answer s", "CPU s to it", "memory MB", "tokens/s, 1 user", "8 users", "CPU s per 1,000 tokens")
    table = Table("engine", *columns)
    medians = {engine: _compute_medians(rows) for engine, rows in results.items()}
    for engine, row in medians.items():
        table.add_row(
            engine,
            f"{row.first_answer_s:.2f}",
            f"{row.start_cpu_s:.2f}",
            f"{row.memory_bytes / 1e6:,.0f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.tokens_per_s_of_many:,.0f}",
            f"{row.load_cpu_s:.2f}",
        )
    first, second = medians.values()
    table.add_row("ratio", *(f"{left / right:.1f}" for left, right in zip(first, second, strict=True)))
    return table


def _compute_medians(rows: Sequence[Result]) -> Result:
    return Result(*(statistics.median(column) for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
