"""The road to AWS of install.sh: from a fleet file to a validated service, each step shown, and gone on with.

preflight -> stacks planned, their cost shown -> one question -> state bucket -> stacks in order -> weights into the
model bucket -> platform charts (EKS) -> the blueprint's own deploy -> its validation

Without an account the embedded AWS stands in for AWS, and the road ends where machines would be needed.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_serving import console, paths, processes
from llm_serving.aws.preflight import identity, report
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import instances
from llm_serving.console import Step
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as add_ons
from llm_serving.operations import apply, checkpoints, cluster, context, destroy, plans
from llm_serving.operations.checkpoints import Checkpoints, compute_digest
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import emulator, stacks
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.settings.units import format_bytes
from llm_serving.tables import fleet_plan_table
from llm_serving.tables import preflight_table as preflight_table
from llm_serving.targets import planning
from llm_serving.targets.local import weights
from llm_serving.targets.on_aws.aws_target import load_aws_target
from llm_serving.terraform import runner
from llm_serving.workloads import inputs

CDKTF = "cdktf-cli@0.21.0"
"""The last of CDKTF's own command lines; the bindings are of the same version."""

ROOT = paths.ROOT
_PATTERNS = paths.PATTERNS
_DEFAULT = "aggregated"


@dataclass(frozen=True)
class ServingCommands:
    """The commands that serve a blueprint, as the command line has them."""

    deploy: Callable[[Path, Path, str], None]
    """Takes folder, fleet file and target."""

    validate: Callable[[Path, Path, str], None]
    destroy: Callable[[Path, Path, str], None]


@dataclass(frozen=True)
class WorkflowRequest:
    """What the user asked for, read and found possible."""

    target: str
    fleet: Document[Fleet]
    blueprint: Path | None
    """None where only the fleet is made."""

    cdktf: bool = False
    """Whether CDKTF's own command line applies the stacks."""

    @property
    def resume_command(self) -> str:
        """The command line that goes on with it."""
        words = ["./install.sh", "--target", self.target, "--fleet", console.shorten_path(self.fleet.path)]
        if self.blueprint:
            words += ["--blueprint", console.shorten_path(self.blueprint)]
        if self.cdktf:
            words += ["--with", "cdktf"]
        return console.quote_command(words)

    @property
    def undo_command(self) -> str:
        """The command line that undoes it."""
        return console.quote_command(["./install.sh", "--destroy", "--fleet", console.shorten_path(self.fleet.path)])


@dataclass
class WorkflowResult:
    """How far the road led."""

    steps: Sequence[Step]
    skipped: list[str] = field(default_factory=list)
    """What was done before this run."""

    remaining_commands: list[str] = field(default_factory=list)
    """Where it ended before machines were needed: the commands that remain."""

    stop_reason: str = ""
    """Why it ended there; "" where it went to its end."""

    has_resources: bool = True
    """Whether what was made is there still."""

    validation_failure: CheckFailed | None = None
    """What the validation missed of the SLO."""


def read_request(target: str, fleet: Path, source: str | None, *, cdktf: bool = False) -> WorkflowRequest:
    """Reads both files, and refuses what cannot work before anything is asked of AWS.

    Args:
        named: the blueprint's folder, or a pattern's name; the default pattern, if it can, where None.

    Raises:
        InputError: a file is wrong, the fleet has another orchestrator, or the blueprint no template for the target.
    """
    load_aws_target(target)
    document = inputs.read_fleet(fleet)
    if target not in document.value.orchestrators:
        raise InputError(
            f"--target {target}: the fleet of {fleet} has the orchestrator {document.value.orchestrator}. "
            f"Fix: --target {document.value.orchestrators[0]}, or orchestrator: {target} or both in {fleet}."
        )
    return WorkflowRequest(target, document, _find_blueprint(source, fleet, target), cdktf)


