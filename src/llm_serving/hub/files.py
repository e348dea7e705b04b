"""Files of models: progress, digests and disk space."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import format_bytes

OnProgress = Callable[[int, int], None]
"""Called with the finished and the total bytes; files that exist already count as finished."""


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def compute_git_sha1(path: Path) -> str:
    """Return git's hash of a file as a blob, in hexadecimal."""
    # Git names a blob by the SHA-1 of this line and its content.
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: digest).hexdigest()


def check_disk_space(folder: Path, required_bytes: int, *, purpose: str, fix: str) -> None:
    """Check the free space of `folder`'s disk.

    Args:
        purpose: what the bytes are for, such as `the model mid`.
        fix: how to use another disk.

    Raises:
        Unavailable: it has less than `required_bytes`.
    """
    disk_path = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(disk_path).free
    if free_bytes < required_bytes:
        raise Unavailable(
            f"{disk_path}: {format_bytes(free_bytes)} free, {purpose} needs {format_bytes(required_bytes)}. "
            f"Fix: free disk space, or {fix}."
        )
