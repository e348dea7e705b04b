"""Runs a batch through the real state machine and the real workers, and kills parts of it (-9) at random points.

Workers, Batch API, endpoint and executions are the victims; every row must be in the results exactly once. The state
machine is interpreted by the embedded AWS, whose S3 is its memory and which therefore lives: its executions are aborted
in its place. The endpoint is a mock with set delays (batch_endpoint.py).

    python -m tests.batch_kills --rows 2000 --kills 100 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from llm_serving import console, paths, processes, program
from llm_serving.kinds.batch import worker_settings
from llm_serving.kinds.batch.blueprint import Blueprint
from llm_serving.kinds.batch.stack import STATE_MACHINE_FILE
from llm_serving.kinds.batch.worker_settings import Place
from llm_serving.rehearsal import emulator
from llm_serving.services.deployment import FoundDeployment
from llm_serving.settings.errors import CheckFailed, Unavailable

IMAGE = paths.IMAGES / "batch-worker"
BUCKET, REGION, NAME = "rows-and-results", "us-west-2", "mine"
STATE_MACHINE = f"arn:aws:states:{REGION}:{emulator.ACCOUNT}:stateMachine:{NAME}"
FINAL_STATES = ("completed", "failed", "expired", "cancelled")
START_LIMIT_S = 90.0

ProgramCommand = tuple[Sequence[str], Mapping[str, str]]
"""A command with its environment variables."""


@dataclass
class BatchRun:
    """A deployment without an engine: embedded AWS, endpoint, Batch API, workers; all but the first can be killed."""

    folder: Path
    aws: str
    endpoint: str
    env: dict[str, str]
    commands: dict[str, ProgramCommand]
    slots: int
    """Requests that the endpoint serves at a time."""

    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def s3(self) -> Any:
        """A client of S3."""
        return emulator.create_client("s3", self.aws, REGION)

    @property
    def stepfunctions(self) -> Any:
        """A client of the embedded Step Functions."""
        return emulator.create_client("stepfunctions", self.aws, REGION)

    def start(self, name: str) -> None:
        """Start a process."""
        command, env = self.commands[name]
        with (self.folder / f"{name}.log").open("ab") as output:
            self.running[name] = processes.spawn(command, environment={**self.env, **env}, output=output)

    def kill(self, name: str) -> None:
        """Kill a process, like the loss of its machine."""
        process = self.running[name]
        process.kill()
        process.wait()

    def open_jobs(self) -> Any:
        """Open the jobs as the Batch API does, once the queues exist."""
        if str(IMAGE) not in sys.path:
            sys.path.insert(0, str(IMAGE))
        from batch import resources, settings
        from batch.jobs import Jobs
        from batch.store import Store

        batch_settings = settings.read(self.env)
        sqs = emulator.create_client("sqs", self.aws, REGION)
        queues: list[Any] = []

        def has_queues() -> bool:
            queues.append(resources.find_queues(sqs, batch_settings))
            return queues[-1] is not None

        processes.wait_until(has_queues, "the queues", START_LIMIT_S)
        return Jobs(Store(BUCKET, self.s3), batch_settings, self.stepfunctions, STATE_MACHINE, queues[-1])

    def wait_for_api(self) -> str:
        """Wait until the Batch API answers; returns its base URL, without /v1."""
        url = f"http://127.0.0.1:{self.env['BATCH_API_PORT']}"

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=60) as response:
                return bool(response.status == 200)
            return False

        processes.wait_until(answers, "the Batch API", START_LIMIT_S)
        return url

    def abort_execution(self, job: Mapping[str, Any]) -> None:
        """Abort the execution of a job."""
        from botocore.exceptions import ClientError

        arn = f"{STATE_MACHINE.replace(':stateMachine:', ':execution:')}:{job['executions'][-1]}"
        with contextlib.suppress(ClientError):
            self.stepfunctions.stop_execution(executionArn=arn)

    def read_lines(self, key: str) -> list[Any]:
        """Read the lines of a results file."""
        body = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return [json.loads(line) for line in body.splitlines()]

    def read_known(self) -> dict[str, int]:
        """Read how often the endpoint got each text since it started."""
        with urllib.request.urlopen(f"{self.endpoint}/known", timeout=60) as response:
            return dict(json.load(response))

    @contextlib.contextmanager
    def limit_slots(self, slots: int) -> Iterator[None]:
        """Let the endpoint serve so many requests at a time during the block; none for 0."""
        before = self.slots
        self._set_slots(slots)
        try:
            yield
        finally:
            self._set_slots(before)

    def _set_slots(self, slots: int) -> None:
        self.slots = slots
        request = urllib.request.Request(f"{self.endpoint}/slots", str(slots).encode())
        urllib.request.urlopen(request, timeout=60).close()


@contextlib.contextmanager
def start_run(
    folder: Path,
    *,
    workers: int = 2,
    delay_ms: float = 100,
    slots: int = 32,
    takeover_s: float = 3,
    format_program: Callable[[str, Mapping[str, str]], Sequence[str]] | None = None,
    **settings: JsonValue,
) -> Iterator[BatchRun]:
    """Start all processes of a batch; stops them after the block.

    Args:
        delay_ms: mean of the endpoint's answers.
        slots: requests that the endpoint serves at a time.
        takeover_s: time after a worker's end until another takes its chunks.
        format_program: returns the command that runs batch-api or batch-worker with these variables; this Python otherwise.
        settings: changes of the document of workers and Batch API.
    """
    folder.mkdir(parents=True, exist_ok=True)
    endpoint_port, api_port = processes.claim_free_ports(2)
    endpoint = f"http://127.0.0.1:{endpoint_port}"
    server = [sys.executable, "-m", "tests.batch_endpoint", "--port", str(endpoint_port)]
    commands: dict[str, ProgramCommand] = {
        "endpoint": (
            [*server, "--delay-ms", f"{delay_ms:g}", "--slots", str(slots)],
            {"PYTHONPATH": str(paths.ROOT)},
        ),
        "batch-api": ([sys.executable, str(IMAGE / "batch_api.py")], {}),
    }
    for index in range(workers):
        name = f"batch-worker-{index}"
        commands[name] = [sys.executable, str(IMAGE / "batch_worker.py")], {"BATCH_WORKER": name}
    with emulator.start(folder, bare=True) as aws:
        env = {
            **emulator.build_client_env(aws, REGION),
            "AWS_ENDPOINT_URL_S3": aws,
            **worker_settings.format_variables({**build_document(endpoint, workers, takeover_s), **settings}),
            "BATCH_STATE_MACHINE_FILE": str(STATE_MACHINE_FILE),
            "BATCH_API_PORT": str(api_port),
        }
        for name, (command, own) in commands.items() if format_program else ():
            if name != "endpoint":
                commands[name] = format_program(Path(command[-1]).stem.replace("_", "-"), {**env, **own}), {}
        run = BatchRun(folder, aws, endpoint, env, commands, slots)
        run.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        try:
            for name in commands:
                run.start(name)
            yield run
        finally:
            processes.stop_all(list(run.running.values()), grace_s=5)


def build_document(endpoint: str, workers: int = 2, takeover_s: float = 3.0, name: str = NAME) -> dict[str, JsonValue]:
    """Build the settings of workers and Batch API."""
    settings = Blueprint.model_validate(
        {
            "pattern": "offline-batch",
            "endpoint": {"url": endpoint},
            "sample": {"model": "m"},
            "teams": {"default": {"weight": 50}, "search": {"weight": 30}, "ads": {"weight": 20, "priority": "low"}},
            "workers": {"count": max(1, workers), "concurrency": "4..64"},
            "limits": {"takeover": max(2.0, takeover_s), "request_timeout": "60s"},
        }
    )
    answering = FoundDeployment(name="", url=endpoint, metrics_urls=(f"{endpoint}/metrics",))
    return worker_settings.build(settings, answering, Place(name, BUCKET, f"batch/{name}"))


def build_rows(count: int, words: random.Random) -> dict[str, str]:
    """Texts of rows by their custom_id: one in fifty is refused, one in a hundred breaks the endpoint's answer."""
    rows = {}
    for number in range(count):
        kind = "refuse" if number % 50 == 7 else "break" if number % 100 == 13 else "answer"
        rows[f"row-{number}"] = f"{kind} {number} " + "word " * words.randint(1, 60)
    return rows


