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
from llm_serving.settings.units import human_bytes
from llm_serving.targets.local import (
    early_start,
    engine_env,
    environment,
    readiness,
    resource_check,
    supervisor,
    weights,
)
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.targets.local.readiness import RoleFailed
from llm_serving.targets.local.supervisor import Supervisor
from llm_serving.workloads import inputs, render
from llm_serving.workloads.serving import measured_prompts, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment, Place, Process

AWS_LIMIT_S = 120.0
"""Longest start of the embedded AWS."""


@dataclass(frozen=True)
class Plan:
    """What is to run, decided in full, before anything has been started."""

    folder: Path
    """The blueprint's folder, whose template is rendered."""

    blueprint: Document[Blueprint]
    fleet: Document[Fleet]
    run: Run
    deployment: Deployment
    text: str
    """The supervisor's configuration."""

    def in_bucket(self, bucket: str) -> Plan:
        """The same with the model bucket that the storage stack has made."""
        if bucket == self.deployment.place.bucket:
            return self
        there = self.deployment.place.model_copy(update={"bucket": bucket})
        return _planned(self.folder, self.blueprint, self.fleet, self.run, there)


def plan(
    folder: Path, fleet: Path, *, target: str = "local", root: Path | None = None, port: int | None = None
) -> Plan:
    """Reads both files and decides everything; the ports are written down, nothing else is done.

    Args:
        root: the folder where the run's own folder lies; where the user stands, if left out.
        port: of the router; a free one is chosen, if left out.

    Raises:
        InputError: a file is wrong, or the blueprint cannot work, or has no template for `target`.
        Unavailable: `port` is taken.
    """
    wanted, rented = inputs.read(folder, fleet)
    render.template(folder, target)
    run = Run(resolve.name_of(wanted), (root or Path.cwd()).resolve())
    up = supervisor.running(run) is not None
    where = environment.find(run, wanted.value, rented.value, own_ports=up, port=port)
    where = where.model_copy(update={"measured": measured_prompts.find(wanted, run.root)})
    made = _planned(folder, wanted, rented, run, where)
    run.keep_ports(made.deployment.place.ports)
    return made


def _planned(folder: Path, wanted: Document[Blueprint], rented: Document[Fleet], run: Run, where: Place) -> Plan:
    deployment = resolve.resolve(wanted, rented, where)
    text = render.text(deployment, render.template(folder, where.target))
    return Plan(folder, wanted, rented, run, deployment, text)


def difference(plan: Plan) -> str:
    """What deploying would change, as a unified diff; empty where nothing."""
    before = plan.run.config.read_text(encoding="utf-8") if plan.run.deployment() else ""
    names = ("deployed", console.near(plan.run.rendered / plan.run.config.name))
    lines = difflib.unified_diff(before.splitlines(), plan.text.splitlines(), *names, lineterm="")
    return "\n".join(lines)


def check_machine(plan: Plan, starting: list[Process] | None = None) -> None:
    """Whether this machine has the ports, the memory and the disk for `starting`, which is all where left out.

    Raises:
        Unavailable: it has not; in one line.
    """
    resource_check.check(plan.run, plan.deployment, list(plan.deployment.processes) if starting is None else starting)


def write(plan: Plan) -> None:
    """Renders the blueprint for a person to read, and writes the supervisor's configuration.

    Raises:
        InputError: the rendered file was edited by hand.
    """
    render.render(plan.deployment, plan.folder, plan.run.rendered)
    plan.run.make()
    plan.run.config.write_text(plan.text, encoding="utf-8")


def start_aws(plan: Plan, up: Supervisor) -> None:
    """Starts the embedded AWS and waits until it answers.

    Raises:
        RoleFailed: it did not.
    """
    for process in plan.deployment.place.services:
        up.start(process.name)
    end = time.monotonic() + AWS_LIMIT_S
    while True:
        readiness.refuse_failed(plan.run, up.state(environment.AWS), restarts=0)
        try:
            return emulator.wait_ready(plan.deployment.place.s3_endpoint or "", 1)
        except Unavailable:
            if time.monotonic() > end:
                raise RoleFailed(plan.run, environment.AWS, f"did not answer within {AWS_LIMIT_S:.0f} s") from None


