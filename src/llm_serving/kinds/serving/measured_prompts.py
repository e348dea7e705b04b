"""What the newest validation measured of a blueprint's prompts, for settings that the blueprint leaves open."""

from __future__ import annotations

from pathlib import Path

from llm_serving import paths
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.environment import MeasuredPrefix
from llm_serving.services.runs import REPORT_FILE, compute_prompts_digest
from llm_serving.settings import untrusted_json
from llm_serving.settings.document import Document

MAX_REPORTS = 50
"""Reports that are read, from the newest on."""


def find_measured(blueprint: Document[Blueprint], root: Path) -> MeasuredPrefix | None:
    """Return the measurement of the newest report below `root` with the prompts of the blueprint as it is now.

    None where there is none, or where it is not needed: the blueprint states a policy, or the share itself.
    """
    value = blueprint.value
    if value.roles.router.policy or value.traffic.has_shared_prefix:
        return None
    digest = compute_prompts_digest(value.traffic, blueprint.path.parent)
    reports = sorted((root / paths.RUNS / resolve_name(blueprint)).glob(f"[0-9]*/{REPORT_FILE}"), reverse=True)
    results = (_read_measured(report, digest) for report in reports[:MAX_REPORTS])
    return next((result for result in results if result), None)


def _read_measured(report: Path, digest: str) -> MeasuredPrefix | None:
    """Return a report's measurement of those prompts; None if it is of others, too old, or broken."""
    try:
        payload = untrusted_json.read(report, infinite=True)
        shared, started_at = payload["shared"], payload["started_at"]
        return (
            MeasuredPrefix(shared_prefix=shared["prompts"], measured_at=started_at)
            if shared["of"] and shared["traffic"] == digest
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
