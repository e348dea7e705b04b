"""Chunks are taken, saved and taken over: every row has one result, whoever ran it, and whatever was lost between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from batch import chunk as chunk_module
from batch import errors, layout, rows
from batch import steps as steps_module
from batch import store as store_module
from batch.chunk import ChunkState, Outcome
from batch.errors import Permanent
from batch.queue import Message
from batch.steps import StepRunner, Steps
from batch.store import MIN_PART_BYTES, Conflict, Incomplete, Store
from botocore.exceptions import ClientError, ResponseStreamingError

KEYS = layout.Layout("batch/mine")


def build_rows(count: int) -> list[bytes]:
    return [
        json.dumps(
            {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [{"role": "user", "content": f"number {number}"}]},
            }
        ).encode()
        for number in range(count)
    ]


def prepare(steps: Steps, job: layout.Job) -> list[layout.Chunk]:
    """Bring a job to where its chunks can run."""
    count = steps.plan(job["id"])["chunks"]
    for index in range(count):
        steps.scan(job["id"], index)
    steps.check(job["id"])
    chunks: list[layout.Chunk] = steps._read_chunks(job["id"])
    return chunks


def answer(state: ChunkState, count: int | None = None) -> None:
    """Give the next rows of a chunk a result."""
    for _ in range(len(state.pending) if count is None else count):
        row = rows.parse(state.pending.popleft().content)
        state.add(Outcome(rows.format_output(row.custom_id, 200, b'{"ok": true}'), "", 3, 2))


def read_results(store: Store, job_id: str) -> tuple[list[Any], list[Any]]:
    """The output and the errors of a job."""
    output, errors = (
        [json.loads(line) for line in store.read(key).splitlines()]
        for key in (KEYS.build(layout.OUTPUT, job_id), KEYS.build(layout.ERRORS, job_id))
    )
    return output, errors


@pytest.fixture
def steps(store: Store, batch_settings: Any) -> Steps:
    return Steps(store, batch_settings, now=lambda: 100.0)


def test_conditional_writes_let_one_writer_through(store: Store) -> None:
    etag = store.write_json("once.json", 1, new=True)
    with pytest.raises(Conflict):
        store.write_json("once.json", 2, new=True)
    store.write_json("once.json", 3, etag=etag)
    with pytest.raises(Conflict):
        store.write_json("once.json", 4, etag=etag)
    stored = store.read_json("once.json")
    assert stored is not None
    assert stored.value == 3


@pytest.mark.parametrize(
    "sizes",
    [
        [10, 20, 30],
        [10, MIN_PART_BYTES, 20],
        [MIN_PART_BYTES, 3, 2 * MIN_PART_BYTES + 7, MIN_PART_BYTES + 1],
        [MIN_PART_BYTES - 1, MIN_PART_BYTES, 1, 3 * MIN_PART_BYTES],
        [],
    ],
)
def test_objects_are_joined_whatever_their_sizes(store: Store, sizes: list[int]) -> None:
    writer, expected = store.open_writer("joined"), b""
    for number, size in enumerate(sizes):
        body = bytes([65 + number]) * size
        store.write(f"piece-{number}", body)
        writer.append_object(f"piece-{number}", size)
        expected += body
    writer.close()
    assert store.read("joined") == expected


def test_parts_that_are_copied_late_keep_their_place(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(store_module, "_MAX_COPY_BYTES", 2 * MIN_PART_BYTES)
    body = b"".join(bytes([65 + number]) * MIN_PART_BYTES for number in range(5)) + b"end"
    store.write("large", body)
    copy, numbers = store.client.upload_part_copy, list[int]()
    copied = {number: threading.Event() for number in (1, 2, 3)}

    def copy_late(**arguments: Any) -> Any:
        number = arguments["PartNumber"]
        assert number == 3 or copied[number + 1].wait(60), "the next part is copied first"
        numbers.append(number)
        response = copy(**arguments)
        copied[number].set()
        return response

    monkeypatch.setattr(store.client, "upload_part_copy", copy_late)
    with store.open_writer("joined") as writer:
        writer.append_object("large", len(body))
        writer.write(b"tail")
    assert numbers == [3, 2, 1]
    assert store.read("joined") == body + b"tail"


def test_as_many_large_objects_as_a_job_has_chunks_are_no_more_parts_than_s3_joins(
    store: Store, monkeypatch: Any
) -> None:
    monkeypatch.setattr(store_module, "_MAX_COPY_BYTES", MIN_PART_BYTES)
    monkeypatch.setattr(store_module, "MAX_PARTS", 5)
    monkeypatch.setattr(store_module, "_MAX_PART_BYTES", 2 * MIN_PART_BYTES)
    bodies = [bytes([65 + number]) * (2 * MIN_PART_BYTES) for number in range(5)]
    join, joined = store.client.complete_multipart_upload, list[int]()

    def count_parts(**arguments: Any) -> Any:
        joined.append(len(arguments["MultipartUpload"]["Parts"]))
        return join(**arguments)

    monkeypatch.setattr(store.client, "complete_multipart_upload", count_parts)
    for objects in (5, 2):
        with store.open_writer("joined", objects) as writer:
            for number, body in enumerate(bodies[:objects]):
                store.write(f"piece-{number}", body)
                writer.append_object(f"piece-{number}", len(body))
        assert store.read("joined") == b"".join(bodies[:objects])
    assert joined == [5, 4], "of a few, parts are as small as S3 copies fast"


class BrokenBody:
    """An answer whose connection ends after some blocks."""

    def __init__(self, content: bytes, blocks: int) -> None:
        self._content, self._blocks = content, blocks

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        for number in range(self._blocks):
            yield self._content[number * size : (number + 1) * size]
        raise ResponseStreamingError(error="Connection broken: ConnectionResetError(104, 'Connection reset by peer')")


def test_a_read_that_s3_breaks_off_goes_on_from_there(store: Store, monkeypatch: Any) -> None:
    """A compressed file of hours is read by one request."""
    content = bytes(range(256)) * 2**14 + b"end"
    store.write("long", content)
    get, ranges = store.client.get_object, list[str]()

    def break_off(**arguments: Any) -> Any:
        ranges.append(arguments.get("Range", ""))
        reply = get(**arguments)
        if len(ranges) < 3:
            reply["Body"] = BrokenBody(reply["Body"].read(), blocks=1)
        return reply

    monkeypatch.setattr(store.client, "get_object", break_off)
    assert b"".join(store.read_range("long", 0, len(content))) == content
    assert ranges == [f"bytes={number * 2**20}-{len(content) - 1}" for number in range(3)]
    ranges.clear()
    assert list(store.read_lines("long")) == content.split(b"\n")
    assert ranges == ["", *(f"bytes={number * 2**20}-" for number in (1, 2))]
    ranges.clear()
    blocks = store.read_range("long", 0, len(content))
    next(blocks)
    store.write("long", content[::-1])
    with pytest.raises(ClientError, match="PreconditionFailed"):  # no bytes of two objects
        next(blocks)


def test_a_read_that_never_goes_on_is_an_error(store: Store, monkeypatch: Any) -> None:
    store.write("long", b"x" * 10)
    replies: list[Any] = []

    def break_off(**_: Any) -> Any:
        replies.append({"ETag": "x", "Body": BrokenBody(b"", blocks=0)})
        return replies[-1]

    monkeypatch.setattr(store.client, "get_object", break_off)
    with pytest.raises(ResponseStreamingError):
        list(store.read_range("long", 0, 10))
    assert len(replies) == 5


@pytest.mark.parametrize("moment", ["copy", "block"])
def test_an_object_that_cannot_be_joined_leaves_nothing(store: Store, moment: str) -> None:
    key = f"unjoined-{moment}"

    def join() -> None:
        with store.open_writer(key) as writer:
            writer.write(b"x" * 2 * MIN_PART_BYTES)
            assert list_uploads(store) == [key]
            if moment == "block":
                raise RuntimeError("the reader went away")
            writer.append_object("nowhere", MIN_PART_BYTES)

    error: type[Exception] = ClientError if moment == "copy" else RuntimeError
    with pytest.raises(error, match="UploadPartCopy" if moment == "copy" else "went away"):
        join()
    assert list_uploads(store) == []
    assert store.read_head(key) is None


def test_an_object_that_s3_did_not_join_is_an_error(store: Store, monkeypatch: Any) -> None:
    def forget(MultipartUpload: Any, **upload: Any) -> Any:  # noqa: N803 - as botocore names it
        return store.client.abort_multipart_upload(**upload)

    monkeypatch.setattr(store.client, "complete_multipart_upload", forget)
    writer = store.open_writer("said-and-not-done")
    writer.write(b"x" * 2 * MIN_PART_BYTES)
    with pytest.raises(Incomplete, match="said-and-not-done has no bytes, not 10485760"):
        writer.close()


def test_a_job_with_a_row_without_result_is_not_joined(store: Store, steps: Steps, write_input: Any) -> None:
    """Whatever lost it: the job fails, rather than end with fewer rows than it has."""
    job = write_input(b"\n".join(build_rows(5)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "worker")
    answer(state, 4)
    state.commit(state.collect())
    state.finish()
    with pytest.raises(Permanent, match="4 rows have a result, and the input has 5"):
        steps.merge(job["id"])


@pytest.mark.parametrize(("in_flight", "expected"), [(1, 6), (40, 8), (10_000, 40)])
def test_a_job_has_only_as_many_chunks_in_its_queue_as_its_workers_need(
    store: Store, batch_settings: Any, write_input: Any, in_flight: int, expected: int
) -> None:
    """A chunk of another job of its team waits behind them: 2 workers, 20 rows in each of 40 chunks."""
    content = b"\n".join(row + b" " * (3275 - len(row)) for row in build_rows(800))
    job = write_input(content)
    steps = Steps(store, replace(batch_settings, max_concurrency=in_flight), now=lambda: 100.0)
    count = steps.plan(job["id"])["chunks"]
    for index in range(count):
        steps.scan(job["id"], index)
    assert count == 40
    assert steps.check(job["id"])["chunks_at_once"] == expected


def list_uploads(store: Store) -> list[str]:
    """Keys of objects that somebody began to write in parts."""
    return [entry["Key"] for entry in store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", ())]


def test_a_merge_that_fails_leaves_nothing_and_can_be_repeated(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(row + b" " * 20_000 for row in build_rows(20)))
    chunks = prepare(steps, job)
    for chunk in chunks:
        state = ChunkState.open(store, KEYS, job, chunk, "worker")
        answer(state)
        state.commit(state.collect())
        state.finish()
    key = KEYS.build(layout.HEAD, job["id"], 0)
    stored = store.read_json(key)
    assert stored is not None
    (part,) = stored.value["parts"]
    lost = {**part, "output": "nowhere", "output_bytes": MIN_PART_BYTES}
    store.write_json(key, {**stored.value, "parts": [lost]})
    with pytest.raises(ClientError):
        steps.merge(job["id"])
    assert list_uploads(store) == []
    assert store.read_head(KEYS.build(layout.OUTPUT, job["id"])) is None
    store.write_json(key, stored.value)
    assert steps.merge(job["id"]) == {"state": layout.COMPLETED, "total": 20, "completed": 20, "failed": 0}
    output, _ = read_results(store, job["id"])
    assert [line["custom_id"] for line in output] == [f"row-{number}" for number in range(20)]


def test_a_worker_that_lost_its_chunk_can_add_nothing(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(build_rows(10)))
    (chunk,) = prepare(steps, job)
    zombie = ChunkState.open(store, KEYS, job, chunk, "first")
    answer(zombie, 4)
    zombie.commit(zombie.collect())
    answer(zombie, 3)  # not saved when the other worker comes

    heir = ChunkState.open(store, KEYS, job, chunk, "second")
    assert [row.line for row in heir.pending] == [5, 6, 7, 8, 9, 10]
    with pytest.raises(Conflict):
        zombie.commit(zombie.collect())
    with pytest.raises(Conflict):
        zombie.finish()
    answer(heir)
    heir.commit(heir.collect())
    heir.finish()
    with pytest.raises(Conflict):
        zombie.commit(zombie.collect() if zombie.unsaved_rows else _one_result(zombie))

    assert steps.merge(job["id"])["state"] == layout.COMPLETED
    output, errors = read_results(store, job["id"])
    assert sorted(line["custom_id"] for line in output) == sorted(f"row-{number}" for number in range(10))
    assert errors == []


def _one_result(state: ChunkState) -> Any:
    state.add(Outcome(rows.format_output("row-9", 200, b"{}"), "", 1, 1))
    return state.collect()


def test_a_save_that_is_repeated_counts_once(store: Store, steps: Steps, write_input: Any, monkeypatch: Any) -> None:
    """S3 wrote the head, and the answer was lost."""
    job = write_input(b"\n".join(build_rows(4)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "first")
    answer(state)
    results = state.collect()
    write = store.write_json

    def write_and_lose(key: str, value: Any, **options: Any) -> str:
        write(key, value, **options)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_json", write_and_lose)
        with pytest.raises(TimeoutError):
            state.commit(results)
    state.commit(results)
    state.finish()
    steps.merge(job["id"])
    output, _ = read_results(store, job["id"])
    assert len(output) == 4


def test_a_save_that_was_interrupted_and_went_on_counts_once(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(build_rows(4)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "first")
    answer(state)
    results = state.collect()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(state.commit, [results, results]))
    state.finish()
    steps.merge(job["id"])
    output, _ = read_results(store, job["id"])
    assert len(output) == 4


def test_a_chunk_that_is_saved_often_has_few_parts(
    store: Store, steps: Steps, write_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of minutes are saved one by one, and whoever takes their chunk over reads each part."""
    monkeypatch.setattr(chunk_module, "_JOINED", 3)
    good = build_rows(30)
    job = write_input(b"\n".join([*good, good[17], b"{broken"]))
    (chunk,) = prepare(steps, job)
    most = 0
    for worker in range(3):
        state = ChunkState.open(store, KEYS, job, chunk, f"worker-{worker}")
        assert len(state.pending) == 30 - 10 * worker
        for _ in range(10):
            answer(state, 1)
            state.commit(state.collect())
            most = max(most, len(state.head["parts"]))
    assert most == 1 + 6, "the rows that never run, and those of 9, 9, 3, 3, 1 and 1 saves"
    state.finish()
    result = steps.merge(job["id"])
    assert (result["total"], result["completed"], result["failed"]) == (32, 30, 2)
    output, failed = read_results(store, job["id"])
    assert [line["custom_id"] for line in output] == [f"row-{number}" for number in range(30)]
    assert [line["error"]["code"] for line in failed] == ["duplicate_custom_id", "invalid_json_line"]


