"""Try configurations of a blueprint, one deployment after the other, and find the one that carries the most.

Nothing of the user's changes: the configurations run under a name of their own, from a copy of the blueprint's folder
in RUNS/NAME/tune-TIME. The state there is written after each load: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import itertools
import json
import math
import operator
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from llm_serving import console, paths, processes
from llm_serving.services import inputs, kinds
from llm_serving.services.blueprint import FILE_NAME, resolve_name
from llm_serving.settings import overrides, yaml_source
from llm_serving.settings.document import Document
from llm_serving.settings.errors import BlueprintError, CheckFailed, InputError, Unavailable
from llm_serving.settings.overrides import Override
from llm_serving.settings.units import format_count
from llm_serving.targets import planning, registry
from llm_serving.targets.base import Confirm, LoadOrigin
from llm_serving.validation import base
from llm_serving.validation.pages import tune_page
from llm_serving.validation.reports import run_folder
from llm_serving.validation.search import knee, racing, sweep
from llm_serving.validation.search.knee import Point
from llm_serving.validation.search.racing import Trial, Tuning
from llm_serving.validation.search.sweep import Loader, Options

RESERVED = ("kind", "name", "traffic", "slo")
"""Keys that every configuration is held against, and no part of one."""

MAX_TRIALS = 64

NAME_SUFFIX, MAX_NAME = "-tune", 32


@dataclass(frozen=True)
class Limits:
    """What tuning may take."""

    seconds: float
    usd: float | None = None
    """None for no limit of money."""


class _LimitReachedError(Exception):
    """The next load would exceed a limit."""


@dataclass(frozen=True)
class Job:
    folder: Path
    fleet_file: Path
    target: str
    varied: Sequence[Override]
    options: Options
    limits: Limits
    origin: LoadOrigin | None = None
    """From where loads are sent; None for the target's choice."""


def tune(job: Job, confirm: Confirm) -> tuple[Tuning, Path]:
    """Try the configurations; return the result and its folder.

    Raises:
        CheckFailed: no configuration keeps the SLO.
        InputError: a key or a value is wrong, or every configuration is refused.
        Unavailable: the blueprint itself is up on this machine.
    """
    document, _ = inputs.read(job.folder, job.fleet_file)
    name = resolve_name(document)
    _require_keys(job.varied, document)
    _require_machine(job, name)
    runs = Path.cwd() / paths.RUNS / name
    text = document.path.read_text(encoding="utf-8")
    state, folder = _open_state(job, document, text, name, runs)
    work = folder / f"{name[: MAX_NAME - len(NAME_SUFFIX)]}{NAME_SUFFIX}"
    session = _Session(job, state, folder, work, text, document)
    try:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(job.folder, work, ignore=shutil.ignore_patterns(*paths.NOT_COPIED))
        session.resolve()
        confirm(_describe_job(state, job.limits))
        session.run()
    finally:
        if not session.is_left:
            shutil.rmtree(work, ignore_errors=True)
            if not any(trial.points for trial in state.trials):
                shutil.rmtree(folder, ignore_errors=True)
    return state, folder


def require_best(state: Tuning) -> None:
    """Refuse a tuning of which no configuration keeps the SLO, with what each one missed.

    Raises:
        CheckFailed: none does; with what each one missed.
    """
    if state.best is None:
        lines = [f"  {trial.title}: {trial.state}: {trial.why}" for trial in state.trials if trial.why]
        title = f"no configuration of {state.name} was shown to keep its SLO"
        raise CheckFailed("\n".join([title, *lines, *([f"  {state.stopped}"] if state.stopped else [])]))


def _require_keys(varied: Sequence[Override], document: Document[Any]) -> None:
    document_data = yaml_source.read(document.path).data
    for override in varied:
        overrides.require_key("--over", type(document.value), document_data, override.key, RESERVED)
    keys = [override.key for override in varied]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"--over: {key} more than once. Fix: write --over {key}=VALUE,VALUE once.")
    count = math.prod(len(override.values) for override in varied)
    if count > MAX_TRIALS:
        raise InputError(f"--over: {count} configurations: at most {MAX_TRIALS} are tried. Fix: try fewer values.")


