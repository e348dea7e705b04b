"""Copies into S3: complete, checked, resumed, and refused in one line. S3 is moto's, over the wire."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.aws import s3
from llm_serving.catalog import records
from llm_serving.hub import client as hubs
from llm_serving.hub import files, source, upload
from llm_serving.settings.errors import InputError, Unavailable
from tests.http_handler import QuietHandler
from tests.hub.fixtures import COMMIT

MIB = 2**20


class _Interrupted(Exception):
    """Simulates Ctrl-C."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)  # the least that S3 takes


def _make_client(bucket: s3.Bucket) -> Any:
    return bucket._client


def _read_object(bucket: s3.Bucket, name: str) -> bytes:
    response = _make_client(bucket).get_object(Bucket=bucket.location.bucket, Key=bucket.location.prefix + name)
    return bytes(response["Body"].read())


def _format_uri(bucket: s3.Bucket) -> str:
    return str(bucket.location)


def _record_requests(bucket: s3.Bucket) -> list[str]:
    """Names of the requests that leave from now on."""
    requests: list[str] = []
    _make_client(bucket).meta.events.register(
        "before-send.s3", lambda event_name, **_: requests.append(event_name.split(".")[-1])
    )
    return requests


@pytest.mark.terraform
def test_a_folder_is_uploaded_completely_without_other_formats(bucket: s3.Bucket, folder: Path) -> None:
    result = upload.upload(folder, _format_uri(bucket))
    assert set(bucket.list_sizes()) == {"config.json", "model.safetensors", "sub/config.json"}
    for name in bucket.list_sizes():
        assert _read_object(bucket, name) == (folder / name).read_bytes()
    assert (result.files, result.sent, result.bytes) == (3, result.bytes, sum(bucket.list_sizes().values()))


@pytest.mark.parametrize("name", ["model.safetensors", "sub/vocab.json"])
def test_a_link_out_of_the_folder_is_not_uploaded(tmp_path: Path, folder: Path, name: str) -> None:
    secret = tmp_path / "credentials"
    secret.write_text("aws_secret_access_key = x")
    link = folder / name
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    with pytest.raises(InputError) as error:
        upload.upload(folder, "s3://bucket/prefix", endpoint="http://127.0.0.1:9")
    assert str(error.value) == (
        f"{link}: it is a link to {secret}, outside {folder}, and would be uploaded as a file of the model. "
        "Fix: remove the link, or put the file itself there."
    )


