"""Requests of tests to running engines: completions, counters, and a load of several users; running frameworks."""

from __future__ import annotations

import concurrent.futures
import http.client
import ipaddress
import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog.engines import EngineMetric
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.validation import validate
from llm_serving.services.service import Service
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings import overrides
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_setups, supervisor
from llm_serving.validation.base import ValidationOptions
from tests import conftest

ROOT = Path(__file__).resolve().parents[1]

PROMPT = "The router sends a request to"

LIMIT = 8
"""Requests that the replica of the second of TWO_MODELS has at once."""

TWO_MODELS = f"""\
pattern: multi-model
roles:
  router: {{policy: cache-aware}}
  models:
    tiny: {{model: tiny, pool: general, context: 2k, replicas: 2}}
    other: {{model: tiny, pool: general, context: 2k, max_requests: {LIMIT}}}
traffic: {{users: 4}}
slo: {{}}
"""


def get_url(process: Service) -> str:
    """Return the URL of a process."""
    return f"http://{process.host}:{process.port}"


def request_completion(base: str, timeout_s: float = 60, **body: Any) -> str:
    """Return the response of a completion."""
    return post(base, "/v1/completions", timeout_s, **{"model": "tiny", "prompt": PROMPT, "max_tokens": 8, **body})


def post(base: str, path: str, timeout_s: float = 60, **body: Any) -> str:
    """Return the body of a response, at temperature 0 where the path takes one.

    Raises:
        OSError: no answer, or one that is not 200.
    """
    payload = {"temperature": 0, **body} if "prompt" in body else body
    request = urllib.request.Request(
        f"{base}{path}", data=json.dumps(payload).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return str(response.read().decode())


def complete(base: str, **body: Any) -> str:
    """Return the text of a completion."""
    return str(json.loads(request_completion(base, **body))["choices"][0]["text"])


def read_counter(process: Service, name: str, **labels: str) -> float:
    """Read a counter of an engine, summed over all series with the labels; 0 if there are none."""
    return sum_counter(f"{get_url(process)}/metrics", name, **labels)


def sum_counter(metrics_url: str, name: str, **labels: str) -> float:
    """The same of whoever has its counters on that page."""
    return sum(value for series, value in read_series(metrics_url, name).items() if _has_labels(series, labels))


def read_series(metrics_url: str, name: str) -> dict[str, float]:
    """The value of each series of a counter, by the text of its labels."""
    with urllib.request.urlopen(metrics_url, timeout=60) as response:
        lines = response.read().decode().splitlines()
    series = [re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line) for line in lines]
    return {match[1] or "": float(match[2]) for match in series if match}


def _has_labels(label_text: str, labels: Mapping[str, str]) -> bool:
    return all(f'{name}="{value}"' in label_text for name, value in labels.items())


def list_processes(plan: DeploymentPlan) -> list[psutil.Process]:
    """Return all processes of a deployment that runs here, those beside its services left out."""
    supervised = supervisor.find_running(plan.directory)
    assert supervised
    pids = {state.name: state.pid for state in supervised.list_states()}
    found = []
    for service in plan.deployment.services:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            found += psutil.Process(pids[service.name]).children(recursive=True)
    return found


def list_listening(plan: DeploymentPlan) -> list[IPv4Address | IPv6Address]:
    """Return the address of each socket that these processes listen on."""
    connections = []
    for process in list_processes(plan):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            connections += process.net_connections("inet")
    addresses = [ipaddress.ip_address(one.laddr.ip) for one in connections if one.status == psutil.CONN_LISTEN]
    return [getattr(address, "ipv4_mapped", None) or address for address in addresses]


@dataclass
class Load:
    """Streamed requests of several parallel users through the router."""

    url: str
    deadline_s: float
    """An answer that has nothing to say for so long has failed as timed out."""

    users: int = 8
    prompt: str = PROMPT
    output_tokens: int = 8
    pause_s: float = 0.0
    """Seconds between a user's requests."""

    start_times: list[float] = field(default_factory=list)
    """Start times of the requests that were answered completely."""

    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _users: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._users = [threading.Thread(target=self._run_user, args=(number,)) for number in range(self.users)]
        for user in self._users:
            user.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for user in self._users:
            user.join()

    def _run_user(self, number: int) -> None:
        while not self._stop.wait(self.pause_s):
            start = time.monotonic()
            try:
                prompt = f"{self.prompt} {number} {start}"
                response = request_completion(
                    self.url, self.deadline_s, stream=True, prompt=prompt, max_tokens=self.output_tokens
                )
                if "data: [DONE]" not in response:
                    raise OSError("the stream was cut")
                self.start_times.append(start)
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.failed.append(repr(error))

    def wait_answers(self, count: int, limit_s: float = 300) -> None:
        """Wait until `count` further requests were answered completely."""
        expected, deadline = len(self.start_times) + count, time.monotonic() + limit_s
        while len(self.start_times) < expected and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(self.start_times) >= expected, self.failed


