"""The Batch API: OpenAI's own client calls it unchanged, and inboxes take files without any client."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import openai
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp.test_utils import TestClient, TestServer
from batch import layout
from batch.api import BatchApi
from batch.files import Files
from batch.inbox import parse_event
from batch.secrets import ApiKey
from batch.store import Stored
from botocore.exceptions import ReadTimeoutError

from llm_serving import processes
from llm_serving.kinds.batch.client import FINAL_STATES, BatchClient
from llm_serving.settings.errors import InputError
from tests import batch_kills
from tests.batch_kills import BUCKET, BatchRun

pytestmark = pytest.mark.timeout(900)

ROWS = {f"row-{number}": f"answer {number}" for number in range(20)}
CONTENT = batch_kills.format_rows(ROWS) + b"\n{broken"
ENDPOINT = "/v1/chat/completions"
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchRun]:
    with batch_kills.start_run(tmp_path_factory.mktemp("api"), workers=1, delay_ms=20, takeover_s=10) as running:
        running.open_jobs()
        yield running


@pytest.fixture(scope="module")
def url(run: BatchRun) -> str:
    return run.wait_for_api()


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


def build_texts(count: int, text: str) -> dict[str, str]:
    return {f"row-{number}": f"answer {number} {text}" for number in range(count)}


def wait_for_end(client: openai.OpenAI, batch_id: str) -> Any:
    processes.wait_until(lambda: client.batches.retrieve(batch_id).status in FINAL_STATES, batch_id, LIMIT_S, 0.3)
    return client.batches.retrieve(batch_id)


def test_openais_client_runs_a_batch_from_upload_to_results(client: openai.OpenAI) -> None:
    file = client.files.create(file=("rows.jsonl", CONTENT), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(CONTENT), "rows.jsonl", "batch")
    assert client.files.content(file.id).read() == CONTENT
    batch = client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"team": "search", "note": "x"}
    )
    assert batch.status in ("validating", "in_progress")
    assert (batch.input_file_id, batch.endpoint, batch.completion_window) == (file.id, ENDPOINT, "24h")
    ended = wait_for_end(client, batch.id)
    assert ended.status == "completed"
    assert ended.metadata == {"team": "search", "note": "x"}
    assert ended.request_counts.model_dump() == {"total": 21, "completed": 20, "failed": 1}
    output = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert batch_kills.find_mistakes(ROWS, output, []) == []
    (error,) = [json.loads(line) for line in client.files.content(ended.error_file_id).text.splitlines()]
    assert (error["error"]["code"], error["error"]["line"]) == ("invalid_json_line", 21)
    assert ended.errors.data[0].line == 21
    assert ended.completed_at >= ended.in_progress_at >= ended.created_at
    assert 0 < ended.usage.output_tokens == ended.usage.total_tokens - ended.usage.input_tokens
    assert client.files.retrieve(ended.output_file_id).purpose == "batch_output"


def test_a_batch_can_be_cancelled_and_is_listed(run: BatchRun, client: openai.OpenAI) -> None:
    rows = {f"slow-{number}": f"answer {number} " + "word " * 30 for number in range(3000)}
    file = client.files.create(file=("slow.jsonl", batch_kills.format_rows(rows)), purpose="batch")
    with run.limit_slots(0):
        batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        with pytest.raises(openai.BadRequestError, match=f"{batch.id} reads {file.id}, and has not ended"):
            client.files.delete(file.id)
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended = wait_for_end(client, batch.id)
    assert ended.status == "cancelled"
    assert client.files.delete(file.id).deleted
    assert ended.request_counts.completed + ended.request_counts.failed == 3000
    assert batch.id in [entry.id for entry in client.batches.list(limit=1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "/v1/images"}, "/v1/images is not one of"),
        ({"metadata": {"team": "nobody"}}, "there is no team nobody: default or search or ads"),
        ({"metadata": {"priority": "urgent"}}, "urgent is not one of high, normal, low"),
        *(
            ({"metadata": {"deadline": n}}, f"{n} is not a positive number of seconds")
            for n in ("soon", "nan", "-60", "0")
        ),
        ({"metadata": {"deadline": "inf"}}, "inf seconds are more than 365 days, after which nothing of a job is kept"),
        ({"metadata": {"bad_rows": "drop"}}, "drop is neither skip nor refuse"),
        ({"completion_window": "0h"}, "0h is not a number of minutes"),
        ({"completion_window": "366d"}, "366d is more than 365 days, after which nothing of a job is kept"),
        ({"completion_window": "a day"}, "a day is not a number of minutes, hours or days, such as 24h"),
        ({"input_file_id": ""}, "it is missing: the id of an uploaded file"),
        ({"extra_body": {"input_uri": "s3://bucket"}}, "s3://bucket is not s3://BUCKET/KEY"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(client: openai.OpenAI, options: Any, message: str) -> None:
    file = client.files.create(file=("rows.jsonl", CONTENT), purpose="batch")
    arguments = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h", **options}
    with pytest.raises(openai.BadRequestError, match=message):
        client.batches.create(**arguments)


def test_an_empty_file_is_refused(client: openai.OpenAI) -> None:
    file = client.files.create(file=("rows.jsonl", b""), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="is empty"):
        client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")


def test_what_is_not_there_is_not_found(client: openai.OpenAI) -> None:
    for ask in (
        lambda: client.batches.retrieve("batch_0"),
        lambda: client.batches.cancel("batch_../../x"),
        lambda: client.files.retrieve("file-0"),
        lambda: client.files.content(f"file-{'0' * 24}-output"),
        lambda: client.batches.create(input_file_id="file-0", endpoint=ENDPOINT, completion_window="24h"),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()


def test_failed_rows_run_again_and_no_other_row_does(url: str, client: openai.OpenAI) -> None:
    rows = {"good": "answer 1", "bad": "refuse 2", "worse": "refuse 3"}
    doubled = batch_kills.format_rows({"good": "answer 4"})  # its id has an answer: neither row runs again
    content = gzip.compress(batch_kills.format_rows(rows) + b"\n" + doubled + b"\n{broken")
    file = client.files.create(file=("mixed.jsonl", content), purpose="batch")
    options: Any = {"endpoint": ENDPOINT, "completion_window": "24h", "metadata": {"team": "ads"}}
    ended = wait_for_end(client, client.batches.create(input_file_id=file.id, **options).id)
    assert ended.request_counts.model_dump() == {"total": 5, "completed": 1, "failed": 4}
    kinds = {"request_refused": 2, "duplicate_custom_id": 1, "invalid_json_line": 1}
    assert BatchClient(url).read(ended.id)["failures"] == kinds
    retry = BatchClient(url).retry(ended.id)
    assert (retry["team"], retry["metadata"]) == ("ads", {"team": "ads"})
    input_rows = client.files.content(retry["input_file_id"]).text.splitlines()
    assert [json.loads(row)["custom_id"] for row in input_rows] == ["bad", "worse"]
    assert wait_for_end(client, retry["id"]).request_counts.failed == 2
    assert BatchClient(url).retry(ended.id)["id"] == retry["id"]
    again = BatchClient(url).retry(ended.id, "once more")
    assert again["id"] != retry["id"]
    wait_for_end(client, again["id"])
    client.files.delete(again["input_file_id"])
    with pytest.raises(InputError, match="id: the input, or another object of the job, was deleted"):
        BatchClient(url).retry(again["id"])


def test_only_an_ended_batch_with_failed_rows_is_retried(run: BatchRun, url: str, client: openai.OpenAI) -> None:
    file = client.files.create(file=("fine.jsonl", batch_kills.format_rows(ROWS)), purpose="batch")
    with run.limit_slots(0):
        batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        with pytest.raises(InputError, match=f"id: {batch.id} has not ended: it is "):
            BatchClient(url).retry(batch.id)
    wait_for_end(client, batch.id)
    with pytest.raises(InputError, match=f"id: no row of {batch.id} failed that can run again"):
        BatchClient(url).retry(batch.id)


def test_what_each_team_took_is_told_and_nothing_is_priced_without_a_price(url: str, client: openai.OpenAI) -> None:
    before = {team["team"]: team for team in BatchClient(url).list_teams()}
    rows = batch_kills.format_rows(build_texts(60, "took " + "word " * 9))
    file = client.files.create(file=("took.jsonl", rows), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h",
                                  metadata={"team": "search"})  # fmt: skip
    ended = wait_for_end(client, batch.id).model_dump()
    assert ended["endpoint_s"] > 0
    assert ended["cost_usd"] is None
    after = {team["team"]: team for team in BatchClient(url).list_teams()}
    assert after["search"]["rows"] - before["search"]["rows"] == 60
    assert after["search"]["endpoint_s"] - before["search"]["endpoint_s"] == pytest.approx(
        ended["endpoint_s"], abs=0.01
    )
    assert after["default"]["rows"] == before["default"]["rows"]


def test_rows_are_counted_before_they_are_submitted(url: str, client: openai.OpenAI) -> None:
    file = client.files.create(file=("rows.jsonl", CONTENT), purpose="batch")
    counted = BatchClient(url).count(file_id=file.id)
    assert (counted["rows"]["value"], counted["bad_rows"]["value"]) == (21, 1)
    assert counted["input_tokens"] is None  # the mock endpoint counts none
    with pytest.raises(InputError, match="No such file"):
        BatchClient(url).count(file_id="file-0")
    with pytest.raises(InputError, match=f"there is no s3://{BUCKET}/missing.jsonl"):
        BatchClient(url).count(uri=f"s3://{BUCKET}/missing.jsonl")


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\nbroken"),
    ],
)
def test_an_upload_of_another_form_is_refused(url: str, content_type: str, content: bytes) -> None:
    request = urllib.request.Request(f"{url}/v1/files", content, {"Content-Type": content_type})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    error = json.load(refused.value)["error"]
    assert (refused.value.code, error["param"]) == (400, "file")
    assert "multipart/form-data" in error["message"]


def test_files_are_listed_by_purpose_and_in_both_orders(client: openai.OpenAI) -> None:
    client.files.create(file=("one.jsonl", b"one"), purpose="batch")
    newest_first = [entry.created_at for entry in client.files.list(purpose="batch")]
    assert newest_first == sorted(newest_first, reverse=True) != []
    assert [entry.created_at for entry in client.files.list(order="asc")] == sorted(newest_first)
    assert list(client.files.list(purpose="fine-tune")) == []


def test_a_file_is_listed_and_deleted(client: openai.OpenAI) -> None:
    file = client.files.create(file=("gone.jsonl", b"gone"), purpose="batch")
    assert file.id in [entry.id for entry in client.files.list()]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def build_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"sku": ["inbox-1", "inbox-2"], "text": ["answer 1", "answer 2"]}), sink)
    return sink.getvalue()


def test_a_file_in_an_inbox_becomes_a_job_of_the_team(run: BatchRun, url: str, client: openai.OpenAI) -> None:
    inbox = "batch/mine/inbox/ads"
    body = {"model": "m", "messages": [{"role": "user", "content": "{text}"}]}
    template = {"custom_id": "{sku}", "method": "POST", "url": ENDPOINT, "body": body}
    run.s3.put_object(Bucket=BUCKET, Key=f"{inbox}/template.json", Body=json.dumps(template).encode())
    run.s3.put_object(Bucket=BUCKET, Key=f"{inbox}/to day.parquet", Body=build_parquet())
    assert BatchClient(url).count(uri=f"s3://{BUCKET}/{inbox}/to day.parquet")["rows"]["value"] == 2

    def find() -> list[Any]:
        return [batch for batch in client.batches.list() if inbox in batch.input_file_id]

    processes.wait_until(lambda: bool(find()), "the job of the inbox", LIMIT_S, 0.3)
    ended = wait_for_end(client, find()[0].id)
    assert [batch.input_file_id.rpartition("/")[2] for batch in find()] == ["to day.parquet"]  # no job of the template
    assert (ended.status, ended.model_dump()["team"]) == ("completed", "ads")
    assert ended.request_counts.completed == 2


def test_a_parquet_file_beside_a_damaged_template_is_a_job_that_fails_with_the_reason(
    run: BatchRun, client: openai.OpenAI
) -> None:
    inbox = "batch/mine/inbox/search"
    run.s3.put_object(Bucket=BUCKET, Key=f"{inbox}/template.json", Body=b"{broken")
    run.s3.put_object(Bucket=BUCKET, Key=f"{inbox}/rows.parquet", Body=build_parquet())

    def find() -> list[Any]:
        return [batch for batch in client.batches.list() if inbox in batch.input_file_id]

    processes.wait_until(lambda: bool(find()), "the job of the inbox", LIMIT_S, 0.3)
    ended = wait_for_end(client, find()[0].id)
    assert (ended.status, ended.errors.data[0].code) == ("failed", "bad_template")


def test_a_failed_batch_is_resumed_and_no_other(url: str, client: openai.OpenAI) -> None:
    file = client.files.create(file=("refused.jsonl", CONTENT), purpose="batch")
    metadata = {"bad_rows": "refuse"}
    options: Any = {"endpoint": ENDPOINT, "completion_window": "24h", "metadata": metadata}
    batch = client.batches.create(input_file_id=file.id, **options)
    assert wait_for_end(client, batch.id).status == "failed"
    resumed = BatchClient(url).resume(batch.id)
    assert (resumed["status"], resumed["failed_at"]) == ("validating", None)
    again = wait_for_end(client, batch.id)  # its cause is still there
    assert (again.status, again.errors.data[0].code) == ("failed", "bad_rows")
    with pytest.raises(InputError, match="No such batch: batch_0"):
        BatchClient(url).resume("batch_0")


def test_events_of_s3_and_eventbridge_name_the_same_object() -> None:
    notification = {"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "a+b%2Fc"}}}]}
    event = {"detail": {"bucket": {"name": "b"}, "object": {"key": "a b/c"}}}
    assert parse_event(json.dumps(notification)) == parse_event(json.dumps(event)) == [("b", "a b/c")]
    assert parse_event("{}") == parse_event("no JSON") == []


def test_a_schedules_message_makes_one_job_of_its_file_at_each_time(run: BatchRun, client: openai.OpenAI) -> None:
    """EventBridge Scheduler does not fire in the embedded AWS: the message is the one that the stack has it send."""
    from llm_serving.rehearsal import emulator

    key = "batch/mine/scheduled/nightly.jsonl"
    run.s3.put_object(Bucket=BUCKET, Key=key, Body=batch_kills.format_rows(ROWS))
    sqs = emulator.create_client("sqs", run.aws, batch_kills.REGION)
    queue = sqs.get_queue_url(QueueName="mine-inbox")["QueueUrl"]
    for moment in ("2026-11-23T02:00:00Z", "2026-11-23T02:00:00Z", "2026-11-24T02:00:00Z"):
        schedule = {"name": "nightly", "file": "nightly.jsonl", "team": "search", "priority": "low", "time": moment}
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps({"schedule": schedule}))

    def list_scheduled() -> list[Any]:
        return [
            batch for batch in client.batches.list(limit=100) if (batch.metadata or {}).get("schedule") == "nightly"
        ]

    def is_taken() -> bool:
        attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return attributes["ApproximateNumberOfMessages"] == attributes["ApproximateNumberOfMessagesNotVisible"] == "0"

    processes.wait_until(is_taken, "an empty queue", LIMIT_S)
    ended = [wait_for_end(client, batch.id) for batch in list_scheduled()]
    assert [batch.request_counts.completed for batch in ended] == [len(ROWS)] * 2


def test_the_command_lines_client_uploads_and_downloads_in_blocks(url: str, tmp_path: Any) -> None:
    client, seen = BatchClient(url), []
    file = tmp_path / "rows.jsonl"
    file.write_bytes(CONTENT)
    file_id = client.upload(file, lambda done, size: seen.append((done, size)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    client.download(file_id, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == CONTENT
    with pytest.raises(InputError, match="there is no team nobody"):
        client.create(file_id=file_id, metadata={"team": "nobody"})
    with pytest.raises(InputError, match="no such file or directory"):
        client.upload(tmp_path / "missing.jsonl")
    (tmp_path / ".full.jsonl.part").symlink_to("/dev/full")  # every write: no space left
    with pytest.raises(InputError, match=r"full.jsonl: no space left on device. Fix: set --to to a folder with room"):
        client.download(file_id, tmp_path / "full.jsonl")
    assert not list(tmp_path.glob("*full*")) and not list(tmp_path.glob(".*"))


def ask_api(
    settings: Any, use: Callable[[TestClient[Any, Any]], Awaitable[None]], *, is_local: bool = False, **parts: Any
) -> None:
    """Serve an API whose parts are as the test says, and use it."""
    jobs = SimpleNamespace(reconcile=list, **parts.pop("jobs", {}))
    inbox = SimpleNamespace(take=parts.pop("take", list))
    store = SimpleNamespace(**parts)
    api = BatchApi(settings, ApiKey(settings), store, jobs, inbox, None)  # type: ignore[arg-type]

    async def run() -> None:
        async with TestClient(TestServer(api.build_app(is_local=is_local))) as client:
            await use(client)

    asyncio.run(run())


def test_each_page_of_a_long_list_reads_its_own_jobs_alone(
    store: Any, jobs: Any, batch_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of 9,000 jobs in 90 pages would be 810,000 reads."""
    keys = layout.Layout(batch_settings.prefix)
    source = {"bucket": store.bucket, "key": "rows.jsonl", "bytes": 1, "etag": ""}
    for number in range(30):
        job_id = f"batch_{number:024d}"
        team = "ads" if number % 2 else "search"
        submission = layout.Submission("rows.jsonl", team=team, priority="normal", deadline_s=60.0)
        job = layout.build_job(job_id, submission, name="mine", source=source, now=float(number))
        state = layout.COMPLETED if number < 29 else layout.IN_PROGRESS
        store.write_json(keys.build(layout.JOB, job_id), {**job, "state": state})
    store.write_json(keys.build(layout.HEAD, job_id, 0), {"parts": [{"completed": 7, "failed": 0}]})
    known = set(jobs.list_ids())
    own = [job_id for job_id in jobs.list_ids("ads") if job_id < "batch_0000000000000000000001"]
    assert own == [f"batch_{number:024d}" for number in range(29, 0, -2)], "the newest first"
    assert set(own) < known
    reads: list[str] = []
    read = jobs.read

    def note(job_id: str) -> Any:
        reads.append(job_id)
        return read(job_id)

    monkeypatch.setattr(jobs, "read", note)
    pages: list[Any] = []

    async def list_pages(client: TestClient[Any, Any]) -> None:
        after = ""
        while not pages or pages[-1]["has_more"]:
            async with client.get(f"/v1/batches?limit=7&after={after}") as response:
                pages.append(await response.json())
            after = pages[-1]["last_id"]

    parts = {"list_ids": jobs.list_ids, "read_all": jobs.read_all, "count_all": jobs.count_all}
    ask_api(batch_settings, list_pages, jobs=parts)
    listed = [entry["id"] for page in pages for entry in page["data"]]
    assert len(listed) == len(set(listed)) == len(known)
    assert sorted(reads) == sorted(listed)
    newest = next(entry for page in pages for entry in page["data"] if entry["id"] == job_id)
    assert newest["request_counts"]["completed"] == 7, "a list has the rows so far, as a batch by itself"
    reads.clear()
    jobs.list_teams()
    assert [read for read in reads if read < "batch_0000000000000000000001"] == [job_id], "the others have ended"


