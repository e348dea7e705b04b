"""Brings a blueprint up on this machine, part by part, each a function of its own for callers that overlap them.

plan -> check_machine -> [supervisor] -> start_aws -> apply_storage -> put_weights -> start_roles

The last two are on their way already while Terraform waits (ahead.py).
"""

from __future__ import annotations

import difflib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console, processes
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import format_bytes
from llm_serving.targets.local import (
    early_start,
    engine_env,
    environment,
    readiness,
    resource_check,
    supervisor,
    weights,
)
from llm_serving.targets.local.deployment_dir import DeploymentDir
from llm_serving.targets.local.readiness import RoleFailed
from llm_serving.targets.local.supervisor import Supervisor
from llm_serving.workloads import inputs, render
from llm_serving.workloads.environment import Environment, Process
from llm_serving.workloads.serving import measured_prompts, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment

EMULATOR_TIMEOUT_S = 120.0
"""Longest start of the embedded AWS."""


@dataclass(frozen=True)
class DeploymentPlan:
    """What is to run, decided in full, before anything has been started."""

    folder: Path
    """The blueprint's folder, whose template is rendered."""

    blueprint: Document[Blueprint]
    fleet: Document[Fleet]
    directory: DeploymentDir
    deployment: Deployment
    text: str
    """The supervisor's configuration."""

    def replace_bucket(self, bucket: str) -> DeploymentPlan:
        """The same with the model bucket that the storage stack has made."""
        if bucket == self.deployment.environment.bucket:
            return self
        target_environment = self.deployment.environment.model_copy(update={"bucket": bucket})
        return _build_plan(self.folder, self.blueprint, self.fleet, self.directory, target_environment)


def plan(
    folder: Path, fleet_file: Path, *, target: str = "local", root: Path | None = None, port: int | None = None
) -> DeploymentPlan:
    """Reads both files and decides everything; the ports are written down, nothing else is done.

    Args:
        root: the folder where the run's own folder lies; where the user stands, if left out.
        port: of the router; a free one is chosen, if left out.

    Raises:
        InputError: a file is wrong, or the blueprint cannot work, or has no template for `target`.
        Unavailable: `port` is taken.
    """
    blueprint, fleet = inputs.read(folder, fleet_file)
    render.find_template(folder, target)
    directory = DeploymentDir(resolve.resolve_name(blueprint), (root or Path.cwd()).resolve())
    is_running = supervisor.find_running(directory) is not None
    target_environment = environment.resolve_environment(
        directory, blueprint.value, fleet.value, own_ports=is_running, port=port
    )
    target_environment = target_environment.model_copy(
        update={"measured": measured_prompts.find_measured(blueprint, directory.root)}
    )
    deployment_plan = _build_plan(folder, blueprint, fleet, directory, target_environment)
    directory.save_ports(deployment_plan.deployment.environment.ports)
    return deployment_plan


def _build_plan(
    folder: Path,
    blueprint: Document[Blueprint],
    fleet: Document[Fleet],
    directory: DeploymentDir,
    target_environment: Environment,
) -> DeploymentPlan:
    deployment = resolve.resolve(blueprint, fleet, target_environment)
    text = render.render_text(deployment, render.find_template(folder, target_environment.target))
    return DeploymentPlan(folder, blueprint, fleet, directory, deployment, text)


def diff(plan: DeploymentPlan) -> str:
    """What deploying would change, as a unified diff; empty where nothing."""
    deployed = plan.directory.config.read_text(encoding="utf-8") if plan.directory.load_deployment() else ""
    labels = ("deployed", console.shorten_path(plan.directory.rendered / plan.directory.config.name))
    lines = difflib.unified_diff(deployed.splitlines(), plan.text.splitlines(), *labels, lineterm="")
    return "\n".join(lines)


def check_machine(plan: DeploymentPlan, starting: list[Process] | None = None) -> None:
    """Whether this machine has the ports, the memory and the disk for `starting`, which is all where left out.

    Raises:
        Unavailable: it has not; in one line.
    """
    resource_check.check(
        plan.directory, plan.deployment, list(plan.deployment.processes) if starting is None else starting
    )


def write_config(plan: DeploymentPlan) -> None:
    """Renders the blueprint for a person to read, and writes the supervisor's configuration.

    Raises:
        InputError: the rendered file was edited by hand.
    """
    render.render(plan.deployment, plan.folder, plan.directory.rendered)
    plan.directory.create()
    plan.directory.config.write_text(plan.text, encoding="utf-8")


