"""Small files that unpack to much: read in flat memory, and refused where they are no text."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batch import parquet, parquet_process, reader
from batch.reader import CorruptFile

IMAGE = Path(__file__).resolve().parents[3] / "images" / "batch-worker"
PEAK_MIB = 300
"""Most memory of a child that reads one of them, pyarrow's own 100 MiB among it."""

_RUN = """\
import sys
from batch import reader
try:
    for block in reader.unpack([open(sys.argv[1], "rb").read()], "zstd"):
        assert len(block) <= 2**20
    print("read")
except reader.CorruptFile as error:
    print(error)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1024)  # of this program alone: ru_maxrss begins with its parent's
"""


def build_zstd_bomb(blocks: int) -> bytes:
    """One frame whose blocks each repeat a byte 128 KiB times: four bytes a block."""
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x88"  # no content size, a window of 128 MiB
    body = b"".join(
        ((2**17 << 3) | (1 << 1) | (number == blocks - 1)).to_bytes(3, "little") + b"a" for number in range(blocks)
    )
    return header + body


def build_parquet(value_bytes: int, rows: int) -> bytes:
    """A column that holds one value, and its number for every row."""
    sink = io.BytesIO()
    table = pa.table({"id": [str(number) for number in range(rows)], "text": ["a" * value_bytes] * rows})
    pq.write_table(table, sink, compression="zstd", use_dictionary=["text"])
    return sink.getvalue()


def read_in_child(folder: Path, content: bytes) -> tuple[str, int]:
    """Return what a process of its own says of a file, and its peak memory in MiB."""
    (folder / "bomb").write_bytes(content)
    command = [sys.executable, "-c", _RUN, str(folder / "bomb")]
    run = subprocess.run(command, cwd=IMAGE, capture_output=True, text=True, check=True, timeout=120)
    message, peak = run.stdout.rsplit("\n", 2)[0:2]
    return message, int(peak)


def test_a_small_zstd_frame_of_much_is_refused_in_flat_memory(tmp_path: Path) -> None:
    content = build_zstd_bomb(4096)
    assert len(content) < 17_000
    message, peak = read_in_child(tmp_path, content)
    assert message == "the file unpacks to more than 1,000 times its size"
    assert peak < PEAK_MIB


def test_texts_that_repeat_themselves_are_read() -> None:
    text = b'{"custom_id": "1", "body": {"prompt": "the same in each row"}}\n' * 200_000
    packed = pa.compress(text, codec="zstd", asbytes=True)
    assert len(text) > 100 * len(packed)
    assert b"".join(reader.unpack([packed], "zstd")) == text


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_failed_read_is_no_damage(form: str) -> None:
    packed = {"gzip": b"\x1f\x8b\x08\x00", "zstd": build_zstd_bomb(2)[:8]}[form]

    def read() -> object:
        yield packed
        raise ConnectionResetError("S3")

    with pytest.raises(ConnectionResetError):
        list(reader.unpack(read(), form))  # type: ignore[arg-type]


def test_a_damaged_parquet_file_is_no_failed_read() -> None:
    content = build_parquet(100, 100)
    damaged, failed = 0, bytearray(content)
    for position in range(4, len(content) - 8, 7):
        failed = bytearray(content)
        failed[position] ^= 0xFF
        data = bytes(failed)
        try:
            file = parquet.open_file(lambda start, end, data=data: [data[start:end]], len(data))
            list(parquet.read_rows(file, parquet.Template('{"custom_id": "{id}", "body": {"x": "{text}"}}')))
        except (CorruptFile, reader.BadTemplate):
            damaged += 1
    assert damaged > 20, "and nothing else was raised"


def build_repeated_value(value_bytes: int, rows: int) -> bytes:
    """A column whose dictionary holds one value, which each row names."""
    sink = io.BytesIO()
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * value_bytes]))
    table = pa.table({"id": [str(number) for number in range(rows)], "text": text})
    pq.write_table(table, sink, compression="zstd", dictionary_pagesize_limit=2**30)
    return sink.getvalue()


def read_parquet(content: bytes) -> bytes:
    template = '{"custom_id": "{id}", "body": {"x": "{text}"}}'
    with parquet_process.open_rows(lambda start, end: [content[start:end]], len(content), template) as rows:
        return b"".join(rows.read())


def test_a_value_that_many_rows_repeat_ends_neither_the_worker_nor_the_machine() -> None:
    large, many = build_repeated_value(2**27, 64), build_repeated_value(2**17, 2000)
    assert len(large) < 50_000 and len(many) < 50_000
    with pytest.raises(CorruptFile, match=r"^the file takes more than 512 MiB of memory to read, or is damaged$"):
        read_parquet(large)
    with pytest.raises(CorruptFile, match=r"^the file unpacks to more than 1,000 times its size$"):
        read_parquet(many)
    assert read_parquet(build_repeated_value(1000, 50)).count(b"\n") == 50


def test_a_process_that_says_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_process, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(parquet_process, "_ANSWER_LIMIT_S", 0.5)
    with pytest.raises(CorruptFile, match=r"no row within 0\.5 s"):
        read_parquet(build_repeated_value(10, 5))


def test_a_read_that_fails_is_no_damage_of_the_parquet_file() -> None:
    def read(start: int, end: int) -> list[bytes]:
        raise ConnectionResetError("S3")

    with pytest.raises(ConnectionResetError), parquet_process.open_rows(read, 1000, '{"body": "{id}"}'):
        pass


def test_the_process_has_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    code = "import os, sys; sys.exit('AWS_SECRET_ACCESS_KEY' in os.environ)"
    statuses = []
    original = subprocess.Popen

    class Recorded(original):  # type: ignore[type-arg]
        def __exit__(self, *arguments: object) -> None:
            statuses.append(self.wait(60))

    monkeypatch.setattr(parquet_process, "_COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(CorruptFile):
        read_parquet(build_repeated_value(10, 5))
    assert statuses == [0]
