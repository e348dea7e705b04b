"""Parquet in, by a template over its columns, and out, as a table that is partitioned."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from batch import count, errors, parquet, rows
from batch.reader import BadTemplate, CorruptFile
from batch.steps import Permanent, Steps
from batch.store import Store
from botocore.exceptions import ClientError

from tests.images.batch_worker.test_chunk import KEYS, answer, prepare

TEMPLATE = json.dumps(
    {
        "custom_id": "{sku}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m",
            "messages": [{"role": "user", "content": "Describe {{shortly}} {title}: {note}"}],
            "max_tokens": "{most}",
        },
    }
)


def build_file(count_: int, group_rows: int = 50, text: str = "thing") -> bytes:
    table = pa.table(
        {
            "sku": pa.array(range(count_), pa.int64()),
            "title": [f"{text} {number}" for number in range(count_)],
            "note": [None if number % 2 else 'a "quote"\nand a line' for number in range(count_)],
            "most": pa.array([number % 7 + 1 for number in range(count_)], pa.int32()),
            "unused": [b"x" * 100] * count_,
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=group_rows)
    return sink.getvalue()


def read_rows(content: bytes, template: str = TEMPLATE) -> list[Any]:
    file = parquet.open_file(lambda start, end: [content[start:end]], len(content))
    blocks = parquet.read_rows(file, parquet.Template(template))
    return [json.loads(line) for block in blocks for line in block.splitlines()]


def test_each_record_becomes_a_row_by_the_template() -> None:
    parsed = read_rows(build_file(120))
    assert [row["custom_id"] for row in parsed] == [str(number) for number in range(120)]
    assert parsed[0]["body"]["messages"][0]["content"] == 'Describe {shortly} thing 0: a "quote"\nand a line'
    assert parsed[1]["body"] == {
        "model": "m", "messages": [{"role": "user", "content": "Describe {shortly} thing 1: "}], "max_tokens": 2,
    }  # fmt: skip
    for row in parsed:
        rows.parse(json.dumps(row).encode())
    assert read_rows(build_file(2), TEMPLATE.replace("{sku}", "{note}"))[1]["custom_id"] is None, "a row without one"


def test_lists_records_and_booleans_within_a_text_are_json() -> None:
    sink = io.BytesIO()
    columns = {"tags": [["new", "it's"]], "price": [{"eur": 5, "note": None}], "is_new": [True]}
    pq.write_table(pa.table({"sku": ["a"], **columns}), sink)
    [row] = read_rows(
        sink.getvalue(), json.dumps({"custom_id": "{sku}", "body": {"prompt": "{tags} {price} {is_new}"}})
    )
    assert row["body"]["prompt"] == '["new", "it\'s"] {"eur": 5, "note": null} true'


def test_texts_that_older_writers_keep_as_bytes_are_texts() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"sku": ["é".encode()], "title": [b"a thing"], "raw": [b"\xff"]}), sink)
    template = {"custom_id": "{sku}", "url": "/v1/completions", "body": {"prompt": "{title}", "user": "{title}: {raw}"}}
    [row] = read_rows(sink.getvalue(), json.dumps(template))
    assert (row["custom_id"], row["body"]) == ("é", {"prompt": "a thing", "user": "a thing: \ufffd"})


def test_times_are_read_to_the_microsecond_and_one_beyond_the_year_9999_is_named() -> None:
    template = json.dumps({"custom_id": "{at}", "url": "/v1/completions", "body": {"prompt": "at {at}"}})

    def read_times(times: pa.Array) -> list[Any]:
        sink = io.BytesIO()
        pq.write_table(pa.table({"at": times}), sink)
        return read_rows(sink.getvalue(), template)

    [row] = read_times(pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")))
    assert row["body"]["prompt"] == "at 2023-11-14 22:13:20.123456+00:00"
    with pytest.raises(CorruptFile, match="the file cannot be read as Parquet: date value out of range"):
        read_times(pa.array([2**62], pa.timestamp("us")))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "the job has no template: --template FILE"),
        ("{broken", "the template is not JSON: "),
        ("[]", "the template is not a row: it has no body"),
        ('{"body": {}}', "the template names no column, such as {title}"),
        (
            '{"body": {"a": "{color}"}}',
            "the template names color, and the file has the columns sku, title, note, most,",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: str, message: str) -> None:
    with pytest.raises(BadTemplate, match=message):
        read_rows(build_file(2), template)


def test_memory_is_that_of_a_few_rows_and_not_of_the_file() -> None:
    small, large = (
        build_file(size, group_rows=size, text="word " * 50) for size in (2000, 10_000)
    )  # twice and ten times as many rows as are read at once

    def measure(content: bytes) -> int:
        """Peak of pyarrow's and Python's own memory, the content left out."""
        file = parquet.open_file(lambda start, end: [content[start:end]], len(content))
        before, peak = pa.total_allocated_bytes(), 0
        tracemalloc.start()
        for _ in parquet.read_rows(file, parquet.Template(TEMPLATE)):
            peak = max(peak, pa.total_allocated_bytes() - before)
        _, python_peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak + python_peak

    assert measure(large) < 2 * measure(small)


def submit(write_input: Any, content: bytes, template: str = TEMPLATE) -> Any:
    return write_input(content, template=template)


def test_a_parquet_job_runs_and_its_results_are_a_table(store: Store, write_input: Any, batch_settings: Any) -> None:
    from dataclasses import replace

    steps = Steps(store, replace(batch_settings, has_parquet=True), now=lambda: 100.0)
    job = submit(write_input, build_file(30))
    (chunk,) = prepare(steps, job)
    from batch.chunk import ChunkState

    state = ChunkState.open(store, KEYS, job, chunk, "w")
    answer(state, 28)
    state.fail_rest("batch_cancelled", "the batch was cancelled before this row ran")
    state.commit(state.collect())
    state.finish()
    assert steps.merge(job["id"])["completed"] == 28
    steps.merge(job["id"])  # a step that is repeated writes the same
    prefix = parquet.get_result_prefix("batch/mine", "default", job["id"], job["created_at"])
    assert prefix == f"batch/mine/results/team=default/date=1970-01-01/batch={job['id']}/"
    (entry,) = store.list_objects(prefix)
    table = pq.read_table(io.BytesIO(store.read(entry["key"])))
    assert table.schema.names == parquet.SCHEMA.names
    assert sorted(int(name) for name in table["custom_id"].to_pylist()) == list(range(30))
    assert set(table["job"].to_pylist()) == {job["id"]}
    assert table["error_code"].to_pylist().count("batch_cancelled") == 2
    assert json.loads(table["response"].to_pylist()[0]) == {"ok": True}


def test_a_file_that_is_overwritten_while_it_is_read_gives_no_rows_of_both(
    store: Store, write_input: Any, batch_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size, so that the footer of the first fits the second."""
    content = build_file(400, text="thing")
    other = content.replace(b"thing", b"other")
    assert other != content
    job = submit(write_input, content)
    read = Store.read_range

    def overwrite(own: Store, key: str, start: int, *options: Any, **named: Any) -> Any:
        if key == job["input"]["key"] and start:  # the footer is read, and no row
            monkeypatch.setattr(Store, "read_range", read)
            blocks = list(read(own, key, start, *options, **named))
            store.write(key, other)
            return iter(blocks)
        return read(own, key, start, *options, **named)

    monkeypatch.setattr(Store, "read_range", overwrite)
    with pytest.raises(ClientError) as failure:
        Steps(store, batch_settings).plan(job["id"])
    assert errors.classify(failure.value) == (*errors.CHANGED_FILE, True)


