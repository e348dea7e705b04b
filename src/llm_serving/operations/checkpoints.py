"""Checkpoints of the AWS workflow: a file in the fleet's data directory, by which an interrupted run resumes.

They save work and prove nothing: stacks are planned again, buckets inspected, charts upgraded in place.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving import console, processes

FILE, CHARTS_FILE = "journal.json", "charts.json"
"""In the fleet's data directory; the latter has the charts of the cluster, which may be removed alone."""


@dataclass(frozen=True)
class Checkpoint:
    """One step that was done."""

    key: str
    """Digest of the step's inputs: with others, the step is done again."""

    recorded_at: str
    """Local time, as in 2026-11-21 14:30."""

    note: str


class Checkpoints:
    """The checkpoints of one fleet in one account, by step. Each is written at once."""

    def __init__(self, file: Path, scope: str) -> None:
        """Read the file.

        Args:
            scope: account and region, the embedded AWS, or a cluster; checkpoints of another scope are ignored.
        """
        self.file = file
        self._scope = scope
        self._entries = _read_checkpoints(self.file, scope)

    def find(self, name: str, key: str = "") -> Checkpoint | None:
        """Return the checkpoint of a step with the same inputs; None where there is none."""
        checkpoint = self._entries.get(name)
        return checkpoint if checkpoint and checkpoint.key == key else None

    def find_latest(self, name: str) -> Checkpoint | None:
        """Return the latest checkpoint of a step, with any inputs."""
        return self._entries.get(name)

    def record(self, name: str, key: str = "", note: str = "") -> None:
        now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        self._entries[name] = Checkpoint(key, now, note)
        self._write()

    def remove(self, name: str) -> None:
        if self._entries.pop(name, None):
            self._write()

    def clear(self) -> None:
        """Remove all checkpoints, after everything was destroyed."""
        self.file.unlink(missing_ok=True)
        self._entries = {}

    def _write(self) -> None:
        payload = {"place": self._scope, "done": {name: vars(entry) for name, entry in self._entries.items()}}
        processes.write_whole(self.file, json.dumps(payload, indent=2) + "\n")


def _read_checkpoints(file: Path, scope: str) -> dict[str, Checkpoint]:
    try:
        payload: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if payload["place"] != scope:
            console.err.print(
                f"  {console.shorten_path(file)} belongs to {payload['place']}, and this is {scope}: "
                "starting from the beginning",
                markup=False,
            )
            return {}
        return {name: Checkpoint(**entry) for name, entry in payload["done"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        console.err.print(f"  {console.shorten_path(file)} cannot be read: starting from the beginning", markup=False)
        return {}


def compute_digest(*parts: str) -> str:
    """Return the key of a step's inputs."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
