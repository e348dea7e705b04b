"""Benefit of prefix-aware routing, by the share of prompts that users repeat: simulated, not measured.

    python -m scripts.benchmarks.replay [--shares 0 25 50 80] [--arrivals 6] [--requests 1000]

Users return with prompts that share a beginning: a share of each prompt is the user's, the rest is new. Eight replicas
of Qwen3-32B, each on one of the eight H200 of a p5en.48xlarge, answer them. The same requests at the same times go
through each router, with few users and with many: each replica's cache holds the beginnings of the few, and only all
caches together those of the many.

Method: Dynamo's offline replay (`dynamo.replay`, version in the output) simulates the engines' schedulers and caches,
and runs its own router's code, on a simulated clock. The time of a step is from AIConfigurator's tables, composed of
kernels of this model that NVIDIA measured on H200 with vLLM. The size of a cache is from this project's memory
arithmetic. Nothing ran on an accelerator, and the simulation has no network.

The routers:

- round-robin: one after the other.
- load: Dynamo's router without caches in its cost. Stands for `load-aware`.
- seen: the same router with the prompts that it sent, instead of the engines' reports. Stands for `cache-aware`.
- kv-aware: the same router with the blocks that engines report.

vllm-router, which deployments run, is not simulated. Its cache_aware remembers prompts too, but uses them only if the
longest match is more than 30% of the prompt (`--cache-threshold`), and otherwise takes the replica with the fewest
requests; its power_of_two draws two replicas at random. Dynamo's cost counts tokens, not requests, and weighs them
against cached tokens. Without shared text, `load`, `seen` and `kv-aware` decide alike: differences are noise.

Dynamo is installed from requirements/replay.txt into a temporary environment.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from llm_serving import console, program
from llm_serving.catalog import instances, models
from llm_serving.engines import vllm
from llm_serving.validation import sample_statistics
from llm_serving.validation.sample_statistics import Latency

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "replay.txt"

MODEL, INSTANCE, SYSTEM, REPLICAS, TENSOR_PARALLEL = "Qwen/Qwen3-32B", "p5en.48xlarge", "h200_sxm", 8, 1
PROMPT_TOKENS, ANSWER_TOKENS = (4000, 12000), (100, 300)
"""Tokens, uniformly distributed. The talk that claims 20 to 40% has no lengths, only "long shared prefixes"."""

FEW_USERS, MANY_USERS = 16, 160
"""Users. At most 9,600 tokens of a prompt are shared: those of 16 users fit one replica's cache, of 160 all eight."""

TRACE_BLOCK = 64
"""Tokens of a trace's block; lengths are multiples of it."""

WARM_UP = 0.2
"""Share of the first requests, which fill the caches and are not counted."""

ROUTERS = ("round-robin", "load", "seen", "kv-aware")
CLAIMED_SAVING = "20 to 40%"
"""The talk's claim of how much KV-aware routing reduces end-to-end latency."""

LIMIT_S = 1800.0


class TrafficMix(NamedTuple):
    """A kind of traffic."""

    share: float
    """Share of each prompt that its user repeats."""

    users: int


class RouterResult(NamedTuple):
    """Simulated result of one router for one kind of traffic."""

    ttft: Latency
    e2e: Latency
    reused: float
    """Share of the prompts' tokens found in the cache."""


class ReplayResult(NamedTuple):
    """Results of the replay, and their basis."""

    results: Mapping[tuple[TrafficMix, str], RouterResult]
    prefill_ms: float
    """Prefill of a prompt of mean length, alone, from the timing table."""

    versions: Mapping[str, str]


def build_mixes(shares: Sequence[float]) -> list[TrafficMix]:
    """Return each share with few and with many users; without shared text their number does not matter."""
    return [
        TrafficMix(share, users) for share in shares for users in ((FEW_USERS, MANY_USERS) if share else (MANY_USERS,))
    ]


def generate_trace(mix: TrafficMix, requests: int, arrivals: float, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield requests in Mooncake's format, for Dynamo: milliseconds, lengths, and a number for each block.

    Two prompts share the beginning in which their numbers are equal. Arrivals are a Poisson process, `arrivals` per
    second.
    """
    rng = random.Random(seed)
    now, next_block = 0.0, mix.users * PROMPT_TOKENS[1]
    for _ in range(requests):
        now += rng.expovariate(arrivals) * 1000
        blocks = rng.randint(*PROMPT_TOKENS) // TRACE_BLOCK
        shared_blocks = int(blocks * mix.share)
        first = rng.randrange(mix.users) * PROMPT_TOKENS[1]
        block_ids = [*range(first, first + shared_blocks), *range(next_block, next_block + blocks - shared_blocks)]
        next_block += blocks - shared_blocks
        yield {
            "timestamp": now,
            "input_length": blocks * TRACE_BLOCK,
            "output_length": rng.randint(*ANSWER_TOKENS),
            "hash_ids": block_ids,
        }


def compute_cache_tokens() -> int:
    """Return the tokens of a replica's cache, from the memory arithmetic."""
    fit = vllm.compute_fit(
        models.find(MODEL), instances.find(INSTANCE), TENSOR_PARALLEL, context=PROMPT_TOKENS[1] + ANSWER_TOKENS[1]
    )
    return fit.cache_tokens


def replay(mixes: Sequence[TrafficMix], requests: int, arrivals: float, work: Path) -> ReplayResult:
    """Run every kind of traffic through every router."""
    traces = {str(work / f"{index}.jsonl"): mix for index, mix in enumerate(mixes)}
    for name, mix in traces.items():
        Path(name).write_text("".join(f"{json.dumps(entry)}\n" for entry in generate_trace(mix, requests, arrivals)))
    device = instances.find(INSTANCE).accelerators
    assert device is not None
    batch = vllm.select_batch(device)
    payload = {
        "model": MODEL, "system": SYSTEM, "tensor": TENSOR_PARALLEL, "replicas": REPLICAS,
        "cache_tokens": compute_cache_tokens(),
        "block": vllm.BLOCK_TOKENS, "batch_tokens": batch.tokens, "sequences": batch.sequences,
        "prompt_tokens": sum(PROMPT_TOKENS) / 2, "trace_block": TRACE_BLOCK, "traces": list(traces), "routers": ROUTERS,
    }  # fmt: skip
    (work / "request.json").write_text(json.dumps(payload))
    with console.step("Install Dynamo's replay"):
        python = _create_venv(work)
    with console.step(f"Replay {len(mixes)} kinds of traffic through {len(ROUTERS)} routers"):
        worker = Path(__file__).with_name("replay_dynamo.py")
        command = [str(python), str(worker), str(work / "request.json"), str(work / "response.json")]
        console.run(command, log=work / "replay.log", environment={"DYN_LOG": "error"}, timeout_s=LIMIT_S)
    response = json.loads((work / "response.json").read_text())
    results = {(traces[entry["trace"]], entry["router"]): _summarize_replay(entry) for entry in response["replays"]}
    return ReplayResult(results, response["prefill_ms"], response["versions"])


def _create_venv(work: Path) -> Path:
    """Create an environment with the packages of LOCK only; return its Python."""
    uv, python = str(Path(sys.executable).with_name("uv")), work / "venv" / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(work / "venv")],
        [uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--require-hashes", "-r", str(LOCK)],
    ):
        console.run(command, log=work / "environment.log", timeout_s=LIMIT_S)
    return python


