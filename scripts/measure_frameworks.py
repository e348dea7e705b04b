"""Measures frameworks one after the other on this machine, with the same model, replicas and load.

    .venv/bin/python -m scripts.measure_frameworks                              # all, 600 requests of 8 users each
    .venv/bin/python -m scripts.measure_frameworks plain dynamo --requests 40

Sets up what is missing, then for each framework deploys the pattern aggregated, validates it and removes it. Prints a
table, and writes its numbers to measured/frameworks.json. Each runs the version of vLLM that it pins, so that the table
compares what a user gets, and not the frameworks alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from llm_serving import console, paths, program
from llm_serving.cli import main as blueprint
from llm_serving.services.runs import REPORT_FILE
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import engine_setups, supervisor
from scripts.check_local_prediction import measure_others

FRAMEWORKS = ("plain", "ray", "dynamo")
"""Those that run on this machine."""

ENGINE = "vllm"

RESULT = "frameworks.json"


@dataclass(frozen=True)
class Row:
    """What was measured of a framework."""

    framework: str
    engine: str
    """With its version, as its report says."""

    busy_percent: float
    """What all other processes used in the ten seconds before, in percent of a core."""

    first_answer_s: float
    """From the start of `blueprint deploy`, which ends when the deployment has answered a completion."""

    first_answer_cpu_s: float
    """CPU time of the replicas and of what routes to them until then."""

    requests_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    failed: int
    memory_mb: float
    """Of the same processes after the load; of shared memory their share."""

    report: str


def main(words: Sequence[str] | None = None) -> None:
    """Measure the frameworks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=f"default all: {', '.join(FRAMEWORKS)}")
    parser.add_argument("--requests", type=int, default=600, help="of each load")
    parser.add_argument("--users", type=int, default=8, help="who each wait for an answer before they send again")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("measured"), help="where deployments and reports are")
    arguments = parser.parse_args(words)
    if unknown := [name for name in arguments.frameworks if name not in FRAMEWORKS]:
        parser.error(f"FRAMEWORK: {unknown[0]}: it does not run on this machine")
    names = [name for name in FRAMEWORKS if name in (arguments.frameworks or FRAMEWORKS)]
    for name in names:
        engine_setups.main(ENGINE, name)
    arguments.folder.mkdir(exist_ok=True)
    with contextlib.chdir(arguments.folder):
        shutil.copy(paths.ROOT / "fleet.yaml", "fleet.yaml")
        rows: list[Row] = []
        for name in names:
            rows.append(measure(name, arguments))
            Path(RESULT).write_text(json.dumps([asdict(row) for row in rows], indent=2), encoding="utf-8")
        console.out.print(render(rows), markup=False, soft_wrap=True)
        console.out.print(f"{Path(RESULT).absolute()}", markup=False, soft_wrap=True)


def measure(framework: str, arguments: argparse.Namespace) -> Row:
    """Deploy, load and remove a framework."""
    name = f"on-{framework}"
    write_blueprint(name, framework, arguments)
    with console.step(f"Measure {framework}"):
        busy_percent = measure_others()
        with deploy(name) as first_answer_s:
            cpu_s = add_up(name, lambda process: sum(process.cpu_times()[:4]))  # with that of children that have ended
            validate(name)
            memory = add_up(name, lambda process: process.memory_full_info().pss)
    [report_file] = Path(paths.RUNS, name).glob(f"*/{REPORT_FILE}")
    report = json.loads(report_file.read_text(encoding="utf-8"))
    ttft = report["metrics"]["ttft_ms"]
    return Row(
        framework,
        f"{ENGINE} {report['versions'][ENGINE]}",
        round(busy_percent),
        round(first_answer_s, 1),
        round(cpu_s, 1),
        report["throughput"]["requests_per_s"],
        ttft["p50"],
        ttft["p99"],
        report["requests"]["failed"],
        round(memory / 1e6),
        str(report_file.absolute()),
    )


def write_blueprint(name: str, framework: str, arguments: argparse.Namespace) -> None:
    """Write a copy of the pattern, in place of an earlier one and of its reports."""
    for folder in (name, Path(paths.RUNS, name)):
        shutil.rmtree(folder, ignore_errors=True)
    file = Path(shutil.copytree(paths.PATTERNS / "aggregated", name)) / "blueprint.yaml"
    settings: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    traffic = {key: value for key, value in settings["traffic"].items() if key != "arrivals"}
    settings |= {
        "name": name,
        "framework": framework,
        "traffic": traffic | {"users": arguments.users, "requests": arguments.requests},
        "slo": {},
    }
    settings["roles"]["worker"]["replicas"] = arguments.replicas
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


@contextlib.contextmanager
def deploy(name: str) -> Iterator[float]:
    """Deploy a blueprint for the time of the block; yield how many seconds it took.

    Raises:
        CheckFailed: it does not deploy.
    """
    start = time.monotonic()
    try:
        if blueprint.run(["deploy", name, "--yes"]):
            raise CheckFailed(f"{name}: it does not deploy. Fix: see what deploy said above.")
        yield time.monotonic() - start
    finally:
        blueprint.run(["destroy", name, "--yes"])


def validate(name: str) -> None:
    """Send the load.

    Raises:
        CheckFailed: nothing was measured.
    """
    if blueprint.run(["validate", name]) not in (0, CheckFailed.exit_code):
        raise CheckFailed(f"{name}: it could not be validated. Fix: see what validate said above.")


def add_up(name: str, read: Callable[[psutil.Process], float]) -> float:
    """Return the sum over the processes of a deployment's replicas and of what routes to them.

    Raises:
        CheckFailed: it has ended.
    """
    directory = DeploymentDir(name, Path.cwd())
    supervised, deployment = supervisor.find_running(directory), directory.load_deployment()
    if supervised is None or deployment is None:
        raise CheckFailed(f"{name}: it has ended. Fix: see {directory.logs}.")
    pids = {state.name: state.pid for state in supervised.list_states()}
    parents = [psutil.Process(pids[service.name]) for service in deployment.services]
    total = 0.0
    for process in (each for parent in parents for each in (parent, *parent.children(recursive=True))):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            total += read(process)
    return total


def render(rows: Sequence[Row]) -> str:
    titles = (
        *("Framework", "Engine", "First answer", "CPU time until then", "Requests/s"),
        *("TTFT p50", "TTFT p99", "Failed", "Memory", "Beside it"),
    )
    lines = [f"| {' | '.join(titles)} |", f"{'|---' * len(titles)}|"]
    for row in rows:
        cells = (
            row.framework,
            row.engine,
            f"{row.first_answer_s:.0f} s",
            f"{row.first_answer_cpu_s:.0f} s",
            f"{row.requests_per_s:.1f}",
            f"{row.ttft_p50_ms:.0f} ms",
            f"{row.ttft_p99_ms:.0f} ms",
            f"{row.failed}",
            f"{row.memory_mb / 1000:.1f} GB",
            f"{row.busy_percent:.0f}% of a core",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
