"""Measures cold starts in four quadrants: the image pulled or by SOCI, the weights from the disk or streamed from S3.

    .venv/bin/python -m scripts.cold_start mine                                            # here: weights only
    .venv/bin/python -m scripts.cold_start mine --target eks --pool pulled --pool soci --yes --json

Deploys a copy of the blueprint with one replica for each pool and each way of loading weights, one after the other,
reads what `blueprint status --starts` shows, and removes it. The pools have `images: plain` and `images: soci` in the
fleet, and must be empty before: a node that has the image pulls for 0 s, and the table says so. All numbers are
measured; what neither Kubernetes, ECS nor the engine tells is left empty.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from rich.table import Table

from llm_serving import console
from llm_serving.fleet import groups, loading
from llm_serving.services.blueprint import FILE_NAME
from llm_serving.settings import overrides
from llm_serving.settings.errors import BlueprintError
from llm_serving.targets import registry
from llm_serving.targets.starts import Start
from llm_serving.workflows import serving

STREAMED = {"disk": "off", "streamed": "on"}
"""`tuning.stream_weights` by where the weights come from."""


@dataclass(frozen=True)
class Quadrant:
    """The slowest replica of one deployment."""

    pool: str
    """Empty where the blueprint's own pools are used."""

    images: str
    """How the pool's images start; empty on this machine."""

    weights: str
    start: Start


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fleet", type=Path, default=Path("fleet.yaml"))
    parser.add_argument("--target", default="local")
    parser.add_argument("--pool", action="append", metavar="NAME", help="default: the blueprint's own pools")
    parser.add_argument("--yes", action="store_true", help="deploy without a question")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        quadrants = list(measure(options.folder, options.fleet, options.target, options.pool or [""], yes=options.yes))
    except BlueprintError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps({"quadrants": [_flatten(quadrant) for quadrant in quadrants]}, indent=2))
    else:
        console.out.print(render(quadrants))
    return 0


def measure(folder: Path, fleet: Path, target: str, pools: Sequence[str], *, yes: bool) -> Iterator[Quadrant]:
    """Yield the quadrants; each deployment is removed before the next."""
    with tempfile.TemporaryDirectory() as parent:
        work = Path(parent) / f"{folder.resolve().name[:24]}-starts"
        shutil.copytree(folder, work)
        text = (work / FILE_NAME).read_text(encoding="utf-8")
        for weights, setting in STREAMED.items():
            for pool in pools:
                changes = {"name": work.name, "tuning.stream_weights": setting, **_choose_pool(text, pool)}
                (work / FILE_NAME).write_text(overrides.apply(text, changes), encoding="utf-8")
                starts = _start_once(work, fleet, target, yes=yes)
                slowest = max(starts, key=lambda start: start.first_answer_s or 0)
                yield Quadrant(pool, _find_images(fleet, target, pool), weights, slowest)


def _start_once(work: Path, fleet: Path, target: str, *, yes: bool) -> list[Start]:
    """Deploy, read the starts, and remove all; what they print goes beside the result."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            serving.deploy(work, fleet, target, yes=yes)
            starts = registry.load_target(target).read_starts(work, fleet)
        except BaseException:
            with contextlib.suppress(BlueprintError):  # the first error says why
                serving.destroy(work, fleet, target, yes=True)
            raise
        serving.destroy(work, fleet, target, yes=True)
    return starts


def _choose_pool(text: str, pool: str) -> dict[str, str]:
    """Return the overrides by which each role of an engine has one replica, in a pool if it is named."""
    roles = [name for name, role in yaml.safe_load(text)["roles"].items() if "pool" in (role or {})]
    replicas = {f"roles.{name}.replicas": "1" for name in roles}
    return replicas | ({f"roles.{name}.pool": pool for name in roles} if pool else {})


def _find_images(fleet: Path, target: str, pool: str) -> str:
    if not registry.load_target(target).needs_aws or not pool:
        return ""
    fleet_groups = groups.resolve_all(loading.load_fleet(fleet).value)
    return next(group.images for group in fleet_groups if group.pool == pool)


def _flatten(quadrant: Quadrant) -> dict[str, object]:
    row = asdict(quadrant)
    start = row.pop("start")
    return {**row, **start}


def render(quadrants: Sequence[Quadrant]) -> Table:
    """Render a row for each quadrant; the rest of the first answer is the wait for a node, and loading programs."""
    table = Table("pool", "image", "weights", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("pull s", "copy s", "load s", "compile s", "rest s", "first answer s"):
        table.add_column(heading, justify="right")
    for quadrant in quadrants:
        start = quadrant.start
        parts = (start.pull_s, start.copy_s, start.load_s, start.compile_s)
        measured_s = sum(part or 0 for part in parts)
        rest_s = None if start.first_answer_s is None else start.first_answer_s - measured_s
        image = f"{quadrant.images}, on the node" if start.pull_s == 0 else quadrant.images
        seconds = ("" if part is None else f"{part:.1f}" for part in (*parts, rest_s, start.first_answer_s))
        table.add_row(quadrant.pool, image, quadrant.weights, *seconds)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