def test_rows_that_cannot_run_are_reported_once_with_their_lines(store: Store, steps: Steps, write_input: Any) -> None:
    good = build_rows(6)
    lines = [good[0], b"", b"{broken", good[1], good[0], b'{"method": "POST"}', *good[2:]]
    job = write_input(b"\r\n".join(lines) + b"\n")
    (chunk,) = prepare(steps, job)
    for _ in range(3):  # the worker ends before it answers a row, again and again
        state = ChunkState.open(store, KEYS, job, chunk, "worker")
    assert len(state.pending) == 6
    answer(state)
    state.commit(state.collect())
    state.finish()
    result = steps.merge(job["id"])
    assert (result["total"], result["completed"], result["failed"]) == (9, 6, 3)
    _, errors = read_results(store, job["id"])
    assert [(line["error"]["code"], line["error"]["line"], line["custom_id"]) for line in errors] == [
        ("invalid_json_line", 3, None),
        ("duplicate_custom_id", 5, "row-0"),
        ("missing_custom_id", 6, None),
    ]
    assert errors[1]["error"]["message"] == "line 1 has this custom_id already"
    kinds = {"invalid_json_line": 1, "duplicate_custom_id": 1, "missing_custom_id": 1}
    assert steps._read_job(job["id"])["failures"] == kinds


