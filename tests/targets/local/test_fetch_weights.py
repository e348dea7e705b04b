"""The copy of weights from S3 into a folder, against a real S3 server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import InputError
from llm_serving.targets.local import fetch_weights


@pytest.fixture
def client(emulator_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in emulator.build_client_env(emulator_endpoint, "us-west-2").items():
        monkeypatch.setenv(name, value)
    return emulator.create_client("s3", emulator_endpoint, "us-west-2")


@pytest.fixture
def bucket(client: Any, request: pytest.FixtureRequest) -> str:
    """An empty bucket of its own."""
    name = "f-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    return name


def test_objects_become_files_below_the_folder(client: Any, bucket: str, tmp_path: Path) -> None:
    for key in ("m/config.json", "m/sub/weights", "m/", "m/sub/"):  # the last two are S3's markers of folders
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else b"content")
    fetch_weights.fetch(f"s3://{bucket}/m", tmp_path / "model")
    assert (tmp_path / "model/config.json").read_text() == (tmp_path / "model/sub/weights").read_text() == "content"


def test_the_last_copy_of_a_log_is_the_starts() -> None:
    log = ["copying s3://models/tiny/model.safetensors, 42 bytes\n", "copied all in 1.25 s\n"]
    assert fetch_weights.find_seconds(log) == 1.25
    assert fetch_weights.find_seconds([*log, "INFO loading\n", "copied all in 0.02 s"]) == 0.02
    assert fetch_weights.find_seconds(log[:1]) is None


@pytest.mark.parametrize("name", ["../keys", "../../../keys", "sub/../../keys", "{}/keys", "sub//keys", "./keys"])
def test_an_object_whose_name_leaves_the_folder_is_refused_before_any_is_copied(
    client: Any, bucket: str, tmp_path: Path, name: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("mine")
    name = name.format(tmp_path)
    for key in ("a", name):
        client.put_object(Bucket=bucket, Key=f"m/{key}", Body=b"of another user")
    with pytest.raises(InputError) as error:
        fetch_weights.fetch(f"s3://{bucket}/m", tmp_path / "model")
    assert str(error.value) == (
        f's3://{bucket}/m/: "{name}": the name of this object is not a path below a folder. Fix: delete the object.'
    )
    assert keys.read_text() == "mine"
    assert list((tmp_path / "model").iterdir()) == []
