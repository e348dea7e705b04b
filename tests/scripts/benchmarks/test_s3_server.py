"""The S3 server of the benchmarks answers the batch worker as S3 does, and joins objects without moving a byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving.rehearsal import emulator
from scripts.benchmarks import batch_load, s3_server

BLOCK = bytes(range(256)) * (40 * 2**10)  # 10 MiB


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    assert batch_load.IMAGE  # the worker's modules are on the path
    from batch.store import Store

    with s3_server.run_server(tmp_path) as url:
        yield Store("rows", emulator.create_client("s3", url, "us-west-2"))


def test_what_is_written_is_read_and_listed_page_by_page(store: Any) -> None:
    keys = [f"jobs/{number:04d}/job.json" for number in range(1100)]
    for key in keys:
        store.write(key, b"{}")
    store.write("jobs-2", b"abcdef")
    assert b"".join(store.read_range("jobs-2", 1, 4)) == b"bcd"
    assert store.read_head("jobs-2") == {"bytes": 6, "etag": '"e80b5017098950fc58aad83c8c14978e"'}
    assert list(store.list_folders("jobs/")) == [key[5:9] for key in keys]
    assert [entry["key"] for entry in store.list_objects("jobs/")] == keys
    store.delete("jobs-2")
    assert store.read_head("jobs-2") is None


def test_a_conditional_write_is_refused_as_by_s3(store: Any) -> None:
    from batch.store import Conflict

    etag = store.write_json("head", 1, new=True)
    for condition in ({"new": True}, {"etag": '"of another"'}):
        with pytest.raises(Conflict):
            store.write_json("head", 2, **condition)
    assert store.read_json("head").value == 1
    store.write_json("head", 2, etag=etag)
    assert store.read_json("head").value == 2


def test_parts_that_are_copied_are_the_same_bytes_again(store: Any) -> None:
    store.write("part", BLOCK)
    with store.open_writer("joined") as writer:
        for _ in range(40):
            writer.append_object("part", len(BLOCK))
        writer.write(b"end")
    assert store.read_head("joined")["bytes"] == 40 * len(BLOCK) + 3
    assert b"".join(store.read_range("joined", 39 * len(BLOCK) + 7, 40 * len(BLOCK) + 3)) == BLOCK[7:] + b"end"
