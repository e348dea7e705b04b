"""What the newest validation measured of a blueprint's prompts, for the settings that the blueprint leaves open."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from llm_serving.settings.document import Document
from llm_serving.workloads.serving import resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Measured
from llm_serving.workloads.serving.traffic import Traffic

RUNS, REPORT = "runs", "report.json"
"""Where `validate` keeps its reports: RUNS/NAME/TIME/REPORT."""

LOOKED = 50
"""Reports that are looked through, from the newest on."""


def find(wanted: Document[Blueprint], root: Path) -> Measured | None:
    """By the newest report below `root` whose prompts were those of the blueprint's traffic as it is now.

    None where there is none, or where nobody asks: the blueprint states a policy, or the share itself.
    """
    value = wanted.value
    if value.roles.router.policy or value.traffic.states_share:
        return None
    now = prompts(value.traffic, wanted.path.parent)
    reports = sorted((root / RUNS / resolve.name_of(wanted)).glob(f"[0-9]*/{REPORT}"), reverse=True)
    found = (_measured(report, now) for report in reports[:LOOKED])
    return next((one for one in found if one), None)


def prompts(traffic: Traffic, folder: Path) -> str:
    """A digest of all that decides which prompts are sent, the content of their file among it."""
    decides: dict[str, Any] = {"api": traffic.api}
    if traffic.data is not None:
        file = folder / traffic.data
        decides["data"] = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    else:
        decides |= traffic.model_dump(mode="json", include={"input_tokens", "shared_prefix", "prefix_groups", "seed"})
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def _measured(report: Path, of: str) -> Measured | None:
    """What a report says of those prompts; None where it is of others, or older than this measure, or broken."""
    try:
        said = json.loads(report.read_text(encoding="utf-8"))
        shared, at = said["shared"], said["started_at"]
        return Measured(shared=shared["prompts"], at=at) if shared["of"] and shared["traffic"] == of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
