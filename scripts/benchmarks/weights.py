"""Weights streamed from S3 into the engine, beside weights downloaded first and loaded then, in one run.

    python -m scripts.benchmarks.weights [--model mid] [--runs 3]

Both sides start the engine that the aggregated blueprint starts, one replica, from the same bucket on the same S3
server: versitygw on loopback, since the embedded AWS serves 10 MB/s and would be what is measured. It is taken from
PATH, or built once with Go into the user's cache folder.

How each number is got, by this process's clock unless said otherwise:

- S3 to memory: streamed, the streamer's own line in the engine's log; downloaded, the time of the download by boto3
  with as many requests at once as the streamer makes, plus the engine's own line "Loading weights took".
- to the first answer: from the start of the download or of the engine to the first completion.
- on disk: what the downloaded copy takes; streamed weights are never stored.

The server reads from the page cache, and what was just downloaded is loaded from there too: a fast disk for both sides.
The sides take turns, so that a change in the machine's speed meets both.
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
from llm_serving.settings.errors import AnswerIsNo, BlueprintError
from llm_serving.settings.units import human_bytes
from llm_serving.targets.local import deploy, engine_env, readiness
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.validation import weight_loading
from llm_serving.workloads.serving.deployment import Deployment, Process

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 16
"""Requests that the streamer makes at once by default (RUNAI_STREAMER_CONCURRENCY)."""

LIMIT_S = 900.0


class Took(NamedTuple):
    """Seconds of one start."""

    to_memory_s: float
    to_answer_s: float
    disk_bytes: int


@dataclass(frozen=True)
class Bench:
    """What both sides share."""

    deployment: Deployment
    work: Path

    @property
    def worker(self) -> Process:
        return self.deployment.replicas[0]

    @property
    def log(self) -> Path:
        return self.work / "engine.log"


def streamed(bench: Bench) -> Took:
    """The engine reads from S3 itself, as a deployment does."""
    start = time.monotonic()
    _answered(bench, bench.worker.command)
    answered = time.monotonic()
    read = weight_loading.read(bench.deployment.models[0].weights, [bench.log])
    if read.seconds is None:
        raise AnswerIsNo(f"the engine's log {bench.log} does not tell how long it streamed")
    return Took(read.seconds, answered - start, 0)


def downloaded(bench: Bench) -> Took:
    """The files are fetched first, and the engine loads them from the folder."""
    folder = bench.work / "download"
    start = time.monotonic()
    _download(bench.deployment, folder)
    fetched = time.monotonic()
    uri, loader = bench.deployment.models[0].weights.uri, bench.deployment.models[0].weights.loader
    swap = {uri: str(folder), loader: "safetensors"}
    _answered(bench, tuple(swap.get(word, word) for word in bench.worker.command))
    answered = time.monotonic()
    loaded = re.findall(r"Loading weights took ([\d.]+) seconds", bench.log.read_text(errors="replace"))
    if not loaded:
        raise AnswerIsNo(f"the engine's log {bench.log} does not tell how long it loaded")
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return Took(fetched - start + float(loaded[-1]), answered - start, size)


def _download(deployment: Deployment, folder: Path) -> None:
    import boto3.s3.transfer

    folder.mkdir()
    place = deployment.place
    bucket, _, prefix = deployment.models[0].weights.uri.removeprefix("s3://").partition("/")
    client = emulator.client("s3", place.s3_endpoint or "", place.region)
    settings = boto3.s3.transfer.TransferConfig(max_concurrency=AT_ONCE)
    for found in client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
        client.download_file(bucket, found["Key"], str(folder / Path(found["Key"]).name), Config=settings)


def _answered(bench: Bench, command: tuple[str, ...]) -> None:
    """Starts the engine, waits for a real completion, and ends it."""
    process = bench.worker
    with bench.log.open("wb") as sink:
        child = processes.spawn(command, environment=process.environment, output=sink)
        try:
            processes.wait_until(lambda: child.poll() is not None or readiness.answers(process), "an answer", LIMIT_S)
        finally:
            processes.stop(child)
    if child.returncode not in (0, -15):
        tail = "\n".join(bench.log.read_text(errors="replace").splitlines()[-20:])
        raise AnswerIsNo(f"the engine ended with {child.returncode}:\n{tail}")


@contextmanager
def _s3(port: int, region: str, work: Path) -> Iterator[None]:
    """The S3 server, with the keys that the embedded AWS's clients use."""
    store = work / "s3"
    store.mkdir()
    keys = {"ROOT_ACCESS_KEY": emulator.KEY, "ROOT_SECRET_KEY": emulator.KEY}
    server = go_programs.path_of(go_programs.VERSITYGW)
    with (work / "s3.log").open("wb") as sink:
        command = [server, "--port", f"127.0.0.1:{port}", "--region", region, "posix", str(store)]
        console.show(command)
        child = processes.spawn(command, environment=keys, output=sink)
    try:
        processes.wait_until(lambda: not processes.is_free(port), "the S3 server", 60)
        yield
    finally:
        processes.stop(child)


