from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
import pytest

from llm_serving.aws import s3
from llm_serving.aws import session as aws
from llm_serving.rehearsal import emulator
from tests.http_handler import QuietHandler


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
    monkeypatch.setattr(botocore.session, "create_loader", botocore.loaders.create_loader)  # which conftest.py replaced
    assert count_files(botocore.session.Session()) > 0, "botocore's own read them each time"


def test_a_folder_of_the_users_own_descriptions_is_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    assert str(tmp_path) in aws.create_core().get_component("data_loader").search_paths
    monkeypatch.delenv("AWS_DATA_PATH")
    assert str(tmp_path) not in aws.create_core().get_component("data_loader").search_paths


def test_the_users_environment_is_read_once_and_a_session_of_an_embedded_aws_has_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:8")
    session = aws.AwsSession.from_environment("us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:7")
    assert (session.find_endpoint("s3"), session.find_endpoint("ec2")) == ("http://127.0.0.1:8", "http://127.0.0.1:9")
    assert (session.is_emulated, session.is_rehearsal, session.child_env) == (False, False, {})
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    embedded = emulator.open_session("http://127.0.0.1:6", "us-west-2", is_rehearsal=True)
    assert embedded.client("s3").meta.endpoint_url == embedded.client("ec2").meta.endpoint_url == "http://127.0.0.1:6"
    assert embedded.has_credentials() and embedded.is_rehearsal
    assert embedded.child_env.items() >= {"AWS_PROFILE": "default", "AWS_ENDPOINT_URL": "http://127.0.0.1:6"}.items()
    own = embedded.with_kubeconfig(tmp_path / "kubeconfig")
    assert own.child_env == {**embedded.child_env, "KUBECONFIG": str(tmp_path / "kubeconfig")}
    assert own.is_rehearsal


def test_the_variables_of_a_session_find_the_users_profiles_without_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[profile mine]\nregion = us-west-2\n")
    (tmp_path / ".aws/credentials").write_text("[mine]\naws_access_key_id = mine\naws_secret_access_key = x\n")
    variables = aws.AwsSession.from_environment("us-west-2").variables
    monkeypatch.delenv("AWS_PROFILE")
    assert aws.create_session(variables).get_credentials().access_key == "mine"


def test_a_bucket_on_this_machine_is_asked_without_the_users_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    class S3(QuietHandler):
        def do_HEAD(self) -> None:
            self.respond(200)

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), S3) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        env = emulator.build_client_env(endpoint, "us-west-2")
        assert s3.Bucket(s3.parse_location("s3://models/tiny"), env=env).endpoint_name == endpoint
        server.shutdown()