def test_of_rows_with_one_id_the_first_runs(store: Store, steps: Steps, write_input: Any) -> None:
    """The numbers of these lines, as bytes, are in another order."""
    lines = build_rows(300)
    lines[299] = lines[255] = lines[1]
    job = write_input(b"\n".join(lines))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "worker")
    assert [row.line for row in state.pending if row.content == lines[1]] == [2]
    answer(state)
    state.commit(state.collect())
    state.finish()
    steps.merge(job["id"])
    _, errors = read_results(store, job["id"])
    message = "line 2 has this custom_id already"
    assert [(line["error"]["line"], line["error"]["message"]) for line in errors] == [(256, message), (300, message)]


def test_a_doubled_id_is_found_in_another_chunk(store: Store, steps: Steps, write_input: Any) -> None:
    padding = b" " * 20_000
    lines = [row + padding for row in build_rows(20)]
    job = write_input(b"\n".join([*lines, lines[3]]))
    chunks = prepare(steps, job)
    assert len(chunks) > 1
    stored = store.read_json(KEYS.build(layout.ROWS, job["id"], chunks[-1]["index"]))
    assert stored is not None
    assert list(stored.value["repeats"].values()) == [4]
    total = 0
    for chunk in chunks:
        state = ChunkState.open(store, KEYS, job, chunk, "worker")
        total += len(state.pending)
    assert total == 20