def _find_blueprint(source: str | None, fleet: Path, target: str) -> Path | None:
    """The folder of what is to be served; None where nobody named one and the default cannot work on this fleet."""
    folder = Path(source) if source and Path(source).is_dir() else _PATTERNS / (source or _DEFAULT)
    if not (folder / "blueprint.yaml").is_file():
        raise InputError(f"--blueprint: now {source!r}: it is neither a blueprint's folder nor a pattern's name.")
    try:
        planning.plan(folder, fleet, target=target, account=emulator.ACCOUNT)  # no account is asked yet
    except InputError as error:
        if source:
            raise
        console.err.print(
            f"This makes the fleet, and serves nothing on it: --blueprint names none, and {_DEFAULT} cannot be "
            f"served there.\n  {error}",
            markup=False,
        )
        return None
    return folder


def run(
    request: WorkflowRequest,
    commands: ServingCommands,
    confirm: Callable[[str], None],
    *,
    rehearse: bool,
    require_terminal: Callable[[], None] = lambda: None,
) -> WorkflowResult:
    """Goes the whole road, or on from where it was broken off.

    Args:
        agree: asked once, before anything is made; raises where the user does not want it. A rehearsal rents nothing,
            and does not ask.
        somebody: raises where nobody could answer: said before minutes are spent on what leads to the question.
        rehearse: an embedded AWS stands in even where there are credentials.

    Raises:
        BlueprintError: a step failed; the same command goes on there.
    """
    fleet = request.fleet.value
    aws_or_emulator = context.use_aws_or_emulator(request.fleet, rehearse=True if rehearse else None)
    with (
        console.record_steps() as steps,
        processes.handle_interrupts(),
        context.lock_fleet(fleet),
        aws_or_emulator as own_emulator,
    ):
        result = WorkflowResult(steps)
        try:
            if not own_emulator:
                require_terminal()
            _require_tools(request, is_rehearsal=context.find_emulator_endpoint() is not None)
            _run_steps(
                request, commands, (lambda _: None) if own_emulator else confirm, result, own_emulator=own_emulator
            )
        except KeyboardInterrupt:
            resume_hint = f"{request.resume_command} goes on; {request.undo_command} undoes what was made"
            message = "the embedded AWS ended with it, so a rehearsal begins anew" if own_emulator else resume_hint
            console.err.print(f"Broken off: {message}", markup=False)
            raise
    return result


def _require_tools(request: WorkflowRequest, *, is_rehearsal: bool) -> None:
    """Programs that a later step calls, looked for before anything is paid for."""
    if request.cdktf and not shutil.which("npx"):
        raise Unavailable("--with cdktf: there is no npx on this machine's PATH. Install Node.js 20 or later")
    tools = load_aws_target(request.target).tools
    if tools and not is_rehearsal:
        add_ons.require_tools(tools)


def _run_steps(
    request: WorkflowRequest,
    commands: ServingCommands,
    confirm: Callable[[str], None],
    result: WorkflowResult,
    *,
    own_emulator: bool,
) -> None:
    checkpoint_file = _open_checkpoints(request.fleet.value, own_emulator=own_emulator)
    _run_preflight(request, checkpoint_file, result)
    fleet_context = context.prepare(request.fleet, out=Path("cdktf.out"))
    stack_plans = plans.create(fleet_context)
    console.out.print(fleet_plan_table.render(fleet_context, stack_plans, instances.load()), soft_wrap=False)
    _confirm_plan(request, fleet_context, stack_plans, checkpoint_file, confirm, result)
    apply.ensure_state_bucket(fleet_context)
    _apply_stacks(request, fleet_context, stack_plans)
    checkpoint_file.remove("agreed")  # it was for what is made now, and not for a later time
    if request.blueprint:
        _upload_weights(request, fleet_context, request.blueprint)
    if fleet_context.endpoint:
        _finish_rehearsal(request, fleet_context, checkpoint_file, result, own_emulator=own_emulator)
        return
    _serve_blueprint(request, commands, fleet_context, checkpoint_file, result)


def _open_checkpoints(fleet: Fleet, *, own_emulator: bool) -> Checkpoints:
    """What was done at this place; a rehearsal keeps its own, and begins anew with its embedded AWS."""
    data, endpoint = context.build_data_path(fleet), context.find_emulator_endpoint()
    if own_emulator:
        return Checkpoints(data / "rehearsal.json", f"a rehearsal at {endpoint}")
    account = identity.fetch_identity(AwsSession(fleet.region)).account
    return Checkpoints(data / checkpoints.FILE, f"account {account}, {fleet.region}, {endpoint or 'AWS'}")