def format_rows(rows: Mapping[str, str]) -> bytes:
    """The input file of rows."""
    lines = []
    for custom_id, text in rows.items():
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        row = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(row))
    return "\n".join(lines).encode()


def find_mistakes(rows: Mapping[str, str], output: list[Any], errors: list[Any]) -> list[str]:
    """What is wrong with results: rows lost, doubled, in the wrong file, or with another row's answer."""
    counts = Counter(line["custom_id"] for line in (*output, *errors))
    mistakes = [f"{custom_id} is missing" for custom_id in rows if not counts[custom_id]]
    mistakes += [f"{custom_id} is there {count} times" for custom_id, count in counts.items() if count > 1]
    # The last attempt of a row that breaks its answer may be one that a kill ended, or it outlasts its chunk's workers.
    expected = {"refuse": ("request_refused",), "break": ("server_error", "no_answer", "worker_lost")}
    for line in output:
        text = rows.get(line["custom_id"])
        if text is None or text.partition(" ")[0] in expected:
            mistakes.append(f"{line['custom_id']} is in the output")
        elif line["response"]["body"]["choices"][0]["message"]["content"] != text:
            mistakes.append(f"{line['custom_id']} has another row's answer")
    for line in errors:
        text = rows.get(line["custom_id"], "")
        if line["error"]["code"] not in expected.get(text.partition(" ")[0], ()):
            mistakes.append(f"{line['custom_id']} is in the errors: {line['error']}")
    return mistakes


