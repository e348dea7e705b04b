"""What a road to AWS has done so far: a file in the run's folder, by which it goes on where it was broken off.

It saves work, and is never the only witness: stacks are planned again, buckets looked at, charts upgraded in place.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving import console

FILE = "journal.json"
"""In the fleet's own folder."""


@dataclass(frozen=True)
class Checkpoint:
    """One thing that was done."""

    key: str
    """Of what it was done with: where that is another now, it is to be done anew."""

    recorded_at: str
    """When, as in 2026-11-21 14:30."""

    note: str


class Checkpoints:
    """The entries of one fleet at one place, by what was done. Every entry is written down at once."""

    def __init__(self, file: Path, scope: str) -> None:
        """Reads what there is.

        Args:
            place: account and region, or the embedded AWS: what was done at another place counts for nothing.
        """
        self.file = file
        self._scope = scope
        self._entries = _read(self.file, scope)

    def find(self, name: str, key: str = "") -> Checkpoint | None:
        """When it was done with the same; None where it was not."""
        checkpoint = self._entries.get(name)
        return checkpoint if checkpoint and checkpoint.key == key else None

    def find_latest(self, name: str) -> Checkpoint | None:
        """When it was done last, with whatever."""
        return self._entries.get(name)

    def record(self, name: str, key: str = "", note: str = "") -> None:
        """Writes down that it is done."""
        now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        self._entries[name] = Checkpoint(key, now, note)
        self._write()

    def remove(self, name: str) -> None:
        """It counts no longer."""
        if self._entries.pop(name, None):
            self._write()

    def clear(self) -> None:
        """All of it was undone."""
        self.file.unlink(missing_ok=True)
        self._entries = {}

    def _write(self) -> None:
        payload = {"place": self._scope, "done": {name: vars(entry) for name, entry in self._entries.items()}}
        temp_file = self.file.with_suffix(".new")
        temp_file.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
        temp_file.replace(self.file)  # whole, or as it was


def _read(file: Path, scope: str) -> dict[str, Checkpoint]:
    try:
        payload: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if payload["place"] != scope:
            console.err.print(
                f"  {console.shorten_path(file)} belongs to {payload['place']}, and this is {scope}: starting from the beginning"
            )
            return {}
        return {name: Checkpoint(**entry) for name, entry in payload["done"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        console.err.print(f"  {console.shorten_path(file)} cannot be read: starting from the beginning")
        return {}


def compute_digest(*parts: str) -> str:
    """A key of what something is done with."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
