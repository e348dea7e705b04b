"""Weights streamed from S3 into the engine, compared with weights downloaded first and then loaded.

    python -m scripts.benchmarks.weights [--model mid] [--runs 3]

Both sides start the engine of the aggregated blueprint, one replica, from the same bucket on the same S3 server:
versitygw on loopback, since the embedded AWS serves only 10 MB/s. It is taken from PATH, or built once with Go into the
user's cache directory.

Method, on this process's clock unless noted:

- S3 to memory: streamed, from the streamer's line in the engine's log; downloaded, the time of a download by boto3 with
  the streamer's concurrency, plus the engine's line "Loading weights took".
- to the first answer: from the start of the download or of the engine to the first completion.
- on disk: size of the downloaded copy; streamed weights are never stored.

The server reads from the page cache, and downloaded files are loaded from it too: a fast disk for both sides. The sides
run in turn, so that changes of the machine's speed affect both.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from llm_serving import console, go_programs, processes
from llm_serving.hub import make_tiny, upload
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import BlueprintError, CheckFailed
from llm_serving.settings.units import format_bytes
from llm_serving.targets import planning
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import engine_env, readiness
from llm_serving.validation import weight_loading
from llm_serving.workloads.environment import Process
from llm_serving.workloads.serving.deployment import Deployment

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY = 16
"""The streamer's default concurrency (RUNAI_STREAMER_CONCURRENCY)."""

LIMIT_S = 900.0


class StartTimes(NamedTuple):
    """Seconds of one start."""

    to_memory_s: float
    to_answer_s: float
    disk_bytes: int


@dataclass(frozen=True)
class Bench:
    """Deployment and directory of both sides."""

    deployment: Deployment
    work: Path

    @property
    def worker(self) -> Process:
        return self.deployment.engine_processes[0]

    @property
    def log(self) -> Path:
        return self.work / "engine.log"


def measure_streamed(bench: Bench) -> StartTimes:
    """Measure an engine that streams from S3, as in a deployment."""
    start = time.monotonic()
    _run_until_answer(bench, bench.worker.command)
    answered_at = time.monotonic()
    loading = weight_loading.read(bench.deployment.served_models[0].weights, [bench.log])
    if loading.seconds is None:
        raise CheckFailed(f"the engine's log {bench.log} has no time of streaming")
    return StartTimes(loading.seconds, answered_at - start, 0)


def measure_downloaded(bench: Bench) -> StartTimes:
    """Measure a download, and an engine that loads the files."""
    folder = bench.work / "download"
    start = time.monotonic()
    _download(bench.deployment, folder)
    fetched_at = time.monotonic()
    uri, loader = bench.deployment.served_models[0].weights.uri, bench.deployment.served_models[0].weights.loader
    replacements = {uri: str(folder), loader: "safetensors"}
    _run_until_answer(bench, tuple(replacements.get(word, word) for word in bench.worker.command))
    answered_at = time.monotonic()
    matches = re.findall(r"Loading weights took ([\d.]+) seconds", bench.log.read_text(errors="replace"))
    if not matches:
        raise CheckFailed(f"the engine's log {bench.log} has no time of loading")
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return StartTimes(fetched_at - start + float(matches[-1]), answered_at - start, size)


def _download(deployment: Deployment, folder: Path) -> None:
    import boto3.s3.transfer

    folder.mkdir()
    environment = deployment.environment
    bucket, _, prefix = deployment.served_models[0].weights.uri.removeprefix("s3://").partition("/")
    client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
    transfer_config = boto3.s3.transfer.TransferConfig(max_concurrency=CONCURRENCY)
    for entry in client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
        client.download_file(bucket, entry["Key"], str(folder / Path(entry["Key"]).name), Config=transfer_config)


def _run_until_answer(bench: Bench, command: tuple[str, ...]) -> None:
    """Start the engine, wait for a completion, and stop it."""
    process = bench.worker
    with bench.log.open("wb") as sink:
        child = processes.spawn(command, environment=process.env, output=sink)
        try:
            processes.wait_until(
                lambda: child.poll() is not None or readiness.is_answering(process), "an answer", LIMIT_S
            )
        finally:
            processes.stop(child)
    if child.returncode not in (0, -15):
        tail = "\n".join(bench.log.read_text(errors="replace").splitlines()[-20:])
        raise CheckFailed(f"the engine exited with {child.returncode}:\n{tail}")


