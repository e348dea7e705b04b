"""Urgent requests under load, with the engine's priority scheduling and without: how long they take on the real vLLM.

    python -m scripts.benchmarks.priority [--rounds 3]

One vLLM on CPU with two sequences, as `tuning: {priority: on}` starts it. Eight users ask without a pause, each answer
32 tokens long, while one more user sends urgent requests of 8 tokens, one after the other. The rounds alternate: with
`priority: -1` the urgent requests overtake; with 0, as all others have, the engine takes requests in the order of their
arrival, which is what it does without priority scheduling. So the machine's speed is the same for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from rich.table import Table

from llm_serving import console, processes, program
from llm_serving.catalog import engines
from llm_serving.hub import make_tiny
from llm_serving.targets.local import engine_setups
from scripts.benchmarks.engines import build_command

ENGINE = "vllm"
USERS, SEQUENCES, URGENT_REQUESTS = 8, 2, 20
ANSWER_TOKENS, URGENT_TOKENS = 32, 8
START_LIMIT_S = 600.0
TITLES = {-1: "priority: -1", 0: "no priority"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    engine_setups.find(ENGINE).ensure()
    seconds: dict[int, list[float]] = {priority: [] for priority in TITLES}
    with tempfile.TemporaryDirectory(prefix="priority-") as name:
        folder = Path(name)
        [port] = processes.claim_free_ports(1)
        command, environment = build_command(ENGINE, str(make_tiny.make("tiny", folder / "tiny")), folder, port)
        row = engines.load_engines()[ENGINE]
        options = [*row.options["priority"].arguments, "--max-num-seqs", str(SEQUENCES)]
        with (folder / "engine.log").open("wb") as output:
            child = processes.spawn([*command, *options], cwd=folder, environment=environment, output=output)
        try:
            with console.step("Start vLLM"):
                processes.wait_until(lambda: is_answering(port), ENGINE, START_LIMIT_S)
            for number in range(rounds):
                for priority, measured in seconds.items():
                    with console.step(f"Round {number + 1}, {TITLES[priority]}"):
                        measured += measure_urgent(port, priority)
        finally:
            processes.stop(child)
    console.out.print(render(seconds))


def measure_urgent(port: int, priority: int) -> list[float]:
    """Seconds of each urgent request while the other users ask."""
    ended = threading.Event()

    def ask_without_pause() -> None:
        while not ended.is_set():
            complete(port, ANSWER_TOKENS, 0)

    users = [threading.Thread(target=ask_without_pause) for _ in range(USERS)]
    for user in users:
        user.start()
    try:
        time.sleep(1.0)  # a queue has formed
        return [complete(port, URGENT_TOKENS, priority) for _ in range(URGENT_REQUESTS)]
    finally:
        ended.set()
        for user in users:
            user.join()


def complete(port: int, tokens: int, priority: int) -> float:
    """Send a completion of exactly so many tokens; returns its seconds."""
    body = {"model": "tiny", "prompt": "The router", "max_tokens": tokens, "ignore_eos": True, "priority": priority}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()
    return time.monotonic() - start


def is_answering(port: int) -> bool:
    """Whether a completion is answered."""
    try:
        return complete(port, 1, 0) > 0
    except OSError:
        return False


def render(seconds: dict[int, list[float]]) -> Table:
    """Render median and 95th percentile of both, and how they differ."""
    table = Table("urgent requests", "count", "p50 s", "p95 s")
    quantiles = {priority: statistics.quantiles(values, n=20) for priority, values in seconds.items()}
    for priority, cuts in quantiles.items():
        table.add_row(TITLES[priority], str(len(seconds[priority])), f"{cuts[9]:.2f}", f"{cuts[18]:.2f}")
    with_it, without = quantiles.values()
    table.add_row("ratio", "", f"{without[9] / with_it[9]:.1f}", f"{without[18] / with_it[18]:.1f}")
    return table


if __name__ == "__main__":
    raise SystemExit(program.run(main))