def _require_machine(job: Job, name: str) -> None:
    """Refuse to measure beside the user's own deployment on the same machine: they would share its cores."""
    target = registry.load_target(job.target)
    if not target.needs_aws and target.read_status(job.folder, job.fleet_file).rows:
        fix = f"run blueprint destroy {console.shorten_path(job.folder)}"
        raise Unavailable(f"{name} is up on this machine and would share it with what is tried. Fix: {fix}.")


def _open_state(job: Job, document: Document[Any], text: str, name: str, runs: Path) -> tuple[Tuning, Path]:
    """Return the state of an unfinished run of the same job with its folder, or a new one."""
    options = job.options
    traffic = document.value.traffic
    axis = sweep.choose_axis(traffic, options)
    digest = _compute_digest(job, text)
    for file in sorted(runs.glob(f"{racing.TUNE_FOLDER}*/{racing.STATE_FILE}"), reverse=True):
        with contextlib.suppress(OSError, ValidationError):
            state = Tuning.model_validate_json(file.read_text(encoding="utf-8"))
            if state.digest == digest and not state.finished:
                console.err.print(f"Resuming {console.shorten_path(file.parent)}", markup=False)
                return state, file.parent
    started = datetime.datetime.now(datetime.UTC)
    folder = run_folder.find_free_path(runs / f"{racing.TUNE_FOLDER}{started.strftime('%Y-%m-%dT%H-%M-%SZ')}")
    folder.mkdir(mode=0o700, parents=True)
    keys = [override.key for override in job.varied]
    trials = [
        Trial(number=number, settings=dict(zip(keys, values, strict=True)))
        for number, values in enumerate(itertools.product(*(override.values for override in job.varied)), 1)
    ]
    state = Tuning(
        name=name,
        target=job.target,
        digest=digest,
        axis=axis,
        wanted=sweep.get_own_load(traffic, axis),
        precision=options.precision,
        point_s=options.point_s,
        started_at=started.isoformat(timespec="seconds"),
        trials=trials,
    )
    return state, folder


def _compute_digest(job: Job, text: str) -> str:
    """Return a digest of all files, the keys and values, and how each load is sent; limits may differ."""
    others = [
        (str(part), hashlib.sha256((job.folder / part).read_bytes()).hexdigest())
        for part in sorted(file.relative_to(job.folder) for file in job.folder.rglob("*") if file.is_file())
        if not any(name.startswith(".") or name in paths.NOT_COPIED for name in part.parts)
    ]
    decisive = [
        text, others, job.fleet_file.read_text(encoding="utf-8"), job.target, [list(entry) for entry in job.varied],
        [job.options.axis, job.options.lowest, job.options.highest, job.options.precision, job.options.point_s],
        job.origin,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]


def _describe_job(state: Tuning, limits: Limits) -> str:
    waiting = [trial for trial in state.trials if trial.state != "refused"]
    prices = [trial.instances_usd_h for trial in waiting if trial.instances_usd_h is not None]
    cost = f", each on instances of {min(prices):,.2f} to {max(prices):,.2f} USD/h" if prices else ""
    money = f" and {limits.usd:g} USD" if limits.usd is not None else ""
    lines = [f"  {trial.number}. {trial.title}{f' ({trial.why})' if trial.why else ''}" for trial in state.trials]
    lines += [f"  {note}" for note in state.notes]
    return (
        "\n".join(lines) + f"\n{format_count(len(waiting), 'configuration')}, deployed on {state.target} one after the "
        f"other as {state.name}{NAME_SUFFIX}{cost}; within {limits.seconds / 60:g} min{money}"
    )


