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
from llm_serving.aws.session import Aws
from llm_serving.catalog import instances
from llm_serving.console import Step
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as platform
from llm_serving.operations import apply, checkpoints, cluster, context, destroy, plans
from llm_serving.operations.checkpoints import Journal, digest
from llm_serving.operations.context import Site
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import emulator, stacks
from llm_serving.settings.document import Document
from llm_serving.settings.errors import AnswerIsNo, InputError, Unavailable
from llm_serving.settings.units import human_bytes
from llm_serving.tables import fleet_plan_table
from llm_serving.tables import preflight_table as answers
from llm_serving.targets.local import weights
from llm_serving.targets.on_aws import plan
from llm_serving.terraform import runner
from llm_serving.workloads import inputs

TARGETS = ("eks", "ecs")
CDKTF = "cdktf-cli@0.21.0"
"""The last of CDKTF's own command lines; the bindings are of the same version."""

ROOT = paths.ROOT
_PATTERNS = paths.PATTERNS
_DEFAULT = "aggregated"


@dataclass(frozen=True)
class Serving:
    """The commands that serve a blueprint, as the command line has them."""

    deploy: Callable[[Path, Path, str], None]
    """Takes folder, fleet file and target."""

    validate: Callable[[Path, Path, str], None]
    destroy: Callable[[Path, Path, str], None]


@dataclass(frozen=True)
class Wanted:
    """What the user asked for, read and found possible."""

    target: str
    fleet: Document[Fleet]
    blueprint: Path | None
    """None where only the fleet is made."""

    cdktf: bool = False
    """Whether CDKTF's own command line applies the stacks."""

    @property
    def again(self) -> str:
        """The command line that goes on with it."""
        words = ["./install.sh", "--target", self.target, "--fleet", console.near(self.fleet.path)]
        if self.blueprint:
            words += ["--blueprint", console.near(self.blueprint)]
        if self.cdktf:
            words += ["--with", "cdktf"]
        return console.quoted(words)

    @property
    def undo(self) -> str:
        """The command line that undoes it."""
        return console.quoted(["./install.sh", "--destroy", "--fleet", console.near(self.fleet.path)])


@dataclass
class Done:
    """How far the road led."""

    steps: Sequence[Step]
    already: list[str] = field(default_factory=list)
    """What was done before this run."""

    left: list[str] = field(default_factory=list)
    """Where it ended before machines were needed: the commands that remain."""

    why: str = ""
    """Why it ended there; "" where it went to its end."""

    stands: bool = True
    """Whether what was made is there still."""

    missed: AnswerIsNo | None = None
    """What the validation missed of the SLO."""


def read(target: str, fleet: Path, named: str | None, *, cdktf: bool = False) -> Wanted:
    """Reads both files, and refuses what cannot work before anything is asked of AWS.

    Args:
        named: the blueprint's folder, or a pattern's name; the default pattern, if it can, where None.

    Raises:
        InputError: a file is wrong, the fleet has another orchestrator, or the blueprint no template for the target.
    """
    document = inputs.read_fleet(fleet)
    if target not in document.value.orchestrators:
        raise InputError(
            f"--target {target}: the fleet of {fleet} has the orchestrator {document.value.orchestrator}. "
            f"Write --target {document.value.orchestrators[0]}, or orchestrator: {target} or both in {fleet}."
        )
    return Wanted(target, document, _blueprint(named, fleet, target), cdktf)


def _blueprint(named: str | None, fleet: Path, target: str) -> Path | None:
    """The folder of what is to be served; None where nobody named one and the default cannot work on this fleet."""
    folder = Path(named) if named and Path(named).is_dir() else _PATTERNS / (named or _DEFAULT)
    if not (folder / "blueprint.yaml").is_file():
        raise InputError(f"--blueprint: now {named!r}: it is neither a blueprint's folder nor a pattern's name.")
    try:
        plan.plan(folder, fleet, target=target, account=emulator.ACCOUNT)  # no account is asked yet
    except InputError as error:
        if named:
            raise
        console.err.print(
            f"This makes the fleet, and serves nothing on it: --blueprint names none, and {_DEFAULT} cannot be "
            f"served there.\n  {error}",
            markup=False,
        )
        return None
    return folder


