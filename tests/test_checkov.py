from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import yaml

FILE = Path(__file__).parents[1] / ".checkov.yaml"


def test_every_skipped_check_has_its_reason_above_it() -> None:
    lines = [line.strip() for line in FILE.read_text().splitlines()]
    skipped_checks = [
        line.removeprefix("- ") for before, line in pairwise(lines) if line.startswith("- ") and before[:1] == "#"
    ]
    assert skipped_checks == yaml.safe_load(FILE.read_text())["skip-check"]
    assert len(skipped_checks) == len(set(skipped_checks))
