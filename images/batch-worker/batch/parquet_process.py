"""Reads a Parquet file in a process of its own, with little memory: a file of some KB can hold what fills a machine.

That process has no credentials: it asks for ranges of the file on its output, and gets them on its input. Both ways a
frame is a letter, the number of bytes that follow, and these.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

from batch.reader import FREE_BYTES, MAX_RATIO, BadTemplate, CorruptFile, ReadRange

_DATA_BYTES = 512 * 2**20
"""Memory of the process, 150 MiB of pyarrow among it: some row groups' pages and 16 MiB of rows fit many times."""

_AT_ONCE = threading.Semaphore(2)
"""Processes of a worker at a time: its container has memory for these."""

_ANSWER_LIMIT_S = 120.0
"""Longest time without an answer: it reads some pages of a file for it."""

_BLOCK_BYTES = 256 * 2**10

_FRAME = struct.Struct("!cI")
_READ, _COUNTS, _LINES, _END, _CORRUPT, _BAD_TEMPLATE = b"r", b"n", b"l", b"e", b"c", b"t"
_FAILURES = {_CORRUPT: CorruptFile, _BAD_TEMPLATE: BadTemplate}

_COMMAND = (sys.executable, "-c", "from batch import parquet_process; parquet_process.main()")


class ParquetRows:
    """The rows of a Parquet file, by a template."""

    def __init__(self, child: subprocess.Popen[bytes], read: ReadRange, size: int, template: str) -> None:
        self._child, self._read, self._size, self._template_bytes = child, read, size, len(template.encode())
        self._grown = 0
        self._send(json.dumps({"size": size, "template": template}).encode())
        [(_, counts)] = self._receive(_COUNTS)
        self.group_count, self.row_count = json.loads(counts)

    def read(
        self, groups: Sequence[int] | None = None, *, most_rows: int | None = None, most_bytes: int | None = None
    ) -> Iterator[bytes]:
        """Read rows as lines with their ends, in blocks of them.

        Args:
            groups: row groups to read; all by default.
            most_rows: rows after which to stop.
            most_bytes: bytes of lines after which to stop.

        Raises:
            BadTemplate: the file lacks a column.
            CorruptFile: it is damaged, takes too much memory, or unpacks to a thousand times its size.
        """
        self._send(json.dumps([groups, most_rows, most_bytes]).encode())
        for _, block in self._receive(_END):
            # What is the template's in each row did not come out of the file.
            self._grown += len(block) - block.count(b"\n") * self._template_bytes
            if self._grown > FREE_BYTES + MAX_RATIO * self._size:
                raise CorruptFile(f"the file unpacks to more than {MAX_RATIO:,} times its size")
            yield block

    def _receive(self, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Receive frames up to one of the kind `last`; answers what the process asks for."""
        assert self._child.stdout
        while True:
            if not select.select([self._child.stdout], [], [], _ANSWER_LIMIT_S)[0]:
                raise CorruptFile(f"the file cannot be read as Parquet: no row within {_ANSWER_LIMIT_S:g} s")
            kind, content = _receive(self._child.stdout)
            if kind == _READ:
                self._send(b"".join(self._read(*json.loads(content))))
            elif kind in _FAILURES:
                raise _FAILURES[kind](content.decode())
            elif kind == last == _END:
                return
            else:
                yield kind, content
                if kind == last:
                    return

    def _send(self, content: bytes) -> None:
        assert self._child.stdin
        try:
            _send(self._child.stdin, _READ, content)
        except BrokenPipeError:
            _raise_memory()


@contextlib.contextmanager
def open_rows(read: ReadRange, size: int, template: str) -> Iterator[ParquetRows]:
    """Open a Parquet file; what the template names is read only.

    Raises:
        BadTemplate: the template cannot be used.
        CorruptFile: it is not a Parquet file, or damaged.
    """
    folder = Path(__file__).parents[1]
    with (
        _AT_ONCE,
        subprocess.Popen(
            _COMMAND, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
            env={"ARROW_DEFAULT_MEMORY_POOL": "system"},  # which fails where no memory is left
        ) as child,
    ):  # fmt: skip
        try:
            yield ParquetRows(child, read, size, template)
        finally:
            child.kill()


def _raise_memory() -> NoReturn:
    raise CorruptFile(f"the file takes more than {_DATA_BYTES // 2**20} MiB of memory to read, or is damaged") from None


def _send(stream: IO[bytes], kind: bytes, content: bytes | bytearray) -> None:
    frame = memoryview(_FRAME.pack(kind, len(content)) + content)
    while frame:
        frame = frame[stream.write(frame) :]


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes]:
    kind, length = _FRAME.unpack(_receive_bytes(stream, _FRAME.size))
    return kind, _receive_bytes(stream, length)


def _receive_bytes(stream: IO[bytes], length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        block = stream.read(length - len(content))
        if not block:
            _raise_memory()
        content += block
    return bytes(content)


def main() -> None:
    """Serve one file, until the input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(0, "rb", 0) as requests, open(1, "wb", 0) as answers:
        try:
            _serve(requests, answers)
        except (CorruptFile, BadTemplate) as error:
            kind = _CORRUPT if isinstance(error, CorruptFile) else _BAD_TEMPLATE
            _send(answers, kind, str(error).encode(errors="replace"))
        except MemoryError:
            sys.exit(1)  # as where the system ends it


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    from batch import parquet

    def read(start: int, end: int) -> Iterable[bytes]:
        _send(answers, _READ, json.dumps([start, end]).encode())
        return [_receive(requests)[1]]

    opening = json.loads(_receive(requests)[1])
    template = parquet.Template(opening["template"])
    file = parquet.open_file(read, opening["size"])
    counts = [file.file.num_row_groups, file.file.metadata.num_rows]
    _send(answers, _COUNTS, json.dumps(counts).encode())
    while True:
        groups, most_rows, most_bytes = json.loads(_receive(requests)[1])
        block, length = bytearray(), 0
        for line in itertools.islice(parquet.read_rows(file, template, groups), most_rows):
            block += line
            length += len(line)
            if len(block) >= _BLOCK_BYTES:
                _send(answers, _LINES, block)
                block.clear()
            if most_bytes is not None and length >= most_bytes:
                break
        _send(answers, _LINES, block)
        _send(answers, _END, b"")
