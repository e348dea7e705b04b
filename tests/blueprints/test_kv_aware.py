"""Routing by what the engines' caches hold, as they tell it: proven by the engines' own counters against turns."""

from __future__ import annotations

import contextlib
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
from llm_serving.targets.local import readiness, supervisor
from llm_serving.targets.local.deploy import Plan
from llm_serving.workloads.serving.deployment import Process
from tests import following, serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

SHARED, OWN = 512, 40
"""Tokens of a prompt that it has in common with others, and of its own: four blocks of the cache, and less than one."""

UNTIL_HEARD_S = 2.0
"""Events go out when a step ends, and nothing tells that the router has heard them."""


@pytest.fixture(scope="module")
def aware(
    tmp_path_factory: pytest.TempPathFactory, brought_up: Callable[[Path, Path], AbstractContextManager[Plan]]
) -> Iterator[Plan]:
    """The aggregated pattern with the policy changed in its one line."""
    root = tmp_path_factory.mktemp("aware")
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder)
    file = folder / "blueprint.yaml"
    assert "policy: cache-aware" in file.read_text()
    file.write_text(file.read_text().replace("policy: cache-aware", "policy: kv-aware"))
    with brought_up(folder, root) as plan:
        yield plan


def _prompts(seed: int, groups: int = 4, each: int = 5) -> list[list[int]]:
    """Prompts of several groups in a random order; those of a group begin alike."""
    draw = random.Random(seed)
    begin = [[draw.randrange(300, 1200) for _ in range(SHARED)] for _ in range(groups)]
    order = [group for group in range(groups) for _ in range(each)]
    draw.shuffle(order)
    return [[*begin[group], *(draw.randrange(300, 1200) for _ in range(OWN))] for group in order]


def _hits(plan: Plan) -> float:
    """Tokens that replicas found in their caches."""
    return sum(serving.counter(process, "vllm:prefix_cache_hits_total") for process in plan.deployment.replicas)


def _ask_each(prompts: list[list[int]], urls: list[str], between_s: float = 0.0) -> None:
    """Asks `urls` in turn."""
    for number, prompt in enumerate(prompts):
        serving.text(urls[number % len(urls)], prompt=prompt, max_tokens=2)
        time.sleep(between_s)


def _known(plan: Plan) -> float:
    """Prompts of which the router knew a replica that holds their beginning, by its own count."""
    page = f"http://127.0.0.1:{plan.run.ports()['router-metrics']}/metrics"
    return serving.counted(page, "vllm_router_kv_placement_lookups_total", result="hit")


def test_a_prompt_goes_where_its_beginning_is_cached_and_in_turns_it_is_computed_once_more(aware: Plan) -> None:
    before = _hits(aware)
    _ask_each(_prompts(1), [aware.deployment.url], UNTIL_HEARD_S / 4)
    by_events = _hits(aware) - before
    _ask_each(_prompts(2), [serving.url(process) for process in aware.deployment.replicas])
    in_turns = _hits(aware) - before - by_events
    most = (20 - 4) * SHARED  # all but the first of each group
    assert by_events >= 0.95 * most
    assert in_turns < 0.85 * most


def test_what_one_replica_was_asked_directly_draws_the_next_to_it(aware: Plan) -> None:
    """The router never saw the first prompts: it can know of them from the engines alone."""
    for process in aware.deployment.replicas:
        prompts = _prompts(10 + process.port, groups=1, each=4)
        serving.text(serving.url(process), prompt=prompts[0], max_tokens=2)
        time.sleep(UNTIL_HEARD_S)
        before, known = serving.counter(process, "vllm:request_success_total"), _known(aware)
        for prompt in prompts[1:]:
            serving.text(aware.deployment.url, prompt=prompt, max_tokens=2)
        assert serving.counter(process, "vllm:request_success_total") - before == 3
        assert _known(aware) - known == 3, "it is no chance: knowing nothing, the router takes always the same one"


def test_a_router_that_was_killed_learns_again_what_the_caches_hold_even_one_that_did_not_answer_then(
    aware: Plan,
) -> None:
    """With an engine's next event, whose number tells the router that it missed some: it asks for those then."""
    replica = aware.deployment.replicas[1]
    prompts = _prompts(3, groups=1, each=4)
    serving.text(serving.url(replica), prompt=prompts[0], max_tokens=2)
    up = supervisor.running(aware.run)
    assert up is not None
    before = up.state("router").pid
    with _silent(up.state(replica.name).pid):
        for process in psutil.Process(before).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one may end with another
                process.kill()
        processes.wait_until(lambda: up.state("router").pid not in (0, before), "the router", 60)
        readiness.wait(up, aware.deployment.router.processes)
        assert serving.url(replica) not in _workers(aware.deployment.url)
    processes.wait_until(lambda: serving.url(replica) in _workers(aware.deployment.url), replica.name, 60)
    serving.text(serving.url(replica), prompt=_prompts(4, groups=1, each=1)[0], max_tokens=2)
    time.sleep(UNTIL_HEARD_S)
    answered = serving.counter(replica, "vllm:request_success_total")
    for prompt in prompts[1:]:
        serving.text(aware.deployment.url, prompt=prompt, max_tokens=2)
    assert serving.counter(replica, "vllm:request_success_total") - answered == 3


@contextlib.contextmanager
def _silent(pid: int) -> Iterator[None]:
    """A process and all below it stand still meanwhile."""
    above = psutil.Process(pid)
    still = [above, *above.children(recursive=True)]
    for process in still:
        process.suspend()
    try:
        yield
    finally:
        for process in still:
            process.resume()


def test_of_engines_that_come_and_go_the_router_hears_those_that_are_there(aware: Plan, tmp_path: Path) -> None:
    """As on EKS and ECS: the router starts before any engine, and is told of them by what looks their names up."""
    here, away = aware.deployment.replicas
    names = {"here": here, "away": away}
    workers = [f"--worker={name}:{process.port}" for name, process in names.items()]
    following.dns(tmp_path)
    with following.running(tmp_path, "--router=ROUTER", *workers, router=("--policy", "kv_aware")) as (router, _):

        def there(*present: str) -> None:
            following.dns(tmp_path, **{name: ["127.0.0.1"] for name in present})
            expected = {serving.url(names[name]) for name in present}
            processes.wait_until(lambda: _workers(router) == expected, f"{present} and no other", 30)

        def drawn(prompts: list[list[int]], to: Process) -> float:
            before = serving.counter(to, "vllm:request_success_total")
            for prompt in prompts:
                serving.text(router, prompt=prompt, max_tokens=2)
            return serving.counter(to, "vllm:request_success_total") - before

        def ask_directly(prompt: list[int], of: Process) -> None:
            serving.text(serving.url(of), prompt=prompt, max_tokens=2)
            time.sleep(UNTIL_HEARD_S)

        there("here", "away")
        first, missed, last = (_prompts(seed, groups=1, each=4) for seed in (21, 22, 23))
        ask_directly(first[0], of=away)
        assert drawn(first[1:], to=away) == 3

        there("here")
        ask_directly(missed[0], of=away)
        assert drawn(first[1:2], to=here) == 1, "the cache that holds it is not to be had"

        there("here", "away")
        ask_directly(last[0], of=away)
        assert drawn(last[1:], to=away) == 3
        assert drawn(missed[1:], to=away) == 3, "the router asks for the events that it missed"


def _workers(router: str) -> set[str]:
    return {worker["url"] for worker in json.loads(following.get(f"{router}/workers") or b"{}").get("workers", ())}
