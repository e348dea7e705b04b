"""People's latencies at an endpoint that answers a batch too: with rows that give way to the SLO, and without.

    python -m scripts.benchmarks.batch_slo [--seconds 150]

The endpoint is a mock (batch_endpoint.py) that never queues: its answers take 0.1 to 0.3 s, and in proportion longer
while more than CROWD requests run. PEOPLE ask without a pause while workers send a batch. The SLO is `ttft_ms: {p95:
500}`, read from the endpoint's histogram, in which rows and people's requests are together. The first minute, in which
the workers find how many rows they can send, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from llm_serving import processes, program
from scripts.benchmarks import batch_kills
from scripts.benchmarks.batch_endpoint import TTFT
from scripts.benchmarks.batch_kills import BUCKET, BatchRun

PEOPLE, CROWD, LIMIT_S, ALLOWED = 8, 32, 0.5, 0.05
RAMP_S = 60.0
ROWS_PER_S = 200
"""More than the endpoint answers: a batch outlasts its measurement."""


def measure(folder: Path, seconds: float, slo: list[dict[str, Any]]) -> dict[str, Any]:
    """People's latencies and the rate of the rows, with these objectives."""
    settings: dict[str, Any] = {"is_shared": True, "objectives": slo}
    with batch_kills.start_run(folder, workers=2, delay_ms=200, slots=100_000, **settings) as run:
        jobs = run.open_jobs()
        request = urllib.request.Request(f"{run.endpoint}/crowd", str(CROWD).encode())
        urllib.request.urlopen(request, timeout=30).close()
        rows = {f"row-{number}": f"answer {number}" for number in range(int(seconds * ROWS_PER_S))}
        run.s3.put_object(Bucket=BUCKET, Key="rows", Body=batch_kills.format_rows(rows))
        job = jobs.submit("rows", team="default")

        def count_rows() -> int:
            return int(jobs.count(jobs.read(job["id"]))["request_counts"]["completed"])

        processes.wait_until(lambda: count_rows() > 0, "the first row", RAMP_S)
        before: list[int] = []
        timer = threading.Timer(RAMP_S, lambda: before.append(count_rows()))
        timer.start()
        latencies = ask_without_pause(run, seconds)
        timer.join()
        counted = count_rows() - before[0]
    late = sum(latency > LIMIT_S for latency in latencies)
    return {
        "slo": slo,
        "answers_to_people": len(latencies),
        "late_share": round(late / len(latencies), 4),
        "p95_s": round(statistics.quantiles(latencies, n=20)[-1], 3),
        "rows_per_s": round(counted / (seconds - RAMP_S), 1),
    }


def ask_without_pause(run: BatchRun, seconds: float) -> list[float]:
    """Have PEOPLE ask for so long; returns the seconds of each answer to a request after the first minute."""
    start, latencies = time.monotonic(), list[float]()

    def ask() -> None:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a person's"}]}).encode()
        url = f"{run.endpoint}/v1/chat/completions"
        while (sent := time.monotonic()) - start < seconds:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=60).close()
            if sent - start > RAMP_S:
                latencies.append(time.monotonic() - sent)

    people = [threading.Thread(target=ask) for _ in range(PEOPLE)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    return latencies


def main() -> None:
    """Measure both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="of each measurement, the first minute included")
    seconds = parser.parse_args().seconds
    for slo in ([{"metric": TTFT, "limit_s": LIMIT_S, "allowed": ALLOWED}], []):
        load = round(os.getloadavg()[0], 1)
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({**measure(Path(folder), seconds, slo), "load_before": load}), flush=True)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
