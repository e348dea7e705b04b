"""Open files that others name, such as those of a blueprint's folder."""

from __future__ import annotations

import errno
import os
import stat


class NotAFile(OSError):
    """It is a pipe or a device."""


def open_regular(path: str, flags: int) -> int:
    """Open a file for `open(path, opener=open_regular)`: a pipe would wait for ever, and a device never end.

    Raises:
        OSError: it cannot be opened; `NotAFile` if it is a pipe or a device.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # a directory is refused by `open`
        return descriptor
    os.close(descriptor)
    raise NotAFile(errno.EINVAL, "It is a pipe or a device, not a file", path)