def test_results_lie_in_partitions_that_readers_know(tmp_path: Any) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    body = {"model": "m", "choices": [{"message": {"content": "yes"}}], "usage": usage}
    embedding = {"model": "e", "data": [{"embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 3}}
    scores = {"model": "r", "data": [{"score": 0.5}, {"score": 0.1}], "usage": {"prompt_tokens": 3}}
    lines = [rows.format_output("a", 200, json.dumps(entry).encode()) for entry in (body, embedding, scores)]
    for team in ("ads", "search"):
        folder = tmp_path / parquet.get_result_prefix("p", team, "batch_1", 0.0)
        folder.mkdir(parents=True)
        assert (
            parquet.write_results("batch_1", lines, lambda number, folder=folder: (folder / f"{number}").open("wb"))
            == 1
        )
    records = pyarrow.dataset.dataset(tmp_path / "p/results", partitioning="hive").to_table().to_pylist()
    answers = [("[0.5, 0.1]", None), ("[0.5, 1.0]", None), ("yes", 2)]
    assert sorted((row["team"], row["answer"], row["output_tokens"]) for row in records) == [
        (team, *answer) for team in ("ads", "search") for answer in answers
    ]


def test_an_answer_that_parquet_cannot_hold_as_it_is_fails_no_job() -> None:
    usage = {"prompt_tokens": "many", "completion_tokens": 10**30}
    content = [{"type": "text", "text": "\ud83d"}]
    body = {"model": 7, "choices": [{"message": {"content": content}}], "usage": usage}
    lines = [
        rows.format_output("a", 200, json.dumps(body).encode()),
        rows.format_error("\ud800", "code", "half \ud800"),
    ]
    sink = io.BytesIO()
    sink.close = lambda: None  # type: ignore[method-assign]
    parquet.write_results("batch_1", lines, lambda _: sink)
    answered, failed = pq.read_table(io.BytesIO(sink.getvalue())).to_pylist()
    assert (answered["model"], answered["input_tokens"], answered["output_tokens"]) == ("7", None, None)
    assert json.loads(answered["answer"]) == [{"type": "text", "text": "?"}]
    assert (failed["custom_id"], failed["error_message"]) == ("?", "half ?")


def test_many_results_are_several_files(monkeypatch: Any) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 10)
    monkeypatch.setattr(parquet, "FILE_ROWS", 20)
    sinks: list[io.BytesIO] = []

    def open_sink(_: int) -> io.BytesIO:
        sink = io.BytesIO()
        sink.close = lambda: None  # type: ignore[method-assign]
        sinks.append(sink)
        return sink

    lines = [rows.format_output(str(number), 200, b"{}") for number in range(45)]
    assert parquet.write_results("batch_1", iter(lines), open_sink) == 3
    tables = [pq.read_table(io.BytesIO(sink.getvalue())) for sink in sinks]
    assert [table.num_rows for table in tables] == [20, 20, 5]


@pytest.mark.parametrize(("damage", "code"), [(slice(0, 400), "corrupt_file"), (slice(None), "bad_template")])
def test_a_parquet_job_that_cannot_run_says_why(
    store: Store, write_input: Any, batch_settings: Any, damage: slice, code: str
) -> None:
    template = TEMPLATE if code == "corrupt_file" else ""
    job = submit(write_input, build_file(30)[damage], template)
    with pytest.raises(Permanent) as caught:
        Steps(store, batch_settings).plan(job["id"])
    assert caught.value.code == code


def test_rows_of_a_parquet_file_are_counted_by_its_own_metadata(store: Store) -> None:
    content = build_file(1200, group_rows=10)
    store.write("count.parquet", content)
    sample = count.read_sample(store, "count.parquet", len(content), "", TEMPLATE)
    assert (sample.bytes, sample.is_whole, len(sample.blocks)) == (1200, False, count.BLOCKS)
    scaled = count._summarize(sample, [], 0, is_every_row=False)
    assert (scaled["rows"], scaled["bad_rows"]["value"]) == ({"value": 1200, "error": 0}, 0)
