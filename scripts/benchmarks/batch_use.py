"""How much of its endpoint a batch uses: output tokens a second beside `vllm bench serve` on the same engines.

    blueprint new mine --from offline-batch
    blueprint deploy mine --yes
    python -m scripts.benchmarks.batch_use mine --apart

In each round `vllm bench serve` sends the sample's rows with each of several numbers of requests in flight, and then a
job of other rows of the same lengths runs. The job's rate is that between its first row and its last; the number
in flight is the workers' own to find. CPU seconds of a job's programs say what it costs beside the engines.

With --apart the engines have the first half of this machine's cores to themselves, as on a machine of their own;
router, client, workers and the embedded AWS share the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from llm_serving import console, program
from llm_serving.kinds.batch.client import BatchClient
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.validation import validate as batch
from llm_serving.kinds.batch.validation.sample import SampleRows
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import CheckFailed, InputError
from llm_serving.settings.units import Bounds
from llm_serving.targets import registry
from llm_serving.targets.local import supervisor
from llm_serving.targets.local.supervisor import Supervisor
from llm_serving.targets.local.target import LocalTarget
from llm_serving.validation import run
from llm_serving.validation.base import ValidationOptions

DRIVER = "vllm-bench"


def set_engines_apart(supervisord: Supervisor, deployment: BatchDeployment) -> None:
    """Give the engines the first half of this machine's cores, and all else the rest; what this starts inherits it.

    Raises:
        InputError: one core cannot be divided.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise InputError("--apart: one core. Fix: a machine with two or more.")
    first, rest = cores[: len(cores) // 2], cores[len(cores) // 2 :]
    assert supervisord.pid
    engines = {process.name for process in deployment.engine_processes}
    engine_pids = [state.pid for state in supervisord.list_states() if state.name in engines]
    for pid, own in [(os.getpid(), rest), (supervisord.pid, rest), *[(pid, first) for pid in engine_pids]]:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            for thread in member.threads():
                os.sched_setaffinity(thread.id, own)


def read_cpu_s(supervisord: Supervisor) -> Mapping[str, float]:
    """CPU seconds of each program of the deployment so far, its replicas together, and of this one."""
    cpu_s = {"this program": time.process_time()}
    for state in supervisord.list_states():
        if state.pid:
            process = psutil.Process(state.pid)
            times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
            name = state.name.rstrip("-0123456789")
            cpu_s[name] = cpu_s.get(name, 0.0) + sum(each.user + each.system for each in times)
    return cpu_s


def measure_driver(deployment: BatchDeployment, rows: SampleRows, in_flight: int, folder: Path) -> float:
    """Output tokens a second of the driver's answers to the sample's rows, with so many requests in flight."""
    assert deployment.serving
    sample = deployment.sample
    built = rows.build(sample.rows, secrets.token_hex(4))
    bodies = [json.loads(line)["body"] for custom_id, line in built if custom_id]
    prompts = [{"messages": body["messages"], "output_tokens": body["max_tokens"]} for body in bodies]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    traffic = Traffic.model_validate(
        {
            "users": in_flight,
            "requests": sample.rows,
            "data": "prompts.jsonl",
            "output_tokens": str(sample.output_tokens.max),
            "warm_up": in_flight,
        }
    )
    serving = deployment.serving.model_copy(update={"traffic": traffic})
    options = ValidationOptions(logs=folder / "logs", runs=folder / "runs", folder=folder, driver=DRIVER)
    report, _ = run.validate(serving, options)
    return report.throughput.output_tokens_per_s


def measure_job(deployment: BatchDeployment, rows: SampleRows, folder: Path) -> tuple[float, int]:
    """Output tokens a second of a job, and the most requests in flight that its workers had."""
    client = BatchClient(deployment.url)
    rows.write(deployment.sample.rows, folder / "input.jsonl")
    job, moments, _ = batch.run_job(deployment, client, folder)
    if job["request_counts"]["completed"] != deployment.sample.rows:
        raise CheckFailed(f"{job['id']}: {job['request_counts']}: not every row has an answer. Fix: blueprint logs.")
    return batch.compute_rate(moments), max(moment.in_flight for moment in moments)


def measure(
    deployment: BatchDeployment, supervisord: Supervisor, in_flight: Sequence[int], rounds: int, folder: Path
) -> dict[str, Any]:
    """Measure driver and job in turn; the use is the median job's share of the best median of the driver."""
    driver_rates: dict[int, list[float]] = {number: [] for number in in_flight}
    jobs, cpu_s = [], dict[str, list[float]]()
    rows = SampleRows.measure(deployment)
    for _ in range(rounds):
        for number, rates in driver_rates.items():
            rates.append(round(measure_driver(deployment, rows, number, folder), 1))
        before = read_cpu_s(supervisord)
        jobs.append(measure_job(deployment, rows, folder))
        for name, seconds in read_cpu_s(supervisord).items():
            cpu_s.setdefault(name, []).append(seconds - before.get(name, 0.0))
    best = max(statistics.median(rates) for rates in driver_rates.values())
    job_rates = [round(rate, 1) for rate, _ in jobs]
    return {
        "rows": deployment.sample.rows,
        "driver": driver_rates,
        "jobs": job_rates,
        "most in flight": [most for _, most in jobs],
        "cpu_s of a job": {name: round(statistics.mean(seconds), 1) for name, seconds in cpu_s.items()},
        "use": round(statistics.median(job_rates) / best, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a batch with a model of its own that is deployed on this machine")
    parser.add_argument("--fleet", type=Path, default=Path("fleet.yaml"))
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--apart", action="store_true", help="the engines have cores of their own")
    args = parser.parse_args()
    with (
        registry.load_target(registry.DEFAULT).open_validation(args.folder, args.fleet, None) as inputs,
        tempfile.TemporaryDirectory() as folder,
    ):
        deployment: Any = inputs.deployment
        if not isinstance(deployment, BatchDeployment) or deployment.serving is None:
            raise InputError(f"{args.folder}: no batch with a model of its own. Fix: --from offline-batch.")
        lengths = Bounds(args.output_tokens, args.output_tokens)
        sample = deployment.sample.model_copy(update={"rows": args.rows, "bad_rows": 0, "output_tokens": lengths})
        deployment = deployment.model_copy(update={"sample": sample})
        supervisord = supervisor.find_running(LocalTarget().find_directory(args.folder))
        assert supervisord
        if args.apart:
            set_engines_apart(supervisord, deployment)
        console.out.print_json(data=measure(deployment, supervisord, args.in_flight, args.rounds, Path(folder)))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