def _summarize_replay(entry: Mapping[str, Any]) -> RouterResult:
    """Summarize a replay without its warm-up."""
    start = int(len(entry["ttft_ms"]) * WARM_UP)
    reused = sum(entry["reused_tokens"][start:]) / sum(entry["input_tokens"][start:])
    return RouterResult(
        sample_statistics.summarize_latency(entry["ttft_ms"][start:]),
        sample_statistics.summarize_latency(entry["e2e_ms"][start:]),
        reused,
    )


def build_table(results: Mapping[tuple[TrafficMix, str], RouterResult]) -> Table:
    """Build a table by traffic and router; its last column is the mean end-to-end latency against round robin."""
    title = f"Simulated: {MODEL}, {REPLICAS} replicas on {INSTANCE}; seconds at p50, p95, p99"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, collapse_padding=True)
    for column in ("shared", "cache", "router"):
        table.add_column(column)
    for column in ("TTFT s", "end to end s", "cached", "mean"):
        table.add_column(column, justify="right", no_wrap=True)
    for (mix, router), result in results.items():
        table.add_row(
            f"{mix.share:.0%}",
            ("ample" if mix.users == FEW_USERS else "short") if mix.share else "",
            router,
            _format_seconds(result.ttft, 2),
            _format_seconds(result.e2e, 1),
            f"{result.reused:.0%}",
            f"{compute_change(result, results[mix, 'round-robin']):+.1%}",
            end_section=router == ROUTERS[-1],
        )
    return table


def _format_seconds(latency: Latency, digits: int) -> str:
    return " ".join(f"{(ms or 0) / 1000:.{digits}f}" for ms in (latency.p50, latency.p95, latency.p99))


def compute_change(result: RouterResult, base: RouterResult) -> float:
    """Return the relative difference of the mean end-to-end latencies."""
    return (result.e2e.mean or 0.0) / (base.e2e.mean or 1.0) - 1


def format_notes(result: ReplayResult, arrivals: float) -> str:
    """Return the notes under the table: method, and comparison with the claim."""
    utilization = arrivals * result.prefill_ms / 1000 / REPLICAS
    best = min(
        compute_change(result.results[mix, "kv-aware"], result.results[mix, "round-robin"]) for mix, _ in result.results
    )
    dynamo, kernels = result.versions["ai-dynamo"], result.versions["aiconfigurator-core"]
    return (
        f"Every number is simulated by Dynamo {dynamo}'s offline replay. The time of a step is from the tables "
        f"of AIConfigurator {kernels} for vLLM on {SYSTEM}.\n"
        f"{arrivals:g} requests/s of {PROMPT_TOKENS[0]:,} to {PROMPT_TOKENS[1]:,} tokens, with answers of "
        f"{ANSWER_TOKENS[0]} to {ANSWER_TOKENS[1]}: without caches, prefill alone uses {utilization:.0%} of the "
        "replicas.\n"
        f"A replica's cache holds {compute_cache_tokens():,} tokens: the beginnings of {FEW_USERS} users (ample); "
        f"those of {MANY_USERS} only fit all caches together (short).\n"
        f"mean: of end-to-end latency, against round robin. kv-aware saves at most {-best:.0%} here; the talk claims "
        f"{CLAIMED_SAVING} at an unknown load.\n"
        "Description of the routers: scripts/benchmarks/replay.py."
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shares", nargs="+", type=float, default=[0, 25, 50, 80], help="percent of a prompt")
    parser.add_argument("--arrivals", type=float, default=6.0, help="requests per second")
    parser.add_argument("--requests", type=int, default=1000, help="of each kind of traffic")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replay-") as work:
        mixes = build_mixes([share / 100 for share in args.shares])
        result = replay(mixes, args.requests, args.arrivals, Path(work))
    console.out.print(build_table(result.results))
    console.out.print(format_notes(result, args.arrivals), markup=False)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