def test_digests_of_several_blocks_and_chunks_are_read_at_a_time(
    store: Store, steps: Steps, write_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = build_rows(900)
    job = write_input(b"\n".join([*lines, lines[3], lines[899]]))
    read_range, all_chunks, starts = store.read_range, threading.Barrier(3), list[int]()

    def read(key: str, start: int, end: int, etag: str = "") -> Any:
        if key.endswith("ids.bin"):
            starts.append(start)
            if start == 0:
                all_chunks.wait(60)  # for the first blocks of the others, which would come after this one
        return read_range(key, start, end, etag)

    monkeypatch.setattr(store, "read_range", read)
    monkeypatch.setattr(steps_module, "_MERGE_BYTES", 0)
    chunks = prepare(steps, job)
    assert len(chunks) == 3 and len(starts) > 3, "some have several blocks"
    stored = store.read_json(KEYS.build(layout.ROWS, job["id"], chunks[-1]["index"]))
    assert stored is not None and sorted(stored.value["repeats"].values()) == [4, 900]


@pytest.mark.parametrize(
    ("content", "code"), [(b"\n\n", "empty_file"), (b"\x1f\x8b\x08\x00garbage" * 9, "corrupt_file")]
)
def test_a_job_without_rows_fails_with_its_reason(steps: Steps, write_input: Any, content: bytes, code: str) -> None:
    job = write_input(content)
    with pytest.raises(Permanent) as failure:
        prepare(steps, job)
    assert failure.value.code == code
    cause = json.dumps({"code": failure.value.code, "message": failure.value.message})
    assert steps.fail(job["id"], {"Error": code, "Cause": cause})["state"] == layout.FAILED
    assert steps._read_job(job["id"])["errors"][0]["code"] == code


def test_a_job_that_refuses_bad_rows_fails(steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join([*build_rows(3), b"{broken"]), bad_rows="refuse")
    with pytest.raises(Permanent, match="1 of 4 rows cannot run"):
        prepare(steps, job)
    assert steps._read_job(job["id"])["errors"][0]["line"] == 4


def test_a_job_fails_before_its_bad_rows_fill_the_memory(steps: Steps, write_input: Any, monkeypatch: Any) -> None:
    (row,) = build_rows(1)
    for limit, bad, message in (
        ("MAX_FAULTS", b"{broken", r"more than 2 rows of inputs/\S+, bytes 0 to \d+, cannot run; the last: .*JSON"),
        ("MAX_BLANK_LINES", b" ", r"more than 2 lines of inputs/\S+ are blank"),
        ("MAX_REPEATS", row, "more than 2 rows have the custom_id of an earlier row; one is line 4"),
    ):
        monkeypatch.setattr(steps_module, limit, 2)
        prepare(steps, write_input(b"\n".join([row, bad, bad])))
        with pytest.raises(Permanent, match=message) as failure:
            prepare(steps, write_input(b"\n".join([row, bad, bad, bad])))
        assert failure.value.code == "too_many_bad_rows"


def test_an_input_that_was_overwritten_is_refused(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(build_rows(3)))
    store.write(job["input"]["key"], b"other")
    with pytest.raises(Permanent, match="overwritten after the job was submitted"):
        steps.plan(job["id"])


def test_an_input_that_is_overwritten_while_it_runs_fails_the_job_at_once(
    store: Store, steps: Steps, write_input: Any
) -> None:
    job = write_input(b"\n".join(build_rows(3)))
    prepare(steps, job)
    store.write(job["input"]["key"], b"other")
    with pytest.raises(ClientError) as failure:
        steps.scan(job["id"], 0)
    assert errors.classify(failure.value) == (*errors.CHANGED_FILE, True)


def test_a_job_whose_input_was_deleted_is_not_tried_again(store: Store, steps: Steps, write_input: Any) -> None:
    """S3 finds each object that exists: a retry would only hide the reason for minutes."""
    job = write_input(b"\n".join(build_rows(5)))
    (chunk,) = prepare(steps, job)
    store.delete(job["input"]["key"])
    with pytest.raises(ClientError) as failure:
        ChunkState.open(store, KEYS, job, chunk, "worker")
    assert errors.classify(failure.value) == (*errors.MISSING_FILE, True)


def test_a_job_keeps_its_chunks_when_a_later_deploy_would_draw_others(
    store: Store, steps: Steps, batch_settings: Any, write_input: Any
) -> None:
    lines = [row + b" " * 20_000 for row in build_rows(40)]
    job = write_input(b"\n".join(lines))
    chunks = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunks[0], "w")
    answer(state)
    state.commit(state.collect())
    state.finish()
    later = Steps(store, replace(batch_settings, workers=1, chunk_bytes=2**20), now=lambda: 200.0)
    assert prepare(later, job) == chunks
    for chunk in chunks[1:]:
        state = ChunkState.open(store, KEYS, job, chunk, "w")
        answer(state)
        state.commit(state.collect())
        state.finish()
    assert later.merge(job["id"])["completed"] == 40
    output, _ = read_results(store, job["id"])
    assert [line["custom_id"] for line in output] == [f"row-{number}" for number in range(40)]
    fresh = write_input(b"\n".join(lines) + b"\n")
    assert later.plan(fresh["id"])["chunks"] < len(chunks)  # the control: a new job has the later deploy's chunks