@dataclass
class _Session:
    """One run: what is deployed now, and since when."""

    job: Job
    state: Tuning
    folder: Path
    work: Path
    text: str
    document: Document[Any]
    start: float = field(default_factory=lambda: time.time())
    """Of the wall clock: a monotonic one stands still while a laptop sleeps, and instances cost on."""

    deployed: Trial | None = None
    deployed_at: float = 0.0
    loader: Loader | None = None
    is_left: bool = False
    """Whether what was deployed could not be removed."""

    fixed: dict[str, int] = field(default_factory=dict)
    """Number by the key of replicas that come and go by load."""

    opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def resolve(self) -> None:
        """Find out of each configuration whether it can work, what it costs and might carry; refuses if none can."""
        refusals: list[InputError] = []
        for trial in self.state.trials:
            self._write_blueprint(trial)
            try:
                deployment = planning.plan_offline(self.work, self.job.fleet_file, self.job.target).deployment
            except InputError as error:
                trial.state, trial.why = "refused", _describe_refusal(error)
                refusals.append(error)
                continue
            kind = kinds.get(deployment.kind)
            trial.usd_h, trial.expected_per_s = kind.price(deployment), kind.estimate_load(deployment)
            trial.instances_usd_h = kind.price_instances(deployment)
        # Where others have a price, what has none cannot be told to carry more for it.
        trials = [trial for trial in self.state.trials if trial.state != "refused"]
        for trial in trials if any(trial.usd_h is not None for trial in trials) else ():
            if trial.usd_h is None:
                trial.state, trial.why = "refused", "its instances have no known price here, and those of others have"
        self.state.notes = list(self._list_notes(None))
        if len(refusals) == len(self.state.trials):
            raise InputError(f"--over: every configuration is refused. The first: {_describe_refusal(refusals[0])}")
        if self.job.limits.usd is not None and all(trial.usd_h is None for trial in self.state.trials):
            reason = f"the target {self.job.target} has no known prices to hold it against"
            raise InputError(f"--spend-limit: {self.job.limits.usd:g}: {reason}. Fix: use --time-limit only.")

    def run(self) -> None:
        """Race the configurations within the limits; end what is deployed, whatever happens."""
        search = sweep.build_search(self.document.value.traffic, self.state.axis, self.job.options)
        before_s = self.state.seconds
        self.state.stopped = ""
        try:
            racing.race(racing.order(self.state.trials), self._measure, search, self.state.wanted)
            if failed := sum(trial.state == "failed" for trial in self.state.trials):
                self.state.stopped = f"{failed} of {len(self.state.trials)} configurations failed"
            self.state.finished = not failed
        except _LimitReachedError as error:
            self.state.stopped = str(error)
        finally:
            best = racing.find_best(self.state.trials, self.state.wanted)
            self.state.best = best.number if best else None
            self.state.notes = list(self._list_notes(best))
            try:
                with processes.ignore_signals():  # a second one would leave what runs
                    self.opened.close()
                    self._destroy()
            finally:
                self._end_trial()  # until it is gone, it costs
                self.state.seconds = round(before_s + time.time() - self.start, 1)
                self._save()

    def _list_notes(self, best: Trial | None) -> Iterator[str]:
        wanted, axis = self.state.wanted, self.state.axis
        if best and wanted and not best.carries(wanted):
            load = sweep.format_load(wanted, axis)
            yield f"traffic asks for {load}, which none keeps: the best one needs more replicas for it."
        if best and best.kept:
            yield from sweep.list_unconfirmed(best.kept, axis)
        for key, number in self.fixed.items():
            yield f"{key} come and go by load: tried with {number}."
        yield from sweep.list_left_out(self.document.value.slo)

    def _measure(self, trial: Trial, load: float, earlier: Point | None) -> Point:
        """Send a load to a configuration, unless an earlier run did."""
        measured = next((point for point in trial.points if point.load == load), None)
        if measured and (measured.longer or not earlier):
            return measured
        self._raise_if_exceeded()
        if self.deployed is not trial:
            self._end_trial()
            self._deploy(trial)
        assert self.loader, "deployed"
        sent = self.loader.measure(load, earlier)
        point = sent.model_copy(update={"run": f"{trial.number}/{sent.run}"})
        trial.points = [*(other for other in trial.points if other.load != load), point]
        trial.kept = knee.find_bracket(trial.points).kept
        trial.state = "kept" if trial.kept else "not tried"
        self._count_time()
        self._save()
        return point

    def _deploy(self, trial: Trial) -> None:
        title = f"Configuration {trial.number} of {len(self.state.trials)}: {trial.title}"
        console.err.print(title, style="bold", markup=False)
        self._write_blueprint(trial)
        self.deployed, self.deployed_at = trial, time.time()
        target = registry.load_target(self.job.target)
        plan = planning.plan(self.work, self.job.fleet_file, target=self.job.target)
        target.deploy(plan, lambda _: None, force=True)
        opened = self.opened.enter_context(
            target.open_validation(self.work, self.job.fleet_file, None, origin=self.job.origin)
        )
        validator = base.load_validator(opened.deployment.kind)
        self.loader = Loader(
            validator.build_target(opened.deployment, opened.options.logs),
            self.state.axis,
            self.job.options.point_s,
            dataclasses.replace(opened.options, runs=self.folder / str(trial.number)),
        )

    def _end_trial(self) -> None:
        """Leave the configuration that is deployed; the next one replaces it in place."""
        self._count_time()
        self.opened.close()
        self.deployed = self.loader = None

    def _count_time(self) -> None:
        if self.deployed:
            now = time.time()
            self.deployed.seconds = round(self.deployed.seconds + now - self.deployed_at, 1)
            self.deployed_at = now
        if any(trial.usd_h is not None for trial in self.state.trials):
            self.state.usd = round(sum(trial.usd for trial in self.state.trials), 4)

    def _destroy(self) -> None:
        """Remove what is deployed, if anything is; otherwise say the command that does."""
        target = registry.load_target(self.job.target)
        try:
            if self.deployed_at or target.needs_aws or target.read_status(self.work, self.job.fleet_file).rows:
                target.destroy(self.work, self.job.fleet_file, lambda _: None)
        except InputError:
            return  # its files never were complete
        except BlueprintError as error:
            self.is_left = True
            command = ["blueprint", "destroy", console.shorten_path(self.work), "--target", self.job.target]
            fix = console.quote_command([*command, "--fleet", console.shorten_path(self.job.fleet_file)])
            raise CheckFailed(f"{self.work.name} may still run, and cost: {error}\nFix: run {fix}") from None

    def _raise_if_exceeded(self) -> None:
        limits, used_s = self.job.limits, time.time() - self.start
        if used_s >= limits.seconds:
            raise _LimitReachedError(f"the time limit of {limits.seconds / 60:g} min was reached")
        self._count_time()
        if limits.usd is not None and (self.state.usd or 0.0) >= limits.usd:
            raise _LimitReachedError(f"the spend limit of {limits.usd:g} USD was reached")

    def _write_blueprint(self, trial: Trial) -> None:
        """Write a configuration, with replicas that stay: else a load would meet now few, now many."""
        file = self.work / FILE_NAME
        text = overrides.apply(self.text, {**trial.settings, "name": self.work.name})
        file.write_text(text, encoding="utf-8")
        blueprint = self._read_values(trial)
        if changes := kinds.get(blueprint.kind).fix_replicas(blueprint):
            data = yaml_source.read(file).data
            for key_path, values in changes.items():
                role = functools.reduce(operator.getitem, key_path, data)
                merged = {key: value for key, value in {**role, **values}.items() if value is not None}
                role.clear()
                role.update(merged)
                self.fixed[".".join((*key_path, "replicas"))] = values["replicas"]
            file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")

    def _read_values(self, trial: Trial) -> Any:
        """Read the blueprint; refuse values that are wrong by themselves at the command line that has them."""
        try:
            return inputs.read_blueprint(self.work).value
        except InputError as error:
            for mistake in error.mistakes:
                for key, value in trial.settings.items():
                    if mistake.field == key or mistake.field.startswith(f"{key}."):
                        text = f"--over {key}: {value}: {mistake.reason}. Fix: {mistake.fix}."
                        raise InputError(text) from None
            raise

    def _save(self) -> None:
        """Write state, page and the best blueprint so far, each at once."""
        best = racing.find_best(self.state.trials, self.state.wanted)
        if best:
            processes.write_whole(self.folder / racing.BEST_FILE, overrides.apply(self.text, best.settings))
        processes.write_whole(self.folder / racing.PAGE_FILE, tune_page.render(self.state, best))
        processes.write_whole(self.folder / racing.STATE_FILE, self.state.model_dump_json(indent=2) + "\n")


def _describe_refusal(error: InputError) -> str:
    """Describe the first reason, without the line of a file that is not the user's."""
    if not error.mistakes:
        return str(error)
    mistake = error.mistakes[0]
    return f"{mistake.field}: {mistake.reason}"