def install(
    wanted: Wanted,
    serving: Serving,
    agree: Callable[[str], None],
    *,
    rehearse: bool,
    somebody: Callable[[], None] = lambda: None,
) -> Done:
    """Goes the whole road, or on from where it was broken off.

    Args:
        agree: asked once, before anything is made; raises where the user does not want it. A rehearsal rents nothing,
            and does not ask.
        somebody: raises where nobody could answer: said before minutes are spent on what leads to the question.
        rehearse: an embedded AWS stands in even where there are credentials.

    Raises:
        BlueprintError: a step failed; the same command goes on there.
    """
    fleet = wanted.fleet.value
    where = context.somewhere(wanted.fleet, rehearse=True if rehearse else None)
    with console.recorded() as steps, processes.interruptible(), context.alone(fleet), where as own:
        done = Done(steps)
        try:
            if not own:
                somebody()
            _tools(wanted, rehearsed=context.endpoint_here() is not None)
            _go(wanted, serving, (lambda _: None) if own else agree, done, own=own)
        except KeyboardInterrupt:
            goes_on = f"{wanted.again} goes on; {wanted.undo} undoes what was made"
            then = "the embedded AWS ended with it, so a rehearsal begins anew" if own else goes_on
            console.err.print(f"Broken off: {then}", markup=False)
            raise
    return done


def _tools(wanted: Wanted, *, rehearsed: bool) -> None:
    """Programs that a later step calls, looked for before anything is paid for."""
    if wanted.cdktf and not shutil.which("npx"):
        raise Unavailable("--with cdktf: there is no npx on this machine's PATH. Install Node.js 20 or later")
    if wanted.target == "eks" and not rehearsed:
        platform.require_tools(cluster.TOOLS)


def _go(wanted: Wanted, serving: Serving, agree: Callable[[str], None], done: Done, *, own: bool) -> None:
    kept = _journal(wanted.fleet.value, own=own)
    _preflight(wanted, kept, done)
    made_at = context.prepare(wanted.fleet, out=Path("cdktf.out"))
    made = plans.make(made_at)
    console.out.print(fleet_plan_table.draw(made_at, made, instances.load()), soft_wrap=False)
    _ask(wanted, made_at, made, kept, agree, done)
    apply.state_bucket(made_at)
    _apply(wanted, made_at, made)
    kept.drop("agreed")  # it was for what is made now, and not for a later time
    if wanted.blueprint:
        _copy(wanted, made_at, wanted.blueprint)
    if made_at.endpoint:
        _end_here(wanted, made_at, kept, done, own=own)
        return
    _serve(wanted, serving, made_at, kept, done)


def _journal(fleet: Fleet, *, own: bool) -> Journal:
    """What was done at this place; a rehearsal keeps its own, and begins anew with its embedded AWS."""
    data, endpoint = context.data_of(fleet), context.endpoint_here()
    if own:
        return Journal(data / "rehearsal.json", f"a rehearsal at {endpoint}")
    account = identity.whoami(Aws(fleet.region)).account
    return Journal(data / checkpoints.FILE, f"account {account}, {fleet.region}, {endpoint or 'AWS'}")


def _preflight(wanted: Wanted, kept: Journal, done: Done) -> None:
    """What of the fleet the account can hold; asked once, for what is made since would count against it.

    Raises:
        AnswerIsNo: not all of it.
    """
    key = digest(wanted.fleet.path.read_text(encoding="utf-8"))
    console.show(("blueprint", "preflight", "--fleet", console.near(wanted.fleet.path)))
    if before := kept.done("preflight", key):
        console.err.print(f"[green]✓[/green] preflight: done already on {before.at}")
        done.already.append("preflight")
        return
    found = report.run(wanted.fleet, instances.load(), Aws(wanted.fleet.value.region))
    answers.show(found)
    failed = found.counts["fail"]
    if failed:
        raise AnswerIsNo(
            f"{wanted.fleet.path}: {failed} of the preflight's answers {'is' if failed == 1 else 'are'} no, each with "
            "its remedy above. Nothing was made"
        )
    kept.note("preflight", key)


def _ask(
    wanted: Wanted, made_at: Site, made: Sequence[StackPlan], kept: Journal, agree: Callable[[str], None], done: Done
) -> None:
    """The one question; none where the same was agreed to before, or nothing is to be made."""
    if all(one.empty for one in made):
        done.already.append("the stacks")
        return
    key = digest(*((folder / "cdk.tf.json").read_text() for folder in made_at.folders.values()))
    before = kept.done("agreed", key)
    if before and not any(one.touched for one in made):
        console.err.print(f"[green]✓[/green] agreed to on {before.at}, and nothing else is to be made")
        return
    for line in _remarks(wanted, made_at):
        console.err.print(line, markup=False)
    count = sum(one.add or one.resources for one in made if not one.empty)
    agree(f"Make these {count:,} resources at {made_at.at}, {fleet_plan_table.price(made_at.fleet, instances.load())}?")
    kept.note("agreed", key)


