"""What the first token of a disaggregated blueprint waits for on this machine, beside its aggregated baseline.

    python -m scripts.benchmarks.hand_over [--users 1 4] [--requests 60] [--rounds 1]

Three sides run one after the other, each with the real engines, the router and its front, and the prompts of the
disaggregated pattern:

- baseline: as many replicas that do prefill and decode, from `blueprint baseline`.
- pair: prefill and decode as this machine runs them; NIXL's thread sleeps until an event.
- pair, thread polls: the same with BLUEPRINT_LOCAL_SHORTCUTS=off, as production runs it: a core for each engine.

Method: `blueprint validate` of each. The time to first token is the client's mean. Its parts are means of the engines'
counters for the same requests, and the rest:

- prefill: a request in the engine that reads the prompt; of the baseline, up to its first token.
- transfer: the KV cache on its way to decode.
- decode: what else decode's first token takes: its queue, agreeing on the transfer, one step.
- router: the rest: HTTP servers of router and engines. The baseline has one hop, the pair two.

On two cores of a machine that was busy with other work (2026-11-23, 60 requests, one round), ms:

    users  side                 first token  prefill  transfer  decode  router
    1      baseline                    44.9     37.6                       7.3
    1      pair                        86.9     47.2       2.6    16.2    20.8
    1      pair, thread polls         156.8     80.2      13.9    37.9    24.7
    4      baseline                   113.8     95.3                      18.4
    4      pair                       287.5    154.6      13.3    61.3    58.3
    4      pair, thread polls         263.0    128.8      20.9    74.6    38.8

The transfer is 3 to 5% of the pair's first token. With one user the second hop and the second engine's HTTP server take
13 ms, decode's step 16; with four, prompts wait for one engine where the baseline has two. The sleeping thread costs
nothing that shows: where the threads poll, they take the cores from the engines.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from llm_serving import console, processes, program
from llm_serving.kinds.serving import baseline, blueprint
from llm_serving.services.blueprint import FILE_NAME
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_env, supervisor
from llm_serving.targets.local.environment import SHORTCUTS_VARIABLE
from llm_serving.validation import run
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.report import Report

ROOT = Path(__file__).resolve().parents[2]
PATTERN = ROOT / "blueprints" / "disaggregated"


class FirstToken(NamedTuple):
    """Mean milliseconds up to the first token, and its parts."""

    total: float
    prefill: float
    transfer: float
    decode: float
    router: float


def read_parts(report: Report) -> FirstToken:
    """Read the parts of a validation's time to first token.

    Raises:
        CheckFailed: the report lacks one.
    """
    total, transfers = report.metrics["ttft_ms"].mean, report.kv_transfers
    if transfers is None:
        means = [row.engine_ms for row in report.agreement if (row.metric, row.statistic) == ("ttft_ms", "mean")]
        if total is None or not means or means[0] is None:
            raise CheckFailed("the report has no time to first token of client and engine")
        return FirstToken(total, means[0], 0.0, 0.0, total - means[0])
    prefill, decode, router, transfer = (
        transfers.prefill_ms,
        transfers.decode_ms,
        transfers.router_ms,
        transfers.mean_ms,
    )
    if total is None or prefill is None or decode is None or router is None or transfer is None:
        raise CheckFailed("the report has no hand-over")
    return FirstToken(total, prefill, transfer, decode - transfer, router)


def measure_side(folder: Path, work: Path, users: list[int], requests: int) -> Iterator[FirstToken]:
    """Start a blueprint, and yield its first token's parts under each number of users."""
    with _start(folder, work) as plan:
        for count in users:
            traffic = plan.deployment.traffic.model_copy(update={"users": count})
            deployment = plan.deployment.model_copy(update={"traffic": traffic})
            options = ValidationOptions(logs=plan.directory.logs, runs=work / "runs", folder=folder, requests=requests)
            report, _ = run.validate(deployment, options)
            yield read_parts(report)


@contextmanager
def _start(folder: Path, work: Path) -> Iterator[DeploymentPlan]:
    plan = planning.plan(folder, ROOT / "fleet.yaml", root=work, target="local")
    deploy.check_machine(plan)
    deploy.prepare_start(plan)
    with supervisor.start_attached(plan.directory) as supervised:
        yield deploy.bring_up(plan, supervised)


@contextmanager
def _make_folders() -> Iterator[dict[str, Path]]:
    """Blueprint of each side."""
    with tempfile.TemporaryDirectory(prefix="hand-over-") as name:
        pair = Path(name) / "pair"
        shutil.copytree(PATTERN, pair)
        original = blueprint.read(pair)
        single = Path(name) / "single"
        shutil.copytree(PATTERN.with_name(baseline.get_pattern(original)), single)
        (single / FILE_NAME).write_text(baseline.render(original), encoding="utf-8")
        yield {"baseline": single, "pair": pair, "pair, thread polls": pair}


@contextmanager
def _set_shortcuts(*, are_on: bool) -> Iterator[None]:
    earlier = os.environ.pop(SHORTCUTS_VARIABLE, None)
    if not are_on:
        os.environ[SHORTCUTS_VARIABLE] = "off"
    try:
        yield
    finally:
        os.environ.pop(SHORTCUTS_VARIABLE, None)
        if earlier is not None:
            os.environ[SHORTCUTS_VARIABLE] = earlier


def build_table(measured: Mapping[tuple[str, int], list[FirstToken]]) -> Table:
    """Build a table of each side's medians under each number of users."""
    table = Table("median, ms", "users", "first token", *FirstToken._fields[1:])
    for (side, users), rounds in sorted(measured.items(), key=lambda entry: entry[0][1]):
        medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
        table.add_row(side, str(users), *(f"{value:.1f}" for value in medians))
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    measured: dict[tuple[str, int], list[FirstToken]] = {}
    engine_env.ensure()
    with processes.handle_interrupts(), _make_folders() as folders:
        for number, (side, folder) in itertools.product(range(args.rounds), folders.items()):
            work = folder.parent / f"{number}-{len(measured)}"
            with _set_shortcuts(are_on="polls" not in side):
                parts = list(measure_side(folder, work, args.users, args.requests))
            for users, part in zip(args.users, parts, strict=True):
                measured.setdefault((side, users), []).append(part)
    console.out.print(build_table(measured))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