def run_with_kills(
    run: BatchRun, rows: Mapping[str, str], kills: int, chance: random.Random, *, limit_s: float, pause_s: float = 1.5
) -> tuple[Mapping[str, Any], Counter[str]]:
    """Run a job while parts are killed; returns the job at its end, and how often each part was killed.

    Args:
        limit_s: longest run.
        pause_s: mean time between kills.

    Raises:
        Unavailable: the job did not end within `limit_s`.
    """
    jobs = run.open_jobs()
    from batch.layout import Submission

    run.s3.put_object(Bucket=BUCKET, Key="input.jsonl", Body=format_rows(rows))
    job = jobs.submit(Submission("input.jsonl", team="default"))
    deadline, killed = time.monotonic() + limit_s, Counter[str]()
    while job["state"] not in FINAL_STATES:
        if time.monotonic() > deadline:
            raise Unavailable(f"the job did not end within {limit_s:.0f} s: {jobs.count(job)}")
        time.sleep(chance.uniform(0.2, 2 * pause_s - 0.2))
        job = jobs.read(job["id"])
        if killed.total() >= kills or job["state"] in FINAL_STATES:
            continue
        victim = chance.choice([*run.commands, "execution"])
        killed[victim] += 1
        if victim == "execution":
            run.abort_execution(job)
        else:
            run.kill(victim)
            run.start(victim)
        done = jobs.count(job)["request_counts"]
        console.out.print(f"{killed.total():>4} {victim:<16} {job['state']:<12} {done}", markup=False)
    return job, killed


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delay-ms", type=float, default=600, help="of the endpoint's answers, mean")
    parser.add_argument("--slots", type=int, default=16, help="requests that the endpoint serves at a time")
    parser.add_argument("--limit", type=float, default=1200, help="longest run, in seconds")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    rows = build_rows(arguments.rows, chance)
    os.environ.setdefault("COLUMNS", "120")
    with (
        tempfile.TemporaryDirectory() as folder,
        start_run(Path(folder), delay_ms=arguments.delay_ms, slots=arguments.slots) as run,
    ):
        start = time.monotonic()
        job, killed = run_with_kills(run, rows, arguments.kills, chance, limit_s=arguments.limit)
        seconds = time.monotonic() - start
        output, errors = run.read_lines(job["output_key"]), run.read_lines(job["error_key"])
    mistakes = find_mistakes(rows, output, errors)
    summary = {
        "rows": len(rows),
        "state": job["state"],
        "output": len(output),
        "errors": len(errors),
        "kills": dict(killed),
        "executions": len(job["executions"]),
        "seconds": round(seconds, 1),
        "mistakes": mistakes[:20],
    }
    print(json.dumps(summary, indent=2))
    if mistakes:
        raise CheckFailed(f"{len(mistakes)} rows are wrong")


if __name__ == "__main__":
    raise SystemExit(program.run(main))
