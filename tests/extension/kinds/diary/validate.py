"""The validator of diaries: reads what the API serves."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from llm_serving.settings.errors import CheckFailed
from llm_serving.validation.base import ValidationOptions


class DiaryReport(BaseModel):
    """What was read."""

    words: str
    expected: str


def validate(deployment: Any, options: ValidationOptions) -> tuple[DiaryReport, Path]:
    """Read the words from the API."""
    with urllib.request.urlopen(f"{deployment.url}/words.txt", timeout=60) as response:
        report = DiaryReport(words=response.read().decode().strip(), expected=deployment.words)
    folder = options.runs / deployment.name / "once"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report.model_dump_json())
    return report, folder


def render(report: DiaryReport, folder: Path) -> str:
    """Show the words."""
    return f"read {report.words} into {folder}"


def require_slo(report: DiaryReport) -> None:
    """Check that the words are the diary's."""
    if report.words != report.expected:
        raise CheckFailed(f"read {report.words}")