def start_emulator(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Starts the embedded AWS and waits until it answers.

    Raises:
        RoleFailed: it did not.
    """
    for process in plan.deployment.environment.services:
        supervisord.start(process.name)
    deadline = time.monotonic() + EMULATOR_TIMEOUT_S
    while True:
        readiness.raise_if_failed(plan.directory, supervisord.read_state(environment.AWS), restarts=0)
        try:
            return emulator.wait_ready(plan.deployment.environment.s3_endpoint or "", 1)
        except Unavailable:
            if time.monotonic() > deadline:
                raise RoleFailed(
                    plan.directory, environment.AWS, f"did not answer within {EMULATOR_TIMEOUT_S:.0f} s"
                ) from None


def apply_storage(plan: DeploymentPlan) -> str:
    """Has Terraform apply the storage stack to the embedded AWS; returns the name of the model bucket.

    Raises:
        Unavailable: Terraform or its provider is missing.
        CommandFailed: Terraform failed.
    """
    from llm_serving.rehearsal import stacks

    outputs = stacks.apply(
        plan.fleet,
        out=plan.directory.root / "cdktf.out",
        data=plan.directory.data / "terraform",
        endpoint=plan.deployment.environment.s3_endpoint or "",
        stacks=["storage"],
    )
    return str(outputs["storage"]["model_bucket"])


def upload_weights(plan: DeploymentPlan, on_progress: Callable[[str], None] = lambda _: None) -> int:
    """Puts the model into the bucket and checks that it is whole; returns the bytes of its weights.

    Raises:
        Unavailable: S3 or the hub does not answer or refuses, or an object is cut short.
    """
    weights.upload_models(
        plan.directory,
        plan.deployment,
        lambda done, total: on_progress(f"{format_bytes(done)} of {format_bytes(total)}"),
    )
    return weights.check(plan.deployment)


def start_roles(
    plan: DeploymentPlan, supervisord: Supervisor, on_progress: Callable[[str], None] = lambda _: None
) -> None:
    """Starts the workers and the router, waits until each answers a completion, and writes down what is deployed.

    Raises:
        RoleFailed: one ended, or did not answer in time.
    """
    _start_workers(plan, supervisord)
    all_processes = (*plan.deployment.engine_processes, *plan.deployment.router.processes)
    for process in plan.deployment.router.processes:
        supervisord.start(process.name)
    readiness.wait(supervisord, all_processes, on_progress)
    plan.directory.save_deployment(plan.deployment)


def _start_workers(plan: DeploymentPlan, supervisord: Supervisor) -> None:
    """Starts those that do not run yet; those that do are reading what they were lent."""
    starting = [process for process in plan.deployment.engine_processes if not supervisord.read_state(process.name).pid]
    engine_env.copy_model_infos(plan.directory.get_cache_path(process.name) for process in starting)
    for process in starting:
        supervisord.start(process.name)


def bring_up(
    plan: DeploymentPlan, supervisord: Supervisor, create_storage: Callable[[DeploymentPlan], str] = apply_storage
) -> DeploymentPlan:
    """All parts in their order, with progress; returns the plan with the bucket that was made.

    Args:
        storage: makes the model bucket and returns its name.

    Raises:
        BlueprintError: what its parts raise.
    """
    with console.step("Start the embedded AWS") as step:
        start_emulator(plan, supervisord)
        step.note = plan.deployment.environment.s3_endpoint or ""
    with _start_early(plan, supervisord):
        plan = plan.replace_bucket(create_storage(plan))
    write_config(plan)
    supervisord.update()
    _upload_with_progress(plan)
    started_early = all(supervisord.read_state(process.name).pid for process in plan.deployment.engine_processes)
    _start_with_progress(
        plan,
        supervisord,
        "the router; the workers began beside Terraform" if started_early else "the workers and the router",
    )
    return plan


def _start_early(plan: DeploymentPlan, supervisord: Supervisor) -> AbstractContextManager[None]:
    """Weights and workers on their way, while the model bucket's stack is applied."""
    from botocore.exceptions import BotoCoreError, ClientError

    environment = plan.deployment.environment
    s3 = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)

    def is_bucket_ready() -> bool:
        """Whether the bucket has its rules, which Terraform sets last, and goes on waiting for."""
        try:
            s3.get_bucket_lifecycle_configuration(Bucket=environment.bucket)
        except (BotoCoreError, ClientError):
            return False
        return engine_env.is_ready()  # it may be on its way as well

    return early_start.run_in_background(
        is_bucket_ready,
        lambda on_progress: upload_weights(plan, on_progress),
        lambda _: _start_workers(plan, supervisord),
    )


