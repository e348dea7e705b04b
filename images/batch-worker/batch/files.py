"""Files that clients upload: an object below PREFIX/files/, and a JSON object that describes it."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from batch import layout
from batch.layout import Layout
from batch.store import Store

PURPOSE = "batch"
"""Of uploaded files, in OpenAI's words."""


class Files:
    """The uploaded files of one deployment. Every call blocks."""

    def __init__(self, store: Store, keys: Layout) -> None:
        self._store, self._keys = store, keys
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}
        """ETag and content of each description, by its key."""

    def start_upload(self) -> Upload:
        """Start a file; its content, and so its id, is not known yet."""
        return Upload(self._store, self._keys)

    def find(self, file_id: str) -> dict[str, Any] | None:
        """Describe a file, with its `key`; None where there is none."""
        key = self._keys.build(layout.FILE, file_id)
        stored = self._store.read_json(f"{key}.json")
        return {**stored.value, "key": key} if stored else None

    def list_files(self) -> list[dict[str, Any]]:
        """Describe all files, the newest first; reads only descriptions that changed since the last call."""
        listed = self._store.list_objects(self._keys.build(layout.FILE, ""))
        etags = {entry["key"]: entry["etag"] for entry in listed if entry["key"].endswith(".json")}
        self._known = self._store.read_changed(etags, self._known, lambda description: description)
        return sorted((entry for _, entry in self._known.values()), key=lambda entry: -entry["created_at"])

    def delete(self, file_id: str) -> None:
        """Delete a file; first its description, so that no description lacks its content."""
        key = self._keys.build(layout.FILE, file_id)
        for name in (f"{key}.json", key):
            self._store.delete(name)


class Upload:
    """A file while it is written, block by block; the same content of a team becomes the same file."""

    def __init__(self, store: Store, keys: Layout) -> None:
        self._store, self._keys = store, keys
        self._temporary = keys.build(layout.FILE, f"upload-{os.urandom(12).hex()}")
        self._writer = store.open_writer(self._temporary)
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, block: bytes) -> None:
        self._digest.update(block)
        self.bytes += len(block)
        self._writer.write(block)

    def finish(self, name: str, now: float, team: str = "") -> dict[str, Any]:
        """Give the file its id; an existing object of the team with the same content is kept.

        Args:
            team: that owns it; empty for operators only.
        """
        self._writer.close()
        digest = self._digest.hexdigest()
        digest = hashlib.sha256(f"{team} {digest}".encode()).hexdigest() if team else digest
        file_id = f"file-{digest[:24]}"
        key = self._keys.build(layout.FILE, file_id)
        if self._store.read_head(key) is None:
            with self._store.open_writer(key) as writer:
                writer.append_object(self._temporary, self.bytes)
        entry = {
            "id": file_id, "filename": name, "bytes": self.bytes, "created_at": int(now), "purpose": PURPOSE,
            "team": team,
        }  # fmt: skip
        self._store.write_json(f"{key}.json", entry)
        self._store.delete(self._temporary)
        return entry

    def abort(self) -> None:
        self._writer.abort()