def test_a_row_that_is_too_long_fails_alone(store: Store, batch_settings: Any, write_input: Any) -> None:
    steps = Steps(store, replace(batch_settings, chunk_bytes=2**21), now=lambda: 100.0)
    good = build_rows(2)
    job = write_input(b"\n".join([good[0], b"x" * (rows.MAX_ROW_BYTES + 1), good[1]]))
    for chunk in prepare(steps, job):
        state = ChunkState.open(store, KEYS, job, chunk, "w")
        answer(state)
        state.commit(state.collect())
        state.finish()
    assert steps.merge(job["id"]) == {"state": layout.COMPLETED, "total": 3, "completed": 2, "failed": 1}
    _, (error,) = read_results(store, job["id"])
    assert (error["error"]["code"], error["error"]["line"]) == ("row_too_long", 2)


def test_a_compressed_input_becomes_chunks(store: Store, steps: Steps, write_input: Any) -> None:
    import gzip

    lines = build_rows(3000)
    job = write_input(gzip.compress(b"\n".join(lines)))
    chunks = prepare(steps, job)
    assert len(chunks) > 1
    states = [ChunkState.open(store, KEYS, job, chunk, "worker") for chunk in chunks]
    assert [row.content for state in states for row in state.pending] == lines
    assert [row.line for state in states for row in state.pending] == list(range(1, 3001))