def apply_storage(plan: Plan) -> str:
    """Has Terraform apply the storage stack to the embedded AWS; returns the name of the model bucket.

    Raises:
        Unavailable: Terraform or its provider is missing.
        CommandFailed: Terraform failed.
    """
    from llm_serving.rehearsal import stacks

    outputs = stacks.apply(
        plan.fleet,
        out=plan.run.root / "cdktf.out",
        data=plan.run.data / "terraform",
        endpoint=plan.deployment.place.s3_endpoint or "",
        stacks=["storage"],
    )
    return str(outputs["storage"]["model_bucket"])


def put_weights(plan: Plan, note: Callable[[str], None] = lambda _: None) -> int:
    """Puts the model into the bucket and checks that it is whole; returns the bytes of its weights.

    Raises:
        Unavailable: S3 or the hub does not answer or refuses, or an object is cut short.
    """
    weights.put(plan.run, plan.deployment, lambda done, of: note(f"{human_bytes(done)} of {human_bytes(of)}"))
    return weights.check(plan.deployment)


def start_roles(plan: Plan, up: Supervisor, note: Callable[[str], None] = lambda _: None) -> None:
    """Starts the workers and the router, waits until each answers a completion, and writes down what is deployed.

    Raises:
        RoleFailed: one ended, or did not answer in time.
    """
    _start_workers(plan, up)
    roles = (*plan.deployment.replicas, *plan.deployment.router.processes)
    for process in plan.deployment.router.processes:
        up.start(process.name)
    readiness.wait(up, roles, note)
    plan.run.keep(plan.deployment)


def _start_workers(plan: Plan, up: Supervisor) -> None:
    """Starts those that do not run yet; those that do are reading what they were lent."""
    starting = [process for process in plan.deployment.replicas if not up.state(process.name).pid]
    engine_env.lend_descriptions(plan.run.cache(process.name) for process in starting)
    for process in starting:
        up.start(process.name)


def bring_up(plan: Plan, up: Supervisor, storage: Callable[[Plan], str] = apply_storage) -> Plan:
    """All parts in their order, with progress; returns the plan with the bucket that was made.

    Args:
        storage: makes the model bucket and returns its name.

    Raises:
        BlueprintError: what its parts raise.
    """
    with console.step("Start the embedded AWS") as step:
        start_aws(plan, up)
        step.note = plan.deployment.place.s3_endpoint or ""
    with _begun(plan, up):
        plan = plan.in_bucket(storage(plan))
    write(plan)
    up.update()
    _put(plan)
    early = all(up.state(process.name).pid for process in plan.deployment.replicas)
    _start(plan, up, "the router; the workers began beside Terraform" if early else "the workers and the router")
    return plan


def _begun(plan: Plan, up: Supervisor) -> AbstractContextManager[None]:
    """Weights and workers on their way, while the model bucket's stack is applied."""
    from botocore.exceptions import BotoCoreError, ClientError

    environment = plan.deployment.place
    s3 = emulator.client("s3", environment.s3_endpoint or "", environment.region)

    def whole() -> bool:
        """Whether the bucket has its rules, which Terraform sets last, and goes on waiting for."""
        try:
            s3.get_bucket_lifecycle_configuration(Bucket=environment.bucket)
        except (BotoCoreError, ClientError):
            return False
        return engine_env.is_ready()  # it may be on its way as well

    return early_start.begun(whole, lambda note: put_weights(plan, note), lambda _: _start_workers(plan, up))


