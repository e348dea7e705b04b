"""The AWS workflow of install.sh: from a fleet file to a validated service, resumed where it was interrupted.

preflight -> stacks planned, their cost shown -> one question -> state bucket -> stack of buckets and registries ->
images, weights -> the other stacks in order -> platform charts (EKS) -> the blueprint's own deploy -> its validation

Without credentials it is a rehearsal against an embedded AWS, and ends where instances would be needed.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.markup import escape

from llm_serving import console, paths, processes
from llm_serving.aws.preflight import identity, report
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import own_image
from llm_serving.console import Step
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons, apply, checkpoints, cluster, context, destroy, plans
from llm_serving.operations.checkpoints import Checkpoints, compute_digest
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.options import confirm
from llm_serving.rehearsal import emulator, stacks
from llm_serving.services import inputs
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable, quote_value
from llm_serving.settings.units import format_bytes, format_count
from llm_serving.tables import fleet_plan_table, preflight_table
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import weights
from llm_serving.targets.on_aws import images
from llm_serving.targets.on_aws.aws_target import AwsTarget, load_aws_target
from llm_serving.terraform import runner
from llm_serving.workflows import serving

CDKTF = "cdktf-cli@0.21.0"
"""The last of CDKTF's own command lines; the bindings are of the same version."""

ROOT = paths.ROOT
_DEFAULT = "aggregated"


_IMAGE_LIMIT_S = 2 * 3600.0
"""Longest build of an image: vLLM's base alone has 10 GB to download."""


@dataclass(frozen=True)
class WorkflowRequest:
    """What the user asked for, read and checked."""

    target: AwsTarget
    fleet: Document[Fleet]
    blueprint: Path | None
    """None where only the fleet is created."""

    cdktf: bool = False
    """Whether CDKTF's own command line applies the stacks."""

    @property
    def resume_command(self) -> str:
        words = ["./install.sh", "--target", self.target.name, "--fleet", console.shorten_path(self.fleet.path)]
        if self.blueprint:
            words += ["--blueprint", console.shorten_path(self.blueprint)]
        if self.cdktf:
            words += ["--with", "cdktf"]
        return console.quote_command(words)

    @property
    def undo_command(self) -> str:
        return console.quote_command(["./install.sh", "--destroy", "--fleet", console.shorten_path(self.fleet.path)])


@dataclass
class WorkflowResult:
    """How far the workflow went."""

    steps: Sequence[Step]
    skipped: list[str] = field(default_factory=list)
    """Steps that an earlier run has done."""

    remaining_commands: list[str] = field(default_factory=list)
    """Commands that remain after a rehearsal."""

    stop_reason: str = ""
    """Why it stopped; "" where it went to the end."""

    has_resources: bool = True
    """Whether what it created still exists."""

    validation_failure: CheckFailed | None = None
    """The objectives that the validation missed."""


def read_request(target: str, fleet: Path, source: str | None, *, cdktf: bool = False) -> WorkflowRequest:
    """Read both files, and refuse what cannot work before AWS is asked.

    Args:
        source: the blueprint's directory, or a pattern's name; where None, the default pattern if the fleet can run it.

    Raises:
        InputError: a file is invalid, the fleet has another orchestrator, or the blueprint no template for the target.
    """
    aws_target = load_aws_target(target)
    document = inputs.read_fleet(fleet)
    if target not in document.value.orchestrators:
        raise InputError(
            f"--target {target}: the fleet of {fleet} has the orchestrator {document.value.orchestrator}. "
            f"Fix: use --target {document.value.orchestrators[0]}, or write orchestrator: {target} or both in {fleet}."
        )
    return WorkflowRequest(aws_target, document, _find_blueprint(source, fleet, target), cdktf)


def find_folder(source: str | None) -> Path:
    """Return the blueprint's directory that a path or a pattern's name leads to; that of the default pattern if None.

    Raises:
        InputError: there is none.
    """
    folder = Path(source) if source and Path(source).is_dir() else paths.PATTERNS / (source or _DEFAULT)
    if not (folder / "blueprint.yaml").is_file():
        reason = "it is neither a blueprint's folder nor a pattern's name"
        raise InputError(f"--blueprint: {quote_value(source)}: {reason}. Fix: use a name that `blueprint list` shows.")
    return folder