def test_a_list_of_files_reads_what_is_new_alone(
    store: Any, batch_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, reads = Files(store, layout.Layout(f"{batch_settings.prefix}-files")), list[str]()
    read = store.read_json
    monkeypatch.setattr(store, "read_json", lambda key: reads.append(key) or read(key))

    def upload(content: bytes, now: float) -> str:
        new = files.start_upload()
        new.write(content)
        return str(new.finish("rows.jsonl", now)["id"])

    first, second = upload(b"1", 1.0), upload(b"2", 2.0)
    for expected, new in (([second, first], 2), ([second, first], 0)):
        reads.clear()
        assert ([entry["id"] for entry in files.list_files()], len(reads)) == (expected, new)
    upload(b"1", 3.0)  # again: its time is another
    files.delete(second)
    reads.clear()
    assert ([entry["created_at"] for entry in files.list_files()], len(reads)) == ([3], 1)


def test_a_download_that_s3_breaks_off_ends_too_early(batch_settings: Any) -> None:
    """Not with an error's text in the client's file."""
    digest = "0" * 24

    def read_range(*_: Any) -> Iterator[bytes]:
        yield b"x" * 900
        raise ReadTimeoutError(endpoint_url="s3")

    async def download(client: TestClient[Any, Any]) -> None:
        async with client.get(f"/v1/files/file-{digest}/content") as response:
            received = b""
            with pytest.raises(aiohttp.ClientError):
                async for block in response.content.iter_any():
                    received += block
        assert received in (b"", b"x" * 900)

    described = Stored({"bytes": 1000, "purpose": "batch"}, "etag")
    ask_api(batch_settings, download, read_json=lambda _: described, read_range=read_range)


def test_an_error_that_no_code_expects_has_openais_form(batch_settings: Any) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("never seen before")

    async def read(client: TestClient[Any, Any]) -> None:
        async with client.get("/v1/batches/batch_0") as response:
            assert (response.status, (await response.json())["error"]["type"]) == (500, "server_error")

    ask_api(batch_settings, read, jobs={"read": fail})


def test_an_inbox_is_read_on_after_any_error(batch_settings: Any) -> None:
    taken: list[int] = []

    def take() -> list[str]:
        taken.append(len(taken))
        raise TypeError("an event of another form")

    async def wait(_: TestClient[Any, Any]) -> None:
        end = time.monotonic() + 60
        while len(taken) < 2 and time.monotonic() < end:
            await asyncio.sleep(0.05)

    ask_api(batch_settings, wait, take=take)
    assert len(taken) >= 2
