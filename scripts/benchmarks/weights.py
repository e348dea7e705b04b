"""Weights streamed from S3 into the engine, compared with a download before the start, and with the S3 server's limit.

    python -m scripts.benchmarks.weights [--model mid] [--runs 3]

The engine is that of the aggregated blueprint, one replica. All sides read from the same bucket of the same S3 server:
versitygw on loopback, since the embedded AWS serves only 10 MB/s. It is taken from PATH, or built once with Go into the
user's cache directory.

Method, on this process's clock unless noted:

- plain requests: two connections ask for 8 MB at a time and keep nothing. What the server can deliver here.
- streamer alone: the weight streamer with the engine's own settings, in a process that does nothing else.
- S3 to memory: streamed by the engine, from the streamer's line in the engine's log; downloaded, the time of a download
  by boto3 with its own settings, plus the engine's line "Loading weights took".
- CPU: seconds of the server and of who reads, together.
- to the first answer: from the start of the download or of the engine to the first completion.
- on disk: size of the downloaded copy; streamed weights are never stored.

On two cores (2026-11-24, medians of 10 rounds in turn, load average 2.1 to 3.5): 2,051 MB/s by plain requests and 768
by the streamer, whose fastest round had 1,061; with the server, 0.75 and 1.67 CPU-seconds a GB. Two cores give two CPU-
seconds a second, so that the streamer cannot exceed 1.20 GB/s here, of which the fastest round is 88%. 80% of the rate
of plain requests, 1.64 GB/s, would take 2.7 cores: the cores are the limit. Of the difference in CPU time, most is the
kernel's, which clears the memory that weights are written to (perf); plain requests use theirs again. Other settings of
the streamer (two clients, two to five times the connections) took 1.53 to 1.70 CPU-seconds a GB and gave 760 to 959
MB/s; huge pages took no less CPU time (medians of 5, load 5 to 8). Left at its own 8 clients, it needs about twice the
CPU time.

The server reads from the page cache, and downloaded files are loaded from it too: a fast disk for both sides. The sides
run in turn, so that changes of the machine's speed affect all.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from rich.table import Table

from llm_serving import console, go_programs, processes, program
from llm_serving.hub import make_tiny, upload
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.rehearsal import emulator
from llm_serving.services.environment import Process
from llm_serving.settings.errors import CheckFailed
from llm_serving.settings.units import format_bytes
from llm_serving.targets import planning
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import engine_env, readiness
from llm_serving.validation import weight_loading

ROOT = Path(__file__).resolve().parents[2]
STREAMER = Path(__file__).with_name("stream_weights.py")

CONNECTIONS, PART_BYTES = 2, 8 * 2**20
"""Of plain requests. More connections were no faster on two cores; the streamer asks for as much at a time."""

LIMIT_S = 900.0


class Times(NamedTuple):
    """One run of a side; None for what it does not do."""

    to_memory_s: float
    cpu_s: float | None = None
    to_answer_s: float | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True)
class Bench:
    """Deployment, directory and S3 server of all sides."""

    deployment: ServingDeployment
    work: Path
    server: psutil.Process

    @property
    def worker(self) -> Process:
        return self.deployment.engine_processes[0]

    @property
    def log(self) -> Path:
        return self.work / "engine.log"

    @property
    def location(self) -> tuple[str, str]:
        """Bucket and prefix of the weights."""
        bucket, _, prefix = self.deployment.served_models[0].weights.uri.removeprefix("s3://").partition("/")
        return bucket, prefix

    def read_server_cpu(self) -> float:
        """CPU time of the S3 server so far, in seconds."""
        times = self.server.cpu_times()
        return times.user + times.system

    def list_files(self) -> dict[str, int]:
        """Bytes of each file of weights, by key."""
        bucket, prefix = self.location
        entries = self.create_client().list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
        return {entry["Key"]: entry["Size"] for entry in entries if entry["Key"].endswith(".safetensors")}

    def presign(self, key: str) -> str:
        """URL by which an object is read without a signature of its own."""
        environment, (bucket, _) = self.deployment.environment, self.location
        request = AWSRequest("GET", f"{environment.s3_endpoint}/{bucket}/{key}")
        credentials = Credentials(emulator.DUMMY_KEY, emulator.DUMMY_KEY)
        S3SigV4QueryAuth(credentials, "s3", environment.region).add_auth(request)
        return str(request.url)

    def create_client(self) -> Any:
        environment = self.deployment.environment
        return emulator.create_client("s3", environment.s3_endpoint or "", environment.region)


def measure_requests(bench: Bench) -> Times:
    """Measure plain requests whose bytes are thrown away."""
    parts = [
        (bench.presign(key), start, min(start + PART_BYTES, size))
        for key, size in bench.list_files().items()
        for start in range(0, size, PART_BYTES)
    ]
    start, cpu_start = time.monotonic(), time.process_time() + bench.read_server_cpu()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(_request_parts, [parts[number::CONNECTIONS] for number in range(CONNECTIONS)]))
    return Times(time.monotonic() - start, time.process_time() + bench.read_server_cpu() - cpu_start)


def _request_parts(parts: list[tuple[str, int, int]]) -> None:
    """Request parts of objects, each by URL, first byte and the byte after its last, over one connection."""
    buffer = memoryview(bytearray(2**20))
    connection = http.client.HTTPConnection(urlsplit(parts[0][0]).netloc, timeout=LIMIT_S)
    for url, start, end in parts:
        address = urlsplit(url)
        connection.request("GET", f"{address.path}?{address.query}", headers={"Range": f"bytes={start}-{end - 1}"})
        response, read_bytes = connection.getresponse(), 0
        while chunk := response.readinto(buffer):
            read_bytes += chunk
        if read_bytes != end - start:
            raise CheckFailed(f"the S3 server answered {response.status} to a plain request")
    connection.close()


def measure_streamer(bench: Bench) -> Times:
    """Measure the streamer without an engine."""
    bucket, _ = bench.location
    uris = [f"s3://{bucket}/{key}" for key in bench.list_files()]
    cpu_start = bench.read_server_cpu()
    result = subprocess.run(
        [str(engine_env.find_executables() / "python"), str(STREAMER), *uris],
        env={**os.environ, **bench.worker.env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if result.returncode:
        raise CheckFailed(f"the streamer exited with {result.returncode}:\n{result.stderr[-2000:]}")
    answer = json.loads(result.stdout.splitlines()[-1])
    return Times(answer["seconds"], answer["cpu_s"] + bench.read_server_cpu() - cpu_start)


def measure_streamed(bench: Bench) -> Times:
    """Measure an engine that streams from S3, as in a deployment."""
    start = time.monotonic()
    _run_until_answer(bench, bench.worker.command)
    answered_at = time.monotonic()
    loading = weight_loading.read(bench.deployment.served_models[0].weights, [bench.log])
    if loading.seconds is None:
        raise CheckFailed(f"the engine's log {bench.log} has no time of streaming")
    return Times(loading.seconds, to_answer_s=answered_at - start)


def measure_downloaded(bench: Bench) -> Times:
    """Measure a download, and an engine that loads the files."""
    folder = bench.work / "download"
    start = time.monotonic()
    _download(bench, folder)
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
    return Times(fetched_at - start + float(matches[-1]), None, answered_at - start, size)


def _download(bench: Bench, folder: Path) -> None:
    folder.mkdir()
    client, (bucket, prefix) = bench.create_client(), bench.location
    for entry in client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
        client.download_file(bucket, entry["Key"], str(folder / Path(entry["Key"]).name))


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
def _start_s3(port: int, region: str, work: Path) -> Iterator[psutil.Process]:
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
        yield psutil.Process(child.pid)
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
        environment = plan.deployment.environment
        with _start_s3(environment.ports["aws"], environment.region, work) as server:
            _upload_model(plan.deployment, plan.directory)
            yield Bench(plan.deployment, work, server)


def _upload_model(deployment: ServingDeployment, directory: DeploymentDir) -> None:
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


SIDES = {
    "plain requests": measure_requests,
    "streamer alone": measure_streamer,
    "streamed": measure_streamed,
    "downloaded, then loaded": measure_downloaded,
}


def build_table(runs: Mapping[str, list[Times]], weight_bytes: int) -> Table:
    """Build a table of each side's medians."""
    table = Table(
        f"median, {format_bytes(weight_bytes)}", "S3 to memory", "rate", "CPU", "to the first answer", "on disk"
    )
    for side, times in runs.items():
        median = compute_median(times)
        table.add_row(
            side,
            f"{median.to_memory_s:.2f} s",
            f"{format_bytes(round(weight_bytes / median.to_memory_s))}/s",
            f"{median.cpu_s:.2f} s" if median.cpu_s is not None else "",
            f"{median.to_answer_s:.1f} s" if median.to_answer_s is not None else "",
            format_bytes(median.disk_bytes) if median.disk_bytes is not None else "",
        )
    return table


