"""The Batch API: OpenAI's `/v1/files` and `/v1/batches` over the jobs of a deployment, and the executions they need.

Clients of OpenAI work unchanged (https://platform.openai.com/docs/api-reference/batch, read 2026-11). What OpenAI has
no field for is in `metadata`: `team`, `priority` and `deadline` (seconds) of a batch, and in calls of our own:
`GET /workers` (latest reports of the workers), `GET /teams` (usage of each team), `POST /v1/batches/count`,
`POST /v1/batches/ID/retry` and `POST /v1/batches/ID/resume`.

With team keys each call needs one, as OpenAI's bearer token; what belongs to another team is then as if it were not
there. Without them each client is an operator, who sees all teams.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage
from botocore.exceptions import BotoCoreError, ClientError

from batch import count, layout, program, reader, team_keys
from batch.endpoint import Endpoint
from batch.files import PURPOSE, Files, Upload
from batch.inbox import Inbox
from batch.jobs import MAX_TEMPLATE_BYTES, BadSubmission, Jobs
from batch.layout import Job, Layout, Submission
from batch.repeat import repeat
from batch.resources import find_queues
from batch.secrets import ApiKey, Secret
from batch.settings import Settings
from batch.store import MAX_CONNECTIONS, Store, create_client
from batch.team_keys import EVERY_TEAM, TeamKeys

log = logging.getLogger("batch-api")

RECONCILE_INTERVAL_S, INBOX_INTERVAL_S = 5.0, 0.5
"""Seconds between checks for lost executions, which are started again, and of the inboxes."""

MAX_FILE_BYTES = 50 * 2**30
"""Largest upload; larger files go to S3 themselves, and are submitted by their URI."""

MAX_BODY_BYTES = 2**20
"""Largest body that is no file."""

MAX_METADATA, MAX_NAME, MAX_TEXT = 16, 64, 512
"""Entries of `metadata`, characters of a name and of a text. Source: OpenAI API reference, Batch, metadata, 2026-11."""

_MAX_PURPOSE_BYTES = 64
_MAX_FILE_NAME = 255

MAX_COUNTS = 2
"""Inputs counted at a time: each takes some ten megabytes of memory."""

_COUNT_TIMEOUT_S = 30.0

THREADS = MAX_CONNECTIONS
"""Calls that block at a time: Python's own number is some more than there are cores, and one retry takes minutes."""

PAGE = 100
"""Maximum number of entries of a list."""

_BLOCK_BYTES = 2**20
_S3_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(.+)")
_BEARER = "Bearer "
_FILE_ID = re.compile(r"file-[0-9a-f]{24}(?:-(?:output|errors))?")

