"""What the batch worker takes and how it behaves, on a mock endpoint with set delays; one JSON object a measurement.

    python -m scripts.benchmarks.batch_load worker --rows 10000     rows a second of CPU time, memory of all steps
    python -m scripts.benchmarks.batch_load checkpoint              what saving results costs
    python -m scripts.benchmarks.batch_load split --gigabytes 50    plan of a large file, scan of some chunks
    python -m scripts.benchmarks.batch_load merge --gigabytes 1     joins the results of a job
    python -m scripts.benchmarks.batch_load change                  how fast the concurrency follows the endpoint
    python -m scripts.benchmarks.batch_load use                     a job beside vllm bench serve, in turn
    python -m scripts.benchmarks.batch_load share                   teams of 50/30/20 and an urgent job
    python -m scripts.benchmarks.batch_load clients                 aiohttp against httpx

CPU time is that of the worker's process alone, so that other work on the machine changes it little. SQS and Step
Functions are the embedded AWS; its own time is not measured. It would hold all objects in memory, and copy each byte.
So S3 of `worker` and `merge` is a server that keeps them in a file and copies by reference (s3_server.py), or the one
at `--s3 URL`. `merge --copy-ms 100` delays each copy, as S3 would.

With `worker --static 1` the endpoint is nginx, which is never the limit. With `--instant 1` the answers come from
within the worker's process (batch_programs.py), at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from llm_serving import processes, program
from llm_serving.kinds.batch.client import BatchClient
from llm_serving.settings.errors import Unavailable
from llm_serving.validation import run as validation_run
from llm_serving.validation.base import ValidationOptions
from scripts.benchmarks import batch_kills, drivers, s3_server
from scripts.benchmarks.batch_kills import BUCKET, FINAL_STATES, IMAGE, BatchRun

if str(IMAGE) not in sys.path:
    sys.path.insert(0, str(IMAGE))

LIMIT_S = 590.0
SAMPLE_S = 0.25
SETTLE_S = 3.0


def format_row(number: int, words: int = 20) -> bytes:
    """A row whose answer repeats its text."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"answer {number} " + "word " * words}]}
    row = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(row).encode() + b"\n"


def open_s3(url: str, folder: Path, copy_ms: float = 0) -> contextlib.AbstractContextManager[str]:
    """The S3 server at a URL; one of its own where there is none."""
    return contextlib.nullcontext(url) if url else s3_server.run_server(folder, copy_ms)


def submit(run: BatchRun, jobs: Any, name: str, rows: int, **options: Any) -> Any:
    """Submit so many rows."""
    body = b"".join(format_row(number) for number in range(rows))
    run.s3.put_object(Bucket=BUCKET, Key=name, Body=body)
    return jobs.submit(name, **{"team": "default", **options})


def _bound(concurrency: str) -> dict[str, Any]:
    least, _, most = concurrency.partition("..")
    return {"min_concurrency": int(least), "max_concurrency": int(most or least)}