def test_rows_of_a_cancelled_or_late_job_are_in_the_errors(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(build_rows(5)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "worker")
    answer(state, 2)
    state.fail_rest("batch_expired", "too late")
    state.commit(state.collect())
    state.finish()
    assert steps.merge(job["id"]) == {"state": layout.EXPIRED, "total": 5, "completed": 2, "failed": 3}
    output, errors = read_results(store, job["id"])
    assert len(output) == 2
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert steps._read_job(job["id"])["failures"] == {"batch_expired": 3}


@pytest.mark.parametrize("cause", [None, "chunk 0 ended 10 workers in a row"])
def test_a_chunk_that_is_given_up_has_its_rows_in_the_errors(
    store: Store, steps: Steps, write_input: Any, cause: str | None
) -> None:
    job = write_input(b"\n".join(build_rows(5)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "worker")
    answer(state, 2)
    state.commit(state.collect())
    if cause:
        fail_chunk(steps, job, 0, Permanent(layout.GIVEN_UP_CODE, cause))
    assert steps.merge(job["id"]) == {"state": layout.COMPLETED, "total": 5, "completed": 2, "failed": 3}
    _, errors = read_results(store, job["id"])
    message = f"this row's chunk was given up: {cause or 'each attempt ended the worker'}"
    assert {(line["error"]["code"], line["error"]["message"]) for line in errors} == {("worker_lost", message)}


def fail_chunk(steps: Steps, job: layout.Job, index: int, error: Exception) -> None:
    """Have an attempt at a chunk fail, of which the state machine hears."""
    mailbox = SimpleNamespace(fail=lambda *_: None)
    message = Message("queue", "receipt", {"task": "run", "job": job["id"], "chunk": index})
    StepRunner(steps, mailbox).fail(message, error)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ([OSError("the first"), OSError("no space left on device")], "no space left on device"),
        ([Permanent("chunk_given_up", "it ended ten workers"), OSError("of another")], "it ended ten workers"),
        ([], "The specified tolerated failure threshold was exceeded"),
    ],
    ids=["repeated in vain", "for good", "without a worker's word"],
)
def test_a_job_whose_chunks_fail_has_their_reason_and_not_that_of_the_map(
    steps: Steps, write_input: Any, failures: list[Exception], message: str
) -> None:
    job = write_input(b"\n".join(build_rows(1)))
    for index, failure in enumerate(failures):
        fail_chunk(steps, job, 0 if isinstance(failures[0], OSError) else index, failure)
    cause = "The specified tolerated failure threshold was exceeded"
    steps.fail(job["id"], {"Error": "States.ExceedToleratedFailureThreshold", "Cause": cause})
    assert [error["message"] for error in steps._read_job(job["id"])["errors"]] == [message]