def _remarks(wanted: Wanted, made_at: Site) -> list[str]:
    """What a user should know before the answer."""
    fleet, lines = made_at.fleet, []
    if fleet.state == "local":
        lines.append(
            f"Terraform's state is a file of this machine; state: s3://BUCKET/PREFIX in {wanted.fleet.path} "
            "keeps it where a team finds it"
        )
    if wanted.target == "eks" and not fleet.eks.public_from:
        lines.append(f"Charts are installed from here by kubectl. {cluster.remedy(fleet)}")
    return lines


def _apply(wanted: Wanted, made_at: Site, made: Sequence[StackPlan]) -> None:
    if wanted.cdktf:
        _cdktf(made_at)
    else:
        apply.apply(made_at, made)


def _cdktf(made_at: Site) -> None:
    """The same stacks by CDKTF's own command line, which plans and applies each in its folder."""
    out = next(iter(made_at.folders.values())).parents[1].absolute()
    apply.forget_plans(made_at)
    with console.step(f"Apply {', '.join(made_at.folders)} to {made_at.at} by {CDKTF}") as step:
        console.run_together(
            [
                console.Command(
                    ["npx", "--yes", CDKTF, "deploy", *made_at.folders, "--auto-approve", "--skip-synth",
                     "--skip-provider-lock", "--output", str(out)],
                    made_at.data / "cdktf.log",
                    cwd=ROOT,
                    environment={**made_at.program.environment, runner.BINARY: made_at.program.program, "CI": "1"},
                )
            ],
            timeout_s=apply.LIMIT_S,
            grace_s=apply.GRACE_S,
            stop_by=signal.SIGINT,
        )  # fmt: skip
        step.note = "done"


def _copy(wanted: Wanted, made_at: Site, folder: Path) -> None:
    """The blueprint's models into the fleet's model bucket; sends nothing that is there already."""
    planned = plan.plan(folder, wanted.fleet.path, target=wanted.target, account=made_at.account)
    # Sent from here, with what this process may do, and not from where the service will run.
    here = planned.deployment.place.model_copy(
        update={"environment": dict(os.environ), "s3_endpoint": Aws.endpoint("s3")}
    )
    deployment = planned.deployment.model_copy(update={"place": here})
    for served in deployment.models:
        if not served.weights.random:
            console.show(("blueprint", "model", "copy", served.model, "--to", served.weights.uri))
    names = ", ".join(served.model for served in deployment.models)
    with console.step(f"Copy {names} into the model bucket s3://{here.bucket}") as step:

        def note(done: int, total: int) -> None:
            step.note = f"{human_bytes(done)} of {human_bytes(total)}"

        weights.put(planned.run, deployment, note)
        step.note = f"{human_bytes(weights.check(deployment))} of weights, whole"


def _end_here(wanted: Wanted, made_at: Site, kept: Journal, done: Done, *, own: bool) -> None:
    """The end of a rehearsal: what remains is named, and an embedded AWS of its own is left as it was found."""
    fleet = wanted.fleet.value
    if wanted.target == "eks":
        done.why = "the embedded EKS has no Kubernetes API and starts no nodes, so no chart and no pod can run"
        charts = ("blueprint", "platform", "install", "--fleet", console.near(wanted.fleet.path))
        done.left += [console.quoted(cluster.way_in(fleet)), console.quoted(charts)]
    else:
        done.why = "the embedded ECS starts no machines, so no task can run"
    if wanted.blueprint:
        here = console.near(wanted.blueprint)
        done.left += [
            console.quoted(("blueprint", verb, here, "--target", wanted.target)) for verb in ("deploy", "validate")
        ]
    if own:
        going = destroy.look(made_at, with_data=True)
        console.out.print(fleet_plan_table.going(going), soft_wrap=False)
        destroy.destroy(going)
        stacks.check_nothing_left(wanted.fleet, endpoint=str(made_at.endpoint))
        kept.forget()
        done.stands = False


def _charts(fleet: Fleet) -> Path:
    return Path("rendered") / fleet.name / "platform"