_FOREIGN_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site with which browsers mark what another page asked for."""

HEALTH = "/health"
TEAM = web.RequestKey("team", str)
"""Key of a request for the team of the client, EVERY_TEAM for an operator."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BatchApi:
    """Handlers of the Batch API's routes."""

    def __init__(
        self, settings: Settings, api_key: ApiKey, store: Store, jobs: Jobs, inbox: Inbox, keys: TeamKeys | None
    ) -> None:
        self._settings, self._store, self._jobs, self._inbox = settings, store, jobs, inbox
        self._api_key, self._keys = api_key, keys
        self._layout = Layout(settings.prefix)
        self._files = Files(store, self._layout)
        self._counting = asyncio.Semaphore(MAX_COUNTS)

    def build_app(self, *, is_local: bool = False) -> web.Application:
        """Build the server.

        Args:
            is_local: whether it listens on this machine only, where it answers no web page.
        """
        guards = [_refuse_pages] if is_local else []
        app = web.Application(middlewares=[_report_errors, *guards, self._find_team], client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get(HEALTH, self.show_health),
                web.get("/workers", _block(self.list_workers)),
                web.get("/teams", _block(self.list_teams)),
                web.post("/v1/files", self.upload_file),
                web.get("/v1/files", _block(self.list_files)),
                web.get("/v1/files/{id}", _block(self.show_file)),
                web.get("/v1/files/{id}/content", self.download_file),
                web.delete("/v1/files/{id}", _block(self.delete_file)),
                web.post("/v1/batches", self.create_batch),
                web.get("/v1/batches", _block(self.list_batches)),
                web.post("/v1/batches/count", self.count_input),
                web.get("/v1/batches/{id}", _block(self.show_batch)),
                web.post("/v1/batches/{id}/cancel", _block(self.cancel_batch)),
                web.post("/v1/batches/{id}/retry", self.retry_batch),
                web.post("/v1/batches/{id}/resume", _block(self.resume_batch)),
            ]
        )
        app.cleanup_ctx.append(self._run_background)
        return app

    @web.middleware
    async def _find_team(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Find the team of the request's key; health checks need none."""
        team = EVERY_TEAM
        if self._keys and request.path != HEALTH:
            header = request.headers.get("Authorization", "")
            key = header.removeprefix(_BEARER) if header.startswith(_BEARER) else ""
            owner = await asyncio.to_thread(self._keys.find_team, key) if key else None
            if owner is None or owner not in (EVERY_TEAM, *self._settings.teams):
                text = "the API key belongs to no team of this batch: it is wrong, or was removed"
                missing = "there is no API key: send it as Authorization: Bearer KEY"
                raise web.HTTPUnauthorized(text=text if key else missing)
            team = owner
        request[TEAM] = team
        return await handler(request)

    async def show_health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    def list_workers(self, _: web.Request) -> web.Response:
        return web.json_response({"data": list(self._jobs.list_workers())})

    def list_teams(self, request: web.Request) -> web.Response:
        teams = [self._price(team) for team in self._jobs.list_teams() if _owns(request, team["team"])]
        return web.json_response({"data": teams})

    # Files

    async def upload_file(self, request: web.Request) -> web.Response:
        """Store an uploaded file block by block; the same content is the same file."""
        if request.content_type != "multipart/form-data":
            raise BadSubmission("file", f"{request.content_type} is not multipart/form-data, as files are sent")
        upload = self._files.start_upload()
        try:
            name, purpose = await _read_form(request, upload)
            if purpose != PURPOSE:
                raise BadSubmission("purpose", f"{purpose or 'nothing'} is not `{PURPOSE}`")
        except BaseException as error:  # the client went away, or S3 did
            await asyncio.to_thread(upload.abort)
            if isinstance(error, (BadHttpMessage, ValueError)):
                raise BadSubmission("file", f"the request is not multipart/form-data: {error}") from None
            raise
        team = "" if request[TEAM] == EVERY_TEAM else request[TEAM]
        entry = await asyncio.to_thread(upload.finish, name, self._jobs.now(), team)
        return web.json_response(_format_file(entry))

    def list_files(self, request: web.Request) -> web.Response:
        """List uploaded files, the newest first; with `order=asc` the oldest, with `purpose` only those."""
        purpose, entries = request.query.get("purpose") or PURPOSE, self._files.list_files()
        entries = [entry for entry in entries if entry["purpose"] == purpose and _owns(request, entry.get("team"))]
        if request.query.get("order") == "asc":
            entries.reverse()
        page, has_more = _choose_page([entry["id"] for entry in entries], request)
        return _format_page([_format_file(entry) for entry in entries if entry["id"] in page], has_more)

    def show_file(self, request: web.Request) -> web.Response:
        return web.json_response(_format_file(self._find_file(request, request.match_info["id"])))

    async def download_file(self, request: web.Request) -> web.StreamResponse:
        """Send the content of a file, block by block."""
        entry = await asyncio.to_thread(self._find_file, request, request.match_info["id"])
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = entry["bytes"]
        await response.prepare(request)
        blocks = self._store.read_range(entry["key"], 0, entry["bytes"])
        try:
            while block := await asyncio.to_thread(next, blocks, b""):
                await response.write(block)
        except (BotoCoreError, ClientError) as error:
            # A second answer would end up in the client's file: it must see that the first one ends too early.
            log.warning("%s: %s", request.path, error)
            if request.transport:
                request.transport.abort()
            raise ConnectionResetError(request.path) from None
        await response.write_eof()
        return response

    def delete_file(self, request: web.Request) -> web.Response:
        """Delete an uploaded file, unless a batch reads it; results belong to their batch."""
        file_id = request.match_info["id"]
        if self._find_file(request, file_id)["purpose"] != PURPOSE:
            raise BadSubmission("id", "the results of a batch are not deleted by themselves")
        if reader_id := self._jobs.find_reader(file_id):
            raise BadSubmission("id", f"{reader_id} reads {file_id}, and has not ended")
        self._files.delete(file_id)
        return web.json_response({"id": file_id, "object": "file", "deleted": True})

    def _find_file(self, request: web.Request, file_id: str) -> dict[str, Any]:
        if not _FILE_ID.fullmatch(file_id):
            raise _build_not_found("file", file_id)
        job_digest, _, kind = file_id.removeprefix("file-").partition("-")
        if kind:
            job = self._jobs.read(f"batch_{job_digest}")
            key = (job["output_key"] if kind == "output" else job["error_key"]) if job else ""
            head = self._store.read_head(key) if key else None
            if job is None or head is None or not _owns(request, job["team"]):
                raise _build_not_found("file", file_id)
            name = f"{job['id']}_{kind}.jsonl"
            created = int(job.get("completed_at") or job["created_at"])
            return {
                "id": file_id, "key": key, "filename": name, "bytes": head["bytes"], "created_at": created,
                "purpose": "batch_output",
            }  # fmt: skip
        entry = self._files.find(file_id)
        if entry is None or not _owns(request, entry.get("team")):
            raise _build_not_found("file", file_id)
        return entry

    # Batches

    async def create_batch(self, request: web.Request) -> web.Response:
        """Create a batch from a file, or from `input_uri`, an object in S3."""
        return await asyncio.to_thread(self._create, request, await _read_json(request))

    def _create(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        metadata, window = _read_metadata(body), body.get("completion_window")
        submission = Submission(
            team=self._choose_team(request, metadata.get("team", "")),
            priority=metadata.get("priority", ""),
            deadline_s=_parse_seconds(metadata.get("deadline"), window, self._settings.max_deadline_s),
            endpoint=str(body.get("endpoint") or ""),
            model=metadata.get("model", ""),
            bad_rows=metadata.get("bad_rows", ""),
            again=metadata.get("again", ""),
            template=_read_text(body, "template", MAX_TEMPLATE_BYTES),
            metadata=metadata,
            **self._find_input(request, body),
        )
        return self._show(self._jobs.submit(submission))

    def _choose_team(self, request: web.Request, team: str) -> str:
        """Return the team of a batch: that of the key; an operator names one."""
        if request[TEAM] == EVERY_TEAM:
            return team or next(iter(self._settings.teams))
        if team and team != request[TEAM]:
            raise BadSubmission("metadata.team", f"{team} is not the team of this key, {request[TEAM]}")
        return request[TEAM]

    def _find_input(self, request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
        if uri := body.get("input_uri"):
            location = _S3_URI.fullmatch(str(uri))
            if location is None:
                raise BadSubmission("input_uri", f"{str(uri)[:200]} is not s3://BUCKET/KEY")
            if not self._may_read(request, location[1], location[2]):
                raise BadSubmission("input", f"there is no {uri}")
            return {"bucket": location[1], "key": location[2], "file_id": None}
        file_id = str(body.get("input_file_id") or "")
        if not file_id:
            raise BadSubmission("input_file_id", "it is missing: the id of an uploaded file")
        return {"bucket": self._settings.bucket, "key": self._find_file(request, file_id)["key"], "file_id": file_id}

    def _may_read(self, request: web.Request, bucket: str, key: str) -> bool:
        """Return whether an object may be the client's input: in the deployment's bucket, one of its own inbox."""
        if request[TEAM] == EVERY_TEAM or bucket != self._settings.bucket:
            return True
        inbox = self._layout.build(f"{layout.INBOXES}{request[TEAM]}/")
        # A server that normalizes paths would leave the inbox by `..`.
        return key.startswith(inbox) and not {"", ".", ".."} & set(key.split("/"))

    async def count_input(self, request: web.Request) -> web.Response:
        """Estimate rows and tokens of an input before it is submitted; not part of OpenAI's API."""
        body = await _read_json(request)
        source = await asyncio.to_thread(self._find_input, request, body)
        async with self._counting:
            return web.json_response(await self._count(source, body))

    async def _count(self, source: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        bucket, key, store = source["bucket"], source["key"], Store(source["bucket"], self._store.client)
        head, template = await asyncio.to_thread(
            self._jobs.read_input, bucket, key, _read_text(body, "template", MAX_TEMPLATE_BYTES)
        )
        rows_endpoint = str(body.get("endpoint") or "")
        try:
            sample = await asyncio.to_thread(count.read_sample, store, key, head["bytes"], rows_endpoint, template)
        except (reader.CorruptFile, reader.BadTemplate) as error:
            raise BadSubmission("input", str(error)) from None
        endpoint = Endpoint(self._settings.endpoint, self._api_key, _COUNT_TIMEOUT_S, ())
        try:
            return await count.estimate(sample, endpoint, str(body.get("model") or ""))
        finally:
            await endpoint.close()

    def list_batches(self, request: web.Request) -> web.Response:
        team = "" if request[TEAM] == EVERY_TEAM else request[TEAM]
        page, has_more = _choose_page(self._jobs.list_ids(team), request)
        jobs = self._jobs.count_all(self._jobs.read_all(page))
        return _format_page([self._price(_format_batch(job)) for job in jobs], has_more)

    def show_batch(self, request: web.Request) -> web.Response:
        """Show a batch, with the rows counted so far."""
        return self._show(self._read_job(request))

    def _show(self, job: Job) -> web.Response:
        return web.json_response(self._price(_format_batch(self._jobs.count(job))))

    def cancel_batch(self, request: web.Request) -> web.Response:
        """Cancel a batch; rows in flight finish."""
        return self._show(self._jobs.cancel(self._read_job(request)))

    async def retry_batch(self, request: web.Request) -> web.Response:
        """Create a batch from the failed rows of a batch; not part of OpenAI's API."""
        job = await asyncio.to_thread(self._read_job, request)
        again = _read_text(await _read_json(request), "again", MAX_TEXT)
        retry = await asyncio.to_thread(self._jobs.retry_errors, job, self._files.start_upload(), again)
        return await asyncio.to_thread(self._show, retry)

    def resume_batch(self, request: web.Request) -> web.Response:
        """Continue a batch that failed; not part of OpenAI's API."""
        return self._show(self._jobs.resume(self._read_job(request)))

    def _read_job(self, request: web.Request) -> Job:
        job_id = request.match_info["id"]
        job = self._jobs.read(job_id)
        if job is None or not _owns(request, job["team"]):
            raise _build_not_found("batch", job_id)
        return job

    def _price(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Add the cost of `endpoint_s` to an entry; null if no price is known."""
        usd_h = self._settings.usd_h
        return {**entry, "cost_usd": None if usd_h is None else round(usd_h * entry["endpoint_s"] / 3600, 4)}

    async def _run_background(self, _: web.Application) -> AsyncIterator[None]:
        """Restart lost executions and take files from the inboxes, as long as the server runs."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="aws"))
        tasks = [
            asyncio.create_task(repeat(self._start_lost_executions, RECONCILE_INTERVAL_S)),
            asyncio.create_task(repeat(self._take_files, INBOX_INTERVAL_S)),
        ]
        yield
        for task in tasks:
            task.cancel()

    async def _start_lost_executions(self) -> list[str]:
        return await asyncio.to_thread(self._jobs.reconcile)

    async def _take_files(self) -> list[str]:
        return await asyncio.to_thread(self._inbox.take)


def _block(handle: Callable[[web.Request], web.Response]) -> Handler:
    """Run a handler that blocks in a thread."""

    async def run(request: web.Request) -> web.StreamResponse:
        return await asyncio.to_thread(handle, request)

    return run


@web.middleware
async def _report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in OpenAI's format."""
    try:
        return await handler(request)
    except BadSubmission as error:
        return _build_error(400, error.message, error.field, "invalid_request_error")
    except web.HTTPRequestEntityTooLarge:
        text = f"a body that is not a file has at most {MAX_BODY_BYTES} bytes"
        return _build_error(413, text, None, "invalid_request_error")
    except web.HTTPUnauthorized as error:
        answer = _build_error(401, error.text or "", None, "invalid_request_error", "invalid_api_key")
        answer.headers.extend({"WWW-Authenticate": "Bearer"})
        return answer
    except (web.HTTPForbidden, web.HTTPNotFound, web.HTTPUnsupportedMediaType) as error:
        return _build_error(error.status, error.text or error.reason, None, "invalid_request_error")
    except (BotoCoreError, ClientError) as error:
        log.warning("%s %s: %s", request.method, request.path, error)
        return _build_error(503, f"storage: {error}", None, "server_error")
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        log.exception("%s %s", request.method, request.path)
        return _build_error(500, f"internal error: {type(error).__name__}", None, "server_error")


@web.middleware
async def _refuse_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a web page asks: with its origin, or with a name that resolves to a loopback address."""
    origin = request.headers.get("Origin")
    if (
        not _is_loopback(request.host)
        or (origin is not None and not _is_loopback(urlsplit(origin).netloc))
        or request.headers.get("Sec-Fetch-Site") in _FOREIGN_SITES
    ):
        text = "the Batch API answers programs of this machine only, by a name of it and without another Origin"
        raise web.HTTPForbidden(text=text)
    return await handler(request)


def _is_loopback(authority: str) -> bool:
    """Return whether a host, with or without a port, is this machine: localhost or a loopback address."""
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _owns(request: web.Request, team: str | None) -> bool:
    """Return whether what belongs to a team is the client's to see."""
    return request[TEAM] in (EVERY_TEAM, team)


def _build_error(status: int, message: str, param: str | None, kind: str, code: str | None = None) -> web.Response:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return web.json_response({"error": error}, status=status)


def _build_not_found(noun: str, name: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(text=f"No such {noun}: {name[:80]}")


async def _read_json(request: web.Request) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text=f"{request.content_type} is not application/json, as requests are sent")
    try:
        body = await request.json()
        json.dumps(body, ensure_ascii=False).encode()  # JSON allows half of a surrogate pair, ids and keys do not
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise BadSubmission("body", "the request is not a JSON object in UTF-8")
    return body


def _read_metadata(body: dict[str, Any]) -> dict[str, str]:
    """Read `metadata`, within OpenAI's limits."""
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadSubmission("metadata", "texts by name")
    if len(metadata) > MAX_METADATA:
        raise BadSubmission("metadata", f"{len(metadata)} entries, and {MAX_METADATA} is the maximum")
    for name, value in metadata.items():
        if len(name) > MAX_NAME:
            raise BadSubmission("metadata", f"the name {name[:MAX_NAME]}... has more than {MAX_NAME} characters")
        if len(value) > MAX_TEXT:
            raise BadSubmission(f"metadata.{name}", f"it has more than {MAX_TEXT} characters")
    return metadata


def _read_text(body: dict[str, Any], name: str, maximum: int) -> str:
    """Read a text; of anything else, such as a template that is an object, its JSON."""
    value = body.get(name) or ""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) > maximum:
        raise BadSubmission(name, f"it has more than {maximum} characters")
    return text


async def _read_form(request: web.Request, upload: Upload) -> tuple[str, str]:
    """Write the file of a form to an upload, block by block; returns its name and the form's purpose."""
    name, purpose = "", ""
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            continue
        if part.name == "file" and name:
            raise BadSubmission("file", "the request has more than one")
        if part.name == "file":
            name = (part.filename or "input.jsonl")[:_MAX_FILE_NAME]
            await _write_part(part, upload)
        elif part.name == "purpose":
            purpose = await _read_purpose(part)
    if not name:
        raise BadSubmission("file", "the request has no part `file`")
    return name, purpose


async def _write_part(part: BodyPartReader, upload: Upload) -> None:
    while block := await part.read_chunk(_BLOCK_BYTES):
        await asyncio.to_thread(upload.write, block)
        if upload.bytes > MAX_FILE_BYTES:
            raise BadSubmission("file", f"it has more than {MAX_FILE_BYTES} bytes: put it into S3, for `input_uri`")


async def _read_purpose(part: BodyPartReader) -> str:
    """Read at most what a purpose may have; the rest is skipped."""
    text = b""
    while len(text) <= _MAX_PURPOSE_BYTES and (block := await part.read_chunk()):
        text += block
    return text[:_MAX_PURPOSE_BYTES].decode(errors="replace").strip()


def _parse_seconds(seconds: str | None, window: Any, most_s: float) -> float:
    """Parse the deadline of a batch in seconds; 0 for the deployment's own."""
    if seconds:
        field, subject = "metadata.deadline", f"{seconds} seconds are"
        try:
            deadline_s = float(seconds)
        except ValueError:
            deadline_s = 0.0
        if not deadline_s > 0:  # as of nan
            raise BadSubmission(field, f"{seconds} is not a positive number of seconds")
    elif window:
        field, subject = "completion_window", f"{str(window)[:80]} is"
        match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", str(window))
        if match is None:
            raise BadSubmission(field, f"{subject} not a number of minutes, hours or days, such as 24h")
        deadline_s = float(match[1]) * {"m": 60, "h": 3600, "d": 86400}[match[2]]
    else:
        return 0.0
    if deadline_s > most_s:
        raise BadSubmission(field, f"{subject} more than {most_s / 86400:g} days, after which nothing of a job is kept")
    return deadline_s


def _format_window(seconds: float) -> str:
    """Format a deadline as `_parse_seconds` reads it: in hours, or in minutes where they are not whole."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes}m" if minutes % 60 else f"{minutes // 60}h"


def _format_file(entry: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "bytes", "created_at", "filename", "purpose")
    return {"object": "file", "status": "processed", **{name: entry[name] for name in names}}


def _format_batch(job: Job) -> dict[str, Any]:
    """Format a batch as OpenAI does; with team, priority, tokens, the endpoint's time and the input's place."""
    digest = job["id"].removeprefix("batch_")
    moments = {name: cast(dict[str, Any], job)[name] for name in layout.TIMES}
    times = {name: None if moment is None else int(moment) for name, moment in moments.items()}
    errors = [{"code": error["code"], "message": error["message"], "param": None, "line": error["line"]}
              for error in job["errors"]]  # fmt: skip
    has_results = bool(job["output_key"])
    source, tokens = job["input"], job["tokens"]
    return {
        "id": job["id"],
        "object": "batch",
        "endpoint": job["endpoint"],
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": source.get("file") or f"s3://{source['bucket']}/{source['key']}",
        "completion_window": _format_window(job["deadline_at"] - job["created_at"]),
        "status": job["state"],
        "output_file_id": f"file-{digest}-output" if has_results else None,
        "error_file_id": f"file-{digest}-errors" if has_results else None,
        "created_at": int(job["created_at"]),
        "expires_at": int(job["deadline_at"]),
        **times,
        "request_counts": {name: job["request_counts"][name] for name in ("total", "completed", "failed")},
        "metadata": job["metadata"] or None,
        "model": job["model"] or None,
        # How many were cached, or were reasoning, is counted nowhere.
        "usage": {
            "input_tokens": tokens["input"],
            "output_tokens": tokens["output"],
            "total_tokens": sum(tokens.values()),
            "input_tokens_details": None,
            "output_tokens_details": None,
        },
        "team": job["team"],
        "priority": job["priority"],
        "tokens": tokens,
        "endpoint_s": round(job.get("endpoint_s", 0.0), 3),
        "failures": job.get("failures", {}),
    }


def _choose_page(ids: list[str], request: web.Request) -> tuple[list[str], bool]:
    """Return the ids of a page, after the last one that the client has, and whether more follow."""
    after = request.query.get("after")
    text = request.query.get("limit") or "20"
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise BadSubmission("limit", f"{text[:20]} is not a number from 1 to {PAGE}")
    start = ids.index(after) + 1 if after in ids else 0
    end = start + min(PAGE, int(text))
    return ids[start:end], end < len(ids)


def _format_page(entries: list[dict[str, Any]], has_more: bool) -> web.Response:
    ids = [entry["id"] for entry in entries]
    page = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None, "has_more": has_more}
    return web.json_response({"object": "list", "data": entries, **page})


def open_api(settings: Settings) -> BatchApi:
    """Open the deployment; the embedded AWS gets its queues and state machine first.

    Raises:
        BadKeys: the team keys cannot be used.
        Unreadable: a secret that it logs in with, or with the team keys, cannot be read.
    """
    api_key, keys = ApiKey(settings), _open_keys(settings)
    sqs, stepfunctions = create_client("sqs"), create_client("stepfunctions")
    store = Store(settings.bucket)
    if file := os.environ.get("BATCH_STATE_MACHINE_FILE"):
        from batch import emulated

        definition = Path(file)
        state_machine = emulated.create_resources(sqs, stepfunctions, store.client, settings, definition)
    else:
        state_machine = os.environ["BATCH_STATE_MACHINE"]
    queues = find_queues(sqs, settings)
    if queues is None:
        raise RuntimeError(f"the queues of {settings.name} are not there")
    jobs = Jobs(store, settings, stepfunctions, state_machine, queues)
    return BatchApi(settings, api_key, store, jobs, Inbox(sqs, settings, jobs), keys)


def _open_keys(settings: Settings) -> TeamKeys | None:
    if settings.team_keys is None:
        return None
    if file := settings.team_keys.file:
        return TeamKeys(partial(team_keys.read_file, Path(file)))
    return TeamKeys(Secret(settings.team_keys.secret).read)


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""

    def open_server(settings: Settings) -> Callable[[], object]:
        api = open_api(settings)
        host, port = os.environ.get("BATCH_API_HOST", "127.0.0.1"), int(os.environ["BATCH_API_PORT"])
        app = api.build_app(is_local=_is_loopback(host))
        return partial(web.run_app, app, host=host, port=port, print=None, access_log=None)

    return program.run("batch-api", open_server)
