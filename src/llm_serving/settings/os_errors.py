"""What the system refuses to write or read, as a person reads it: the path, the reason and the fix."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from types import TracebackType

from llm_serving.settings.errors import Unavailable

_RIGHTS = "get the rights for it, or use another folder"

_FIXES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk, of which you have used your share",
    errno.EROFS: "use a folder on a disk that can be written",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EEXIST: "rename what is there, or use another name",
    errno.ENOTDIR: "rename the file that is there in place of a directory",
    errno.EISDIR: "rename the directory that is there in place of a file",
}

_NO_TEMPORARY_FOLDER = "no usable temporary directory"
"""How tempfile begins the error that Python has where every disk is full or read-only."""


def convert(error: OSError) -> Unavailable | None:
    """Return an error of a full or read-only disk, or of missing rights, as users see it; None of any other."""
    path = _find_path(error)
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, path, text = error.args[0][0]  # of the first file that was not copied; has a number and the paths
        match = re.match(r"\[Errno (\d+)\] ([^:]+)", text)
        error = OSError(int(match[1]), match[2]) if match else error
    if describe(error).startswith(_NO_TEMPORARY_FOLDER):
        fix = "make room in one of these, or set TMPDIR to a folder that can be written"
        return Unavailable(f"{describe(error)}. Fix: {fix}.")
    return explain(error, path) if error.errno in _FIXES else None


def explain(error: OSError, path: str | os.PathLike[str]) -> Unavailable:
    """Return the error of a path that cannot be written, as users see it; without its name if that is empty."""
    name = os.fspath(path)
    fix = _FIXES.get(error.errno or 0, "use another folder")
    return Unavailable(f"{name}{name and ': '}{describe(error)}. Fix: {fix}.")


def describe(error: OSError) -> str:
    """Return the system's reason, to go on with in a sentence."""
    text = error.strerror or type(error).__name__
    return text[:1].lower() + text[1:]


def _find_path(error: OSError) -> str:
    """Return the file that an error is about; empty if unknown."""
    file = error.filename2 or error.filename  # of a copy the second is the one that is written
    if isinstance(file, str | bytes):
        return os.fsdecode(file)
    return _find_written_file(error.__traceback__)


def _find_written_file(trace: TracebackType | None) -> str:
    """Return the file that was open for writing where it failed: Python names a file only where opening fails."""
    name = ""
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            is_written = isinstance(value, io.IOBase) and set("wax+") & set(str(getattr(value, "mode", "")))
            if is_written and isinstance(value.name, str):
                name = value.name
        trace = trace.tb_next
    return name
