"""How long the fleets take: all examples synthesized and planned with a mocked provider; one applied to the emulator.

    .venv/bin/python -m scripts.benchmarks.fleets [--emulated FLEET] [--json]

Each line is one `blueprint rehearse` in a process of its own. User CPU and wall time are the system's own, with every
child (Node, Terraform, the AWS provider, with --emulated the embedded AWS too); the peak is the largest process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from llm_serving.settings.errors import AnswerIsNo

FLEETS = Path(__file__).parents[2] / "infra" / "fleets"


class Run(NamedTuple):
    """One rehearsal: resources by how they were proven, seconds, MiB."""

    what: str
    planned: int
    applied: int
    user_s: float
    wall_s: float
    peak_mib: int


def measure(what: str, *arguments: str) -> Run:
    """Runs `blueprint rehearse` with these arguments in an empty folder.

    Raises:
        AnswerIsNo: it failed; what it said is in the message.
    """
    blueprint = Path(sys.executable).with_name("blueprint")
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w+") as said:
        start = time.monotonic()
        command = [str(blueprint), "rehearse", *arguments, "--json"]
        child = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise AnswerIsNo(f"blueprint {' '.join(command[1:])} ended with {child.returncode}. Run it to see why")
        said.seek(0)
        stacks = [stack for one in json.load(said)["rehearsals"] for stack in one["stacks"].values()]
    planned, applied = (sum(stack[way] or 0 for stack in stacks) for way in ("mocked", "applied"))
    return Run(what, planned, applied, round(used.ru_utime, 1), round(wall_s, 1), used.ru_maxrss // 1024)


def main() -> None:
    """Measures and prints; a line as soon as it is there."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--emulated", metavar="FLEET", help="example fleet to apply to the embedded AWS too; minutes")
    options.add_argument("--json", action="store_true", help="print plain data")
    chosen = options.parse_args()
    wanted: dict[str, tuple[str, ...]] = {
        "all examples": ("--fleet", str(FLEETS), "--mocked"),
        "ads-scale": ("--fleet", str(FLEETS / "ads-scale.yaml"), "--mocked"),
    }
    if chosen.emulated:
        wanted[f"{chosen.emulated}, emulated"] = ("--fleet", str(FLEETS / f"{chosen.emulated}.yaml"))
    runs: list[Run] = []
    if not chosen.json:
        print(f"{'':<24}{'planned':>9}{'applied':>9}{'user CPU':>11}{'wall':>11}{'peak memory':>14}")
    for what, arguments in wanted.items():
        runs.append(run := measure(what, *arguments))
        if not chosen.json:
            print(
                f"{what:<24}{run.planned:>9}{run.applied:>9}{run.user_s:>9.1f} s{run.wall_s:>9.1f} s"
                f"{run.peak_mib:>10} MiB",
                flush=True,
            )
    if chosen.json:
        print(json.dumps([run._asdict() for run in runs], indent=2))


if __name__ == "__main__":
    main()
