"""What `sweep` and `compare` find on a deployment that runs, beside an exhaustive search and beside themselves.

    blueprint deploy mine --yes
    python -m scripts.benchmarks.knee mine --point-time 15s --pairs 10

One sweep; then every load of a grid around its knee, once, with the same least time; then validations of the same
deployment at half the knee, each compared with the one before: what differs there is chance, or the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_serving import console, program
from llm_serving.options import quantities
from llm_serving.settings.units import Duration
from llm_serving.targets import registry
from llm_serving.targets.base import ValidationInputs
from llm_serving.validation import comparison, driver_result, knee, sweep
from llm_serving.validation.answer import Sample
from llm_serving.validation.knee import Point
from llm_serving.validation.sweep import Loader, Options
from llm_serving.validation.validation_run import ValidationRun

GRID = tuple(1.1**exponent for exponent in range(-6, 7))
"""Loads of the grid as multiples of the knee: as close to each other as the sweep's precision."""

LIGHT = 0.5
"""Load of the equal validations, as a share of the knee."""


def measure_sweep(inputs: ValidationInputs, point_s: float) -> tuple[float, dict[str, Any]]:
    """Sweep; return the load that was kept, and what it took."""
    start = time.monotonic()
    result, _ = sweep.sweep(inputs.deployment, Options(axis="rate", point_s=point_s), inputs.options)
    sweep.require_kept(result)
    assert result.kept
    seconds = round(time.monotonic() - start, 1)
    loads = [(point.load, point.verdict) for point in result.points]
    return result.kept.load, {"kept": result.kept.load, "seconds": seconds, "loads": loads}


def measure_grid(loader: Loader, knee_load: float) -> dict[str, Any]:
    """Send every load of the grid; return the highest below the first that is not kept."""
    start = time.monotonic()
    points = [loader.measure(knee.round_load(knee_load * factor)) for factor in GRID]
    passed = [point.load for point in itertools.takewhile(lambda point: point.kept, points)]
    loads = [(point.load, point.verdict, point.ttft_p95_ms) for point in points]
    return {"kept": max(passed, default=None), "seconds": round(time.monotonic() - start, 1), "loads": loads}


def measure_equal(loader: Loader, results: Path, load: float, pairs: int) -> dict[str, Any]:
    """Validate the same deployment again and again; return what comparisons of neighbours claim."""
    runs = [read_run(results, loader.measure(load), results / f"equal-{number}") for number in range(pairs + 1)]
    compared = [comparison.compare(before, after) for before, after in itertools.pairwise(runs)]
    claims = [
        [(change.metric, round(change.change, 3)) for change in entry.changes if change.verdict in ("better", "worse")]
        for entry in compared
    ]
    return {"pairs": pairs, "alarms": sum(map(bool, claims)), "claims": [claim for claim in claims if claim]}


def read_run(results: Path, point: Point, destination: Path) -> ValidationRun:
    """Read a point's run, and move its folder out of the next one's way."""
    (results / point.run).rename(destination)
    lines = (destination / driver_result.SAMPLES_FILE).read_text(encoding="utf-8").splitlines()
    report = json.loads((destination / "report.json").read_text(encoding="utf-8"))
    return ValidationRun(destination.name, report, [Sample.from_json(line) for line in lines])


@contextlib.contextmanager
def make_folder() -> Iterator[Path]:
    """A folder for reports that nobody reads."""
    folder = Path(tempfile.mkdtemp(dir="."))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a blueprint that is deployed")
    parser.add_argument("--target", default=registry.DEFAULT)
    parser.add_argument("--fleet", type=Path, default=Path("fleet.yaml"))
    parser.add_argument("--point-time", default="15s", help="least time at one load")
    parser.add_argument("--pairs", type=int, default=10, help="comparisons of the deployment with itself")
    args = parser.parse_args()
    point_s = quantities.parse("--point-time", args.point_time, Duration)
    target = registry.load_target(args.target)
    with target.open_validation(args.folder, args.fleet, None) as inputs, make_folder() as results:
        knee_load, swept = measure_sweep(inputs, point_s)
        options = dataclasses.replace(inputs.options, runs=results)
        loader = Loader(inputs.deployment, "rate", point_s, options)
        grid = measure_grid(loader, knee_load)
        load = knee.round_load(knee_load * LIGHT)
        point_s = max(point_s, comparison.MIN_REQUESTS / load)
        loader = Loader(inputs.deployment, "rate", point_s, options)
        equal = measure_equal(loader, results, load, args.pairs)
    console.out.print_json(data={"sweep": swept, "grid": grid, "equal": equal})


if __name__ == "__main__":
    raise SystemExit(program.run(main))