@contextmanager
def _start_s3(port: int, region: str, work: Path) -> Iterator[None]:
    """Run the S3 server, with the keys of the embedded AWS's clients."""
    store = work / "s3"
    store.mkdir()
    keys = {"ROOT_ACCESS_KEY": emulator.DUMMY_KEY, "ROOT_SECRET_KEY": emulator.DUMMY_KEY}
    server = go_programs.find_or_build(go_programs.VERSITYGW)
    with (work / "s3.log").open("wb") as sink:
        command = [server, "--port", f"127.0.0.1:{port}", "--region", region, "posix", str(store)]
        console.show_command(command)
        child = processes.spawn(command, environment=keys, output=sink)
    try:
        processes.wait_until(lambda: not processes.is_free(port), "the S3 server", 60)
        yield
    finally:
        processes.stop(child)


@contextmanager
def _prepare_bench(model: str) -> Iterator[Bench]:
    """Prepare the blueprint with that model, one replica and a filled bucket."""
    with tempfile.TemporaryDirectory(prefix="weights-") as name:
        work = Path(name)
        folder = work / "weights"
        shutil.copytree(ROOT / "blueprints" / "aggregated", folder)
        blueprint = folder / "blueprint.yaml"
        text = re.sub(r"(?m)^model: \S+", f"model: {model}", blueprint.read_text())
        blueprint.write_text(text.replace("replicas: 2", "replicas: 1"))
        plan = planning.plan(folder, ROOT / "fleet.yaml", root=work, target="local")
        plan.directory.create()
        bench = Bench(plan.deployment, work)
        environment = plan.deployment.environment
        with _start_s3(environment.ports["aws"], environment.region, work):
            _upload_model(plan.deployment, plan.directory)
            yield bench


def _upload_model(deployment: Deployment, directory: DeploymentDir) -> None:
    environment = deployment.environment
    with console.step(f"Upload model {deployment.served_models[0].model} to S3") as step:
        client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
        bucket, _, _ = deployment.served_models[0].weights.uri.removeprefix("s3://").partition("/")
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": environment.region})
        folder = make_tiny.make(deployment.served_models[0].model, directory.data / "model")  # type: ignore[arg-type]
        copied = upload.upload(
            folder, deployment.served_models[0].weights.uri, endpoint=environment.s3_endpoint, env=environment.env
        )
        step.note = format_bytes(copied.bytes)
        engine_env.copy_model_infos([directory.get_cache_path(process.name) for process in deployment.engine_processes])


SIDES = {"streamed": measure_streamed, "downloaded, then loaded": measure_downloaded}


def build_table(starts: Mapping[str, list[StartTimes]]) -> Table:
    """Build a table of the medians of each side and their ratio."""
    table = Table("median of the runs", "S3 to memory", "to the first answer", "on disk")
    medians = {
        side: StartTimes(*(statistics.median(values) for values in zip(*runs, strict=True)))
        for side, runs in starts.items()
    }
    for side, median in medians.items():
        table.add_row(
            side, f"{median.to_memory_s:.2f} s", f"{median.to_answer_s:.1f} s", format_bytes(int(median.disk_bytes))
        )
    first, last = medians.values()
    ratios = (f"{last.to_memory_s / first.to_memory_s:.2f}", f"{last.to_answer_s / first.to_answer_s:.2f}")
    table.add_row("downloaded : streamed", *ratios, "")
    return table


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=make_tiny.SIZES, default="mid")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    starts: dict[str, list[StartTimes]] = {side: [] for side in SIDES}
    try:
        engine_env.ensure()
        with processes.handle_interrupts(), _prepare_bench(args.model) as bench:
            for number in range(args.runs):
                for side, measure in SIDES.items():
                    with console.step(f"Run {number + 1} of {args.runs}, {side}") as step:
                        starts[side].append(times := measure(bench))
                        step.note = (
                            f"{times.to_memory_s:.2f} s to memory, {times.to_answer_s:.1f} s to the first answer"
                        )
    except BlueprintError as error:
        return console.print_error(error)
    console.out.print(build_table(starts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
