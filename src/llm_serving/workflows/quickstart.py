"""The main job of install.sh: from a set-up command line to a load-tested vLLM, and nothing left running.

machine checked, command line set up (install.sh) -> engine's environment, beside: stacks applied to the embedded AWS
-> weights into the bucket -> router and replicas -> Locust against the SLO -> all stopped -> summary
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console, processes
from llm_serving.console import Step
from llm_serving.rehearsal import stacks
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.tables import deployment_table as deployed
from llm_serving.tables import validation_table as validated
from llm_serving.targets.local import deploy, engine_env, supervisor
from llm_serving.targets.local.deploy import Plan
from llm_serving.validation import run as validation
from llm_serving.validation.report import Report

STACKS = ("network", "storage")
"""What the local target needs of the fleet; the other stacks rent machines."""


@dataclass(frozen=True)
class Done:
    """What the road led to."""

    plan: Plan
    report: Report
    folder: Path
    """Where the report lies."""

    steps: Sequence[Step]


def install(folder: Path, fleet: Path) -> Done:
    """Goes the whole road once and stops what it started.

    Raises:
        BlueprintError: a step failed; nothing is left running. A missed SLO is told by `validation.gate`.
    """
    with console.recorded() as steps, processes.interruptible():
        with console.step(f"Read {console.near(fleet)} and {console.near(folder / 'blueprint.yaml')}") as step:
            plan = deploy.plan(folder, fleet)
            step.note = f"fleet {plan.fleet.value.name}, deployment {plan.deployment.name}"
        if supervisor.running(plan.run):
            how = f"blueprint destroy {shlex.quote(console.near(folder))}"
            raise InputError(f"{plan.run.name} is up already, and would be disturbed. Run `{how}` first.")
        with plan.run.alone(), _engine_being_set_up(plan) as engine:
            deploy.check_machine(plan)
            report, kept = _prove(plan, engine)
    return Done(plan, report, kept, steps)


def _prove(plan: Plan, engine: _Engine) -> tuple[Report, Path]:
    deploy.start_afresh(plan)
    try:
        with supervisor.supervised(plan.run) as up:

            def storage(plan: Plan) -> str:
                bucket = _apply(plan)
                engine.wait()  # the replicas need it next
                return bucket

            plan = deploy.bring_up(plan, up, storage)
            with console.step("Validate it against the SLO") as step:
                report, kept = validation.validate(
                    plan.deployment, logs=plan.run.logs, runs=plan.run.reports, folder=plan.folder
                )
                step.note = f"{report.requests.total} requests, {report.requests.failed} failed: {report.verdict}"
            with console.step("Stop everything"):
                up.shut_down()
    finally:
        plan.run.forget()
    return report, kept


def _apply(plan: Plan) -> str:
    """Applies the stacks, has Terraform plan them once more, and returns the model bucket."""
    data, endpoint = plan.run.data / "terraform", plan.deployment.place.s3_endpoint or ""
    made = stacks.apply(plan.fleet, out=plan.run.root / "cdktf.out", data=data, endpoint=endpoint, stacks=STACKS)
    stacks.check_unchanged(plan.fleet, data=data, endpoint=endpoint, stacks=STACKS)
    return str(made["storage"]["model_bucket"])


class _Engine:
    """The engine's environment on its way, in a process beside this one, since Terraform leaves the network idle."""

    def __init__(self, child: subprocess.Popen[bytes] | None, log: Path) -> None:
        self._child = child
        self._log = log

    def wait(self) -> None:
        """Returns when it is set up.

        Raises:
            Unavailable: it could not be set up; carries what was said of it.
        """
        if self._child is None:
            return
        with console.step("The engine's environment, begun beside the stacks") as step:
            while self._child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(0.5)
                step.note = self._far()
            if self._child.returncode != 0:
                raise Unavailable(self._log.read_text(errors="replace").strip())
            step.note = engine_env.FOLDER

    def _far(self) -> str:
        packages = engine_env.ROOT / f"{engine_env.FOLDER}.log"
        return engine_env.downloaded(packages.read_text(errors="replace")) if packages.exists() else ""


@contextlib.contextmanager
def _engine_being_set_up(plan: Plan) -> Iterator[_Engine]:
    log = plan.run.data / "engine-set-up.log"
    if engine_env.is_ready():
        yield _Engine(None, log)
        return
    command = [sys.executable, "-m", "llm_serving.targets.local.engine_env"]
    console.show(command, cwd=engine_env.ROOT)
    with log.open("wb") as sink:
        child = processes.spawn(command, cwd=engine_env.ROOT, output=sink)
    try:
        yield _Engine(child, log)
    finally:
        processes.stop(child)


def summary(done: Done, folder: Path, set_up_s: float) -> None:
    """Every step with its time, where the report lies, and the three lines a person wants next."""
    steps = [Step("Set up the command line", set_up_s), *done.steps]
    console.out.rule("What was done", align="left")
    console.out.print(console.times(steps))
    console.out.rule("What came of it", align="left")
    console.result(validated.draw(done.report, done.folder))
    console.out.rule("What to do next", align="left")
    port = done.plan.deployment.router.processes[0].port
    here = shlex.quote(console.near(folder))
    lines = {
        "the same service, kept up": f".venv/bin/blueprint deploy {here} --port {port} --yes",
        "then ask it": deployed.request(done.plan.deployment),
        "your own copy": ".venv/bin/blueprint new mine --from aggregated",
        "on the way to AWS": f".venv/bin/blueprint fleet show --fleet {shlex.quote(str(done.plan.fleet.path))}",
    }
    for word, line in lines.items():
        console.out.print(f"[dim]{word}[/dim]\n  {line}", markup=True)
