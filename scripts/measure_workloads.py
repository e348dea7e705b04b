"""Measures what three workloads on one engine of this machine cost each other: real time, near real time and batch.

    .venv/bin/python -m scripts.measure_workloads                         # 600 s of each phase
    .venv/bin/python -m scripts.measure_workloads alone beside-batch      # real time with and without a batch
    .venv/bin/python -m scripts.measure_workloads all                     # all three at once

Deploys the patterns real-time, with one vLLM, near-real-time and offline-batch, both with its endpoint, and validates
them at bounded loads; the batch again and again. Writes measured/workloads.html, where each has its own SLO, and with
several phases measured/comparison.html. Exit status 1 if an SLO is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from llm_serving import console, paths, program
from llm_serving.cli import main as blueprint
from llm_serving.services.runs import REPORT_FILE
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.validation.pages import html_report
from llm_serving.validation.reports.run_folder import PAGE_FILE
from scripts.measure_frameworks import deploy

REAL_TIME, NEAR_REAL_TIME, BATCH = "real-time", "near-real-time", "batch"
"""Names of the deployments."""

PHASES: Mapping[str, tuple[str, ...]] = {
    "alone": (REAL_TIME,),
    "beside-batch": (REAL_TIME, BATCH),
    "all": (REAL_TIME, NEAR_REAL_TIME, BATCH),
}
"""What runs at once in each."""

PAGE, COMPARISON = "workloads.html", "comparison.html"

_GRACE_S = 900
"""Longest that a validation takes beside its load."""


class Limited(NamedTuple):
    """A number of a validation, and the limit of its SLO; empty for none."""

    name: str
    value: str
    limit: str = ""


class Workload(NamedTuple):
    """A validation of a phase."""

    name: str
    verdict: str
    numbers: tuple[Limited, ...]
    folder: str
    began: float
    ended: float


class Phase(NamedTuple):
    """What was measured at once."""

    name: str
    load_average: float
    """Of the last minute before it began."""

    workloads: tuple[Workload, ...]

    @property
    def jobs(self) -> list[Workload]:
        """The batch's."""
        return [entry for entry in self.workloads if entry.name == BATCH]

    @property
    def shown(self) -> list[Workload]:
        """All but the jobs that passed faster than the slowest."""
        slowest = max(self.jobs, key=lambda job: job.ended - job.began, default=None)
        return [entry for entry in self.workloads if entry.name != BATCH or entry is slowest or _misses(entry)]

    @property
    def batch_share(self) -> float:
        """Share of the real-time load's time in which a job of the batch ran."""
        timed = next(entry for entry in self.workloads if entry.name == REAL_TIME)
        shared_s = sum(max(0.0, min(timed.ended, job.ended) - max(timed.began, job.began)) for job in self.jobs)
        return shared_s / max(0.001, timed.ended - timed.began)