def change(plan: Plan, up: Supervisor, storage: Callable[[Plan], str] = apply_storage) -> Plan:
    """Brings a deployment that is up to what `plan` says; what does not change goes on running.

    Raises:
        BlueprintError: what the parts raise.
    """
    before = plan.run.deployment()
    if before is None or before.place.bucket != plan.deployment.place.bucket:
        plan = plan.in_bucket(storage(plan))
    if before is None or before.models != plan.deployment.models:
        _put(plan)
    else:
        weights.check(plan.deployment)
    write(plan)
    with console.step("Restart what has changed") as step:
        step.note = ", ".join(up.update()) or "nothing"
    _start(plan, up)
    return plan


def _put(plan: Plan) -> None:
    models = " and ".join(served.model for served in plan.deployment.models)
    with console.step(f"Put the model {models} into the bucket") as step:
        size = put_weights(plan, lambda text: setattr(step, "note", text))
        step.note = f"{human_bytes(size)} at {', '.join(served.weights.uri for served in plan.deployment.models)}"


def _start(plan: Plan, up: Supervisor, what: str = "the workers and the router") -> None:
    with console.step(f"Start {what}") as step:
        start_roles(plan, up, lambda text: setattr(step, "note", text))
        step.note = f"all answer; {plan.deployment.url}"


@contextmanager
def or_nothing(run: Run) -> Iterator[None]:
    """Ends every process of a run when the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        with processes.undisturbed():
            take_down(run)
        raise


def take_down(run: Run) -> bool:
    """Ends every process of a run; its folder stays. Returns whether there was any."""
    up = supervisor.running(run)
    if up is not None:
        up.shut_down()
    run.close()
    run.forget()
    return up is not None


def destroy(run: Run) -> bool:
    """Ends every process of a run and removes its folder; returns whether there was anything."""
    there = run.data.exists()
    ended = take_down(run)
    run.remove()
    return there or ended


def deploy(plan: Plan, agree: Callable[[str], None], *, force: bool = False) -> Plan | None:
    """Brings the blueprint up and keeps it up, or changes what is up; None where nothing is to be changed.

    Args:
        agree: shown what will change; raises where the user does not want it.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        BlueprintError: it cannot be, or failed; nothing then runs.
    """
    with plan.run.alone():
        up = _whole(plan)
        if up is not None and plan.run.config.read_text(encoding="utf-8") == plan.text and _all_answer(plan):
            plan.run.keep(plan.deployment)  # traffic and SLO may have changed, which need no restart
            return None
        agree(difference(plan))
        check_machine(plan, _not_there(plan))
        # Whatever refuses is asked before anything that runs is touched.
        render.render(plan.deployment, plan.folder, plan.run.rendered, force=force)
        with or_nothing(plan.run):
            if up is not None:
                return change(plan, up, apply_storage)
            start_afresh(plan)
            return bring_up(plan, supervisor.detached(plan.run), apply_storage)


def start_afresh(plan: Plan) -> None:
    """Ends what an earlier run left, and writes the configuration for a new one.

    Raises:
        InputError: the rendered file was edited by hand.
    """
    take_down(plan.run)
    _forget_logs(plan.run)
    write(plan)


def _whole(plan: Plan) -> Supervisor | None:
    """The run's supervisor, where it is up together with the embedded AWS, whose loss takes the bucket with it."""
    up = supervisor.running(plan.run)
    states = up.states() if up else []
    services = {process.name for process in plan.deployment.place.services}
    return up if services <= {state.name for state in states if state.state in ("STARTING", "RUNNING")} else None


def _not_there(plan: Plan) -> list[Process]:
    """What runs in addition to what runs already, whether or not that is whole."""
    up = supervisor.running(plan.run)
    running = {state.name for state in up.states() if state.pid} if up else set()
    return [process for process in plan.deployment.processes if process.name not in running]


def _all_answer(plan: Plan) -> bool:
    return all(readiness.answers(process) for process in plan.deployment.processes if process.probe)


def _forget_logs(run: Run) -> None:
    """What is read from the logs is to be this run's own; a validation's lie in a folder among them."""
    shutil.rmtree(run.logs, ignore_errors=True)
    run.make()