def mark_framework(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of tests that run a framework: a group of their own, since they wait more than they compute."""
    fix = f"{name} is not set up: .venv/bin/python -m llm_serving.targets.local.engine_setups vllm {name}"
    not_ready = not engine_setups.find("vllm", name).is_ready()
    marks = [pytest.mark.engine, pytest.mark.timeout(1500), pytest.mark.xdist_group(conftest.FRAMEWORKS)]
    return [*marks, pytest.mark.skipif(not_ready, reason=fix)]


@contextmanager
def run_framework(
    name: str,
    root: Path,
    start: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
    lines: str = "",
) -> Iterator[DeploymentPlan]:
    """Run TWO_MODELS under a framework.

    Args:
        start: the fixture `start_blueprint`.
        lines: further ones of the blueprint.
    """
    file = Path(shutil.copytree(ROOT / "blueprints" / "multi-model", root / "mine")) / "blueprint.yaml"
    file.write_text(f"{TWO_MODELS}{lines}")
    file.write_text(overrides.apply(file.read_text(), {"framework": name}, after="pattern"))
    with start(file.parent, root) as plan:
        yield plan


def change_policy(plan: DeploymentPlan, policy: str, without: str = "") -> DeploymentPlan:
    """Deploy what `run_framework` runs with another policy of its router; return the new plan.

    Args:
        without: role to leave out.
    """
    file = plan.directory.root / "mine" / "blueprint.yaml"
    text, current = file.read_text(), "policy: cache-aware"
    assert current in text
    if without:
        text, removed = re.subn(rf"(?m)^    {without}: .*\n", "", text)
        assert removed == 1
    file.write_text(text.replace(current, f"policy: {policy}"))
    changed = planning.plan(file.parent, ROOT / "fleet.yaml", root=plan.directory.root, target="local")
    supervised = supervisor.find_running(plan.directory)
    assert supervised
    deploy.update(changed, supervised)
    return changed


def assert_loopback(plan: DeploymentPlan) -> None:
    """Assert that its processes listen on loopback addresses alone, each of its services on one at least."""
    sockets = list_listening(plan)
    assert len(sockets) > len(plan.deployment.services)
    assert [address for address in sockets if not address.is_loopback] == []


def assert_named(plan: DeploymentPlan) -> None:
    """Assert that the name in `model` decides which model answers, and that an unknown one gets 404."""
    url = plan.deployment.url
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
        assert {row["id"] for row in json.load(response)["data"]} == {"tiny", "other"}
    for name in ("tiny", "other"):
        assert json.loads(request_completion(url, model=name))["model"] == name
    with pytest.raises(urllib.error.HTTPError) as error:
        request_completion(url, model="nobody")
    assert error.value.code == 404 and "ot f" in error.value.read().decode(), "not found"


def assert_bounded(plan: DeploymentPlan, replica: psutil.Process, retry_after: str | None) -> None:
    """Assert that the second of TWO_MODELS refuses more than its limit at once, and the first answers.

    Args:
        replica: what has the second's engine, which stands still until enough were refused: none is answered before.
    """
    url = plan.deployment.url
    [engine] = [child for child in replica.children(recursive=True) if "VLLM::EngineCore" in " ".join(child.cmdline())]

    def ask(_: int) -> tuple[int, str | None]:
        try:
            request_completion(url, 300, model="other")
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Retry-After"]
        return 200, None

    with concurrent.futures.ThreadPoolExecutor(5 * LIMIT) as users:
        engine.suspend()
        try:
            asked = []
            for number in range(5 * LIMIT):  # one after the other: of those that come together any number may wait
                asked.append(users.submit(ask, number))
                concurrent.futures.wait(asked[-1:], 0.2)
            assert complete(url)
            processes.wait_until(lambda: sum(one.done() for one in asked) >= 2 * LIMIT, "refusals", 240)
        finally:
            engine.resume()
        answers = [one.result() for one in asked]
    assert set(answers) == {(200, None), (429, retry_after)}
    assert LIMIT <= answers.count((200, None)) <= 3 * LIMIT


def assert_counted(plan: DeploymentPlan, runs: Path) -> None:
    """Assert that a validation's report counts every request at the replica that answered, and tokens exactly."""
    traffic = {"users": 4, "requests": 20, "input_tokens": "80..120", "output_tokens": "4..12", "deadline": "5min"}
    assert isinstance(plan.deployment, ServingDeployment)
    deployment = plan.deployment.model_copy(update={"traffic": Traffic.model_validate(traffic), "slo": Slo()})
    measured, _ = validate.validate(deployment, ValidationOptions(logs=plan.directory.logs, runs=runs))
    assert (measured.requests.total, measured.requests.failed) == (20, 0)
    assert sum(replica.requests or 0 for replica in measured.replicas) == 20
    assert (measured.tokens.input_exact, measured.tokens.output_exact) == (1, 1)
    assert {"vllm", plan.deployment.framework} <= measured.versions.keys()


def repeat_prompt(plan: DeploymentPlan, prompt: str, times: int) -> list[float]:
    """Send a prompt `times` times, one after the other; return the tokens that each worker had in its cache, sorted."""

    def read(concept: EngineMetric) -> list[dict[str, float]]:
        return [
            read_series(f"{get_url(worker)}/metrics", worker.metrics[concept]) for worker in plan.deployment.workers
        ]

    def count(concept: EngineMetric, before: list[dict[str, float]]) -> list[float]:
        """Count what each worker added, by series: those of a process that ended go some time after it."""
        return [
            sum(value - old.get(labels, 0) for labels, value in page.items())
            for page, old in zip(read(concept), before, strict=True)
        ]

    def wait_until_still(least: float) -> None:
        """Wait until nothing is added any more, and so many tokens were looked for: pages may be seconds behind."""
        deadline, added = time.monotonic() + 120, -1.0
        while time.monotonic() < deadline:
            now_added = sum(count("cache-queries", queries))
            if now_added == added >= least:
                break
            added = now_added
            time.sleep(4)

    queries = read("cache-queries")
    wait_until_still(0)
    queries, hits = read("cache-queries"), read("cache-hits")
    sent = 0
    for _ in range(times):
        sent += json.loads(request_completion(plan.deployment.url, prompt=prompt))["usage"]["prompt_tokens"]
    wait_until_still(sent)
    assert sum(count("cache-queries", queries)) == sent
    return sorted(count("cache-hits", hits))