@contextmanager
def _bench(model: str) -> Iterator[Bench]:
    """The blueprint with that model and one replica, its bucket filled."""
    with tempfile.TemporaryDirectory(prefix="weights-") as name:
        work = Path(name)
        folder = work / "weights"
        shutil.copytree(ROOT / "blueprints" / "aggregated", folder)
        blueprint = folder / "blueprint.yaml"
        text = re.sub(r"(?m)^model: \S+", f"model: {model}", blueprint.read_text())
        blueprint.write_text(text.replace("replicas: 2", "replicas: 1"))
        plan = deploy.plan(folder, ROOT / "fleet.yaml", root=work)
        plan.run.make()
        bench = Bench(plan.deployment, work)
        place = plan.deployment.place
        with _s3(place.ports["aws"], place.region, work):
            _fill(plan.deployment, plan.run)
            yield bench


def _fill(deployment: Deployment, run: Run) -> None:
    place = deployment.place
    with console.step(f"Make {deployment.models[0].model} and put it into the bucket") as step:
        client = emulator.client("s3", place.s3_endpoint or "", place.region)
        bucket, _, _ = deployment.models[0].weights.uri.removeprefix("s3://").partition("/")
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": place.region})
        folder = make_tiny.make(deployment.models[0].model, run.data / "model")  # type: ignore[arg-type]
        copied = upload.upload(
            folder, deployment.models[0].weights.uri, endpoint=place.s3_endpoint, environment=place.environment
        )
        step.note = human_bytes(copied.bytes)
        engine_env.lend_descriptions([run.cache(process.name) for process in deployment.replicas])


SIDES = {"streamed": streamed, "downloaded, then loaded": downloaded}


def table(took: Mapping[str, list[Took]]) -> Table:
    """Medians of each side, and how many times as long the last takes."""
    drawn = Table("median of the runs", "S3 to memory", "to the first answer", "on disk")
    medians = {
        side: Took(*(statistics.median(values) for values in zip(*runs, strict=True))) for side, runs in took.items()
    }
    for side, one in medians.items():
        drawn.add_row(side, f"{one.to_memory_s:.2f} s", f"{one.to_answer_s:.1f} s", human_bytes(int(one.disk_bytes)))
    first, last = medians.values()
    times = (f"{last.to_memory_s / first.to_memory_s:.2f}", f"{last.to_answer_s / first.to_answer_s:.2f}")
    drawn.add_row("downloaded : streamed", *times, "")
    return drawn


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=make_tiny.SIZES, default="mid")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    took: dict[str, list[Took]] = {side: [] for side in SIDES}
    try:
        engine_env.ensure()
        with processes.interruptible(), _bench(asked.model) as bench:
            for number in range(asked.runs):
                for side, start in SIDES.items():
                    with console.step(f"Run {number + 1} of {asked.runs}, {side}") as step:
                        took[side].append(one := start(bench))
                        step.note = f"{one.to_memory_s:.2f} s to memory, {one.to_answer_s:.1f} s to the first answer"
    except BlueprintError as error:
        return console.fail(error)
    console.out.print(table(took))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
