"""KV-aware routing by the engines' cache events, compared with round-robin by the engines' own counters."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.services.service import Service
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import readiness, supervisor
from tests import dns_discovery, serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

SHARED, UNIQUE = 512, 40
"""Tokens of a prompt that it has in common with others, and of its own: four blocks of the cache, and less than one."""

PROBES, PROBE_INTERVAL_S = 15, 4.0
"""Prompts by which is seen whether the router has had the events repeated that it missed: each can be asked for once."""

SEEDS = itertools.count(1000)


@pytest.fixture(scope="module")
def kv_aware_plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """The aggregated pattern with the policy changed in its one line."""
    root = tmp_path_factory.mktemp("aware")
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder)
    file = folder / "blueprint.yaml"
    assert "policy: cache-aware" in file.read_text()
    file.write_text(file.read_text().replace("policy: cache-aware", "policy: kv-aware"))
    with start_blueprint(folder, root) as plan:
        yield plan


def _make_prompts(seed: int, groups: int = 4, *, per_group: int) -> list[list[int]]:
    """Prompts of several groups in a random order; those of a group begin alike."""
    rng = random.Random(seed)
    begin = [[rng.randrange(300, 1200) for _ in range(SHARED)] for _ in range(groups)]
    order = [group for group in range(groups) for _ in range(per_group)]
    rng.shuffle(order)
    return [[*begin[group], *(rng.randrange(300, 1200) for _ in range(UNIQUE))] for group in order]


def _count_cache_hits(plan: DeploymentPlan) -> float:
    """Return the prefix-cache hits of all replicas, in tokens."""
    return sum(serving.read_counter(process, "vllm:prefix_cache_hits_total") for process in plan.deployment.workers)


def _send_each(prompts: list[list[int]], *urls: str) -> None:
    """Asks `urls` in turn."""
    for number, prompt in enumerate(prompts):
        serving.complete(urls[number % len(urls)], prompt=prompt, max_tokens=2)


def _get_metrics_url(plan: DeploymentPlan) -> str:
    return f"http://{plan.deployment.environment.hidden_host}:{plan.directory.load_ports()['router-metrics']}/metrics"


def _count_known_prompts(metrics_url: str) -> float:
    """Prompts of which the router knew a replica that holds their beginning, by its own count."""
    return serving.sum_counter(metrics_url, "vllm_router_kv_placement_lookups_total", result="hit")


def _is_known(prompt: list[int], router_url: str, metrics_url: str) -> bool:
    """Ask the router; return whether it knew a replica that holds the beginning. After this it knows one."""
    known = _count_known_prompts(metrics_url)
    serving.complete(router_url, prompt=prompt, max_tokens=2)
    return _count_known_prompts(metrics_url) > known


def _wait_until_heard(process: Service, router_url: str, metrics_url: str) -> None:
    """Wait until the router knows a prompt that this replica alone was asked: it hears the events of one in their order."""

    def is_heard() -> bool:
        asked, routed = _make_prompts(next(SEEDS), groups=1, per_group=2)
        serving.complete(serving.get_url(process), prompt=asked, max_tokens=2)
        return _is_known(routed, router_url, metrics_url)

    processes.wait_until(is_heard, f"the router has heard {process.name}", 60)


def _ask_probes(process: Service) -> list[list[int]]:
    """Ask a replica for prompts; return others that begin like them."""
    pairs = [_make_prompts(next(SEEDS), groups=1, per_group=2) for _ in range(PROBES)]
    _send_each([asked for asked, _ in pairs], serving.get_url(process))
    return [routed for _, routed in pairs]


def _wait_until_repeated(probes: list[list[int]], router_url: str, metrics_url: str) -> None:
    """Wait until the router knows a probe that it had missed, and so all that was before it."""
    processes.wait_until(
        lambda: _is_known(probes.pop(), router_url, metrics_url),
        "the router has heard what it missed",
        (PROBES - 1) * PROBE_INTERVAL_S,
        PROBE_INTERVAL_S,
    )


def test_a_prompt_is_routed_to_its_cached_prefix_and_round_robin_recomputes_it(
    kv_aware_plan: DeploymentPlan,
) -> None:
    url, workers = kv_aware_plan.deployment.url, kv_aware_plan.deployment.workers
    _send_each(_make_prompts(1, per_group=1), url)
    for process in workers:
        _wait_until_heard(process, url, _get_metrics_url(kv_aware_plan))
    before = _count_cache_hits(kv_aware_plan)
    _send_each(_make_prompts(1, per_group=4), url)
    by_events = _count_cache_hits(kv_aware_plan) - before
    _send_each(_make_prompts(2, per_group=5), *map(serving.get_url, workers))
    in_turns = _count_cache_hits(kv_aware_plan) - before - by_events
    assert by_events == 4 * 4 * SHARED, "all but the first of each group"
    assert in_turns < 0.85 * by_events


def test_a_direct_request_to_a_replica_attracts_prompts_with_its_prefix(kv_aware_plan: DeploymentPlan) -> None:
    """The router never saw the first prompts: it can know of them from the engines alone."""
    url, metrics_url = kv_aware_plan.deployment.url, _get_metrics_url(kv_aware_plan)
    for process in kv_aware_plan.deployment.workers:
        prompts = _make_prompts(10 + process.port, groups=1, per_group=4)
        serving.complete(serving.get_url(process), prompt=prompts[0], max_tokens=2)
        _wait_until_heard(process, url, metrics_url)
        before, known_before = (
            serving.read_counter(process, "vllm:request_success_total"),
            _count_known_prompts(metrics_url),
        )
        for prompt in prompts[1:]:
            serving.complete(url, prompt=prompt, max_tokens=2)
        assert serving.read_counter(process, "vllm:request_success_total") - before == 3
        assert _count_known_prompts(metrics_url) - known_before == 3, (
            "it is no chance: knowing nothing, the router takes always the same one"
        )


def test_a_restarted_router_relearns_every_cache_even_of_an_engine_that_was_unreachable(
    kv_aware_plan: DeploymentPlan,
) -> None:
    """The sequence number of an engine's next event reveals the missed ones, and the router requests a replay."""
    replica = kv_aware_plan.deployment.workers[1]
    prompts = _make_prompts(3, groups=1, per_group=4)
    serving.complete(serving.get_url(replica), prompt=prompts[0], max_tokens=2)
    probes = _ask_probes(replica)
    supervisord = supervisor.find_running(kv_aware_plan.directory)
    assert supervisord is not None
    before = supervisord.read_state("router").pid
    with _suspend(supervisord.read_state(replica.name).pid):
        for process in psutil.Process(before).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one may end with another
                process.kill()
        processes.wait_until(lambda: supervisord.read_state("router").pid not in (0, before), "the router", 60)
        readiness.wait(supervisord, kv_aware_plan.deployment.entries)
        assert serving.get_url(replica) not in _list_workers(_get_router_url(kv_aware_plan))
    processes.wait_until(
        lambda: serving.get_url(replica) in _list_workers(_get_router_url(kv_aware_plan)), replica.name, 60
    )
    serving.complete(serving.get_url(replica), prompt=_make_prompts(4, groups=1, per_group=1)[0], max_tokens=2)
    _wait_until_repeated(probes, kv_aware_plan.deployment.url, _get_metrics_url(kv_aware_plan))
    requests_before = serving.read_counter(replica, "vllm:request_success_total")
    for prompt in prompts[1:]:
        serving.complete(kv_aware_plan.deployment.url, prompt=prompt, max_tokens=2)
    assert serving.read_counter(replica, "vllm:request_success_total") - requests_before == 3