@pytest.mark.terraform
def test_a_snapshot_of_the_hub_s_cache_is_uploaded_through_its_links(
    bucket: s3.Bucket, folder: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "models--someone--some-model"
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (blobs / f"hash-of-{name}").write_bytes((folder / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/hash-of-{name}")
    upload.upload(snapshot, _format_uri(bucket))
    assert _read_object(bucket, "model.safetensors") == (folder / "model.safetensors").read_bytes()
    (snapshot / "tokenizer.json").symlink_to("../../../elsewhere")
    (tmp_path / "elsewhere").write_text("{}")
    with pytest.raises(InputError, match="outside"):
        upload.upload(snapshot, _format_uri(bucket))


@pytest.mark.terraform
def test_all_files_are_uploaded_on_request(bucket: s3.Bucket, folder: Path) -> None:
    upload.upload(folder, _format_uri(bucket), all_files=True)
    assert "weights.bin" in bucket.list_sizes()


@pytest.mark.terraform
def test_a_second_copy_sends_nothing(bucket: s3.Bucket, folder: Path) -> None:
    upload.upload(folder, _format_uri(bucket))
    calls: list[tuple[int, int]] = []
    result = upload.upload(folder, _format_uri(bucket), on_progress=lambda sent, total: calls.append((sent, total)))
    assert result.sent == 0
    assert calls[-1] == (result.bytes, result.bytes)


@pytest.mark.terraform
def test_progress_grows_with_the_bytes_and_ends_at_all_of_them(hub: Any, bucket: s3.Bucket, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    result = upload.copy_from_hub(
        hub.id, _format_uri(bucket), staging=tmp_path, on_progress=lambda *counts: calls.append(counts)
    )
    assert calls == sorted(calls)
    assert len(calls) > 2 * result.files  # within the files as well
    assert calls[-1] == (result.bytes, result.bytes)


@pytest.mark.terraform
def test_only_changed_files_are_uploaded_again(bucket: s3.Bucket, folder: Path) -> None:
    upload.upload(folder, _format_uri(bucket))
    (folder / "config.json").write_bytes(b'{"other": true}')
    assert upload.upload(folder, _format_uri(bucket)).sent == len(b'{"other": true}')
    assert _read_object(bucket, "config.json") == b'{"other": true}'


@pytest.mark.terraform
def test_a_file_of_the_same_size_and_other_content_is_sent_again(bucket: s3.Bucket, folder: Path) -> None:
    upload.upload(folder, _format_uri(bucket))
    (folder / "config.json").write_bytes(b"[]")
    assert upload.upload(folder, _format_uri(bucket)).sent == 2


@pytest.mark.terraform
def test_an_interrupted_upload_sends_only_the_missing_parts(bucket: s3.Bucket, folder: Path) -> None:
    path = folder / "model.safetensors"
    sha256 = files.compute_sha256(path)

    def interrupt(_: int) -> None:
        raise _Interrupted

    with pytest.raises(_Interrupted):
        bucket.upload(path, "model.safetensors", sha256, interrupt)
    assert "model.safetensors" not in bucket.list_sizes()
    requests = _record_requests(bucket)
    sent_sizes: list[int] = []
    bucket.upload(path, "model.safetensors", sha256, sent_sizes.append)
    assert sum(sent_sizes) == path.stat().st_size - 5 * MIB
    assert requests.count("UploadPart") == 2
    assert requests.count("CreateMultipartUpload") == 0
    assert _read_object(bucket, "model.safetensors") == path.read_bytes()


@pytest.mark.terraform
def test_parts_of_changed_content_are_not_reused(bucket: s3.Bucket, folder: Path) -> None:
    path = folder / "model.safetensors"

    def interrupt(_: int) -> None:
        raise _Interrupted

    with pytest.raises(_Interrupted):
        bucket.upload(path, "model.safetensors", files.compute_sha256(path), interrupt)
    path.write_bytes(path.read_bytes()[::-1])
    sent_sizes: list[int] = []
    bucket.upload(path, "model.safetensors", files.compute_sha256(path), sent_sizes.append)
    assert sum(sent_sizes) == path.stat().st_size
    assert _read_object(bucket, "model.safetensors") == path.read_bytes()
    uploads = _make_client(bucket).list_multipart_uploads(Bucket=bucket.location.bucket)
    assert "Uploads" not in uploads  # nothing is left behind to be paid for


@pytest.mark.terraform
def test_each_object_has_its_hash_and_s3_its_checksum(bucket: s3.Bucket, folder: Path) -> None:
    upload.upload(folder, _format_uri(bucket))
    for name in ("config.json", "model.safetensors"):
        key = bucket.location.prefix + name
        head = _make_client(bucket).head_object(Bucket=bucket.location.bucket, Key=key, ChecksumMode="ENABLED")
        assert head["Metadata"]["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert head["ChecksumSHA256"]


@pytest.mark.terraform
def test_a_hub_model_is_copied_completely_and_leaves_no_staged_file(
    hub: Any, bucket: s3.Bucket, tmp_path: Path
) -> None:
    result = upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path / "staging")
    assert result.files == 4
    assert result.received == result.sent == result.bytes == hub.sent_bytes
    for name in set(bucket.list_sizes()) - {source.FILE}:
        assert _read_object(bucket, name) == hub.files[name]
    assert [path.name for path in (tmp_path / "staging").rglob("*") if path.is_file()] == [".lock"]


@pytest.mark.terraform
def test_a_copy_of_the_hub_names_its_commit_until_a_folder_replaces_it(
    hub: Any, bucket: s3.Bucket, folder: Path, tmp_path: Path
) -> None:
    uri = _format_uri(bucket)
    assert source.find(lambda: bucket) is None, "nothing is there"
    result = upload.copy_from_hub(hub.id, uri, staging=tmp_path)
    record = source.find(lambda: bucket)
    assert record is not None and record.commit == result.commit == COMMIT
    assert record.config == {"model_type": "qwen3"}
    assert {name: (file.bytes, file.sha256) for name, file in record.files.items()} == {
        name: (size, hashlib.sha256(hub.files[name]).hexdigest())
        for name, size in bucket.list_sizes().items()
        if name != source.FILE
    }
    assert record.weight_bytes == 1_000_000, "there is no index: by the files"
    assert records.find(hub.id) == record, "here too, so that a check needs neither hub nor S3"
    assert record.is_revision("main") and record.is_revision(COMMIT[:12])
    assert not record.is_revision("v2") and not record.is_revision(COMMIT[:6])
    records.save(record.model_copy(update={"commit": "of an earlier copy"}))
    hub.status = 503
    assert source.read(bucket) == record, "the copy says what it is of where no hub answers"
    upload.upload(folder, uri)
    replaced = source.find(lambda: bucket)
    assert replaced is not None and replaced.commit is None


@pytest.mark.terraform
def test_a_copy_without_record_is_named(bucket: s3.Bucket) -> None:
    with pytest.raises(InputError, match=r"there is no record of a model \(\.source\.json\)\. Fix: copy it with"):
        source.read(bucket)


@pytest.mark.terraform
def test_a_second_copy_from_the_hub_requests_no_weights(hub: Any, bucket: s3.Bucket, tmp_path: Path) -> None:
    upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    hub.requests.clear()
    result = upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    assert result.sent == 0
    assert [name for name, _ in hub.requests if name.endswith(".safetensors")] == []


@pytest.mark.terraform
def test_a_copy_interrupted_by_the_hub_is_resumed(
    hub: Any, bucket: s3.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model-00001-of-00002.safetensors"
    received = hubs._CountingFile.write

    def write_then_fail(self: Any, data: bytes) -> int:
        count = received(self, data)
        if self.tell() > 400_000:
            raise Unavailable("the hub went away")
        return count

    monkeypatch.setattr(hubs._CountingFile, "write", write_then_fail)
    with pytest.raises(Unavailable, match="the hub went away"):
        upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    assert "config.json" not in bucket.list_sizes()  # what broke off is no model
    monkeypatch.setattr(hubs._CountingFile, "write", received)
    partial_size = next(tmp_path.rglob(f"{name}.part")).stat().st_size
    hub.requests.clear()
    result = upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    assert (name, partial_size) in hub.requests
    assert result.received <= result.bytes - partial_size
    expected = {"config.json", "tokenizer.json", name, "model-00002-of-00002.safetensors", source.FILE}
    assert set(bucket.list_sizes()) == expected


@pytest.mark.parametrize("commit", ["../../../../victim", "main", "0" * 41, "A" * 40, ""])
def test_a_commit_that_is_no_hash_names_no_folder(hub: Any, commit: str) -> None:
    hub.commit = commit
    with pytest.raises(InputError) as error:
        hubs.fetch_snapshot(hub.id)
    assert str(error.value) == (
        f'{hub.id}: "{commit}": the commit that {hub.url} names is not a hash of 40 or 64 hexadecimal digits. '
        "Fix: set HF_ENDPOINT to another hub."
    )


@pytest.mark.terraform
def test_a_file_of_the_user_in_the_staging_folder_is_neither_sent_nor_deleted(
    hub: Any, bucket: s3.Bucket, tmp_path: Path
) -> None:
    other_file = tmp_path / "someone--some-model" / COMMIT / "config.json"
    other_file.parent.mkdir(parents=True)
    other_file.write_bytes(bytes(len(hub.files["config.json"])))
    with pytest.raises(InputError) as error:
        upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    assert str(error.value) == (
        f"{other_file}: it is not the file of the hub that would be downloaded to this name. "
        "Fix: move it away, or set --staging to another folder."
    )
    assert not any(other_file.read_bytes()) and "config.json" not in bucket.list_sizes()
    other_file.write_bytes(hub.files["config.json"])
    assert upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path).files == 4, "one of an earlier download"


@pytest.mark.terraform
def test_a_damaged_file_never_reaches_s3(hub: Any, bucket: s3.Bucket, tmp_path: Path) -> None:
    hub.damaged.add("model-00002-of-00002.safetensors")
    with pytest.raises(Unavailable, match="does not match the hub's hash"):
        upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    assert "model-00002-of-00002.safetensors" not in bucket.list_sizes()
    assert "config.json" not in bucket.list_sizes()


@pytest.mark.terraform
def test_config_json_is_uploaded_last(bucket: s3.Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    send = s3.Bucket.upload

    def record_send(self: s3.Bucket, path: Path, name: str, *arguments: Any) -> None:
        send(self, path, name, *arguments)
        order.append(name)

    monkeypatch.setattr(s3.Bucket, "upload", record_send)
    upload.upload(folder, _format_uri(bucket))
    assert order[-1] == "config.json"


def _record_changes(bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the objects that change from now on, with - before those that are deleted."""
    changes: list[str] = []
    send, delete = s3.Bucket.upload, s3.Bucket.delete

    def record_send(self: s3.Bucket, path: Path, name: str, *arguments: Any) -> None:
        changes.append(name)
        send(self, path, name, *arguments)

    def record_deletion(self: s3.Bucket, name: str) -> None:
        changes.append(f"-{name}")
        delete(self, name)

    monkeypatch.setattr(s3.Bucket, "upload", record_send)
    monkeypatch.setattr(s3.Bucket, "delete", record_deletion)
    return changes


@pytest.mark.terraform
def test_a_copy_over_another_one_leaves_no_weights_of_it_and_is_no_model_meanwhile(
    bucket: s3.Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight streamer loads every file of safetensors, whether an index names it or not."""
    for number in (1, 2):
        (folder / f"model-0000{number}-of-00002.safetensors").write_bytes(b"of the earlier model")
    assert upload.upload(folder, _format_uri(bucket)).removed == 0
    for file in folder.glob("model-*"):
        file.unlink()
    (folder / "model.safetensors").write_bytes(b"of the next model")
    changes = _record_changes(bucket, monkeypatch)
    assert upload.upload(folder, _format_uri(bucket)).removed == 2
    assert changes == [
        "-config.json",
        "model.safetensors",
        "-model-00001-of-00002.safetensors",
        "-model-00002-of-00002.safetensors",
        "config.json",
    ]
    assert set(bucket.list_sizes()) == {"config.json", "model.safetensors", "sub/config.json"}


@pytest.mark.terraform
def test_another_revision_of_the_hub_leaves_no_weights_of_the_one_before(
    hub: Any, bucket: s3.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path)
    hub.files["model.safetensors"] = hub.files.pop("model-00001-of-00002.safetensors")
    hub.commit = "f" * 40
    changes = _record_changes(bucket, monkeypatch)
    assert upload.copy_from_hub(hub.id, _format_uri(bucket), staging=tmp_path).removed == 1
    weights, others = "-model-00001-of-00002.safetensors", ["config.json", source.FILE]
    assert changes == ["-config.json", "model.safetensors", weights, *others]


@pytest.mark.terraform
def test_weights_that_no_copy_has_sent_are_neither_deleted_nor_mixed_in(
    bucket: s3.Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{bucket.location.prefix}mine.safetensors"
    _make_client(bucket).put_object(Bucket=bucket.location.bucket, Key=key, Body=b"mine")
    with pytest.raises(InputError) as error:
        upload.upload(folder, _format_uri(bucket))
    assert str(error.value) == (
        f"{_format_uri(bucket)}mine.safetensors: it is not of this model, and engines would load it too. "
        "Fix: delete it, or copy to another place with --to."
    )
    assert set(bucket.list_sizes()) == {"mine.safetensors"}


@pytest.mark.terraform
def test_a_model_stays_one_while_its_config_alone_is_replaced(
    bucket: s3.Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload.upload(folder, _format_uri(bucket))
    (folder / "config.json").write_bytes(b"[]")
    changes = _record_changes(bucket, monkeypatch)
    assert upload.upload(folder, _format_uri(bucket)).removed == 0
    assert changes == ["config.json"]


@pytest.mark.terraform
def test_a_missing_bucket_is_one_line(aws: str, folder: Path) -> None:
    with pytest.raises(Unavailable, match=rf"s3://not-there: {aws} has no such bucket\. Fix: apply the stack storage"):
        upload.upload(folder, "s3://not-there/models/m")


@pytest.mark.terraform
def test_another_s3_can_be_passed_without_changing_the_environment(
    emulator_endpoint: str, bucket: s3.Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_serving.rehearsal import emulator

    environment = emulator.build_client_env(emulator_endpoint, "us-west-2")
    for key in environment:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert upload.upload(folder, _format_uri(bucket), endpoint=emulator_endpoint, env=environment).files == 3


def test_an_unreachable_s3_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_credentials(monkeypatch)
    endpoint = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    with pytest.raises(Unavailable, match=rf"s3://b-b-b: {endpoint} does not answer: ") as error:
        upload.upload(folder, "s3://b-b-b/m", endpoint=endpoint)
    assert "\n" not in str(error.value)


def test_missing_credentials_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Unavailable, match="there are no AWS credentials here"):
        upload.upload(folder, "s3://b-b-b/m", endpoint="http://127.0.0.1:9")


def test_no_permission_is_one_line_that_names_the_action(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_credentials(monkeypatch)
    with (
        _run_denying_s3() as endpoint,
        pytest.raises(s3.AccessDenied, match=r"denies s3:ListBucket \(403\)\. Fix: use an identity"),
    ):
        upload.upload(folder, "s3://denied/m", endpoint=endpoint)
    with (
        _run_denying_s3(but_head_of="/readable") as endpoint,
        pytest.raises(Unavailable, match=r"s3://readable: http://\S+ denies s3:PutObject \(AccessDenied\)"),
    ):
        upload.upload(folder, "s3://readable/m", endpoint=endpoint)


@pytest.mark.parametrize("uri", ["bucket/prefix", "s3://", "s3://UPPER/x", "https://b.s3.amazonaws.com/x"])
def test_an_invalid_s3_uri_is_refused(folder: Path, uri: str) -> None:
    with pytest.raises(InputError, match=r"--to: .*: it is not a location in S3\. Fix: write s3://BUCKET/PREFIX"):
        upload.upload(folder, uri)


@pytest.mark.terraform
def test_a_folder_without_safetensors_is_refused(bucket: s3.Bucket, tmp_path: Path) -> None:
    (tmp_path / "model.pth").write_bytes(b"x")
    with pytest.raises(InputError, match=r"it has no safetensors, only \.pth"):
        upload.upload(tmp_path, _format_uri(bucket))


@pytest.mark.parametrize("source", ["just-a-name", "./not/there", "a/b/c", "/not/there"])
def test_a_source_other_than_a_folder_or_an_id_is_refused(source: str) -> None:
    with pytest.raises(InputError, match="it is neither a folder nor an id on the hub"):
        upload.resolve_source_name(source)


def _set_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@contextmanager
def _run_denying_s3(but_head_of: str = "") -> Iterator[str]:
    """An S3 that denies everything, or everything but to look into one bucket and find nothing in it."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            path = self.path.split("?")[0]
            code = 200 if path == but_head_of else 404 if but_head_of and path.startswith(but_head_of) else 403
            self.respond(code)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._deny()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._deny()

        def do_GET(self) -> None:
            if but_head_of and self.path.startswith(f"{but_head_of}?list-type=2"):
                self.respond(200, b"<ListBucketResult></ListBucketResult>")
            else:
                self._deny()

        def _deny(self) -> None:
            body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            self.respond(403, body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