def measure_worker(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rows a second of CPU time, and memory of each step, of one worker on an endpoint that is never the limit."""
    settings: dict[str, Any] = {
        **_bound(arguments.concurrency),
        "chunk_bytes": arguments.chunk * 2**20,
        "takeover_s": 30,
    }
    if arguments.instant:
        settings |= {"is_instant": True}
    if arguments.instant or arguments.static:
        settings |= {"metrics_urls": [], "endpoint_is_static": True}
    with (
        open_s3(arguments.s3, folder) as s3_url,
        batch_kills.start_run(folder, workers=1, delay_ms=20, slots=4096, s3_url=s3_url, **settings) as run,
    ):
        run.open_jobs()
        client = BatchClient(f"http://127.0.0.1:{run.env['BATCH_API_PORT']}")
        worker, api = (psutil.Process(run.running[name].pid) for name in ("batch-worker-0", "batch-api"))
        endpoint = psutil.Process(run.running["endpoint"].pid)
        time.sleep(SETTLE_S)
        idle = {"worker": worker.memory_info().rss, "api": api.memory_info().rss}
        peaks: dict[str, dict[str, int]] = {}

        def sample(step: str) -> None:
            peak = peaks.setdefault(step, dict.fromkeys(idle, 0))
            for name, process in (("worker", worker), ("api", api)):
                peak[name] = max(peak[name], process.memory_info().rss)

        file = folder / "rows.jsonl"
        with file.open("wb") as sink:
            sink.writelines(format_row(number) for number in range(arguments.rows))
        file_id = client.upload(file, lambda _done, _all: sample("upload"))
        start = time.monotonic()
        worker_cpu_s, endpoint_cpu_s = read_cpu_s(worker), read_cpu_s(endpoint)
        job = client.create(file_id=file_id)
        while job["status"] not in FINAL_STATES:
            if time.monotonic() > start + arguments.limit:
                raise Unavailable(f"the job did not end within {arguments.limit} s: {job['request_counts']}")
            time.sleep(SAMPLE_S)
            job = client.read(job["id"])
            sample(job["status"])
        seconds = time.monotonic() - start
        worker_cpu_s, endpoint_cpu_s = read_cpu_s(worker) - worker_cpu_s, read_cpu_s(endpoint) - endpoint_cpu_s
        client.download(job["output_file_id"], folder / "output.jsonl", lambda _done, _all: sample("download"))
    return {
        "rows": arguments.rows,
        "input_mb": round(file.stat().st_size / 1e6),
        "output_mb": round((folder / "output.jsonl").stat().st_size / 1e6),
        "chunk_mib": arguments.chunk,
        "completed": job["request_counts"]["completed"],
        "seconds": round(seconds, 1),
        "worker_cpu_s": round(worker_cpu_s, 1),
        "rows_per_cpu_s": round(arguments.rows / worker_cpu_s),
        "endpoint_cpu_s": round(endpoint_cpu_s, 1),
        "idle_mb": _format_memory(idle),
        "peak_mb": {step: _format_memory(peak) for step, peak in peaks.items()},
    }


def read_cpu_s(process: psutil.Process) -> float:
    """CPU time of a process and its children so far."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _format_memory(memory: Mapping[str, int]) -> dict[str, int]:
    return {name: round(count / 1e6) for name, count in memory.items()}


def measure_merge(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time and memory of a process that joins the results of chunks that are done; all are the same object."""
    with (
        open_s3(arguments.s3, folder, arguments.copy_ms) as s3_url,
        batch_kills.start_run(folder, workers=0, s3_url=s3_url) as run,
    ):
        from batch import layout, settings
        from batch.steps import Steps
        from batch.store import Store

        store, keys = Store(BUCKET, run.s3), layout.Layout(f"batch/{batch_kills.NAME}")
        line = format_row(0, 100)
        part = line * (arguments.part * 10**6 // len(line))
        count = round(arguments.gigabytes * 1e9 / len(part))
        store.write("part", part)
        counts = dict.fromkeys(layout.COUNTS, 0) | {"completed": len(part) // len(line)}
        entry = {"output": "part", "errors": "", "output_bytes": len(part), "error_bytes": 0, "faults": False, **counts}
        source = {"bucket": BUCKET, "key": "part", "bytes": 0, "etag": ""}
        job = layout.build_job(
            "batch_0", name="mine", team="default", priority="normal", source=source, now=time.time(), deadline_s=1e6
        )
        row_counts = {**job["request_counts"], "total": count * counts["completed"]}
        store.write_json(
            keys.build(layout.JOB, "batch_0"), {**job, "state": layout.IN_PROGRESS, "request_counts": row_counts}
        )
        chunks = [layout.Chunk(index=index, key="part", start=0, end=0) for index in range(count)]
        store.write_json(keys.build(layout.CHUNKS, "batch_0"), chunks)
        head = layout.Head(epoch=1, worker="w", parts=[entry], done=True, fruitless=0)
        for index in range(count):
            store.write_json(keys.build(layout.HEAD, "batch_0", index), head)
        process, memory = psutil.Process(), list[int]()
        before, cpu, start = process.memory_info().rss, process.cpu_times(), time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            merge = pool.submit(Steps(store, settings.read(run.env)).merge, "batch_0")
            while not merge.done():
                memory.append(process.memory_info().rss)
                time.sleep(0.02)
        merge.result()
        seconds, after = time.monotonic() - start, process.cpu_times()
        stored = store.read_head(keys.build(layout.OUTPUT, "batch_0"))
    return {
        "chunks": count,
        "part_mb": arguments.part,
        "output_bytes": stored and stored["bytes"],
        "seconds": round(seconds, 1),
        "cpu_s": round(after.user + after.system - cpu.user - cpu.system, 1),
        "memory_mb": round((max(memory) - before) / 1e6, 1),
    }


def measure_checkpoint(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time and CPU time of saving the results of so many rows: a part, and the chunk's head."""
    with batch_kills.start_run(folder, workers=0) as run:
        from batch import layout, rows
        from batch.chunk import ChunkState, Outcome
        from batch.store import Store

        store, keys = Store(BUCKET, run.s3), layout.Layout("batch/mine")
        head = layout.Head(epoch=1, worker="w", parts=[], done=False, fruitless=0)
        job: Any = {"id": "batch_0"}
        etag = store.write_json(keys.build(layout.HEAD, "batch_0", 0), head, new=True)
        chunk = layout.Chunk(index=0, key="", start=0, end=0)
        state = ChunkState(store, keys, job, chunk, head, etag)
        line = rows.format_output("row", 200, json.dumps({"text": "word " * 200}).encode())
        times, cpu = [], time.process_time()
        for _ in range(arguments.repeats):
            for _ in range(arguments.rows):
                state.add(Outcome(line, "", 1, 1))
            start = time.monotonic()
            state.commit(state.collect())
            times.append(time.monotonic() - start)
        cpu = time.process_time() - cpu
    times.sort()
    return {
        "rows": arguments.rows,
        "bytes": arguments.rows * len(line),
        "median_ms": round(1000 * times[len(times) // 2], 1),
        "cpu_ms": round(1000 * cpu / arguments.repeats, 1),
    }


def measure_split(arguments: argparse.Namespace, _: Path) -> dict[str, Any]:
    """Plan a generated file, and scan some of its chunks: nothing of it is on a disk or in memory."""
    from batch import layout, reader, rows

    row = format_row(0, 400)
    size = int(arguments.gigabytes * 1e9) // len(row) * len(row)
    start = time.process_time()
    ranges = layout.split_ranges(size, layout.compute_chunk_bytes(size, 8))
    plan_s = time.process_time() - start
    block = row * (2**20 // len(row))

    def read(first: int, end: int) -> Iterator[bytes]:
        position = first
        while position < end:
            offset = position % len(row)
            piece = block[offset : offset + min(end - position, len(block) - offset)]
            yield piece
            position += len(piece)

    process, peak, row_count = psutil.Process(), 0, 0
    before, start = process.memory_info().rss, time.process_time()
    for begin, end in ranges[: arguments.chunks]:
        for line in reader.read_range_lines(read, begin, end, size):
            rows.parse(line.content)
            row_count += 1
        peak = max(peak, process.memory_info().rss - before)
    cpu_s = time.process_time() - start
    scanned = sum(end - begin for begin, end in ranges[: arguments.chunks])
    return {
        "bytes": size,
        "chunks": len(ranges),
        "plan_ms": round(1000 * plan_s, 1),
        "scanned_bytes": scanned,
        "rows": row_count,
        "rows_as_reckoned": -(-scanned // len(row)),
        "scan_mb_per_cpu_s": round(scanned / 1e6 / cpu_s, 1),
        "scan_cpu_min_of_the_whole": round(size / scanned * cpu_s / 60, 1),
        "memory_mb": round(peak / 1e6, 1),
    }


def measure_change(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds until the requests that run at the endpoint are as many as it takes, after it takes more, and less."""
    settings: dict[str, Any] = _bound("4..256")
    if arguments.metrics == "off":
        settings["metrics_urls"] = []
    with batch_kills.start_run(folder, workers=1, delay_ms=300, slots=16, **settings) as run:
        jobs = run.open_jobs()
        submit(run, jobs, "change", arguments.rows)
        first = _await_running(run, 16)
        _resize(run, 96)
        more = _await_running(run, 96)
        _resize(run, 24)
        less = _await_short_queue(run, 24)
    return {"metrics": arguments.metrics, "to_16_s": first, "from_16_to_96_s": more, "from_96_to_24_s": less}


def _resize(run: BatchRun, slots: int) -> None:
    request = urllib.request.Request(f"{run.endpoint}/slots", str(slots).encode())
    urllib.request.urlopen(request, timeout=30).close()


def _is_up(run: BatchRun) -> bool:
    try:
        _read_load(run)
    except OSError:
        return False
    return True


def _read_load(run: BatchRun) -> tuple[float, float]:
    from batch.metrics import parse_load

    with urllib.request.urlopen(f"{run.endpoint}/metrics", timeout=30) as page:
        names = {"running": ["vllm:num_requests_running"], "queue": ["vllm:num_requests_waiting"]}
        load = parse_load([page.read().decode()], {"kv-usage": [], "preemptions": [], **names})
    assert load
    return load.running, load.waiting


def _await_running(run: BatchRun, slots: int) -> float:
    start = time.monotonic()
    processes.wait_until(lambda: _read_load(run)[0] >= 0.9 * slots, f"{slots} requests", LIMIT_S, 0.1)
    return round(time.monotonic() - start, 1)


def _await_short_queue(run: BatchRun, slots: int) -> float:
    """Seconds until no more than so many run, and half of them wait at most."""

    def is_short() -> bool:
        running, waiting = _read_load(run)
        return running <= slots and waiting <= 2 + 0.5 * slots

    start = time.monotonic()
    processes.wait_until(is_short, "a short queue", LIMIT_S, 0.1)
    return round(time.monotonic() - start, 1)


def measure_use(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rows a second of a job and of `vllm bench serve` at several numbers in flight, on an endpoint that takes 64.

    The endpoint waits and computes nothing, so that neither shares cores with an engine.
    """
    with batch_kills.start_run(folder, workers=1, delay_ms=300, slots=USE_SLOTS, **_bound("16..256")) as run:
        jobs = run.open_jobs()
        driver = {number: _measure_driver(run, number, arguments.rows, folder) for number in (32, 64, 128)}
        job = submit(run, jobs, "use", arguments.rows)
        moments: list[tuple[float, int]] = []
        while not moments or moments[-1][1] < arguments.rows:
            counts = jobs.count(jobs.read(job["id"]))["request_counts"]
            moments.append((time.monotonic(), counts["completed"]))
            time.sleep(SAMPLE_S)
    start_s, _ = [moment for moment in moments if not moment[1]][-1]
    rate = arguments.rows / (moments[-1][0] - start_s)
    best = max(driver.values())
    return {"rows": arguments.rows, "driver": driver, "job": round(rate, 1), "use": round(rate / best, 3)}


USE_SLOTS = 64


def _measure_driver(run: BatchRun, in_flight: int, rows: int, folder: Path) -> float:
    """Requests a second of `vllm bench serve` with so many in flight."""
    lengths = {"input_tokens": "20..20", "output_tokens": "8..8"}
    traffic = {"users": in_flight, "requests": rows, "warm_up": in_flight, **lengths}
    deployment = drivers.build_deployment(run.endpoint, traffic)
    options = ValidationOptions(logs=folder / "logs", runs=folder / "runs", driver="vllm-bench")
    report, _ = validation_run.validate(deployment, options)
    return round(report.throughput.requests_per_s, 1)


def measure_share(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Shares of three teams while all have rows, and seconds to the first row of an urgent job."""
    teams = {"default": 50, "search": 30, "ads": 20}
    with batch_kills.start_run(folder, workers=1, delay_ms=100, slots=32) as run:
        jobs = run.open_jobs()
        submitted = {team: submit(run, jobs, team, arguments.rows, team=team) for team in teams}
        moments: list[dict[str, int]] = []

        def count() -> dict[str, int]:
            moments.append(
                {
                    team: jobs.count(jobs.read(job["id"]))["request_counts"]["completed"]
                    for team, job in submitted.items()
                }
            )
            return moments[-1]

        processes.wait_until(lambda: min(count().values()) > 0, "rows of all", LIMIT_S, 0.5)
        first = moments[-1]
        processes.wait_until(lambda: sum(count().values()) > arguments.rows, "enough rows", LIMIT_S, 1.0)
        last = moments[-1]
        start = time.monotonic()
        run.s3.put_object(Bucket=BUCKET, Key="urgent", Body=format_row(-1))
        jobs.submit("urgent", team="ads", priority="high")
        processes.wait_until(lambda: any("answer -1 " in text for text in run.read_known()), "its row", LIMIT_S, 0.1)
        urgent_s = time.monotonic() - start
    done = {team: last[team] - first[team] for team in teams}
    total = sum(done.values())
    return {
        "rows": total,
        "shares": {team: round(100 * count / total, 1) for team, count in done.items()},
        "weights": teams,
        "urgent_first_row_s": round(urgent_s, 1),
        "over_time": moments[:: max(1, len(moments) // 20)],
    }


def measure_clients(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPU time of a request by each client, in turn, on the same endpoint."""
    with batch_kills.start_run(folder, workers=0, delay_ms=20, slots=4096) as run:
        processes.wait_until(lambda: _is_up(run), "the endpoint", LIMIT_S, 0.1)
        body = json.loads(format_row(0))["body"]
        results: dict[str, Any] = {}
        for _ in range(2):  # the first round warms up
            for name, send in (("aiohttp", _send_aiohttp), ("httpx", _send_httpx)):
                start = time.process_time()
                asyncio.run(send(f"{run.endpoint}/v1/chat/completions", body, arguments.rows))
                results[name] = round(arguments.rows / (time.process_time() - start))
    return {"requests": arguments.rows, "in_flight": IN_FLIGHT, "requests_per_cpu_s": results}


IN_FLIGHT = 128


async def _send_aiohttp(url: str, body: Any, count: int) -> None:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send() -> None:
            async with session.post(url, json=body) as response:
                json.loads(await response.read())

        await _send_all(send, count)


async def _send_httpx(url: str, body: Any, count: int) -> None:
    import httpx2 as httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:

        async def send() -> None:
            json.loads((await client.post(url, json=body)).content)

        await _send_all(send, count)


async def _send_all(send: Callable[[], Any], count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await send()

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measurements: dict[str, tuple[Callable[[Any, Path], dict[str, Any]], dict[str, Any]]] = {
        "worker": (
            measure_worker,
            {
                "rows": 10_000,
                "chunk": 16,
                "concurrency": "256..1024",
                "s3": "",
                "instant": 0,
                "static": 0,
                "limit": 590,
            },
        ),
        "checkpoint": (measure_checkpoint, {"rows": 500, "repeats": 40}),
        "split": (measure_split, {"gigabytes": 50.0, "chunks": 32}),
        "merge": (measure_merge, {"gigabytes": 1.0, "part": 16, "s3": "", "copy_ms": 0.0}),
        "change": (measure_change, {"rows": 30_000, "metrics": "on"}),
        "use": (measure_use, {"rows": 4000}),
        "share": (measure_share, {"rows": 6000}),
        "clients": (measure_clients, {"rows": 4000}),
    }
    commands = parser.add_subparsers(dest="measurement", required=True)
    for name, (_, options) in measurements.items():
        command = commands.add_parser(name)
        for option, default in options.items():
            command.add_argument(f"--{option.replace('_', '-')}", type=type(default), default=default)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        result = measurements[arguments.measurement][0](arguments, Path(folder))
    print(json.dumps({"measurement": arguments.measurement, **result, "load_before": round(load, 1)}))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
