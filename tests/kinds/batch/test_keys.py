"""Keys of teams: how a blueprint names them, what the Batch API is told, and the command that makes one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving.cli import main
from llm_serving.settings.errors import InputError
from tests.kinds.batch import test_blueprint as batches

ON_AWS = batches.MINIMAL.replace("http://127.0.0.1:8000", "http://llm.example:8000")
KEYS = "api: {keys: {secret: llm/batch-keys, file: keys.json}}\n"


def read_api(deployment: Any) -> dict[str, Any]:
    [api] = [service for service in deployment.services if service.is_entry]
    return json.loads(api.env["BATCH_SETTINGS"])


def test_here_the_api_reads_the_file_beside_the_blueprint_and_workers_none(tmp_path: Path) -> None:
    deployment = batches.resolve(tmp_path / "mine", batches.MINIMAL + KEYS)
    assert read_api(deployment)["team_keys"] == {"secret": "", "file": str(tmp_path / "mine" / "keys.json")}
    for service in deployment.services:
        if "BATCH_SETTINGS" in service.env and not service.is_entry:
            assert json.loads(service.env["BATCH_SETTINGS"])["team_keys"] is None
    assert read_api(batches.resolve(tmp_path / "open", batches.MINIMAL))["team_keys"] is None


def test_on_aws_the_api_alone_reads_the_secret(tmp_path: Path) -> None:
    text = ON_AWS + KEYS
    deployment = batches.resolve_on_ecs(tmp_path / "mine", text)
    assert read_api(deployment)["team_keys"] == {"secret": "llm/batch-keys", "file": ""}
    secrets = {service.name: [secret.secret for secret in service.secrets] for service in deployment.services}
    assert {name for name, names in secrets.items() if "llm/batch-keys" in names} == {"batch-api"}
    assert not [note for note in deployment.notes if "asks for no key" in note]
    assert [note for note in batches.resolve_on_ecs(tmp_path / "open", ON_AWS).notes if "asks for no key" in note]


def test_a_place_without_keys_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"keys are in a secret, or in a file\. Fix: set secret: NAME for AWS"):
        batches.resolve(tmp_path / "mine", batches.MINIMAL + "api: {keys: {}}\n")
    with pytest.raises(InputError, match=r"on this machine keys come from a file\. Fix: set file: FILE beside secret"):
        batches.resolve(tmp_path / "here", batches.MINIMAL + "api: {keys: {secret: llm/batch-keys}}\n")
    with pytest.raises(InputError, match=r"on ECS keys come from a secret\. Fix: set secret: NAME beside file"):
        batches.resolve_on_ecs(tmp_path / "cloud", ON_AWS + "api: {keys: {file: keys.json}}\n")


def test_the_command_makes_a_key_whose_hash_is_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    keys = set()
    for _ in range(2):
        assert main.run(["batch", "key", "search"]) == 0
        captured = capsys.readouterr()
        key, entry = captured.out.splitlines()
        assert json.loads(entry) == {"search": [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"]}
        assert key not in captured.err
        keys.add(key)
    assert len(keys) == 2
