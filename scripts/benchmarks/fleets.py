"""Time of synthesizing and planning all example fleets with a mocked provider, and of applying one to the emulator.

    .venv/bin/python -m scripts.benchmarks.fleets [--emulated FLEET] [--json]

Each line is one `blueprint rehearse` in a separate process. User CPU and wall time are from the operating system and
include every child (Node, Terraform, the AWS provider, and with --emulated the embedded AWS); the peak is the largest
process.
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

from llm_serving import program
from llm_serving.settings.errors import CheckFailed

FLEETS = Path(__file__).parents[2] / "infra" / "fleets"


class Measurement(NamedTuple):
    """One rehearsal: resources by kind of proof, seconds, MiB."""

    what: str
    planned: int
    applied: int
    user_s: float
    wall_s: float
    peak_mib: int


def measure(label: str, *arguments: str) -> Measurement:
    """Run `blueprint rehearse` with these arguments in an empty folder.

    Raises:
        CheckFailed: it failed.
    """
    blueprint = Path(sys.executable).with_name("blueprint")
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "output.json").open("w+") as output:
        start = time.monotonic()
        command = [str(blueprint), "rehearse", *arguments, "--json"]
        child = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise CheckFailed(f"blueprint {' '.join(command[1:])} exited with {child.returncode}. Run it to see why.")
        output.seek(0)
        stacks = [stack for rehearsal in json.load(output)["rehearsals"] for stack in rehearsal["stacks"].values()]
    planned, applied = (sum(stack[key] or 0 for stack in stacks) for key in ("mocked", "applied"))
    return Measurement(label, planned, applied, round(usage.ru_utime, 1), round(wall_s, 1), usage.ru_maxrss // 1024)


def main() -> None:
    """Measure, and print each line when it is ready."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", metavar="FLEET", help="apply this example fleet to the embedded AWS too; minutes")
    parser.add_argument("--json", action="store_true", help="output JSON")
    args = parser.parse_args()
    cases: dict[str, tuple[str, ...]] = {
        "all examples": ("--fleet", str(FLEETS), "--mocked"),
        "ads-scale": ("--fleet", str(FLEETS / "ads-scale.yaml"), "--mocked"),
    }
    if args.emulated:
        cases[f"{args.emulated}, emulated"] = ("--fleet", str(FLEETS / f"{args.emulated}.yaml"))
    measurements: list[Measurement] = []
    if not args.json:
        print(f"{'':<24}{'planned':>9}{'applied':>9}{'user CPU':>11}{'wall':>11}{'peak memory':>14}")
    for label, arguments in cases.items():
        measurements.append(measurement := measure(label, *arguments))
        if not args.json:
            print(
                f"{label:<24}{measurement.planned:>9}{measurement.applied:>9}{measurement.user_s:>9.1f} s"
                f"{measurement.wall_s:>9.1f} s{measurement.peak_mib:>10} MiB",
                flush=True,
            )
    if args.json:
        print(json.dumps([measurement._asdict() for measurement in measurements], indent=2))


if __name__ == "__main__":
    raise SystemExit(program.run(main))