def _run_preflight(request: WorkflowRequest, checkpoint_file: Checkpoints, result: WorkflowResult) -> None:
    """What of the fleet the account can hold; asked once, for what is made since would count against it.

    Raises:
        AnswerIsNo: not all of it.
    """
    key = compute_digest(request.fleet.path.read_text(encoding="utf-8"))
    console.show_command(("blueprint", "preflight", "--fleet", console.shorten_path(request.fleet.path)))
    if checkpoint := checkpoint_file.find("preflight", key):
        console.err.print(f"[green]✓[/green] preflight: done already on {checkpoint.recorded_at}")
        result.skipped.append("preflight")
        return
    preflight_report = report.run_preflight(request.fleet, instances.load(), AwsSession(request.fleet.value.region))
    preflight_table.print_report(preflight_report)
    failed_count = preflight_report.counts["fail"]
    if failed_count:
        raise CheckFailed(
            f"{request.fleet.path}: {failed_count} of the preflight's answers {'is' if failed_count == 1 else 'are'} no, each with "
            "its remedy above. Nothing was made"
        )
    checkpoint_file.record("preflight", key)


def _confirm_plan(
    request: WorkflowRequest,
    fleet_context: FleetContext,
    stack_plans: Sequence[StackPlan],
    checkpoint_file: Checkpoints,
    confirm: Callable[[str], None],
    result: WorkflowResult,
) -> None:
    """The one question; none where the same was agreed to before, or nothing is to be made."""
    if all(stack_plan.is_empty for stack_plan in stack_plans):
        result.skipped.append("the stacks")
        return
    key = compute_digest(*((folder / "cdk.tf.json").read_text() for folder in fleet_context.folders.values()))
    checkpoint = checkpoint_file.find("agreed", key)
    if checkpoint and not any(stack_plan.plan.affected for stack_plan in stack_plans):
        console.err.print(f"[green]✓[/green] agreed to on {checkpoint.recorded_at}, and nothing else is to be made")
        return
    for line in _list_warnings(request, fleet_context):
        console.err.print(line, markup=False)
    count = sum(stack_plan.plan.add or stack_plan.resources for stack_plan in stack_plans if not stack_plan.is_empty)
    confirm(
        f"Make these {count:,} resources at {fleet_context.cloud_name}, {fleet_plan_table.describe_cost(fleet_context.fleet, instances.load())}?"
    )
    checkpoint_file.record("agreed", key)


def _list_warnings(request: WorkflowRequest, fleet_context: FleetContext) -> list[str]:
    """What a user should know before the answer."""
    fleet, lines = fleet_context.fleet, []
    if fleet.state == "local":
        lines.append(
            f"Terraform's state is a file of this machine; state: s3://BUCKET/PREFIX in {request.fleet.path} "
            "keeps it where a team finds it"
        )
    return [*lines, *load_aws_target(request.target).list_warnings(fleet)]


