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
class Entry:
    """One thing that was done."""

    key: str
    """Of what it was done with: where that is another now, it is to be done anew."""

    at: str
    """When, as in 2026-11-21 14:30."""

    note: str


class Journal:
    """The entries of one fleet at one place, by what was done. Every entry is written down at once."""

    def __init__(self, file: Path, place: str) -> None:
        """Reads what there is.

        Args:
            place: account and region, or the embedded AWS: what was done at another place counts for nothing.
        """
        self.file = file
        self._place = place
        self._entries = _read(self.file, place)

    def done(self, name: str, key: str = "") -> Entry | None:
        """When it was done with the same; None where it was not."""
        found = self._entries.get(name)
        return found if found and found.key == key else None

    def last(self, name: str) -> Entry | None:
        """When it was done last, with whatever."""
        return self._entries.get(name)

    def note(self, name: str, key: str = "", note: str = "") -> None:
        """Writes down that it is done."""
        now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
        self._entries[name] = Entry(key, now, note)
        self._write()

    def drop(self, name: str) -> None:
        """It counts no longer."""
        if self._entries.pop(name, None):
            self._write()

    def forget(self) -> None:
        """All of it was undone."""
        self.file.unlink(missing_ok=True)
        self._entries = {}

    def _write(self) -> None:
        said = {"place": self._place, "done": {name: vars(entry) for name, entry in self._entries.items()}}
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        beside.replace(self.file)  # whole, or as it was


def _read(file: Path, place: str) -> dict[str, Entry]:
    try:
        said: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if said["place"] != place:
            console.err.print(f"  {console.near(file)} speaks of {said['place']}, and this is {place}: it begins anew")
            return {}
        return {name: Entry(**entry) for name, entry in said["done"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        console.err.print(f"  {console.near(file)} cannot be read: it begins anew")
        return {}


def digest(*parts: str) -> str:
    """A key of what something is done with."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