def _find_blueprint(source: str | None, fleet: Path, target: str) -> Path | None:
    """Return the blueprint's directory; None where none is named and the default pattern cannot run on this fleet."""
    folder = find_folder(source)
    try:
        planning.plan(folder, fleet, target=target, account=emulator.ACCOUNT)  # no account is asked yet
    except InputError as error:
        if source:
            raise
        console.err.print(
            f"Only the fleet will be created: no --blueprint is given, and the pattern {_DEFAULT} cannot run on it.\n"
            f"  {error}\n"
            f"  To serve: blueprint new mine --from {_DEFAULT}, change mine/blueprint.yaml, and add --blueprint mine",
            markup=False,
        )
        return None
    return folder


def run(request: WorkflowRequest, *, rehearse: bool, yes: bool) -> WorkflowResult:
    """Run the whole workflow, or resume it.

    Args:
        rehearse: use an embedded AWS even where there are credentials.
        yes: ask nothing; otherwise once, before anything is created, and never in a rehearsal.

    Raises:
        BlueprintError: a step failed; the same command resumes there.
    """
    aws_or_emulator = context.use_aws_or_emulator(request.fleet, rehearse=True if rehearse else None)
    with (
        console.record_steps() as steps,
        processes.handle_interrupts(),
        context.lock_fleet(request.fleet.value),
        aws_or_emulator as aws,
    ):
        result = WorkflowResult(steps)
        try:
            yes = yes or aws.is_rehearsal
            confirm.require_terminal(yes)
            _require_tools(request, is_emulated=aws.is_emulated)
            Workflow(request, aws, _open_checkpoints(request.fleet.value, aws), result).run(yes=yes)
        except KeyboardInterrupt:
            message = f"Resume: {request.resume_command}. Undo: {request.undo_command}"
            if aws.is_rehearsal:
                message = "The embedded AWS has ended, so a rehearsal starts from the beginning"
            console.err.print(f"Interrupted. {message}", markup=False)
            raise
    return result


def _require_tools(request: WorkflowRequest, *, is_emulated: bool) -> None:
    """Look for the programs of later steps before anything is paid for."""
    if request.cdktf and not shutil.which("npx"):
        raise Unavailable("--with cdktf: there is no npx on this machine's PATH. Fix: install Node.js 20; not 24.")
    if not is_emulated:
        add_ons.require_tools(request.target.list_tools(request.fleet.value))


def _open_checkpoints(fleet: Fleet, aws: AwsSession) -> Checkpoints:
    """Return the steps done in this account; a rehearsal has its own, which end with its embedded AWS."""
    data_folder = context.build_data_path(fleet)
    if aws.is_rehearsal:
        return Checkpoints(data_folder / "rehearsal.json", f"a rehearsal at {aws.emulator}")
    account = identity.fetch_identity(aws).account
    return Checkpoints(data_folder / checkpoints.FILE, f"account {account}, {fleet.region}, {aws.emulator or 'AWS'}")


