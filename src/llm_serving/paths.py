"""Directories of the checkout that this package is installed from in editable mode."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PATTERNS = ROOT / "blueprints"
"""A folder for each pattern, and `templates/`, which they include."""

EXAMPLE_FLEETS = ROOT / "infra" / "fleets"
RUNS = "runs"
"""Folder of the reports of `validate`, in the working directory: RUNS/NAME/TIME."""

NOT_COPIED = (".*", "__pycache__", RUNS, "rendered", "cdktf.out")
"""What a working directory holds beside a blueprint that is in it, and no copy of the blueprint takes."""

CHARTS = ROOT / "charts"
IMAGES = ROOT / "images"


def list_patterns() -> list[Path]:
    return sorted(file.parent for file in PATTERNS.glob("*/blueprint.yaml"))
