"""Deploy with processes that stand in for the engine and, where no bucket is needed, for the embedded AWS."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import AnswerIsNo, InputError, Unavailable
from llm_serving.targets.local import deploy, readiness, supervisor, weights
from llm_serving.targets.local.deploy import Plan
from llm_serving.targets.local.readiness import RoleFailed

Planned = Callable[[], Plan]

pytestmark = [pytest.mark.usefixtures("stand_in"), pytest.mark.timeout(240)]


def _up(plan: Plan) -> dict[str, supervisor.State]:
    found = supervisor.running(plan.run)
    return {state.name: state for state in found.states()} if found else {}


def _of(plan: Plan) -> list[psutil.Process]:
    """All processes that have to do with a run."""
    folder, ports = str(plan.run.data), {str(port) for port in plan.deployment.place.ports.values()}
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(folder in word or word in ports for word in words):
            found.append(process)
    return found


def _edit(work: Path, before: str, after: str) -> None:
    file = work / "mine" / "blueprint.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def _agree(_: str) -> None:
    pass


def test_deploy_brings_up_every_process_on_loopback_alone_and_destroy_leaves_nothing(
    planned_with_bucket: Planned,
) -> None:
    plan = planned_with_bucket()
    assert deploy.deploy(plan, _agree) is not None
    states = _up(plan)
    assert set(states) == {"aws", "worker-0", "worker-1", "router"}
    assert not any(state.failed for state in states.values())
    assert all(readiness.answers(process) for process in plan.deployment.processes if process.probe)
    listening = [
        connection.laddr.ip
        for process in _of(plan)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 4
    assert set(listening) == {"127.0.0.1"}
    assert plan.run.deployment() == plan.deployment
    assert set(plan.run.ports()) == {"aws", "router", "router-metrics", "worker-0", "worker-1"}
    assert deploy.destroy(plan.run)
    assert _of(plan) == []
    assert not plan.run.data.exists()


def test_workers_start_as_soon_as_the_bucket_has_its_rules_while_terraform_still_waits(
    planned_with_bucket: Planned, make_bucket: Callable[[Plan], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned_with_bucket()

    def waits(plan: Plan) -> str:
        bucket = make_bucket(plan)
        time.sleep(1)
        assert not _up(plan)["worker-1"].pid, "Terraform is not done with the bucket"
        s3 = emulator.client("s3", plan.deployment.place.s3_endpoint or "", plan.deployment.place.region)
        rule = {"ID": "old", "Status": "Enabled", "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
        s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
        processes.wait_until(lambda: _up(plan)["worker-1"].pid > 0, "the second worker", 60)
        assert weights.check(plan.deployment) > 0, "the weights came before"
        return bucket

    monkeypatch.setattr(deploy, "apply_storage", waits)
    assert deploy.deploy(plan, _agree) is not None
    assert all(readiness.answers(process) for process in plan.deployment.processes if process.probe)


def test_deploying_the_same_again_changes_nothing_and_takes_up_a_new_slo(planned: Planned, work: Path) -> None:
    deploy.deploy(planned(), _agree)
    before = {name: state.pid for name, state in _up(planned()).items()}
    _edit(work, "errors: 0%", "errors: 1%")
    assert deploy.difference(planned()) == ""
    assert deploy.deploy(planned(), _agree) is None
    assert {name: state.pid for name, state in _up(planned()).items()} == before
    deployed = planned().run.deployment()
    assert deployed is not None
    assert deployed.slo.errors == 0.01


def test_a_change_restarts_what_it_touches_and_nothing_else(planned: Planned, work: Path) -> None:
    deploy.deploy(planned(), _agree)
    before = {name: state.pid for name, state in _up(planned()).items()}
    _edit(work, "policy: cache-aware", "policy: round-robin")
    shown: list[str] = []
    deploy.deploy(planned(), shown.append)
    after = {name: state.pid for name, state in _up(planned()).items()}
    assert [name for name in before if before[name] != after[name]] == ["router"]
    assert "-    --policy cache_aware" in shown[0]
    assert "+    --policy round_robin" in shown[0]


def test_fewer_replicas_stop_the_last_one(planned: Planned, work: Path) -> None:
    deploy.deploy(planned(), _agree)
    before = _up(planned())
    _edit(work, "replicas: 2", "replicas: 1")
    deploy.deploy(planned(), _agree)
    after = _up(planned())
    assert set(after) == {"aws", "worker-0", "router"}
    assert after["aws"].pid == before["aws"].pid
    # One replica has all cores to itself.
    assert (after["worker-0"].pid == before["worker-0"].pid) == (planned().deployment.place.cores < 2)


def test_nothing_happens_when_the_user_does_not_agree(planned: Planned) -> None:
    def refuse(changes: str) -> None:
        assert "+[program:worker-0]" in changes
        raise AnswerIsNo("nothing was changed")

    plan = planned()
    with pytest.raises(AnswerIsNo):
        deploy.deploy(plan, refuse)
    assert _of(plan) == []


def test_a_role_that_fails_is_named_with_its_cause_and_last_lines_and_nothing_stays(
    planned: Planned, stand_in: Path
) -> None:
    (stand_in / "fail").touch()
    plan = planned()
    with pytest.raises(RoleFailed) as failed:
        deploy.deploy(plan, _agree)
    said = str(failed.value)
    name = said.split()[0]
    assert name in ("worker-0", "worker-1")
    assert said.splitlines() == [
        f"{name} ended with exit status 1: botocore.errorfactory.NoSuchBucket: no bucket",
        f"  its last lines, all of them in .blueprint/mine/logs/{name}.log:",
        "    Traceback (most recent call last):",
        '      File "x.py", line 1',
        "    botocore.errorfactory.NoSuchBucket: no bucket",
    ]
    assert failed.value.exit_code == 3
    assert _of(plan) == []
    assert plan.run.deployment() is None


def test_an_emptied_bucket_makes_the_next_deploy_fail_and_leaves_nothing_running(
    planned_with_bucket: Planned, work: Path
) -> None:
    plan = planned_with_bucket()
    deploy.deploy(plan, _agree)
    place = plan.deployment.place
    client = emulator.client("s3", place.s3_endpoint or "", place.region)
    for one in client.list_objects_v2(Bucket=place.bucket)["Contents"]:
        client.delete_object(Bucket=place.bucket, Key=one["Key"])
    _edit(work, "policy: cache-aware", "policy: round-robin")
    with pytest.raises(Unavailable, match=f"s3://{place.bucket}/models/tiny/: there is no model there, no config.json"):
        deploy.deploy(planned_with_bucket(), _agree)
    assert _of(plan) == []


def test_a_replica_that_is_killed_comes_back_and_leaves_nothing_behind(planned: Planned) -> None:
    plan = planned()
    deploy.deploy(plan, _agree)
    keeper = psutil.Process(_up(plan)["worker-0"].pid)
    before = keeper.children(recursive=True)
    assert len(before) == 2, "the server and what it started"
    before[0].kill()
    _, alive = psutil.wait_procs([keeper, *before], timeout=20)
    assert alive == []
    worker = plan.deployment.replicas[0]
    processes.wait_until(lambda: readiness.answers(worker), "the replica's return", 30)
    assert _up(plan)["worker-0"].restarts == 1
    assert _up(plan)["worker-1"].restarts == 0


def test_the_embedded_aws_is_not_restarted_empty(planned_with_bucket: Planned) -> None:
    plan = planned_with_bucket()
    deploy.deploy(plan, _agree)
    psutil.Process(_up(plan)["aws"].pid).children()[0].kill()
    processes.wait_until(lambda: _up(plan)["aws"].failed, "its end", 20)
    time.sleep(2)
    assert _up(plan)["aws"].failed
    # The next deploy begins anew, bucket and all.
    deploy.deploy(planned_with_bucket(), _agree)
    assert _up(plan)["aws"].state in ("STARTING", "RUNNING")


def test_a_deployment_outlives_the_command_and_a_supervised_one_does_not(planned: Planned) -> None:
    plan = planned()
    deploy.start_afresh(plan)
    with supervisor.supervised(plan.run) as up:
        deploy.start_aws(plan, up)
        assert _of(plan)
    assert _of(plan) == []


def test_kill_9_of_the_one_that_supervises_leaves_nothing(planned: Planned, work: Path) -> None:
    plan = planned()
    deploy.start_afresh(plan)
    program = (
        "import time; from pathlib import Path; from llm_serving.targets.local import supervisor; from llm_serving.targets.local.deployment_dir import Run\n"
        f"with supervisor.supervised(Run('mine', Path({str(work)!r}))) as up:\n"
        "    up.start('aws'); print('up', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    assert _of(plan)
    parent.kill()
    parent.wait()
    processes.wait_until(lambda: _of(plan) == [], "the end of all processes", 30)


def test_kill_9_of_the_supervisor_leaves_nothing_and_deploy_begins_anew(planned: Planned) -> None:
    plan = planned()
    deploy.deploy(plan, _agree)
    up = supervisor.running(plan.run)
    assert up is not None
    assert up.pid is not None
    psutil.Process(up.pid).kill()
    processes.wait_until(lambda: _of(plan) == [], "the end of all processes", 30)
    validated = plan.run.logs / "validation" / "requests.jsonl"
    validated.parent.mkdir()
    validated.touch()
    deploy.deploy(planned(), _agree)
    assert len(_up(plan)) == 4
    assert not validated.exists()  # what was measured of the one that is gone


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_deploy_leaves_nothing(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, what: signal.Signals
) -> None:
    plan = planned()

    def interrupted(_plan: Plan, _up: Any, note: Any) -> None:
        assert _of(plan)
        os.kill(os.getpid(), what)
        time.sleep(10)

    monkeypatch.setattr(deploy, "start_roles", interrupted)
    with pytest.raises(KeyboardInterrupt), processes.interruptible():
        deploy.deploy(plan, _agree)
    assert _of(plan) == []


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_port_that_is_taken_is_said_before_anything_starts(work: Path, taken: int) -> None:
    with pytest.raises(Unavailable) as refused:
        deploy.plan(Path("mine"), Path("fleet.yaml"), port=taken)
    assert str(refused.value) == f"port {taken} is taken; write another --port, or none to have a free one chosen"
    assert not (work / ".blueprint").exists()


def test_a_port_that_is_taken_after_the_plan_is_said_before_anything_starts(planned: Planned) -> None:
    plan = planned()
    port = plan.deployment.replicas[1].port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Unavailable) as refused:
        deploy.deploy(plan, _agree)
    assert str(refused.value) == (
        f"taken by another program: port {port} of worker-1; end that program, or run `blueprint destroy` first"
    )
    assert _of(plan) == []


def test_ports_are_kept_while_they_are_free_and_chosen_anew_where_not(planned: Planned) -> None:
    first = planned().run.ports()
    assert planned().run.ports() == first
    with socket.create_server(("127.0.0.1", first["router"])):
        second = planned().run.ports()
    assert [name for name in first if first[name] != second[name]] == ["router"]


def test_ports_that_another_deployment_has_chosen_are_left_to_it(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned().run.ports()
    claimed = processes.claim
    # Another process is about to listen on the ports of the first.
    monkeypatch.setattr(processes, "claim", lambda port: port not in first.values() and claimed(port))
    second = planned().run.ports()
    assert not {*first.values()} & {*second.values()}
    with pytest.raises(Unavailable, match="is taken; write another --port"):
        deploy.plan(Path("mine"), Path("fleet.yaml"), port=first["router"])


def test_the_port_that_a_user_names_is_the_endpoints(planned: Planned) -> None:
    port = processes.free_ports(1)[0]
    plan = deploy.plan(Path("mine"), Path("fleet.yaml"), port=port)
    assert plan.deployment.url == f"http://127.0.0.1:{port}"
    assert planned().deployment.url == f"http://127.0.0.1:{port}"


def test_too_little_memory_is_said_in_one_line(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    now = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: now._replace(available=2_000_000_000))
    plan = planned()
    with pytest.raises(Unavailable) as refused:
        deploy.deploy(plan, _agree)
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith("too little memory: 3.")
    assert "worker-0 1.6" in said
    assert said.endswith("2 GB are free; end other programs, or write fewer replicas or a smaller model")
    assert _of(plan) == []


def test_a_full_disk_is_said_in_one_line(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1_000_000))
    plan = planned()
    with pytest.raises(Unavailable) as refused:
        deploy.deploy(plan, _agree)
    assert str(refused.value) == (
        f"too little disk: 208 MB are needed under {plan.run.data}, 1 MB are free; "
        "make room, or work in a folder on another disk"
    )
    assert _of(plan) == []


def test_an_edited_rendering_is_refused_before_what_runs_is_touched(planned: Planned, work: Path) -> None:
    plan = planned()
    deploy.deploy(plan, _agree)
    before = {name: state.pid for name, state in _up(plan).items()}
    rendered = plan.run.rendered / "local.conf"
    rendered.write_text(rendered.read_text() + "; edited\n")
    _edit(work, "policy: cache-aware", "policy: random")
    with pytest.raises(InputError, match="was edited by hand"):
        deploy.deploy(planned(), _agree)
    assert {name: state.pid for name, state in _up(plan).items()} == before
    deploy.deploy(planned(), _agree, force=True)
    assert "; edited" not in rendered.read_text()


def test_a_bucket_of_another_name_is_taken_up(planned_with_bucket: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned_with_bucket()

    def elsewhere(plan: Plan) -> str:
        there = plan.deployment.place.model_copy(update={"bucket": "elsewhere"})
        return make(dataclasses.replace(plan, deployment=plan.deployment.model_copy(update={"place": there})))

    make = deploy.apply_storage
    monkeypatch.setattr(deploy, "apply_storage", elsewhere)
    done = deploy.deploy(before, _agree)
    assert done is not None
    assert done.deployment.models[0].weights.uri == "s3://elsewhere/models/tiny/"
    assert "s3://elsewhere/models/tiny/" in before.run.config.read_text()
