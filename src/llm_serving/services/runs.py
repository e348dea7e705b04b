"""Where runs leave their reports, and what decides the prompts of one. Read by what resolves, written by validation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from llm_serving.services.traffic import Traffic

REPORT_FILE = "report.json"
"""Of the reports of `validate`: RUNS/NAME/TIME/REPORT_FILE."""

SWEEP_FOLDER, SWEEP_FILE = "sweep-", "sweep.json"
"""Path of the sweeps: RUNS/NAME/sweep-TIME/sweep.json."""


def compute_prompts_digest(traffic: Traffic, folder: Path) -> str:
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