def update(
    plan: DeploymentPlan, supervisord: Supervisor, create_storage: Callable[[DeploymentPlan], str] = apply_storage
) -> DeploymentPlan:
    """Brings a deployment that is up to what `plan` says; what does not change goes on running.

    Raises:
        BlueprintError: what the parts raise.
    """
    deployed = plan.directory.load_deployment()
    if deployed is None or deployed.environment.bucket != plan.deployment.environment.bucket:
        plan = plan.replace_bucket(create_storage(plan))
    if deployed is None or deployed.served_models != plan.deployment.served_models:
        _upload_with_progress(plan)
    else:
        weights.check(plan.deployment)
    write_config(plan)
    with console.step("Restart what has changed") as step:
        step.note = ", ".join(supervisord.update()) or "nothing"
    _start_with_progress(plan, supervisord)
    return plan


def _upload_with_progress(plan: DeploymentPlan) -> None:
    model_names = " and ".join(served_model.model for served_model in plan.deployment.served_models)
    with console.step(f"Put the model {model_names} into the bucket") as step:
        weight_bytes = upload_weights(plan, lambda text: setattr(step, "note", text))
        step.note = f"{format_bytes(weight_bytes)} at {', '.join(served_model.weights.uri for served_model in plan.deployment.served_models)}"


def _start_with_progress(
    plan: DeploymentPlan, supervisord: Supervisor, subject: str = "the workers and the router"
) -> None:
    with console.step(f"Start {subject}") as step:
        start_roles(plan, supervisord, lambda text: setattr(step, "note", text))
        step.note = f"all answer; {plan.deployment.url}"


@contextmanager
def stop_on_failure(directory: DeploymentDir) -> Iterator[None]:
    """Ends every process of a run when the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        with processes.ignore_signals():
            stop(directory)
        raise


def stop(directory: DeploymentDir) -> bool:
    """Ends every process of a run; its folder stays. Returns whether there was any."""
    supervisord = supervisor.find_running(directory)
    if supervisord is not None:
        supervisord.shut_down()
    directory.remove_sockets()
    directory.clear_deployment()
    return supervisord is not None


def destroy(directory: DeploymentDir) -> bool:
    """Ends every process of a run and removes its folder; returns whether there was anything."""
    existed = directory.data.exists()
    stopped = stop(directory)
    directory.remove()
    return existed or stopped


def deploy(plan: DeploymentPlan, confirm: Callable[[str], None], *, force: bool = False) -> DeploymentPlan | None:
    """Brings the blueprint up and keeps it up, or changes what is up; None where nothing is to be changed.

    Args:
        agree: shown what will change; raises where the user does not want it.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        BlueprintError: it cannot be, or failed; nothing then runs.
    """
    with plan.directory.lock():
        supervisord = _find_healthy_supervisor(plan)
        if (
            supervisord is not None
            and plan.directory.config.read_text(encoding="utf-8") == plan.text
            and _is_fully_ready(plan)
        ):
            plan.directory.save_deployment(plan.deployment)  # traffic and SLO may have changed, which need no restart
            return None
        confirm(diff(plan))
        check_machine(plan, _list_missing_processes(plan))
        # Whatever refuses is asked before anything that runs is touched.
        render.render(plan.deployment, plan.folder, plan.directory.rendered, force=force)
        with stop_on_failure(plan.directory):
            if supervisord is not None:
                return update(plan, supervisord, apply_storage)
            prepare_start(plan)
            return bring_up(plan, supervisor.start_detached(plan.directory), apply_storage)


def prepare_start(plan: DeploymentPlan) -> None:
    """Ends what an earlier run left, and writes the configuration for a new one.

    Raises:
        InputError: the rendered file was edited by hand.
    """
    stop(plan.directory)
    _delete_logs(plan.directory)
    write_config(plan)


def _find_healthy_supervisor(plan: DeploymentPlan) -> Supervisor | None:
    """The run's supervisor, where it is up together with the embedded AWS, whose loss takes the bucket with it."""
    supervisord = supervisor.find_running(plan.directory)
    states = supervisord.list_states() if supervisord else []
    services = {process.name for process in plan.deployment.environment.services}
    return (
        supervisord if services <= {state.name for state in states if state.state in ("STARTING", "RUNNING")} else None
    )


def _list_missing_processes(plan: DeploymentPlan) -> list[Process]:
    """What runs in addition to what runs already, whether or not that is whole."""
    supervisord = supervisor.find_running(plan.directory)
    running = {state.name for state in supervisord.list_states() if state.pid} if supervisord else set()
    return [process for process in plan.deployment.processes if process.name not in running]


def _is_fully_ready(plan: DeploymentPlan) -> bool:
    return all(readiness.is_answering(process) for process in plan.deployment.processes if process.probe)


def _delete_logs(directory: DeploymentDir) -> None:
    """What is read from the logs is to be this run's own; a validation's lie in a folder among them."""
    shutil.rmtree(directory.logs, ignore_errors=True)
    directory.create()
