"""Renders a template that somebody else may have written: without access to Python, and within limits.

Jinja's sandbox keeps a template from Python's internals and from changing what it is given. A forked process ends one
that does not finish, and its memory is limited; it has the deployment already, and costs a few milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import psutil
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel

CPU_LIMIT_S = 10
"""Most CPU time of a rendering, which no other program's load lengthens; those of this repository take milliseconds."""

_WAIT_LIMIT_S = 300.0
"""Longest wait for a rendering, however busy the machine is."""

OUTPUT_LIMIT_BYTES = 16 * 2**20
"""Longest rendered file; those of this repository have some kilobytes for each role."""

REASON_LIMIT = 500
"""Most characters of a failure's reason, which may be a text of the template's."""

MEMORY_LIMIT_BYTES = 2**30
"""Most memory of a rendering, besides what the process has already."""


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox; of pydantic models templates see the fields and properties of their own."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether templates may use it: none of pydantic's, whose parse_file reads files and pickles."""
        return super().is_safe_attribute(obj, attr, value) and not (
            isinstance(obj, BaseModel) and hasattr(BaseModel, attr)
        )


class Loader(jinja2.FileSystemLoader):
    """Loads templates of its folders; not by links that lead out of them, to what other programs of the user hold."""

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        source, path, is_current = super().get_source(environment, template)
        content = Path(path).resolve()
        if not any(content.is_relative_to(Path(root).resolve()) for root in self.searchpath):
            raise jinja2.exceptions.SecurityError(f"{path} is a link to {content}, outside the folders of templates")
        return source, path, is_current


class LimitExceeded(Exception):
    """A template needs more time, memory or output than it may have; says which."""


class Failure(NamedTuple):
    """Why a template cannot be rendered."""

    path: str
    line: int
    reason: str
    fix: str = ""
    """Empty where nothing more than the general one is known."""


class Compiled(jinja2.BytecodeCache):
    """Code of the templates that this process has compiled, for all processes that it forks."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take the code of the same file with the same text."""
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled."""
        self._codes[bucket.key, bucket.checksum] = bucket.code


COMPILED = Compiled()


def run(generate: Callable[[], Iterable[str]], describe: Callable[[Exception], Failure]) -> str | Failure:
    """Join what `generate` yields, in a process of its own.

    Args:
        generate: renders the template piece by piece.
        describe: turns what it raises into a failure.

    Raises:
        LimitExceeded: it took too much time or memory, or wrote too much.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _answer(write_end, generate, describe)
    os.close(write_end)
    try:
        content = _read(read_end)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(read_end)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise LimitExceeded(f"it does not finish within {CPU_LIMIT_S} s of CPU time")
    if not content:
        raise LimitExceeded(f"it needs more than {MEMORY_LIMIT_BYTES // 2**20} MiB of memory")
    kind, value = json.loads(content)
    if kind == "limit":
        raise LimitExceeded(value)
    return Failure(*value) if kind == "failure" else str(value)


def _answer(write_end: int, generate: Callable[[], Iterable[str]], describe: Callable[[Exception], Failure]) -> None:
    """Write the result into the pipe and end the process, without anything that its parent would do at its end."""
    try:
        limit = psutil.Process().memory_info().vms + MEMORY_LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(json.dumps(_collect(generate, describe)).encode())
    finally:
        os._exit(0)


def _collect(generate: Callable[[], Iterable[str]], describe: Callable[[Exception], Failure]) -> tuple[str, Any]:
    pieces, size = [], 0
    try:
        for piece in generate():
            pieces.append(piece)
            size += len(piece.encode())
            if size > OUTPUT_LIMIT_BYTES:
                return "limit", f"it writes more than {OUTPUT_LIMIT_BYTES // 2**20} MiB"
        return "text", "".join(pieces)
    except MemoryError:
        return "limit", f"it needs more than {MEMORY_LIMIT_BYTES // 2**20} MiB of memory"
    except Exception as error:  # noqa: BLE001 - a template can raise anything; each is a mistake of the template
        failure = describe(error)
        return "failure", failure._replace(reason=failure.reason[:REASON_LIMIT])


def _read(read_end: int) -> bytes:
    """Read until the other end is closed."""
    chunks: list[bytes] = []
    deadline = time.monotonic() + _WAIT_LIMIT_S
    while True:
        ready, _, _ = select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise LimitExceeded(f"it does not finish within {_WAIT_LIMIT_S:.0f} s")
        chunk = os.read(read_end, 2**16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
