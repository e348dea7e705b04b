"""Ray's real nodes and Serve's replicas of two models on them: reached by loopback alone, counted, bounded, replaced,
and gone afterwards."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy
from tests import serving

REPLICA = "ray::ServeReplica:llm:LLMServer:"
"""What a replica's process calls itself, before the model's name."""

pytestmark = serving.mark_framework("ray")


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """A node for each of two replicas of `tiny` and the one of `other`, and the head."""
    with serving.run_framework("ray", tmp_path_factory.mktemp("ray"), start_blueprint) as started:
        yield started


def _find_processes(plan: DeploymentPlan, words: str) -> list[psutil.Process]:
    """Return those whose command line has the words."""
    found = []
    for process in serving.list_processes(plan):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if words in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_it_listens_on_loopback_addresses_alone(plan: DeploymentPlan) -> None:
    serving.assert_loopback(plan)


def test_no_process_imports_the_engine_for_nothing(plan: DeploymentPlan) -> None:
    # A start has ended once one replica of the first model answers; the engines of others may be on their way.
    processes.wait_until(lambda: len(_find_processes(plan, "VLLM::EngineCore")) == 3, "each replica's engine", 300, 1)
    parents = {process.ppid() for process in _find_processes(plan, "VLLM::EngineCore")}
    assert {server.pid for server in _find_processes(plan, "VLLM::ForkServer")} == parents
    assert {server.ppid() for server in _find_processes(plan, "VLLM::ForkServer")} == _list_replicas(plan)
    assert not [*_find_processes(plan, "VLLM::Worker"), *_find_processes(plan, "ray::TelemetryAgent")]


def test_a_node_starts_without_commands_that_it_does_not_run(plan: DeploymentPlan) -> None:
    [head] = _find_processes(plan, "start --block --head")
    program = head.cmdline()[: head.cmdline().index("start")]
    shown = subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=300, check=True).stdout
    names = set(re.findall(r"^ +([a-z]+) ", shown, re.MULTILINE))
    assert "start" in names and not names & {"serve", "job", "logs"}


def _request_status(port: int, token: str = "") -> int:
    """Return the status of a page of an agent, or 0 where no server of HTTP is."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/api/ray/version", headers=headers), timeout=120
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return 0


def test_its_agents_answer_those_alone_that_know_its_secret(plan: DeploymentPlan) -> None:
    token = (plan.directory.data / "ray-token").read_text()
    agents = _find_processes(plan, "DashboardAgent")
    connections = [one for agent in agents for one in agent.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    closed = [one.laddr.port for one in connections if _request_status(one.laddr.port) == 401]
    assert len(closed) == len(plan.deployment.services)
    assert not {_request_status(port, token) for port in closed} & {0, 401, 403}


def test_the_report_counts_every_request_at_the_replica_that_answered(plan: DeploymentPlan, tmp_path: Path) -> None:
    serving.assert_counted(plan, tmp_path)


def test_each_model_answers_by_its_name(plan: DeploymentPlan) -> None:
    serving.assert_named(plan)


def test_a_model_whose_replica_is_full_refuses_more_while_the_other_answers(plan: DeploymentPlan) -> None:
    [replica] = _list_replicas(plan, "other")
    serving.assert_bounded(plan, psutil.Process(replica), retry_after="1")


def test_a_prompt_goes_where_its_beginning_was_seen(plan: DeploymentPlan) -> None:
    *others, chosen = serving.repeat_prompt(plan, "The router sends a request to the worker that has seen it. " * 20, 6)
    assert others == [0, 0] and chosen >= 5 * 128, "five of six found whole blocks, all of them at one replica"


def test_killed_replicas_of_both_models_are_replaced_while_one_of_the_first_answers(plan: DeploymentPlan) -> None:
    [lonely] = _list_replicas(plan, "other")
    before = {*_list_replicas(plan, "tiny"), lonely}
    assert len(before) == len(plan.deployment.workers) == 3
    victims = {min(before - {lonely}), lonely}
    with serving.Load(plan.deployment.url, deadline_s=300, users=2) as load:
        load.wait_answers(4)
        for victim in victims:
            psutil.Process(victim).kill()
        load.wait_answers(8)
        deadline = time.monotonic() + 300
        while len(_list_replicas(plan) - victims) < 3 and time.monotonic() < deadline:
            time.sleep(1)
    assert len(_list_replicas(plan) - before) == 2
    assert len(load.failed) <= 2, "each user had at most the one request that the replica was answering"
    processes.wait_until(lambda: _answers(plan, "other"), "the second model", 300)


def _list_replicas(plan: DeploymentPlan, model: str = "") -> set[int]:
    return {each.pid for each in _find_processes(plan, f"{REPLICA}{model}")}


def _answers(plan: DeploymentPlan, model: str) -> bool:
    try:
        return bool(serving.complete(plan.deployment.url, model=model))
    except (OSError, http.client.HTTPException):
        return False


@pytest.fixture(scope="module")
def changed(plan: DeploymentPlan) -> DeploymentPlan:
    """Another policy, and `tiny` alone."""
    return serving.change_policy(plan, "round-robin", without="other")


def test_another_policy_sends_a_prompt_elsewhere_and_a_model_that_is_left_out_ends(changed: DeploymentPlan) -> None:
    hits = serving.repeat_prompt(changed, "A turn for each replica, whatever it has seen. " * 20, 6)
    assert min(hits[1:]) >= 2 * 128, "each replica had the first of its three"
    assert len(_list_replicas(changed)) == len(changed.deployment.workers) == 2
    with pytest.raises(urllib.error.HTTPError, match="404"):
        serving.complete(changed.deployment.url, model="other")


def test_all_starts_anew_by_itself_when_the_head_is_killed(changed: DeploymentPlan) -> None:
    """Up to the start of its replicas, which the next test ends in the middle; the one before waited for their answers."""
    [router] = changed.deployment.entries
    log = changed.directory.logs / f"{router.name}.log"

    def count_starts() -> int:
        return len(re.findall(r"Adding \d replicas? to Deployment\(name='LLMServer:tiny'", log.read_text()))

    replicas, starts = _list_replicas(changed), count_starts()
    assert starts
    [head] = _find_processes(changed, "start --block --head")
    head.kill()
    with pytest.raises((OSError, http.client.HTTPException)):
        while True:  # until it was noticed
            serving.complete(changed.deployment.url)
    processes.wait_until(
        lambda: count_starts() > starts and not _list_replicas(changed) & replicas,
        "new replicas",
        600,
        1,
    )


def test_destroying_it_leaves_nothing(changed: DeploymentPlan) -> None:
    running = serving.list_processes(changed)
    assert deploy.destroy(changed.directory)
    assert [each for each in running if each.is_running()] == []
    assert not changed.directory.data.exists() and not changed.directory.sockets.exists()