@dataclass(frozen=True)
class Workflow:
    """The steps of one run, each of which an interrupted run has done or not."""

    request: WorkflowRequest
    aws: AwsSession
    checkpoints: Checkpoints
    result: WorkflowResult

    def run(self, *, yes: bool) -> None:
        """Take all steps."""
        request = self.request
        self._run_preflight()
        fleet_context = context.prepare(request.fleet, self.aws, out=Path("cdktf.out"))
        aws, account = fleet_context.aws, fleet_context.account
        plan = (
            planning.plan(request.blueprint, request.fleet.path, target=request.target.name, aws=aws, account=account)
            if request.blueprint
            else None
        )
        with apply.use_plans(fleet_context):
            stack_plans = plans.create(fleet_context)
            console.out.print(fleet_plan_table.render(fleet_context, stack_plans), soft_wrap=False)
            self._confirm_plan(fleet_context, stack_plans, yes=yes)
            apply.ensure_state_bucket(fleet_context)
            if plan and not fleet_context.endpoint:
                # What costs by the hour comes last: it would wait for an image to be built, and for the weights.
                early_plans = [stack_plan for stack_plan in stack_plans if stack_plan.name == destroy.STORAGE]
                stack_plans = [stack_plan for stack_plan in stack_plans if stack_plan.name != destroy.STORAGE]
                _apply_stacks(fleet_context, early_plans, cdktf=request.cdktf)
                _build_images(plan, fleet_context)
                _upload_weights(plan)
            _apply_stacks(fleet_context, stack_plans, cdktf=request.cdktf)
        self.checkpoints.remove("agreed")  # it was for this apply only
        if fleet_context.endpoint:
            if plan:
                _upload_weights(plan)
            self._finish_rehearsal(fleet_context)
            return
        with request.target.reach_cluster(aws, fleet_context.fleet, fleet_context.data):
            self._serve_blueprint(fleet_context)

    def _run_preflight(self) -> None:
        """Check that the account can hold the fleet; once a fleet file, for what exists later counts against quotas."""
        file = self.request.fleet.path
        key = compute_digest(file.read_text(encoding="utf-8"))
        console.show_command(("blueprint", "preflight", "--fleet", console.shorten_path(file)))
        if checkpoint := self.checkpoints.find("preflight", key):
            console.err.print(f"[green]✓[/green] Preflight: skipped, passed on {checkpoint.recorded_at}")
            self.result.skipped.append("preflight")
            return
        preflight_report = report.run_preflight(self.request.fleet, self.aws)
        preflight_table.print_report(preflight_report)
        if failed_count := preflight_report.counts["fail"]:
            failure = f"{format_count(failed_count, 'check')} failed, fixes above"
            raise CheckFailed(f"{file}: Preflight: {failure}. Nothing was created")
        self.checkpoints.record("preflight", key)

    def _confirm_plan(self, fleet_context: FleetContext, stack_plans: Sequence[StackPlan], *, yes: bool) -> None:
        """Ask for confirmation once; not where the same was confirmed before, or nothing changes."""
        if all(stack_plan.is_empty for stack_plan in stack_plans):
            self.result.skipped.append("stacks")
            return
        key = compute_digest(*((folder / "cdk.tf.json").read_text() for folder in fleet_context.folders.values()))
        checkpoint = self.checkpoints.find("agreed", key)
        if checkpoint and not any(stack_plan.plan.affected for stack_plan in stack_plans):
            console.err.print(f"[green]✓[/green] Confirmed on {checkpoint.recorded_at}; no other changes")
            return
        fleet, file = fleet_context.fleet, self.request.fleet.path
        warnings = self.request.target.list_warnings(fleet)
        if fleet.state == "local":
            hint = f"To share it with a team, write state: s3://BUCKET/PREFIX in {file}"
            warnings = [f"Terraform's state is a local file. {hint}", *warnings]
        for warning in warnings:
            console.err.print(warning, markup=False)
        count = sum(
            stack_plan.plan.add or stack_plan.resources for stack_plan in stack_plans if not stack_plan.is_empty
        )
        cost = fleet_plan_table.describe_cost(fleet_context)
        confirm.ask(f"Create these {count:,} resources in {fleet_context.cloud_name}, {cost}?", yes)
        self.checkpoints.record("agreed", key)

    def _finish_rehearsal(self, fleet_context: FleetContext) -> None:
        """End a rehearsal: list the remaining commands, and destroy what it created in an embedded AWS of its own."""
        request, target = self.request, self.request.target
        self.result.stop_reason = target.rehearsal_limit
        commands = target.list_cluster_commands(fleet_context.fleet, request.fleet.path)
        if request.blueprint:
            folder, fleet = map(console.shorten_path, (request.blueprint, request.fleet.path))
            options = (folder, "--target", target.name, "--fleet", fleet)
            commands += [("blueprint", verb, *options) for verb in ("deploy", "validate")]
        self.result.remaining_commands += map(console.quote_command, commands)
        if fleet_context.aws.is_rehearsal:
            destroy_plan = destroy.plan_destroy(fleet_context, with_data=True)
            console.out.print(fleet_plan_table.render_destroy_plan(destroy_plan), soft_wrap=False)
            destroy.destroy(destroy_plan)
            stacks.check_nothing_left(request.fleet, endpoint=str(fleet_context.endpoint))
            self.checkpoints.clear()
            self.result.has_resources = False

    def _serve_blueprint(self, fleet_context: FleetContext) -> None:
        """Run the steps that need instances: charts, deploy, validate."""
        request, target = self.request, self.request.target
        aws = target.open_session(fleet_context.aws, fleet_context.data)
        if target.conventions.is_kubernetes:
            self._install_add_ons(fleet_context)
        folder, fleet_file = request.blueprint, request.fleet.path
        if not folder:
            return
        words = (console.shorten_path(folder), "--fleet", console.shorten_path(fleet_file), "--target", target.name)
        console.show_command(("blueprint", "deploy", *words, "--yes"))
        with console.step(f"Deploy {console.shorten_path(folder)} on {target.name}"):
            self.checkpoints.record("blueprint", note=f"{folder.resolve()} {target.name}")
            serving.deploy(folder, fleet_file, target.name, aws=aws, yes=True)
        console.show_command(("blueprint", "validate", *words))
        with console.step("Validate against the SLO"):
            try:
                serving.validate(folder, fleet_file, target.name, aws=aws)
            except CheckFailed as error:  # shown after the summary
                self.result.validation_failure = error

    def _install_add_ons(self, fleet_context: FleetContext) -> None:
        """Connect to the cluster, and install its charts, but for those that had the same values before."""
        fleet, fleet_file = fleet_context.fleet, fleet_context.document.path
        folder = Path("rendered") / fleet.name / "platform"
        installs = self.request.target.installs_charts(fleet)
        commands = add_ons.build_install_commands(fleet, folder, fleet_file) if installs else []
        with console.step(f"Connect to the cluster {names.find_eks_cluster(fleet)}"):
            uid = cluster.fetch_uid(cluster.connect(fleet_context.aws, fleet, fleet_context.data))
        installed = Checkpoints(fleet_context.data / checkpoints.CHARTS_FILE, f"the cluster {uid}")

        def compute_key(command: add_ons.Command) -> tuple[str, str]:
            key = compute_digest(*command.arguments, str(command.selected.values))
            return f"chart {command.selected.add_on.name}", key

        pending = [command for command in commands if not installed.find(*compute_key(command))]
        skipped = [compute_key(command)[0] for command in commands if command not in pending]
        for name in skipped:
            console.err.print(f"[green]✓[/green] {name}: skipped, installed before")
        self.result.skipped += skipped
        add_ons.install(
            pending,
            folder,
            fleet_file,
            kubeconfig=cluster.open_session(fleet_context.aws, fleet_context.data).kubeconfig,
            on_done=lambda command: installed.record(*compute_key(command)),
        )