def test_every_step_can_be_done_twice(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(build_rows(5)))
    (chunk,) = prepare(steps, job)
    state = ChunkState.open(store, KEYS, job, chunk, "worker")
    answer(state)
    state.commit(state.collect())
    state.finish()
    prepare(steps, job)
    again = ChunkState.open(store, KEYS, job, chunk, "another")
    assert (again.head["done"], len(again.pending)) == (True, 0)
    first, second = steps.merge(job["id"]), steps.merge(job["id"])
    assert first["state"] == second["state"] == layout.COMPLETED
    output, _ = read_results(store, job["id"])
    assert len(output) == 5


def test_a_step_that_ends_its_workers_ends_the_job(
    steps: Steps, write_input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_input(b"\n".join(build_rows(5)))

    def end(_: str) -> None:
        raise SystemExit("as a kernel out of memory ends a worker: it says nothing more")

    monkeypatch.setattr(steps, "plan", end)
    for _ in range(steps_module.MAX_ATTEMPTS):
        with pytest.raises(SystemExit):
            steps.run("plan", {"job": job["id"]})
    with pytest.raises(Permanent, match="plan ended 10 workers in a row"):
        steps.run("plan", {"job": job["id"]})
    with pytest.raises(SystemExit):  # of a job that is resumed, on workers with more memory
        steps.run("plan", {"job": job["id"]})


def test_a_cancelled_job_whose_step_fails_ends_cancelled(store: Store, steps: Steps, write_input: Any) -> None:
    job = write_input(b"\n".join(build_rows(5)))
    key = KEYS.build(layout.JOB, job["id"])
    store.change_json(key, lambda job: layout.advance(job, layout.CANCELLING, 100.0))
    assert steps.run("fail", {"job": job["id"], "error": None}) == {"state": layout.CANCELLED}
