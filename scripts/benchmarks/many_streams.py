"""Hold thousands of streams at once with the load driver's processes, beside the server of known delays.

    python -m scripts.benchmarks.many_streams [--streams 5000] [--itl-ms 1000] [--tokens 60]

The server and the driver share this machine. Requests come in the open loop at the rate that keeps so many streams
open; the processes follow from that load and the cores, as in `blueprint validate`. Printed are the most streams at
once, the error of the driver's times against the server's own of the same run, and what kept the driver from its work.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import urllib.request
from pathlib import Path

from llm_serving import console, processes, program
from llm_serving.services.traffic import Traffic
from llm_serving.validation import driver_result, load_plan, run, sample_statistics, time_series
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import DriverResult
from llm_serving.validation.load_plan import LoadPlan
from scripts.benchmarks import known_server
from scripts.benchmarks.known_server import Behaviour

TTFT_S = 0.5
TURNS = 1.2
"""Requests for each of the streams at once: the last fifth starts when the first ones end."""


def measure(streams: int, itl_s: float, tokens: int) -> None:
    """Send the load and print what came of it."""
    length_s = TTFT_S + itl_s * (tokens - 1)
    traffic = Traffic.model_validate(
        {
            "arrivals": f"{streams / length_s:.3f}/s", "process": "constant", "requests": round(streams * TURNS),
            "input_tokens": 16, "output_tokens": tokens, "deadline": f"{2 * length_s:.0f}s", "warm_up": 0,
        }
    )  # fmt: skip
    processes.allow_many_files()  # each stream is one, in the server too
    with known_server.run_server(Behaviour(TTFT_S, itl_s)) as url, tempfile.TemporaryDirectory() as folder:
        plan = LoadPlan(
            url=url, models=("known",), traffic=traffic, folder=folder,
            processes=load_plan.count_processes(traffic, os.cpu_count() or 1),
        )  # fmt: skip
        (Path(folder) / driver_result.PLAN_FILE).write_text(plan.model_dump_json(), encoding="utf-8")
        run.run_locust(plan, run.LOCUSTFILE)
        result, samples = run.collect(plan)
        with urllib.request.urlopen(f"{url}/known", timeout=60) as response:
            truth = json.load(response)
    _print_result(result, samples, truth)


def _print_result(result: DriverResult, samples: list[Sample], truth: dict[str, list[float]]) -> None:
    answered = [sample for sample in samples if sample.error is None]
    most = max(time_series.compute_in_flight(answered, 0.5))
    console.out.print(
        f"{len(answered)} of {len(samples)} requests answered, {most:,.0f} streams at once, "
        f"{sum(sample.output_tokens or 0 for sample in answered) / result.duration_s:,.0f} tokens/s"
    )
    measured = {
        "TTFT": [sample.ttft_ms or 0.0 for sample in answered],
        "ITL": [gap.ms for sample in answered for gap in sample.gaps],
    }
    for name, key in (("TTFT", "ttft_s"), ("ITL", "itl_s")):
        client = sample_statistics.summarize_latency(measured[name])
        server = sample_statistics.summarize_latency([value * 1000 for value in truth[key]])
        console.out.print(
            f"{name} p50 {client.p50:.1f} ms ({(client.p50 or 0) - (server.p50 or 0):+.1f} from the server's), "
            f"p99 {client.p99:.1f} ms ({(client.p99 or 0) - (server.p99 or 0):+.1f})"
        )
    for index, process in enumerate(result.processes):
        queue = "unknown" if process.queue_share is None else f"{process.queue_share:.0%}"
        late = f"timer late {process.lag_p99_ms} ms (p99)"
        console.out.print(f"process {index}: {process.cpu_share:.0%} of a core, waited for one {queue}, {late}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=5000, help="streams at once")
    parser.add_argument("--itl-ms", type=float, default=1000.0, help="inter-token latency of each")
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each")
    args = parser.parse_args()
    measure(args.streams, args.itl_ms / 1000, args.tokens)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