def _apply_stacks(request: WorkflowRequest, fleet_context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    if request.cdktf:
        _apply_with_cdktf(fleet_context)
    else:
        apply.apply(fleet_context, stack_plans)


def _apply_with_cdktf(fleet_context: FleetContext) -> None:
    """The same stacks by CDKTF's own command line, which plans and applies each in its folder."""
    out = next(iter(fleet_context.folders.values())).parents[1].absolute()
    apply.delete_plans(fleet_context)
    with console.step(f"Apply {', '.join(fleet_context.folders)} to {fleet_context.cloud_name} by {CDKTF}") as step:
        console.run_together(
            [
                console.Command(
                    ["npx", "--yes", CDKTF, "deploy", *fleet_context.folders, "--auto-approve", "--skip-synth",
                     "--skip-provider-lock", "--output", str(out)],
                    fleet_context.data / "cdktf.log",
                    cwd=ROOT,
                    environment={**fleet_context.program.environment, runner.BINARY_VARIABLE: fleet_context.program.program, "CI": "1"},
                )
            ],
            timeout_s=apply.LIMIT_S,
            grace_s=apply.GRACE_S,
            stop_signal=signal.SIGINT,
        )  # fmt: skip
        step.note = "done"


def _upload_weights(request: WorkflowRequest, fleet_context: FleetContext, folder: Path) -> None:
    """The blueprint's models into the fleet's model bucket; sends nothing that is there already."""
    deployment_plan = planning.plan(folder, request.fleet.path, target=request.target, account=fleet_context.account)
    # Sent from here, with what this process may do, and not from where the service will run.
    upload_environment = deployment_plan.deployment.environment.model_copy(
        update={"env": dict(os.environ), "s3_endpoint": AwsSession.read_endpoint("s3")}
    )
    deployment = deployment_plan.deployment.model_copy(update={"environment": upload_environment})
    for served_model in deployment.served_models:
        if not served_model.weights.random:
            console.show_command(("blueprint", "model", "copy", served_model.model, "--to", served_model.weights.uri))
    model_names = ", ".join(served_model.model for served_model in deployment.served_models)
    with console.step(f"Copy {model_names} into the model bucket s3://{upload_environment.bucket}") as step:

        def on_progress(done: int, total: int) -> None:
            step.note = f"{format_bytes(done)} of {format_bytes(total)}"

        weights.upload_models(deployment_plan.directory, deployment, on_progress)
        step.note = f"{format_bytes(weights.check(deployment))} of weights, whole"


def _finish_rehearsal(
    request: WorkflowRequest,
    fleet_context: FleetContext,
    checkpoint_file: Checkpoints,
    result: WorkflowResult,
    *,
    own_emulator: bool,
) -> None:
    """The end of a rehearsal: what remains is named, and an embedded AWS of its own is left as it was found."""
    target = load_aws_target(request.target)
    result.stop_reason = target.rehearsal_limit
    commands = target.list_cluster_commands(request.fleet.value, request.fleet.path)
    result.remaining_commands += map(console.quote_command, commands)
    if request.blueprint:
        folder = console.shorten_path(request.blueprint)
        result.remaining_commands += [
            console.quote_command(("blueprint", verb, folder, "--target", request.target))
            for verb in ("deploy", "validate")
        ]
    if own_emulator:
        destroy_plan = destroy.plan_destroy(fleet_context, with_data=True)
        console.out.print(fleet_plan_table.render_destroy_plan(destroy_plan), soft_wrap=False)
        destroy.destroy(destroy_plan)
        stacks.check_nothing_left(request.fleet, endpoint=str(fleet_context.endpoint))
        checkpoint_file.clear()
        result.has_resources = False


def _get_charts_folder(fleet: Fleet) -> Path:
    return Path("rendered") / fleet.name / "platform"


def _serve_blueprint(
    request: WorkflowRequest,
    commands: ServingCommands,
    fleet_context: FleetContext,
    checkpoint_file: Checkpoints,
    result: WorkflowResult,
) -> None:
    """What needs machines: charts, the blueprint, its validation."""
    if load_aws_target(request.target).has_add_ons:
        _install_add_ons(fleet_context, checkpoint_file, result)
    folder = request.blueprint
    if not folder:
        return
    folder_argument = console.shorten_path(folder)
    options = ("--target", request.target)
    console.show_command(
        ("blueprint", "deploy", folder_argument, "--fleet", console.shorten_path(request.fleet.path), *options, "--yes")
    )
    with console.step(f"Deploy {folder_argument} on {request.target}"):
        checkpoint_file.record("blueprint", note=f"{folder.resolve()} {request.target}")
        _run_in_cluster(
            request.target, fleet_context, lambda: commands.deploy(folder, request.fleet.path, request.target)
        )
    console.show_command(
        ("blueprint", "validate", folder_argument, "--fleet", console.shorten_path(request.fleet.path), *options)
    )
    with console.step("Validate it against the SLO"):
        try:
            _run_in_cluster(
                request.target, fleet_context, lambda: commands.validate(folder, request.fleet.path, request.target)
            )
        except CheckFailed as error:  # said after the summary
            result.validation_failure = error


def _run_in_cluster(target: str, fleet_context: FleetContext, command: Callable[[], None]) -> None:
    """Runs a command that calls kubectl or helm, which then find the fleet's own cluster."""
    with processes.patched_environ(load_aws_target(target).build_cluster_env(fleet_context.data)):
        command()


def _install_add_ons(fleet_context: FleetContext, checkpoint_file: Checkpoints, result: WorkflowResult) -> None:
    """Charts in order; one that was installed with the same values is not installed again."""
    fleet = fleet_context.fleet
    commands = add_ons.build_install_commands(fleet, instances.load(), _get_charts_folder(fleet))
    with console.step(f"Reach the cluster {fleet.name}"):
        cluster_access = cluster.connect(fleet, fleet_context.data)
        cluster_identity = cluster_access.fetch_uid()
    keys = {
        command.selected.add_on.name: compute_digest(*command.arguments, str(command.selected.values), cluster_identity)
        for command in commands
    }
    pending = [
        command
        for command in commands
        if not checkpoint_file.find(f"chart {command.selected.add_on.name}", keys[command.selected.add_on.name])
    ]
    skipped = [f"chart {command.selected.add_on.name}" for command in commands if command not in pending]
    for name in skipped:
        console.err.print(f"[green]✓[/green] {name}: done already")
    result.skipped += skipped

    def record_chart(command: add_ons.Command) -> None:
        checkpoint_file.record(f"chart {command.selected.add_on.name}", keys[command.selected.add_on.name])

    add_ons.run_commands(
        pending, _get_charts_folder(fleet), environment=cluster_access.environment, on_done=record_chart
    )


def undo(fleet: Path, commands: ServingCommands, confirm: Callable[[str], None], *, with_data: bool) -> None:
    """Undoes what `install` made, in reverse: the blueprint, machines, charts, stacks.

    Raises:
        BlueprintError: a step failed; the same command goes on there.
    """
    document = inputs.read_fleet(fleet)
    with (
        processes.handle_interrupts(),
        context.lock_fleet(document.value),
        context.use_aws_or_emulator(document, rehearse=False),
    ):
        fleet_context = context.prepare(document, out=Path("cdktf.out"))
        checkpoint_file = _open_checkpoints(document.value, own_emulator=False)
        destroy_plan = destroy.plan_destroy(fleet_context, with_data=with_data)
        console.out.print(fleet_plan_table.render_destroy_plan(destroy_plan), soft_wrap=False)
        blueprint_checkpoint = checkpoint_file.find_latest("blueprint")
        if not blueprint_checkpoint:
            destroy.require_no_dependents(destroy_plan)
        if not destroy_plan.stacks:
            return
        confirm("Destroy this?")
        if blueprint_checkpoint:
            folder, target = blueprint_checkpoint.note.rsplit(" ", 1)
            with console.step(f"Take {console.shorten_path(Path(folder))} off {target}"):
                _run_in_cluster(target, fleet_context, lambda: commands.destroy(Path(folder), fleet, target))
            destroy_plan = destroy.plan_destroy(fleet_context, with_data=with_data)
            destroy.require_no_dependents(destroy_plan)
        destroy.destroy(destroy_plan)
        console.out.print(fleet_plan_table.render_destroy_summary(destroy_plan), soft_wrap=False)


def print_summary(result: WorkflowResult, request: WorkflowRequest, set_up_s: float) -> None:
    """Every step with its time, where the road ended, and what comes next."""
    console.out.rule("What was done", align="left")
    console.out.print(console.render_times([Step("Set up the command line", set_up_s), *result.steps]))
    if result.skipped:
        console.out.print(f"[dim]done already: {', '.join(result.skipped)}[/dim]")
    if result.stop_reason:
        console.out.rule("Where it ends without an account", align="left")
        console.out.print(
            f"{result.stop_reason}. On AWS it goes on with:" if result.remaining_commands else f"{result.stop_reason}.",
            markup=False,
        )
        for line in result.remaining_commands:
            console.out.print(f"  {line}", markup=False)
    console.out.rule("What to do next", align="left")
    next_steps = {"signed in to AWS, to its end": request.resume_command} if result.stop_reason else {}
    if result.has_resources:
        next_steps["undo all of it"] = request.undo_command
    for title, line in next_steps.items():
        console.out.print(f"[dim]{title}[/dim]\n  {line}")
