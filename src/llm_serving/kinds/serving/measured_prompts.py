"""What the newest validation measured of a blueprint's prompts, for settings that the blueprint leaves open."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from llm_serving import paths
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.environment import MeasuredPrefix
from llm_serving.services.traffic import Traffic
from llm_serving.settings.document import Document

REPORT = "report.json"
"""Path of the reports of `validate`: RUNS/NAME/TIME/REPORT."""

MAX_REPORTS = 50
"""Reports that are read, from the newest on."""


def find_measured(blueprint: Document[Blueprint], root: Path) -> MeasuredPrefix | None:
    """Return the measurement of the newest report below `root` with the prompts of the blueprint as it is now.

    None where there is none, or where it is not needed: the blueprint states a policy, or the share itself.
    """
    value = blueprint.value
    if value.roles.router.policy or value.traffic.has_shared_prefix:
        return None
    digest = compute_digest(value.traffic, blueprint.path.parent)
    reports = sorted((root / paths.RUNS / resolve_name(blueprint)).glob(f"[0-9]*/{REPORT}"), reverse=True)
    results = (_read_measured(report, digest) for report in reports[:MAX_REPORTS])
    return next((result for result in results if result), None)


def compute_digest(traffic: Traffic, folder: Path) -> str:
    """Return a digest of all that decides which prompts are sent, the content of their file among it."""
    digest_input: dict[str, Any] = {"api": traffic.api}
    if traffic.prompt_file is not None:
        file = folder / traffic.prompt_file
        digest_input["data"] = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    if traffic.data is None:
        digest_input |= traffic.model_dump(
            mode="json", include={"input_tokens", "shared_prefix", "prefix_groups", "seed"}
        )
        if traffic.images:
            digest_input["images"] = traffic.images.model_dump(mode="json")
        if traffic.turns.max > 1:
            digest_input["turns"] = str(traffic.turns)
    return hashlib.sha256(json.dumps(digest_input, sort_keys=True).encode()).hexdigest()[:16]


def _read_measured(report: Path, digest: str) -> MeasuredPrefix | None:
    """Return a report's measurement of those prompts; None if it is of others, too old, or broken."""
    try:
        payload = json.loads(report.read_text(encoding="utf-8"))
        shared, started_at = payload["shared"], payload["started_at"]
        return (
            MeasuredPrefix(shared_prefix=shared["prompts"], measured_at=started_at)
            if shared["of"] and shared["traffic"] == digest
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
