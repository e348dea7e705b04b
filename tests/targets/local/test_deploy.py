"""Deploy with fakes of the engine and, where no bucket is needed, of the embedded AWS."""

from __future__ import annotations

import dataclasses
import ipaddress
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
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, readiness, supervisor
from llm_serving.targets.local.readiness import RoleFailed

PlanFactory = Callable[[], DeploymentPlan]

pytestmark = [pytest.mark.usefixtures("fake_engine_env"), pytest.mark.timeout(600)]


def _list_states(plan: DeploymentPlan) -> dict[str, supervisor.ProcessState]:
    supervisord = supervisor.find_running(plan.directory)
    return {state.name: state for state in supervisord.list_states()} if supervisord else {}


def _find_processes(plan: DeploymentPlan) -> list[psutil.Process]:
    """Find all processes of a deployment."""
    folder, ports = str(plan.directory.data), {str(port) for port in plan.deployment.environment.ports.values()}
    matches = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(folder in word or word in ports for word in words):
            matches.append(process)
    return matches


def _edit(work: Path, before: str, after: str) -> None:
    file = work / "mine" / "blueprint.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def _agree(_: str) -> None:
    pass


def test_deploy_brings_up_every_process_on_loopback_alone_and_destroy_leaves_nothing(
    make_plan_with_bucket: PlanFactory,
) -> None:
    plan = make_plan_with_bucket()
    assert deploy.deploy(plan, _agree) is not None
    states = _list_states(plan)
    assert set(states) == {"aws", "worker-0", "worker-1", "router"}
    for state in states.values():  # behind a proxy the router found no engine
        assert plan.deployment.environment.hidden_host in psutil.Process(state.pid).environ()["NO_PROXY"]
    assert not any(state.failed for state in states.values())
    assert all(readiness.is_answering(process) for process in plan.deployment.all_services if process.probe)
    listening = [
        connection.laddr.ip
        for process in _find_processes(plan)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 4
    assert all(ipaddress.ip_address(address).is_loopback for address in listening)
    assert plan.directory.load_deployment() == plan.deployment
    assert set(plan.directory.load_ports()) == {
        "aws",
        "router",
        "router-admin",
        "router-metrics",
        "worker-0",
        "worker-1",
    }
    assert deploy.destroy(plan.directory)
    assert _find_processes(plan) == []
    assert not plan.directory.data.exists()


def test_a_bucket_is_ready_once_it_has_its_lifecycle_rules(
    make_plan_with_bucket: PlanFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan_with_bucket()
    with emulator.start(tmp_path, bare=True) as endpoint:
        environment = plan.deployment.environment.model_copy(update={"s3_endpoint": endpoint})
        plan = dataclasses.replace(plan, deployment=plan.deployment.model_copy(update={"environment": environment}))
        assert not deploy.is_bucket_ready(plan)
        deploy.create_bucket(plan)
        assert not deploy.is_bucket_ready(plan), "Terraform is not done with the bucket"
        s3 = emulator.create_client("s3", endpoint, environment.region)
        rule = {"ID": "old", "Status": "Enabled", "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
        s3.put_bucket_lifecycle_configuration(Bucket=environment.bucket, LifecycleConfiguration={"Rules": [rule]})
        assert deploy.is_bucket_ready(plan)


def test_a_second_deploy_changes_nothing_but_the_slo(make_plan: PlanFactory, working_folder: Path) -> None:
    deploy.deploy(make_plan(), _agree)
    before = {name: state.pid for name, state in _list_states(make_plan()).items()}
    _edit(working_folder, "errors: 0%", "errors: 1%")
    assert deploy.diff(make_plan()) == ""
    assert deploy.deploy(make_plan(), _agree) is None
    assert {name: state.pid for name, state in _list_states(make_plan()).items()} == before
    running_deployment = make_plan().directory.load_deployment()
    assert running_deployment is not None
    assert running_deployment.slo.errors == 0.01


def test_a_change_restarts_only_the_processes_that_it_affects(make_plan: PlanFactory, working_folder: Path) -> None:
    deploy.deploy(make_plan(), _agree)
    before = {name: state.pid for name, state in _list_states(make_plan()).items()}
    _edit(working_folder, "policy: cache-aware", "policy: round-robin")
    diffs: list[str] = []
    deploy.deploy(make_plan(), diffs.append)
    after = {name: state.pid for name, state in _list_states(make_plan()).items()}
    assert [name for name in before if before[name] != after[name]] == ["router"]
    assert "-    --policy cache_aware" in diffs[0]
    assert "+    --policy round_robin" in diffs[0]


def test_fewer_replicas_stop_the_last_replica(make_plan: PlanFactory, working_folder: Path) -> None:
    deploy.deploy(make_plan(), _agree)
    before = _list_states(make_plan())
    _edit(working_folder, "replicas: 2", "replicas: 1")
    deploy.deploy(make_plan(), _agree)
    after = _list_states(make_plan())
    assert set(after) == {"aws", "worker-0", "router"}
    assert after["aws"].pid == before["aws"].pid
    # A single replica has all cores.
    assert (after["worker-0"].pid == before["worker-0"].pid) == (make_plan().deployment.environment.cores < 2)


def test_nothing_starts_without_confirmation(make_plan: PlanFactory) -> None:
    def refuse(changes: str) -> None:
        assert "+[program:worker-0]" in changes
        raise CheckFailed("nothing was changed")

    plan = make_plan()
    with pytest.raises(CheckFailed):
        deploy.deploy(plan, refuse)
    assert _find_processes(plan) == []


def test_a_failed_role_is_named_with_its_cause_and_last_lines_and_nothing_keeps_running(
    make_plan: PlanFactory, fake_engine_env: Path
) -> None:
    (fake_engine_env / "fail").touch()
    plan = make_plan()
    with pytest.raises(RoleFailed) as failed:
        deploy.deploy(plan, _agree)
    message = str(failed.value)
    name = message.split()[0]
    assert name in ("worker-0", "worker-1")
    assert message.splitlines() == [
        f"{name} ended with exit status 1: botocore.errorfactory.NoSuchBucket: no bucket",
        f"  last lines of .blueprint/mine/logs/{name}.log:",
        "    Traceback (most recent call last):",
        '      File "x.py", line 1',
        "    botocore.errorfactory.NoSuchBucket: no bucket",
    ]
    assert failed.value.exit_code == 3
    assert _find_processes(plan) == []
    assert plan.directory.load_deployment() is None


def test_an_empty_bucket_fails_the_next_deploy_and_leaves_nothing_running(
    make_plan_with_bucket: PlanFactory, working_folder: Path
) -> None:
    plan = make_plan_with_bucket()
    deploy.deploy(plan, _agree)
    environment = plan.deployment.environment
    client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
    for item in client.list_objects_v2(Bucket=environment.bucket)["Contents"]:
        client.delete_object(Bucket=environment.bucket, Key=item["Key"])
    _edit(working_folder, "policy: cache-aware", "policy: round-robin")
    with pytest.raises(Unavailable, match=f"s3://{environment.bucket}/models/tiny/: no model: config.json is missing"):
        deploy.deploy(make_plan_with_bucket(), _agree)
    assert _find_processes(plan) == []


def test_a_killed_replica_restarts_and_leaves_no_process(make_plan: PlanFactory) -> None:
    plan = make_plan()
    deploy.deploy(plan, _agree)
    parent = psutil.Process(_list_states(plan)["worker-0"].pid)
    before = parent.children(recursive=True)
    assert len(before) == 2, "the server and what it started"
    before[0].kill()
    _, alive = psutil.wait_procs([parent, *before], timeout=60)
    assert alive == []
    worker = plan.deployment.workers[0]
    processes.wait_until(lambda: readiness.is_answering(worker), "the replica's return", 90)
    assert _list_states(plan)["worker-0"].restarts == 1
    assert _list_states(plan)["worker-1"].restarts == 0


def test_the_embedded_aws_is_not_restarted_without_its_data(make_plan_with_bucket: PlanFactory) -> None:
    plan = make_plan_with_bucket()
    deploy.deploy(plan, _agree)
    psutil.Process(_list_states(plan)["aws"].pid).children()[0].kill()
    processes.wait_until(lambda: _list_states(plan)["aws"].failed, "its end", 90)
    time.sleep(2)
    assert _list_states(plan)["aws"].failed
    # The next deploy starts over, with the bucket.
    deploy.deploy(make_plan_with_bucket(), _agree)
    assert _list_states(plan)["aws"].state in ("STARTING", "RUNNING")


def test_an_attached_supervisor_ends_with_its_block(make_plan: PlanFactory) -> None:
    plan = make_plan()
    deploy.prepare_start(plan)
    with supervisor.start_attached(plan.directory, deploy.list_direct_hosts(plan)) as supervisord:
        deploy.start_emulator(plan, supervisord)
        assert plan.deployment.environment.hidden_host in psutil.Process(supervisord.pid).environ()["NO_PROXY"]
        assert _find_processes(plan)
    assert _find_processes(plan) == []


def test_kill_9_of_the_parent_of_an_attached_supervisor_leaves_no_process(
    make_plan: PlanFactory, working_folder: Path
) -> None:
    plan = make_plan()
    deploy.prepare_start(plan)
    program = (
        "import time; from pathlib import Path; from llm_serving.targets.local import supervisor; from llm_serving.targets.deployment_dir import DeploymentDir\n"
        f"with supervisor.start_attached(DeploymentDir('mine', Path({str(working_folder)!r}))) as up:\n"
        "    up.start('aws'); print('up', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    assert _find_processes(plan)
    parent.kill()
    parent.wait()
    processes.wait_until(lambda: _find_processes(plan) == [], "the end of all processes", 90)


def test_kill_9_of_the_supervisor_leaves_no_process_and_deploy_starts_over(make_plan: PlanFactory) -> None:
    plan = make_plan()
    deploy.deploy(plan, _agree)
    supervisord = supervisor.find_running(plan.directory)
    assert supervisord is not None
    assert supervisord.pid is not None
    psutil.Process(supervisord.pid).kill()
    processes.wait_until(lambda: _find_processes(plan) == [], "the end of all processes", 90)
    validated = plan.directory.logs / "validation" / "requests.jsonl"
    validated.parent.mkdir()
    validated.touch()
    deploy.deploy(make_plan(), _agree)
    assert len(_list_states(plan)) == 4
    assert not validated.exists()  # it measured the previous deployment


@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_deploy_leaves_no_process(
    make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch, interruption: signal.Signals
) -> None:
    plan = make_plan()

    def interrupt(_plan: DeploymentPlan, _up: Any) -> None:
        assert _find_processes(plan)
        os.kill(os.getpid(), interruption)
        time.sleep(10)

    monkeypatch.setattr(deploy, "start_roles", interrupt)
    with pytest.raises(KeyboardInterrupt), processes.handle_interrupts():
        deploy.deploy(plan, _agree)
    assert _find_processes(plan) == []


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_port_in_use_is_refused_before_anything_starts(working_folder: Path, busy_port: int) -> None:
    with pytest.raises(Unavailable) as error:
        planning.plan(Path("mine"), Path("fleet.yaml"), port=busy_port, target="local")
    assert (
        str(error.value) == f"port {busy_port} is in use. Fix: choose another --port, or leave it out for a free one."
    )
    assert not (working_folder / ".blueprint").exists()


def test_a_port_in_use_since_the_plan_is_refused_before_anybody_reads_changes_or_anything_starts(
    make_plan: PlanFactory,
) -> None:
    plan, shown = make_plan(), list[str]()
    port = plan.deployment.workers[1].port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Unavailable) as error:
        deploy.deploy(plan, shown.append)
    assert shown == []
    assert str(error.value) == (
        f"port {port} of worker-1 is in use. Fix: stop the program that listens, or run `blueprint destroy` first."
    )
    assert _find_processes(plan) == []


def test_saved_ports_are_used_again_while_they_are_free(make_plan: PlanFactory) -> None:
    first = make_plan().directory.load_ports()
    assert make_plan().directory.load_ports() == first
    with socket.create_server(("127.0.0.1", first["router"])):
        second = make_plan().directory.load_ports()
    assert [name for name in first if first[name] != second[name]] == ["router"]


def test_a_plan_leaves_the_ports_of_a_deploy_that_is_under_way(
    make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, original_claim = make_plan(), processes.claim
    ports = plan.directory.load_ports()
    with pytest.MonkeyPatch.context() as patch:  # another process has claimed them
        patch.setattr(processes, "claim", lambda port: port not in ports.values() and original_claim(port))
        with plan.directory.lock():
            assert make_plan().deployment.environment.ports["router"] != ports["router"]
            assert plan.directory.load_ports() == ports
        assert make_plan().directory.load_ports() != ports, "once it has ended, the next has its own"

    def stop(*_: object) -> None:
        raise CheckFailed("enough")

    monkeypatch.setattr(deploy, "prepare_start", stop)
    with pytest.raises(CheckFailed, match="enough"):
        deploy.deploy(plan, lambda _: None)
    assert plan.directory.load_ports() == ports, "it serves at those that it was planned with"


def test_ports_that_another_deployment_claims_are_not_chosen(
    make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_plan().directory.load_ports()
    original_claim = processes.claim
    # Another process is about to listen on the first deployment's ports.
    monkeypatch.setattr(processes, "claim", lambda port: port not in first.values() and original_claim(port))
    second = make_plan().directory.load_ports()
    assert not {*first.values()} & {*second.values()}
    with pytest.raises(Unavailable, match=r"is in use\. Fix: choose another --port"):
        planning.plan(Path("mine"), Path("fleet.yaml"), port=first["router"], target="local")


def test_the_endpoint_has_the_port_of_the_option(make_plan: PlanFactory) -> None:
    port = processes.claim_free_ports(1)[0]
    plan = planning.plan(Path("mine"), Path("fleet.yaml"), port=port, target="local")
    assert plan.deployment.url == f"http://127.0.0.1:{port}"
    assert make_plan().deployment.url == f"http://127.0.0.1:{port}"
    ports = make_plan().directory.load_ports()
    plan = planning.plan(Path("mine"), Path("fleet.yaml"), port=ports["worker-0"], target="local")
    changed_ports = plan.deployment.environment.ports
    assert {name for name in ports if ports[name] != changed_ports[name]} == {"worker-0", "router"}
    assert len({*changed_ports.values()}) == len(ports), "each process has a port of its own"


def test_too_little_memory_is_refused_in_one_line(make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=2_000_000_000))
    plan = make_plan()
    with pytest.raises(Unavailable) as error:
        deploy.deploy(plan, _agree)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("memory: 3.")
    assert "worker-0 1.6" in message
    assert message.endswith("2 GB available. Fix: stop other programs, or set fewer replicas or a smaller model.")
    assert _find_processes(plan) == []


def test_a_full_disk_is_refused_in_one_line(make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1_000_000))
    plan = make_plan()
    with pytest.raises(Unavailable) as error:
        deploy.deploy(plan, _agree)
    assert str(error.value) == (
        f"disk: 208 MB required under {plan.directory.data}, 1 MB available. "
        "Fix: free space, or work in a directory on another disk."
    )
    assert _find_processes(plan) == []


def test_all_is_new_where_the_configuration_of_what_runs_was_removed(make_plan: PlanFactory) -> None:
    plan = make_plan()
    plan.directory.save_deployment(plan.deployment)
    assert deploy.diff(plan).count("\n+") >= len(plan.text.splitlines())


def test_destroy_keeps_a_rendered_file_that_was_edited(make_plan: PlanFactory) -> None:
    plan = make_plan()
    rendered = planning.write_rendered(plan)
    rendered.write_text("; edited\n")
    assert deploy.destroy(plan.directory)
    assert not plan.directory.data.exists()
    assert rendered.read_text() == "; edited\n"


def test_an_edited_rendered_file_is_refused_and_the_deployment_keeps_running(
    make_plan: PlanFactory, working_folder: Path
) -> None:
    plan = make_plan()
    deploy.deploy(plan, _agree)
    before = {name: state.pid for name, state in _list_states(plan).items()}
    rendered = plan.rendered / "local.conf"
    rendered.write_text(rendered.read_text() + "; edited\n")
    _edit(working_folder, "policy: cache-aware", "policy: random")
    with pytest.raises(InputError, match="edited by hand since"):
        deploy.deploy(make_plan(), _agree)
    assert {name: state.pid for name, state in _list_states(plan).items()} == before
    deploy.deploy(make_plan(), _agree, force=True)
    assert "; edited" not in rendered.read_text()
