from __future__ import annotations

from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
import pytest

from llm_serving.aws import session as aws


def test_sessions_read_a_services_description_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_paths = list[str]()
    load = botocore.loaders.JSONFileLoader.load_file

    def record_load(loader: Any, path: str) -> Any:
        loaded_paths.append(path)
        return load(loader, path)

    monkeypatch.setattr(botocore.loaders.JSONFileLoader, "load_file", record_load)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-west-2"}

    def count_files(session: Any) -> int:
        loaded_paths.clear()
        session.create_client("sqs", **keys)
        return len(loaded_paths)

    count_files(aws.create_core())
    assert count_files(aws.create_core()) == 0
    assert count_files(botocore.session.Session()) > 0, "botocore's own read them each time"


def test_a_folder_of_the_users_own_descriptions_is_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    assert str(tmp_path) in aws.create_core().get_component("data_loader").search_paths
    monkeypatch.delenv("AWS_DATA_PATH")
    assert str(tmp_path) not in aws.create_core().get_component("data_loader").search_paths
