"""The state of a local deployment's processes: that of the service, by its readiness probe, not the supervisor's."""

from __future__ import annotations

import http.client
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil

from llm_serving import console, loopback
from llm_serving.services.deployment import Deployment
from llm_serving.services.service import Service
from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import format_bytes
from llm_serving.targets import starts
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import fetch_weights, readiness, supervisor
from llm_serving.targets.local.supervisor import ProcessState
from llm_serving.targets.starts import Start

PROBE_TIMEOUT_S = 10.0
"""Longest wait for a probe's answer, in seconds: a status is not worth a longer one."""


def list_process_states(directory: DeploymentDir) -> list[ProcessState]:
    """List the processes of a deployment; empty if nothing runs. Probes them all at once, for at most 10 s.

    Their state is the service's: `ready`: it answers its readiness probe; `starting`: it runs and does not answer yet;
    `stopped`: on request; `failed`: it ended by itself, or has not answered by its probe's deadline.

    Raises:
        Unavailable: supervisord does not answer; or the directory was removed: says what still runs, and how to end it.
    """
    raise_if_orphaned(directory)
    supervisord = supervisor.find_running(directory)
    if supervisord is None:
        return []
    deployment = directory.load_deployment()
    expected = {service.name: service for service in deployment.all_services} if deployment else {}
    states = supervisord.list_states()
    with ThreadPoolExecutor(len(states) or 1) as pool:
        decided = pool.map(lambda state: _decide_state(state, expected.get(state.name)), states)
        return [replace(state, state=word) for state, word in zip(states, decided, strict=True)]


def list_awake(directory: DeploymentDir) -> list[str]:
    """List in sentences which model is awake in each process whose models take turns."""
    deployment = directory.load_deployment()
    processes = [process for process in deployment.workers if "awake" in process.metrics] if deployment else []
    return [f"{process.name}: {model} is awake." for process in processes for model in _read_awake(process)]


def _read_awake(process: Service) -> list[str]:
    """Return the model that is awake; none where it does not say."""
    url = f"http://{process.host}:{process.port}{process.metrics_path}"
    try:
        with loopback.OPENER.open(url, timeout=PROBE_TIMEOUT_S) as response:
            page = response.read().decode()
    except (OSError, http.client.HTTPException):
        return []
    return re.findall(rf'(?m)^{process.metrics["awake"]}{{model_name="([^"]*)"}} 1', page)


def list_starts(directory: DeploymentDir) -> list[Start]:
    """List how long the workers that run took to start; the first answer is known of those that a deploy started."""
    supervisord, deployment = supervisor.find_running(directory), directory.load_deployment()
    if supervisord is None or deployment is None:
        return []
    answers = directory.load_first_answers()
    pids = {state.name: state.pid for state in supervisord.list_states()}
    worker_starts = []
    for process in deployment.workers:
        pid, answer_s = answers.get(process.name, (0, None))
        log = directory.get_log_path(process.name).read_text(encoding="utf-8", errors="replace").splitlines()
        load_s, compile_s = starts.read_log(log, deployment.engine)
        first_answer_s = answer_s if pid and pid == pids.get(process.name) else None
        copy_s = fetch_weights.find_seconds(log)
        worker_starts.append(Start(process.name, process.role, None, load_s, compile_s, first_answer_s, copy_s))
    return worker_starts


def raise_if_orphaned(directory: DeploymentDir) -> None:
    """Check that no process of the deployment runs on after its directory was removed.

    Raises:
        Unavailable: some do.
    """
    daemon = supervisor.find_orphan(directory)
    if daemon is None:
        return
    memory_bytes, count = 0, 0
    for process in (daemon, *daemon.children(recursive=True)):
        try:
            memory_bytes += process.memory_full_info().pss  # of shared memory, its share
        except psutil.Error:
            continue
        count += 1
    raise Unavailable(
        f"{directory.name}: {console.shorten_path(directory.data)} was removed while it ran; {count} processes with "
        f"{format_bytes(memory_bytes)} run on. Fix: `blueprint destroy` ends them, `blueprint deploy` replaces them."
    )


def require_services(directory: DeploymentDir, deployment: Deployment) -> None:
    """Check that what the services need beside them runs: the embedded AWS, and servers such as Kafka.

    Raises:
        Unavailable: names what does not.
    """
    ended = [process.name for process in deployment.environment.services if not readiness.is_listening(process)]
    if ended:
        raise Unavailable(
            f"{directory.name}: {', '.join(ended)} does not run: the deployment's processes need it. "
            "Fix: `blueprint deploy` starts it again with its data."
        )


def _decide_state(state: ProcessState, process: Service | None) -> str:
    if state.failed:
        return "failed"
    if state.state not in ("STARTING", "RUNNING"):
        return "stopped"
    if process is None:  # not deployed yet: nothing says what it should answer
        return "starting"
    if process.probe is None:
        return "ready" if not process.port or readiness.is_listening(process) else "starting"
    if readiness.is_answering(process, PROBE_TIMEOUT_S):
        return "ready"
    return "failed" if state.uptime_s > process.probe.deadline_s else "starting"