def _serve(wanted: Wanted, serving: Serving, made_at: Site, kept: Journal, done: Done) -> None:
    """What needs machines: charts, the blueprint, its validation."""
    if wanted.target == "eks":
        _platform(made_at, kept, done)
    folder = wanted.blueprint
    if not folder:
        return
    here = console.near(folder)
    options = ("--target", wanted.target)
    console.show(("blueprint", "deploy", here, "--fleet", console.near(wanted.fleet.path), *options, "--yes"))
    with console.step(f"Deploy {here} on {wanted.target}"):
        kept.note("blueprint", note=f"{folder.resolve()} {wanted.target}")
        _led(wanted.target, made_at, lambda: serving.deploy(folder, wanted.fleet.path, wanted.target))
    console.show(("blueprint", "validate", here, "--fleet", console.near(wanted.fleet.path), *options))
    with console.step("Validate it against the SLO"):
        try:
            _led(wanted.target, made_at, lambda: serving.validate(folder, wanted.fleet.path, wanted.target))
        except AnswerIsNo as missed:  # said after the summary
            done.missed = missed


def _led(target: str, made_at: Site, command: Callable[[], None]) -> None:
    """Runs a command that calls kubectl or helm, which then find the fleet's own cluster."""
    with processes.lent(cluster.kubeconfig(made_at.data) if target == "eks" else {}):
        command()


def _platform(made_at: Site, kept: Journal, done: Done) -> None:
    """Charts in order; one that was installed with the same values is not installed again."""
    fleet = made_at.fleet
    rows = platform.commands(fleet, instances.load(), _charts(fleet))
    with console.step(f"Reach the cluster {fleet.name}"):
        reached = cluster.connect(fleet, made_at.data)
        same = reached.identity()
    keys = {row.step.row.name: digest(*row.words, str(row.step.values), same) for row in rows}
    fresh = [row for row in rows if not kept.done(f"chart {row.step.row.name}", keys[row.step.row.name])]
    there = [f"chart {row.step.row.name}" for row in rows if row not in fresh]
    for name in there:
        console.err.print(f"[green]✓[/green] {name}: done already")
    done.already += there

    def note(row: platform.Command) -> None:
        kept.note(f"chart {row.step.row.name}", keys[row.step.row.name])

    platform.run(fresh, _charts(fleet), environment=reached.environment, done=note)


def undo(fleet: Path, serving: Serving, agree: Callable[[str], None], *, with_data: bool) -> None:
    """Undoes what `install` made, in reverse: the blueprint, machines, charts, stacks.

    Raises:
        BlueprintError: a step failed; the same command goes on there.
    """
    document = inputs.read_fleet(fleet)
    with processes.interruptible(), context.alone(document.value), context.somewhere(document, rehearse=False):
        made_at = context.prepare(document, out=Path("cdktf.out"))
        kept = _journal(document.value, own=False)
        going = destroy.look(made_at, with_data=with_data)
        console.out.print(fleet_plan_table.going(going), soft_wrap=False)
        served = kept.last("blueprint")
        if not served:
            destroy.require_alone(going)
        if not going.stacks:
            return
        agree("Destroy this?")
        if served:
            folder, target = served.note.rsplit(" ", 1)
            with console.step(f"Take {console.near(Path(folder))} off {target}"):
                _led(target, made_at, lambda: serving.destroy(Path(folder), fleet, target))
            going = destroy.look(made_at, with_data=with_data)
            destroy.require_alone(going)
        destroy.destroy(going)
        console.out.print(fleet_plan_table.gone(going), soft_wrap=False)


def summary(done: Done, wanted: Wanted, set_up_s: float) -> None:
    """Every step with its time, where the road ended, and what comes next."""
    console.out.rule("What was done", align="left")
    console.out.print(console.times([Step("Set up the command line", set_up_s), *done.steps]))
    if done.already:
        console.out.print(f"[dim]done already: {', '.join(done.already)}[/dim]")
    if done.why:
        console.out.rule("Where it ends without an account", align="left")
        console.out.print(f"{done.why}. On AWS it goes on with:" if done.left else f"{done.why}.", markup=False)
        for line in done.left:
            console.out.print(f"  {line}", markup=False)
    console.out.rule("What to do next", align="left")
    lines = {"signed in to AWS, to its end": wanted.again} if done.why else {}
    if done.stands:
        lines["undo all of it"] = wanted.undo
    for word, line in lines.items():
        console.out.print(f"[dim]{word}[/dim]\n  {line}")
