"""Reads a Parquet file in a process of its own, with little memory: a file of some KB can hold what fills a machine.

That process has no credentials: it asks for ranges of the file, and gets them. What it says begins with a letter.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import resource
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from batch.reader import FREE_BYTES, MAX_RATIO, BadTemplate, CorruptFile, ReadRange

_DATA_BYTES = 512 * 2**20
"""Memory of the process, 150 MiB of pyarrow among it: some row groups' pages and 16 MiB of rows fit many times."""

_AT_ONCE = threading.Semaphore(2)
"""Processes of a worker at a time: its container has memory for these."""

_ANSWER_LIMIT_S = 120.0
"""Longest time without an answer: it reads some pages of a file for it."""

_BLOCK_BYTES = 256 * 2**10

_READ, _COUNTS, _LINES, _END, _CORRUPT, _BAD_TEMPLATE = b"r", b"n", b"l", b"e", b"c", b"t"
_FAILURES = {_CORRUPT: CorruptFile, _BAD_TEMPLATE: BadTemplate}

_COMMAND = (sys.executable, "-c", "from batch import parquet_process; parquet_process.main()")


class ParquetRows:
    """The rows of a Parquet file, by a template."""

    def __init__(self, child: Connection, read: ReadRange, size: int, template: str) -> None:
        self._child, self._read, self._size, self._template_bytes = child, read, size, len(template.encode())
        self._grown = 0
        with _report_end():
            child.send_bytes(json.dumps({"size": size, "template": template}).encode())
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
        with _report_end():
            self._child.send_bytes(json.dumps([groups, most_rows, most_bytes]).encode())
        for _, block in self._receive(_END):
            # What is the template's in each row did not come out of the file.
            self._grown += len(block) - block.count(b"\n") * self._template_bytes
            if self._grown > FREE_BYTES + MAX_RATIO * self._size:
                raise CorruptFile(f"the file unpacks to more than {MAX_RATIO:,} times its size")
            yield block

    def _receive(self, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Receive messages up to one of the kind `last`; answers what the process asks for."""
        while True:
            with _report_end():
                if not self._child.poll(_ANSWER_LIMIT_S):
                    raise CorruptFile(f"the file cannot be read as Parquet: no row within {_ANSWER_LIMIT_S:g} s")
                message = self._child.recv_bytes()
            kind, content = message[:1], message[1:]
            if kind == _READ:
                block = b"".join(self._read(*json.loads(content)))
                with _report_end():
                    self._child.send_bytes(block)
            elif kind in _FAILURES:
                raise _FAILURES[kind](content.decode())
            elif kind == last == _END:
                return
            else:
                yield kind, content
                if kind == last:
                    return


@contextlib.contextmanager
def open_rows(read: ReadRange, size: int, template: str) -> Iterator[ParquetRows]:
    """Open a Parquet file; what the template names is read only.

    Raises:
        BadTemplate: the template cannot be used.
        CorruptFile: it is not a Parquet file, or damaged.
    """
    own, its = multiprocessing.Pipe()
    with own, its, _AT_ONCE, subprocess.Popen(
        (*_COMMAND, str(its.fileno())), pass_fds=[its.fileno()], cwd=Path(__file__).parents[1],
        env={"ARROW_DEFAULT_MEMORY_POOL": "system"},  # which fails where no memory is left
    ) as child:  # fmt: skip
        its.close()  # open here too, it would hide that the process has ended
        try:
            yield ParquetRows(own, read, size, template)
        finally:
            child.kill()


@contextlib.contextmanager
def _report_end() -> Iterator[None]:
    """Report the end of the process as damage of the file."""
    try:
        yield
    except (EOFError, OSError):
        text = f"the file takes more than {_DATA_BYTES // 2**20} MiB of memory to read, or is damaged"
        raise CorruptFile(text) from None


def main() -> None:
    """Serve one file over the connection whose number is the first argument, until it ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(int(sys.argv[1])) as parent:
        try:
            _serve(parent)
        except (CorruptFile, BadTemplate) as error:
            kind = _CORRUPT if isinstance(error, CorruptFile) else _BAD_TEMPLATE
            parent.send_bytes(kind + str(error).encode(errors="replace"))
        except (MemoryError, EOFError):
            sys.exit(1)  # as where the system ends it


def _serve(parent: Connection) -> None:
    from batch import parquet

    def read(start: int, end: int) -> Iterable[bytes]:
        parent.send_bytes(_READ + json.dumps([start, end]).encode())
        return [parent.recv_bytes()]

    opening = json.loads(parent.recv_bytes())
    template = parquet.Template(opening["template"])
    file = parquet.open_file(read, opening["size"])
    counts = [file.file.num_row_groups, file.file.metadata.num_rows]
    parent.send_bytes(_COUNTS + json.dumps(counts).encode())
    while True:
        groups, most_rows, most_bytes = json.loads(parent.recv_bytes())
        block, length = bytearray(_LINES), 0
        for line in itertools.islice(parquet.read_rows(file, template, groups), most_rows):
            block += line
            length += len(line)
            if len(block) >= _BLOCK_BYTES:
                parent.send_bytes(block)
                block = bytearray(_LINES)
            if most_bytes is not None and length >= most_bytes:
                break
        parent.send_bytes(block)
        parent.send_bytes(_END)
