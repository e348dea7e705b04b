"""Directories of the checkout that this package is installed from in editable mode."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PATTERNS = ROOT / "blueprints"
"""A folder for each pattern, and `templates/`, which they include."""

EXAMPLE_FLEETS = ROOT / "infra" / "fleets"
RUNS = "runs"
"""Folder of the reports of `validate`, in the working directory: RUNS/NAME/TIME."""

CHARTS = ROOT / "charts"
IMAGES = ROOT / "images"


def list_patterns() -> list[Path]:
    return sorted(file.parent for file in PATTERNS.glob("*/blueprint.yaml"))