def _apply_stacks(fleet_context: FleetContext, stack_plans: Sequence[StackPlan], *, cdktf: bool) -> None:
    if cdktf:
        apply.require_safe(fleet_context, stack_plans)
        _apply_with_cdktf(fleet_context, [stack_plan.name for stack_plan in stack_plans])
    else:
        apply.apply(fleet_context, stack_plans)


def _apply_with_cdktf(fleet_context: FleetContext, names: Sequence[str]) -> None:
    """Apply the same stacks with CDKTF's own command line, which plans and applies each in its directory."""
    stacks_folder = next(iter(fleet_context.folders.values())).parents[1].absolute()
    apply.delete_plans(fleet_context)
    with console.step(f"Apply {', '.join(names)} to {fleet_context.cloud_name} with {CDKTF}") as step:
        console.run_together(
            [
                console.Command(
                    ["npx", "--yes", CDKTF, "deploy", *names, "--auto-approve", "--skip-synth",
                     "--skip-provider-lock", "--output", str(stacks_folder)],
                    fleet_context.data / "cdktf.log",
                    cwd=ROOT,
                    environment={
                        **fleet_context.program.environment,
                        runner.BINARY_VARIABLE: fleet_context.program.program,
                        "CI": "1",
                    },
                    hidden_environment=fleet_context.program.hidden_environment,
                )
            ],
            timeout_s=apply.LIMIT_S,
            grace_s=apply.GRACE_S,
            stop_signal=signal.SIGINT,
        )  # fmt: skip
        step.note = "done"


def _build_images(plan: DeploymentPlan, fleet_context: FleetContext) -> None:
    """Build and push the blueprint's images that the fleet's registry does not have."""
    missing_images = images.list_missing(plan, (service.image for service in plan.deployment.services))
    missing_names = [images.get_name(row.image) for row in missing_images]
    commands = {name: ("images/build", name, "--fleet", str(plan.fleet.path)) for name in missing_names}
    if commands and not any(map(shutil.which, own_image.BUILDERS)):
        lines = "\n".join(f"  {console.quote_command(words)}" for words in commands.values())
        raise CheckFailed(
            f"{', '.join(commands)}: not in the fleet's registry, and this machine has no docker, "
            "podman or buildah to build. Nothing that costs by the hour was created. Fix: install one of them, or run "
            f"these where one is, then this again:\n{lines}"
        )
    for name, (script, *words) in commands.items():
        with console.step(f"Build the image {name} and push it to the fleet's registry"):
            log, environment = fleet_context.data / f"image-{name}.log", fleet_context.aws.child_env
            console.run((str(ROOT / script), *words), log=log, environment=environment, timeout_s=_IMAGE_LIMIT_S)