def compute_median(times: list[Times]) -> Times:
    """The median of each number, None where no run has it."""
    columns = [[value for value in column if value is not None] for column in zip(*times, strict=True)]
    medians = [statistics.median(column) if column else None for column in columns]
    return Times(medians[0] or 0.0, medians[1], medians[2], round(medians[3]) if medians[3] is not None else None)


def describe_limit(runs: Mapping[str, list[Times]], weight_bytes: int) -> str:
    """The streamer's share of the server's rate, as measured and as CPU time alone would let it be.

    Server and reader share the cores, so where these are the limit, rates are as the reciprocals of CPU time. The
    measured share needs a quiet machine; CPU time hardly depends on other work.
    """
    plain, streamer = compute_median(runs["plain requests"]), compute_median(runs["streamer alone"])
    assert plain.cpu_s and streamer.cpu_s, "both are measured"
    costs = [f"{times.cpu_s / weight_bytes * 1e9:.2f}" for times in (streamer, plain) if times.cpu_s]
    return (
        f"The streamer reaches {plain.to_memory_s / streamer.to_memory_s:.0%} of the rate of plain requests. A GB "
        f"takes {costs[0]} CPU-seconds, and {costs[1]} by plain requests, with the server: where the cores are the "
        f"limit, {plain.cpu_s / streamer.cpu_s:.0%} is the most."
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=make_tiny.SIZES, default="mid")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    runs: dict[str, list[Times]] = {side: [] for side in SIDES}
    engine_env.ensure()
    with processes.handle_interrupts(), _prepare_bench(args.model) as bench:
        weight_bytes = sum(bench.list_files().values())
        for number, (side, measure) in itertools.product(range(args.runs), SIDES.items()):
            with console.step(f"Run {number + 1} of {args.runs}, {side}") as step:
                runs[side].append(times := measure(bench))
                step.note = f"{times.to_memory_s:.2f} s to memory"
    console.out.print(build_table(runs, weight_bytes))
    console.out.print(describe_limit(runs, weight_bytes))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
