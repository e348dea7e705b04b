"""What a request to the Batch API may take: bytes, depth, entries; and who may send it from this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient
from batch import api, count
from batch.jobs import MAX_TEMPLATE_BYTES
from batch.layout import Submission
from batch.parquet import Template
from batch.reader import BadTemplate
from batch.store import Store

from tests.images.batch_worker.conftest import BUCKET
from tests.images.batch_worker.test_api import ask_api

JSON = {"Content-Type": "application/json"}
HALF = '{"metadata": {"again": "\\ud83d"}, "input_file_id": "file-0"}'
"""With half of a surrogate pair, as where a client cuts a text."""


class FakeUpload:
    """An upload that keeps nothing; notes what became of it."""

    def __init__(self) -> None:
        self.bytes, self.is_aborted = 0, False

    def open_writer(self, _: str) -> FakeUpload:
        return self

    def write(self, block: bytes) -> None:
        self.bytes += len(block)

    def abort(self) -> None:
        self.is_aborted = True


def ask(settings: Any, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """Send one request to an API; returns status and answer."""
    seen: list[tuple[int, Any]] = []
    parts = {name: options.pop(name) for name in ("is_local", "open_writer") if name in options}

    async def use(client: TestClient[Any, Any]) -> None:
        async with client.request(method, path, **options) as response:
            seen.append((response.status, json.loads(await response.text() or "null")))

    parts |= {"list_objects": lambda _: (), "read_changed": lambda *_: {}}
    ask_api(settings, use, jobs={"list_ids": lambda _: [], "read_all": list, "count_all": list}, **parts)
    return seen[0]


def refuse(settings: Any, body: Mapping[str, Any], path: str = "/v1/batches") -> tuple[int, str, str]:
    status, answer = ask(settings, "POST", path, json=body)
    return status, answer["error"]["param"], answer["error"]["message"]


def test_a_body_that_is_no_file_has_a_mebibyte_at_most(batch_settings: Any) -> None:
    status, answer = ask(batch_settings, "POST", "/v1/batches", json={"metadata": {"x": "y" * 2**20}})
    assert (status, answer["error"]["message"]) == (413, "a body that is not a file has at most 1048576 bytes")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "[1]", "", "\xff", HALF])
def test_a_body_that_is_no_object_of_json_is_refused(batch_settings: Any, text: str) -> None:
    status, answer = ask(batch_settings, "POST", "/v1/batches", data=text.encode("latin-1"), headers=JSON)
    assert (status, answer["error"]["message"]) == (400, "the request is not a JSON object in UTF-8")


def test_calls_that_take_long_hold_no_other_up(batch_settings: Any) -> None:
    """A retry of a large job reads all of it, and a container has one or two cores."""
    meeting = threading.Barrier(24)

    def list_workers() -> list[Any]:
        meeting.wait(60)  # until all are under way
        return []

    async def use(client: TestClient[Any, Any]) -> None:
        answers = await asyncio.gather(*(client.get("/workers") for _ in range(meeting.parties)))
        assert {answer.status for answer in answers} == {200}

    ask_api(batch_settings, use, jobs={"list_workers": list_workers})


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/batches/count"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_json_is_taken_as_json_alone(batch_settings: Any, path: str, content_type: str) -> None:
    """Which a page of another site cannot send without asking first."""
    status, answer = ask(batch_settings, "POST", path, data=b"{}", headers={"Content-Type": content_type})
    message = f"{content_type} is not application/json, as requests are sent"
    assert (status, answer["error"]["message"]) == (415, message)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"metadata": {f"name-{n}": "" for n in range(17)}}, "metadata", "17 entries, and 16 is the maximum"),
        ({"metadata": {"n" * 65: ""}}, "metadata", f"the name {'n' * 64}... has more than 64 characters"),
        ({"metadata": {"again": "x" * 513}}, "metadata.again", "it has more than 512 characters"),
        ({"metadata": {"note": {"deep": 1}}}, "metadata", "texts by name"),
        ({"template": "x" * (MAX_TEMPLATE_BYTES + 1)}, "template", "it has more than 65536 characters"),
    ],
)
def test_what_a_job_keeps_has_openais_limits(batch_settings: Any, body: Any, field: str, message: str) -> None:
    assert refuse(batch_settings, body) == (400, field, message)


def test_what_is_at_the_limits_is_taken(batch_settings: Any) -> None:
    metadata = {f"{n:064}": "x" * 512 for n in range(16)}
    body = {"metadata": metadata, "template": "x" * MAX_TEMPLATE_BYTES}
    assert refuse(batch_settings, body) == (400, "input_file_id", "it is missing: the id of an uploaded file")


def test_a_template_may_be_the_object_itself() -> None:
    row = {"custom_id": "{sku}", "body": {"prompt": "{title}"}}
    assert Template(api._read_text({"template": row}, "template", 99)).columns == ["sku", "title"]


@pytest.mark.parametrize("limit", ["²", "0", "-1", "ten", "1e3", "9999999999"])
@pytest.mark.parametrize("path", ["/v1/batches", "/v1/files"])
def test_a_limit_that_is_no_number_is_refused(batch_settings: Any, path: str, limit: str) -> None:
    status, answer = ask(batch_settings, "GET", path, params={"limit": limit})
    assert (status, answer["error"]["message"]) == (400, f"{limit} is not a number from 1 to 100")
    assert ask(batch_settings, "GET", path, params={"limit": "7"})[0] == 200


def build_form(*parts: tuple[str, bytes]) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, content in parts:
        form.add_field(name, content, filename=f"{name}.txt", content_type="text/plain")
    return form


@pytest.mark.parametrize(
    ("parts", "field", "message"),
    [
        ([("purpose", b"p" * 300_000), ("file", b"x")], "purpose", f"{'p' * 64} is not `batch`"),
        ([("file", b"x" * 3_000_000), ("purpose", b"other")], "purpose", "other is not `batch`"),
        ([("file", b"x"), ("file", b"y"), ("purpose", b"batch")], "file", "the request has more than one"),
        ([("purpose", b"batch")], "file", "the request has no part `file`"),
        (
            [("purpose", b"batch"), ("file", b"x" * 5_000_000)],
            "file",
            "it has more than 4000000 bytes: put it into S3, for `input_uri`",
        ),
    ],
)
def test_an_upload_that_is_refused_leaves_nothing(
    batch_settings: Any, monkeypatch: pytest.MonkeyPatch, parts: Any, field: str, message: str
) -> None:
    monkeypatch.setattr(api, "MAX_FILE_BYTES", 4_000_000)
    upload = FakeUpload()
    status, answer = ask(batch_settings, "POST", "/v1/files", data=build_form(*parts), open_writer=upload.open_writer)
    assert (status, answer["error"]["param"], answer["error"]["message"]) == (400, field, message)
    assert upload.is_aborted


def test_few_inputs_are_counted_at_a_time(batch_settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, most_counting = [0], [0]

    async def estimate(*_: Any) -> dict[str, Any]:
        counting[0] += 1
        most_counting[0] = max(most_counting[0], counting[0])
        while most_counting[0] < api.MAX_COUNTS:  # however far apart a busy machine lets the requests come
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        counting[0] -= 1
        return {}

    monkeypatch.setattr(count, "read_sample", lambda *_: None)
    monkeypatch.setattr(count, "estimate", estimate)

    async def use(client: TestClient[Any, Any]) -> None:
        async def ask_once() -> int:
            async with client.post("/v1/batches/count", json={"input_uri": "s3://bucket/key"}) as response:
                return response.status

        assert await asyncio.gather(*(ask_once() for _ in range(10))) == [200] * 10

    ask_api(batch_settings, use, jobs={"read_input": lambda *_: ({"bytes": 0}, "")}, client=None)
    assert most_counting == [api.MAX_COUNTS]


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.localhost:8080"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/batches/batch_0/cancel"),
        ("DELETE", "/v1/files/file-0"),
    ],
)
def test_on_this_machine_no_web_page_is_answered(
    batch_settings: Any, method: str, path: str, headers: dict[str, str]
) -> None:
    status, answer = ask(batch_settings, method, path, headers=headers, is_local=True)
    message = "the Batch API answers programs of this machine only, by a name of it and without another Origin"
    assert (status, answer["error"]["message"]) == (403, message)


@pytest.mark.parametrize("headers", [{}, {"Host": "localhost:1"}, {"Host": "[::1]"}, {"Sec-Fetch-Site": "none"}])
def test_on_this_machine_programs_are_answered(batch_settings: Any, headers: dict[str, str]) -> None:
    assert ask(batch_settings, "GET", "/v1/batches", headers=headers, is_local=True)[0] == 200


def test_behind_the_names_of_a_network_each_host_is_answered(batch_settings: Any) -> None:
    assert ask(batch_settings, "GET", "/v1/batches", headers={"Host": "mine-batch-api.demo.internal:8080"})[0] == 200


def test_a_template_beside_a_file_that_is_too_large_is_refused(store: Store, jobs: Any) -> None:
    store.write("large/rows.parquet", b"x")
    store.write("large/template.json", b" " * (MAX_TEMPLATE_BYTES + 1))
    message = f"s3://{BUCKET}/large/template.json has 65537 bytes, and 65536 is the maximum"
    with pytest.raises(api.BadSubmission, match=message):
        jobs.submit(Submission("large/rows.parquet", team="default"))


@pytest.mark.parametrize("text", ["[" * 60_000, '{"body":' * 8_000])
def test_a_deep_template_beside_a_file_is_a_job_once_and_its_plan_says_why(store: Store, jobs: Any, text: str) -> None:
    key = f"deep/{len(text)}/rows.parquet"
    store.write(key, b"x")
    store.write(key.replace("rows.parquet", "template.json"), text.encode())
    job = jobs.submit(Submission(key, team="default"))
    assert jobs.submit(Submission(key, team="default"))["id"] == job["id"]
    with pytest.raises(BadTemplate, match="the template is not JSON"):
        Template(job["template"])


def test_a_template_has_64_levels_at_most() -> None:
    def nest(levels: int) -> str:
        return json.dumps({"body": "{title}"}) if levels == 1 else f'{{"body": {nest(levels - 1)}}}'

    assert Template(nest(62)).columns == ["title"]
    with pytest.raises(BadTemplate, match="the template is nested more than 64 levels deep"):
        Template(nest(65))
