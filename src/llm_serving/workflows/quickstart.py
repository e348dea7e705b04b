"""The quickstart, which install.sh runs: deploys a blueprint on this machine, load-tests it, and stops everything.

prerequisites, command line (install.sh) -> stacks applied to the embedded AWS; in parallel, the engine's environment
and, once Terraform has created the bucket: weights uploaded to S3 -> router and replicas -> load test against the SLO
-> both done: check for drift -> all stopped -> summary
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.markup import escape

from llm_serving import console, locked_env, processes
from llm_serving.console import Step
from llm_serving.fleet.checks import join_words
from llm_serving.kinds.serving.deployment import narrow
from llm_serving.kinds.serving.validation import validate as validation
from llm_serving.rehearsal import stacks
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.tables import deployment_table
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_env, engine_setups, environment, resource_check, supervisor
from llm_serving.targets.local.engine_env import EngineEnv
from llm_serving.terraform import stack_folder
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.reports import terminal_summary
from llm_serving.validation.reports.report import Report

STACKS = ("network", "storage")
"""Stacks that the local target needs; the others rent instances."""


@dataclass(frozen=True)
class QuickstartResult:
    plan: DeploymentPlan
    report: Report
    report_dir: Path
    steps: Sequence[Step]


def run(folder: Path, fleet: Path) -> QuickstartResult:
    """Run the whole workflow once and stop what it started.

    Raises:
        BlueprintError: a step failed; nothing is left running. A missed SLO is none: see `validation.base.require_slo`.
    """
    with console.record_steps() as steps, processes.handle_interrupts():
        with console.step(
            f"Read {console.shorten_path(fleet)} and {console.shorten_path(folder / 'blueprint.yaml')}"
        ) as step:
            plan = planning.plan(folder, fleet, target=environment.NAME)
            _require_models(plan, folder)
            step.note = f"fleet {plan.fleet.value.name}, deployment {plan.deployment.name}"
        with plan.directory.lock():
            _require_not_running(plan, folder)
            plan.directory.save_ports(plan.deployment.environment.ports)
            with _start_engine_setup(plan) as wait_for_engine:
                resource_check.check(plan, plan.deployment.all_services)
                report, report_dir = _deploy_and_validate(plan, wait_for_engine)
    return QuickstartResult(plan, report, report_dir, steps)


def _require_models(plan: DeploymentPlan, folder: Path) -> None:
    if not plan.deployment.served_models:
        reason, argument = "install.sh load-tests models here", shlex.quote(console.shorten_path(folder))
        fix = f"run `blueprint deploy {argument}` and `blueprint validate {argument}`"
        raise InputError([plan.blueprint.build_mistake(["kind"], plan.deployment.kind, reason, fix)])


def _require_not_running(plan: DeploymentPlan, folder: Path) -> None:
    if supervisor.find_running(plan.directory) or supervisor.find_orphan(plan.directory):
        command = f"blueprint destroy {shlex.quote(console.shorten_path(folder))}"
        raise Unavailable(f"{plan.directory.name} is deployed and runs. Fix: run `{command}` first.")


def _deploy_and_validate(plan: DeploymentPlan, wait_for_engine: Callable[[], None]) -> tuple[Report, Path]:
    data_folder, endpoint = plan.directory.data / "terraform", plan.deployment.environment.s3_endpoint or ""
    deploy.prepare_start(plan)
    try:
        with supervisor.start_attached(plan.directory, deploy.list_direct_hosts(plan)) as supervisord:
            deploy.start_emulator(plan, supervisord)
            folders = stacks.prepare(plan.fleet, out=plan.directory.root / "cdktf.out", data=data_folder, stacks=STACKS)
            program = stack_folder.find_terraform(folders, data_folder)
            with stacks.apply_in_background(plan.fleet, folders, program, endpoint) as terraform:
                with console.step("Wait for Terraform to create the model bucket (the apply goes on)") as step:
                    terraform.wait_until(lambda: deploy.is_bucket_ready(plan), partial(setattr, step, "note"))
                wait_for_engine()  # the replicas need it next
                deploy.serve(plan, supervisord)
                report, report_dir = _validate(plan)
                with console.step(f"Wait for the end of the apply of {join_words(STACKS)}") as step:
                    terraform.wait(partial(setattr, step, "note"))
            stacks.check_unchanged(plan.fleet, folders, program, endpoint)
            with console.step("Stop everything"):
                supervisord.shut_down()
    finally:
        plan.directory.clear_deployment()
    return report, report_dir


def _validate(plan: DeploymentPlan) -> tuple[Report, Path]:
    with console.step("Validate against the SLO") as step:
        options = ValidationOptions(logs=plan.directory.logs, runs=plan.directory.reports, folder=plan.folder)
        report, report_dir = validation.validate(narrow(plan.deployment), options)
        step.note = f"{report.requests.total} requests, {report.requests.failed} failed: {report.verdict}"
    return report, report_dir


@contextlib.contextmanager
def _start_engine_setup(plan: DeploymentPlan) -> Iterator[Callable[[], None]]:
    """Set up the engine's environment in a process of its own while Terraform applies; yield what waits for its end."""
    log = plan.directory.data / "engine-set-up.log"
    engine, framework = plan.deployment.engine, plan.deployment.framework
    programs = engine_setups.find(engine, framework)
    if programs.is_ready():
        yield lambda: None
        return
    command = [sys.executable, "-m", "llm_serving.targets.local.engine_setups", engine, framework]
    console.show_command(command, cwd=engine_env.ROOT)
    with log.open("wb") as sink:
        child = processes.spawn(command, cwd=engine_env.ROOT, output=sink)
    try:
        yield partial(_wait_for_setup, programs, child, log)
    finally:
        processes.stop(child)


def _wait_for_setup(programs: EngineEnv, child: subprocess.Popen[bytes], log: Path) -> None:
    with console.step("Set up the engine's environment (started during the apply)") as step:
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.5)
            if programs.log.exists():
                step.note = locked_env.describe_download(programs.log.read_text(errors="replace"))
        if child.returncode != 0:
            raise Unavailable(log.read_text(errors="replace").strip())
        step.note = programs.executables.parent.name


def print_summary(result: QuickstartResult, folder: Path, set_up_s: float) -> None:
    """Print each step with its time, the result with its report, and the next commands."""
    steps = [Step("Set up the command line", set_up_s), *result.steps]
    console.out.rule("Steps", align="left")
    console.out.print(console.render_times(steps))
    console.out.rule("Results", align="left")
    console.print_result(terminal_summary.render(result.report, result.report_dir))
    console.out.rule("Next steps", align="left")
    port, fleet_path = result.plan.deployment.entries[-1].port, shlex.quote(str(result.plan.fleet.path))
    folder_argument = shlex.quote(console.shorten_path(folder))
    program = ".venv/bin/blueprint"
    next_steps = {
        "Deploy the same service and keep it running": f"{program} deploy {folder_argument} --port {port} --yes",
        "Then send a request": deployment_table.format_request(narrow(result.plan.deployment)),
        "Start a blueprint of your own": f"{program} new mine --from aggregated",
        "Show what the fleet runs on AWS, and its cost": f"{program} fleet show --fleet {fleet_path}",
    }
    for title, command in next_steps.items():
        console.out.print(f"[dim]{title}[/dim]\n  {escape(command)}")
