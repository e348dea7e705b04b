"""Routing by what the engines' caches hold, as they tell it: proven by the engines' own counters against turns."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from scripts import processes
from scripts.local import answers, supervisor
from scripts.local.deploy import Plan
from tests import serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

SHARED, OWN = 512, 40
"""Tokens of a prompt that it has in common with others, and of its own: four blocks of the cache, and less than one."""

UNTIL_HEARD_S = 1.0
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


def _found(plan: Plan, prompts: list[list[int]], urls: list[str]) -> float:
    """Tokens that the caches spare when the prompts go to `urls` in turn."""
    before = _hits(plan)
    for number, prompt in enumerate(prompts):
        serving.text(urls[number % len(urls)], prompt=prompt, max_tokens=2)
        time.sleep(UNTIL_HEARD_S / 4)
    return _hits(plan) - before


def test_a_prompt_goes_where_its_beginning_is_cached_and_in_turns_it_is_computed_once_more(aware: Plan) -> None:
    by_events = _found(aware, _prompts(1), [aware.deployment.url])
    in_turns = _found(aware, _prompts(2), [serving.url(process) for process in aware.deployment.replicas])
    most = (20 - 4) * SHARED  # all but the first of each group
    assert by_events >= 0.95 * most
    assert in_turns < 0.85 * most


def test_what_one_replica_was_asked_directly_draws_the_next_to_it(aware: Plan) -> None:
    """The router never saw the first prompts: it can know of them from the engines alone."""
    for process in aware.deployment.replicas:
        prompts = _prompts(10 + process.port, groups=1, each=4)
        serving.text(serving.url(process), prompt=prompts[0], max_tokens=2)
        time.sleep(UNTIL_HEARD_S)
        before = serving.counter(process, "vllm:request_success_total")
        for prompt in prompts[1:]:
            serving.text(aware.deployment.url, prompt=prompt, max_tokens=2)
        assert serving.counter(process, "vllm:request_success_total") - before == 3


def test_a_router_that_was_killed_learns_again_what_the_caches_hold(aware: Plan) -> None:
    """With an engine's next event, whose number tells the router that it missed some: it asks for those then."""
    replica = aware.deployment.replicas[1]
    prompts = _prompts(3, groups=1, each=4)
    serving.text(serving.url(replica), prompt=prompts[0], max_tokens=2)
    time.sleep(UNTIL_HEARD_S)
    up = supervisor.running(aware.run)
    assert up is not None
    before = up.state("router").pid
    for process in psutil.Process(before).children(recursive=True):
        process.kill()
    processes.wait_until(lambda: up.state("router").pid not in (0, before), "the router", 60)
    answers.wait(up, aware.deployment.router.processes)
    serving.text(serving.url(replica), prompt=_prompts(4, groups=1, each=1)[0], max_tokens=2)
    time.sleep(UNTIL_HEARD_S)
    answered = serving.counter(replica, "vllm:request_success_total")
    for prompt in prompts[1:]:
        serving.text(aware.deployment.url, prompt=prompt, max_tokens=2)
    assert serving.counter(replica, "vllm:request_success_total") - answered == 3