def _upload_weights(plan: DeploymentPlan) -> None:
    """Upload the blueprint's models to the fleet's model bucket; skip what is there already."""
    # Uploaded from this machine with the user's own session, not with that of the service.
    session = {"env": plan.aws.variables, "s3_endpoint": plan.aws.find_endpoint("s3")}
    environment = plan.deployment.environment.model_copy(update=session)
    deployment = plan.deployment.model_copy(update={"environment": environment})
    for loaded_model in deployment.loaded_models:
        if not loaded_model.weights.random:
            console.show_command(("blueprint", "model", "copy", loaded_model.model, "--to", loaded_model.weights.uri))
    model_names = ", ".join(loaded_model.model for loaded_model in deployment.loaded_models)
    with console.step(f"Upload {model_names} to s3://{environment.bucket}") as step:
        weights.upload_models(plan.directory, deployment, step.note_bytes)
        step.note = f"{format_bytes(weights.check(deployment))} verified"


def undo(fleet: Path, *, with_data: bool, yes: bool) -> None:
    """Undo what `install` created, in reverse: the blueprint, instances, charts, stacks.

    Raises:
        BlueprintError: a step failed; the same command resumes there.
    """
    confirm.require_terminal(yes)
    document = inputs.read_fleet(fleet)
    with (
        processes.handle_interrupts(),
        context.lock_fleet(document.value),
        context.use_aws_or_emulator(document, rehearse=False) as aws,
    ):
        fleet_context = context.prepare(document, aws, out=Path("cdktf.out"))
        checkpoint_file = _open_checkpoints(document.value, aws)
        destroy_plan = destroy.plan_destroy(fleet_context, with_data=with_data)
        console.out.print(fleet_plan_table.render_destroy_plan(destroy_plan), soft_wrap=False)
        blueprint_checkpoint = checkpoint_file.find_latest("blueprint")
        folder, _, target = (blueprint_checkpoint.note if blueprint_checkpoint else "").rpartition(" ")
        has_blueprint = bool(folder) and Path(folder).is_dir()
        if not has_blueprint:
            destroy.require_no_dependents(destroy_plan)
        if destroy_plan.is_empty:
            return
        confirm.ask("Destroy this?", yes)
        if has_blueprint:
            with console.step(f"Remove {console.shorten_path(Path(folder))} from {target}"):
                cluster_session = load_aws_target(target).open_session(aws, fleet_context.data)
                serving.destroy(Path(folder), fleet, target, aws=cluster_session, yes=True)
            checkpoint_file.remove("blueprint")  # its cluster may be gone when this resumes
            destroy_plan = destroy.plan_destroy(fleet_context, with_data=with_data)
            destroy.require_no_dependents(destroy_plan)
        destroy.destroy(destroy_plan)
        console.out.print(fleet_plan_table.render_destroy_summary(destroy_plan), soft_wrap=False)


def print_summary(result: WorkflowResult, request: WorkflowRequest, set_up_s: float) -> None:
    """Print every step with its time, where the workflow stopped, and the next steps."""
    console.out.rule("Steps", align="left")
    console.out.print(console.render_times([Step("Set up the command line", set_up_s), *result.steps]))
    if result.skipped:
        console.out.print(f"[dim]Skipped: {', '.join(result.skipped)}[/dim]")
    if result.stop_reason:
        console.out.rule("Rehearsal", align="left")
        more = " On AWS, continue with:" if result.remaining_commands else ""
        console.out.print(f"The rehearsal ends here: {result.stop_reason}.{more}", markup=False)
        for line in result.remaining_commands:
            console.out.print(f"  {line}", markup=False)
    console.out.rule("Next steps", align="left")
    next_steps = {"with AWS credentials, the whole workflow": request.resume_command} if result.stop_reason else {}
    if result.has_resources:
        next_steps["undo"] = request.undo_command
    for title, line in next_steps.items():
        console.out.print(f"[dim]{title}[/dim]\n  {escape(line)}")