def main(words: Sequence[str] | None = None) -> None:
    """Measure the phases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=f"default all of them: {', '.join(PHASES)}")
    parser.add_argument("--seconds", type=float, default=600, help="of the load of each phase")
    parser.add_argument("--requests-per-s", type=float, default=1, help="of the real-time load")
    parser.add_argument("--events-per-s", type=float, default=0.5, help="of the near-real-time load")
    parser.add_argument("--rows", type=int, default=600, help="of each job of the batch")
    parser.add_argument("--folder", type=Path, default=Path("measured"), help="where deployments and reports are")
    arguments = parser.parse_args(words)
    if unknown := [phase for phase in arguments.phases if phase not in PHASES]:
        parser.error(f"PHASE: {unknown[0]}: there is no such phase")
    names = [name for name in PHASES if name in (arguments.phases or PHASES)]
    arguments.folder.mkdir(exist_ok=True)
    with contextlib.chdir(arguments.folder):
        write_blueprints(arguments)
        needed = {name for phase in names for name in PHASES[phase]}
        with contextlib.ExitStack() as deployed:
            for name in (REAL_TIME, BATCH, NEAR_REAL_TIME):  # the endpoint first
                if name in needed:
                    deployed.enter_context(deploy(name))
            phases = [measure(name, arguments) for name in names]
        save(phases)


def write_blueprints(arguments: argparse.Namespace) -> None:
    """Write the three blueprints, and the fleet, to the working directory."""
    shutil.copy(paths.ROOT / "fleet.yaml", "fleet.yaml")
    endpoint = {"deployment": REAL_TIME}
    settings: dict[str, dict[str, Any]] = {
        REAL_TIME: {
            "roles": {"worker": {"pool": "general", "replicas": 1, "accelerators": 1}, "router": {"max_requests": 64}},
            "traffic": {
                "arrivals": f"{arguments.requests_per_s:g}/s",
                "input_tokens": "320..352",
                "output_tokens": "4..8",
                "shared_prefix": "80%",
                "prefix_groups": 1,
                "deadline": "10s",
            },
        },
        NEAR_REAL_TIME: {
            "endpoint": {**endpoint, "output_tokens": 8, "deadline": "10s"},
            "generator": {"rate": 0},
            "session": {"timeout": "30min", "events": 8},  # more are longer than the model's context
            "sample": {"bad_events": 5, "rate": arguments.events_per_s, "shoppers": 20},
            "slo": {"answer_p99": "10s"},
        },
        BATCH: {
            "endpoint": endpoint,
            "teams": {"default": {}},
            "workers": {"count": 1, "concurrency": "2..32"},
            "sample": {
                "model": "tiny",
                "rows": arguments.rows,
                "bad_rows": 5,
                "input_tokens": "16..64",
                "output_tokens": "8..16",
            },
            "slo": {"deadline": "10min"},
        },
    }
    for name, own in settings.items():
        pattern = {BATCH: "offline-batch"}.get(name, name)
        shutil.rmtree(name, ignore_errors=True)
        file = Path(shutil.copytree(paths.PATTERNS / pattern, name)) / "blueprint.yaml"
        blueprint_text = {**yaml.safe_load(file.read_text(encoding="utf-8")), "name": name, **own}
        file.write_text(yaml.safe_dump(blueprint_text, sort_keys=False), encoding="utf-8")


class Validation:
    """A validation that runs; its messages go to NAME.log."""

    def __init__(self, name: str, count: int | None = None) -> None:
        self._name = name
        options = ["--requests", str(count)] if count else []
        command = [str(Path(sys.executable).with_name("blueprint")), "validate", name, *options]
        with Path(f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> None:
        """Wait for its end, and accept it if it measured something, whether or not its SLO is met.

        Raises:
            Unavailable: it did not.
        """
        if self._process.wait(_GRACE_S) not in (0, CheckFailed.exit_code):
            log = Path(f"{self._name}.log").absolute()
            raise Unavailable(f"{self._name} could not be validated. Fix: see {log}.")


def measure(name: str, arguments: argparse.Namespace) -> Phase:
    """Send the loads of a phase at once, and jobs of the batch as long as they last."""
    counts = {
        REAL_TIME: round(arguments.requests_per_s * arguments.seconds),
        NEAR_REAL_TIME: round(arguments.events_per_s * arguments.seconds),
    }
    load_average, before = os.getloadavg()[0], set(_list_runs())
    with console.step(f"Measure {name}"):
        job = Validation(BATCH) if BATCH in PHASES[name] else None
        loads = [Validation(load, counts[load]) for load in PHASES[name] if load in counts]
        while any(load.is_running() for load in loads):
            if job and not job.is_running():
                job.finish()
                job = Validation(BATCH)
            time.sleep(0.5)
        for validation in filter(None, (*loads, job)):
            validation.finish()
    folders = sorted(set(_list_runs()) - before)
    return Phase(name, load_average, tuple(read_workload(folder) for folder in folders))


def _list_runs() -> list[Path]:
    return [report.parent for report in Path(paths.RUNS).glob(f"*/[0-9]*/{REPORT_FILE}")]


def read_workload(folder: Path) -> Workload:
    """Read what a report says of its SLO."""
    report = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
    numbers, seconds = {"batch": _list_batch, "streaming": _list_stream}.get(report.get("kind"), _list_requests)(report)
    began = datetime.datetime.fromisoformat(report["started_at"]).timestamp()
    return Workload(report["name"], report["verdict"], numbers, str(folder), began, began + seconds)


def _list_requests(report: Mapping[str, Any]) -> tuple[tuple[Limited, ...], float]:
    latency, slo, requests = report["metrics"]["e2e_ms"], report["settings"]["slo"], report["requests"]
    numbers = (
        Limited("answered after, p50", f"{latency['p50']:.0f} ms"),
        Limited("answered after, p99", f"{latency['p99']:.0f} ms", f"{slo['e2e_ms']['p99']:g} ms"),
        Limited("failed requests", f"{requests['failed']} of {requests['total']}", f"{slo['errors']:.0%}"),
    )
    return numbers, report["duration_s"]


def _list_stream(report: Mapping[str, Any]) -> tuple[tuple[Limited, ...], float]:
    answer, slo, events = report["metrics"]["answer_ms"], report["settings"]["slo"], report["events"]
    numbers = (
        Limited("answer in the cache after, p50", f"{answer['p50']:.0f} ms"),
        Limited("answer in the cache after, p99", f"{answer['p99']:.0f} ms", f"{1000 * slo['answer_p99']:g} ms"),
        Limited("lost or duplicated events", f"{events['lost'] + events['duplicated']} of {events['sent']}", "0"),
        Limited("valid events without an answer", f"{events['misjudged']}", f"{slo['dead_events']:.0%}"),
    )
    return numbers, events["sent"] / report["events_per_s"]


def _list_batch(report: Mapping[str, Any]) -> tuple[tuple[Limited, ...], float]:
    rows, slo = report["rows"], report["settings"]["slo"]
    numbers = (
        Limited("submission to results", f"{report['seconds']:.0f} s", f"{slo['deadline']:g} s"),
        Limited("lost or duplicated rows", f"{rows['lost'] + rows['duplicated']} of {rows['total']}", "0"),
        Limited("output tokens a second", f"{report['output_tokens_per_s']:.0f}"),
    )
    return numbers, report["seconds"]


def save(phases: Sequence[Phase]) -> None:
    """Write the pages, and print a line of JSON for each validation.

    Raises:
        CheckFailed: one misses its SLO.
    """
    Path(PAGE).write_text(render(phases), encoding="utf-8")
    for phase in phases:
        for workload in phase.workloads:
            numbers = {number.name: number.value for number in workload.numbers}
            print(json.dumps({"phase": phase.name, "workload": workload.name, "verdict": workload.verdict, **numbers}))
    real_time = [entry.folder for phase in phases for entry in phase.workloads if entry.name == REAL_TIME]
    if len(real_time) > 1:
        blueprint.run(["compare", *real_time, "--page", COMPARISON])
    console.out.print(f"{Path(PAGE).absolute()}", markup=False, soft_wrap=True)
    if missed := [f"{phase.name}: {entry.name}" for phase in phases for entry in phase.workloads if _misses(entry)]:
        raise CheckFailed(f"an SLO is missed: {', '.join(missed)}")


def _misses(workload: Workload) -> bool:
    return workload.verdict == "fail"


def render(phases: Sequence[Phase]) -> str:
    """Return the page with each workload of each phase against its own SLO."""
    return html_report.render_page(
        "workloads.html.j2",
        Path(__file__).parent,
        phases=phases,
        page_file=PAGE_FILE,
        comparison=COMPARISON if len(phases) > 1 else "",
        verdict="fail" if any(_misses(entry) for phase in phases for entry in phase.workloads) else "pass",
    )


if __name__ == "__main__":
    raise SystemExit(program.run(main))