@contextlib.contextmanager
def _suspend(pid: int) -> Iterator[None]:
    """Suspend a process and its descendants inside the block."""
    parent = psutil.Process(pid)
    family = [parent, *parent.children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            process.resume()


def test_the_router_subscribes_to_engines_as_they_join_and_leave(kv_aware_plan: DeploymentPlan, tmp_path: Path) -> None:
    """As on EKS and ECS: the router starts before any engine, and DNS discovery registers them."""
    first_replica, second_replica = kv_aware_plan.deployment.workers
    names = {"here": first_replica, "away": second_replica}
    workers = [f"--worker={name}:{process.port}" for name, process in names.items()]
    dns_discovery.write_dns(tmp_path)
    with dns_discovery.run_router(tmp_path, "--router=ROUTER", *workers, router=("--policy", "kv_aware")) as (
        router,
        metrics_url,
    ):

        def set_present(*present: str) -> None:
            dns_discovery.write_dns(tmp_path, **{name: [names[name].host] for name in present})
            expected = {serving.get_url(names[name]) for name in present}
            processes.wait_until(lambda: _list_workers(router) == expected, f"{present} and no other", 90)

        def count_requests(prompts: list[list[int]], process: Service) -> float:
            before = serving.read_counter(process, "vllm:request_success_total")
            for prompt in prompts:
                serving.complete(router, prompt=prompt, max_tokens=2)
            return serving.read_counter(process, "vllm:request_success_total") - before

        def ask_directly(prompt: list[int], process: Service) -> None:
            serving.complete(serving.get_url(process), prompt=prompt, max_tokens=2)

        set_present("here", "away")
        first_prompts, missed_prompts, last_prompts = (
            _make_prompts(seed, groups=1, per_group=4) for seed in (21, 22, 23)
        )
        ask_directly(first_prompts[0], process=second_replica)
        _wait_until_heard(second_replica, router, metrics_url)
        assert count_requests(first_prompts[1:], process=second_replica) == 3

        set_present("here")
        ask_directly(missed_prompts[0], process=second_replica)
        probes = _ask_probes(second_replica)
        time.sleep(2)  # so that the router would have heard it
        assert count_requests(first_prompts[1:2], process=first_replica) == 1, (
            "the cache that holds it is not to be had"
        )

        set_present("here", "away")
        ask_directly(last_prompts[0], process=second_replica)
        _wait_until_heard(second_replica, router, metrics_url)
        _wait_until_repeated(probes, router, metrics_url)
        assert count_requests(last_prompts[1:], process=second_replica) == 3
        assert count_requests(missed_prompts[1:], process=second_replica) == 3, (
            "the router asks for the events that it missed"
        )


def _list_workers(router_url: str) -> set[str]:
    """The engines that the router has; `router_url` is its own, not that of nginx before it."""
    return {
        worker["url"]
        for worker in json.loads(dns_discovery.fetch_page(f"{router_url}/workers") or b"{}").get("workers", ())
    }


def _get_router_url(plan: DeploymentPlan) -> str:
    """The router's own address, which only this machine reaches."""
    words = plan.deployment.entries[0].command
    return next(f"http://{word.partition('=')[2]}" for word in words if word.startswith("--router="))
