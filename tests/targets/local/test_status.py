"""The state of a deployment is that of its services; destroy ends processes that outlive its directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.services.service import Probe, Service
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, readiness, status, supervisor
from llm_serving.targets.local.supervisor import ProcessState

PlanFactory = Callable[[], DeploymentPlan]

pytestmark = [pytest.mark.usefixtures("fake_engine_env"), pytest.mark.timeout(600)]


@pytest.fixture
def plan(make_plan: PlanFactory) -> Iterator[DeploymentPlan]:
    """A deployment that runs."""
    plan = make_plan()
    deploy.deploy(plan, lambda _: None)
    yield plan
    deploy.destroy(plan.directory)


def _list_states(plan: DeploymentPlan) -> dict[str, str]:
    return {process.name: process.state for process in status.list_process_states(plan.directory)}


def _get_process(plan: DeploymentPlan, name: str) -> psutil.Process:
    supervisord = supervisor.find_running(plan.directory)
    assert supervisord
    return psutil.Process(supervisord.read_state(name).pid)


def test_every_process_is_ready_after_deploy(plan: DeploymentPlan) -> None:
    assert _list_states(plan) == dict.fromkeys(("aws", "router", "worker-0", "worker-1"), "ready")


def test_a_killed_worker_is_not_ready_until_it_answers_again(plan: DeploymentPlan, fake_engine_env: Path) -> None:
    (fake_engine_env / "hold").touch()  # however late it is looked at
    _get_process(plan, "worker-0").children()[0].kill()
    processes.wait_until(lambda: not readiness.is_answering(plan.deployment.workers[0]), "its end", 90)
    states = _list_states(plan)
    assert states.pop("worker-0") in ("starting", "failed")
    assert set(states.values()) == {"ready"}
    (fake_engine_env / "hold").unlink()
    processes.wait_until(lambda: _list_states(plan)["worker-0"] == "ready", "its return", 90)


def test_a_process_that_hangs_is_not_ready(plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PROBE_TIMEOUT_S", 0.5)
    engine = _get_process(plan, "worker-1").children()[0]
    engine.suspend()
    try:
        processes.wait_until(lambda: engine.status() == psutil.STATUS_STOPPED, "its suspension", 60)
        assert _list_states(plan)["worker-1"] == "starting"
    finally:
        engine.resume()


def test_a_stopped_process_is_stopped(plan: DeploymentPlan) -> None:
    supervisord = supervisor.find_running(plan.directory)
    assert supervisord
    supervisord.stop("worker-1")
    assert _list_states(plan)["worker-1"] == "stopped"


@pytest.mark.parametrize(("uptime_s", "state"), [(5, "starting"), (15, "failed")])
def test_a_process_without_an_answer_by_its_deadline_has_failed(uptime_s: float, state: str) -> None:
    probe = Probe(path="/v1/completions", body={}, deadline_s=10)
    (port,) = processes.claim_free_ports(1)
    process = Service(name="worker-0", role="worker", command=(), env={}, port=port, probe=probe)
    supervised = ProcessState("worker-0", "RUNNING", 1, uptime_s, 0, "")
    assert status._decide_state(supervised, process) == state


def test_a_killed_embedded_aws_ends_a_validation_before_it_starts(plan: DeploymentPlan) -> None:
    status.require_services(plan.directory, plan.deployment)
    _get_process(plan, "aws").children()[0].kill()
    port = plan.deployment.environment.ports["aws"]
    processes.wait_until(lambda: processes.is_free(port), "its end", 90)
    message = "mine: aws does not run: the deployment's processes need it. Fix: `blueprint deploy` starts it again"
    with pytest.raises(Unavailable, match=f"^{message} with its data.$") as error:
        status.require_services(plan.directory, plan.deployment)
    assert error.value.exit_code == 3


@pytest.fixture(params=["sockets elsewhere", "sockets inside"])
def removed_plan(plan: DeploymentPlan, request: pytest.FixtureRequest) -> DeploymentPlan:
    """A deployment that runs and whose directory was removed, with its sockets or without."""
    shutil.rmtree(plan.directory.data.parent)
    if request.param == "sockets inside":
        shutil.rmtree(plan.directory.sockets)
    return plan


def _list_supervisors(plan: DeploymentPlan) -> list[psutil.Process]:
    configuration = str(plan.directory.config)
    return [process for process in psutil.process_iter(["cmdline"]) if configuration in (process.info["cmdline"] or ())]


def test_processes_that_outlive_their_directory_are_reported_and_destroyed(removed_plan: DeploymentPlan) -> None:
    (daemon,) = _list_supervisors(removed_plan)
    family = [daemon, *daemon.children(recursive=True)]
    with pytest.raises(
        Unavailable, match=r"mine: \.blueprint/mine was removed while it ran; \d+ processes with .* run on"
    ):
        status.list_process_states(removed_plan.directory)
    assert deploy.exists(removed_plan.directory)
    assert deploy.destroy(removed_plan.directory)
    assert not [process for process in family if process.is_running()]
    assert not deploy.exists(removed_plan.directory)


def test_the_next_deploy_replaces_processes_that_outlived_their_directory(
    removed_plan: DeploymentPlan, make_plan: PlanFactory
) -> None:
    (orphan,) = _list_supervisors(removed_plan)
    plan = make_plan()
    deploy.deploy(plan, lambda _: None)
    assert not orphan.is_running()
    assert len(_list_supervisors(plan)) == 1
    assert set(_list_states(plan).values()) == {"ready"}
