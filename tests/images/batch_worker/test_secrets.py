"""Secrets that the programs read: of the embedded AWS, which checks no rights; what AWS refuses is botocore's stub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import batch_worker
import pytest
from aiohttp import web
from batch import api, secrets
from batch.endpoint import Endpoint
from batch.secrets import ApiKey, Secret, Unreadable
from batch.settings import KeySecret
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from llm_serving.kinds.batch import worker_settings
from llm_serving.rehearsal import emulator
from tests import batch_kills
from tests.images.batch_worker.conftest import REGION

SaveSecret = Callable[[str], str]

KEY = {"secret": "llm/nobody-made-it", "field": ""}
CACHE = {"url": "rediss://127.0.0.1:1", "ttl_s": 60, "is_cluster": False, "login_secret": "llm/nobody-made-it"}


@pytest.fixture
def save_secret(embedded_client_env: None, aws: str, request: pytest.FixtureRequest) -> Iterator[SaveSecret]:
    """Save a text as the secret of this test's own; returns its name."""
    client, name = emulator.create_client("secretsmanager", aws, REGION), f"llm/{request.node.originalname}"

    def save(text: str) -> str:
        try:
            client.put_secret_value(SecretId=name, SecretString=text)
        except client.exceptions.ResourceNotFoundException:
            client.create_secret(Name=name, SecretString=text)
        return name

    yield save
    client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)


def test_a_secret_is_read_by_its_name_as_a_text_or_by_fields_of_its_json(save_secret: SaveSecret) -> None:
    text = json.dumps({"username": "writer", "password": "x y"})
    secret = Secret(save_secret(text))
    assert secret.read() == text
    assert secret.read_fields("username", "password") == ("writer", "x y")


@pytest.mark.parametrize(
    ("answer", "reason", "fix"),
    [
        (
            ("ResourceNotFoundException", "Secrets Manager can't find the specified secret."),
            "An error occurred (ResourceNotFoundException) when calling the GetSecretValue operation: Secrets Manager "
            "can't find the specified secret",
            "create it in the region of the fleet, and deploy again",
        ),
        (
            ("AccessDeniedException", "Access to KMS is not allowed"),
            "An error occurred (AccessDeniedException) when calling the GetSecretValue operation: Access to KMS is not "
            "allowed",
            "deploy again if it was deleted and created since, which changes its ARN; write `key: ARN` beside it if a KMS "
            "key of your own encrypts it",
        ),
        ({"SecretBinary": b"bytes"}, "it has bytes in place of a text", "store it as a text (SecretString)"),
        (
            {"SecretString": "only-a-value"},
            "it is not JSON with a text `username`",
            'store {"username": "...", "password": "..."}',
        ),
        (
            {"SecretString": '{"username": "a-value", "password": 5}'},
            "it is not JSON with a text `password`",
            'store {"username": "...", "password": "..."}',
        ),
    ],
    ids=["missing", "not permitted", "binary", "no JSON", "no text"],
)
def test_a_secret_that_cannot_be_read_says_why_and_never_its_value(
    embedded_client_env: None, answer: Any, reason: str, fix: str
) -> None:
    secret = Secret("cache/login")
    with Stubber(secret._secretsmanager) as stub:
        if isinstance(answer, tuple):
            stub.add_client_error("get_secret_value", *answer)
        else:
            stub.add_response("get_secret_value", answer, {"SecretId": "cache/login"})
        with pytest.raises(Unreadable) as refusal:
            secret.read_fields("username", "password")
    assert str(refusal.value) == f"secret cache/login: {reason}. Fix: {fix}."
    assert "value" not in str(refusal.value)


def test_a_network_without_a_way_to_secrets_manager_is_told(
    embedded_client_env: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Secret("llm/key")

    def fail(**_: str) -> Any:
        raise EndpointConnectionError(endpoint_url="https://secretsmanager.us-west-2.amazonaws.com/")

    monkeypatch.setattr(secret._secretsmanager, "get_secret_value", fail)
    with pytest.raises(Unreadable, match=r"Could not connect .* Fix: let the network reach Secrets Manager"):
        secret.read()


@pytest.mark.parametrize(
    ("program", "named"),
    [("batch-worker", {"api_key": KEY}), ("batch-worker", {"cache": CACHE}), ("batch-api", {"api_key": KEY})],
    ids=["the worker's key", "the cache's login", "the Batch API's key"],
)
def test_a_program_ends_with_one_line_where_a_secret_is_missing(
    embedded_client_env: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    program: str,
    named: dict[str, Any],
) -> None:
    ready = tmp_path / "ready"
    ready.touch()
    variables = worker_settings.format_variables({**batch_kills.build_document("http://127.0.0.1:1"), **named})
    for name, value in {**variables, "BATCH_READY_FILE": str(ready)}.items():
        monkeypatch.setenv(name, value)
    assert {"batch-worker": batch_worker.main, "batch-api": api.main}[program]() == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{program}: secret llm/nobody-made-it: An error occurred (ResourceNotFoundException)")
    assert line.endswith("Fix: create it in the region of the fleet, and deploy again.")
    assert ready.exists() == (program == "batch-api"), "a worker before this one was ready"


def test_a_key_that_the_endpoint_refuses_is_read_again(
    save_secret: SaveSecret, batch_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that takes one key alone, as vLLM does with `--api-key`."""
    monkeypatch.setattr(secrets, "RENEW_INTERVAL_S", 3600.0)
    name = save_secret('{"batch": "first"}')
    key = ApiKey(replace(batch_settings, api_key=KeySecret(name, "batch")))
    valid_key, sent_keys = ["first"], list[str]()

    async def answer(request: web.Request) -> web.Response:
        sent_keys.append(request.headers["Authorization"])
        is_valid = sent_keys[-1] == f"Bearer {valid_key[0]}"
        return web.json_response({}, status=200 if is_valid else 401)

    async def run() -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", answer), web.post("/v1/embeddings", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint = Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}", key, 60, ())

        async def send() -> int:
            return (await endpoint.send("/v1/embeddings", {})).status

        other = Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}", key, 60, ())
        assert (await send(), await endpoint.is_up()) == (200, True)
        valid_key[0] = "second"
        save_secret('{"batch": "second"}')
        assert await send() == 401, "read a moment ago: not yet again"
        monkeypatch.setattr(secrets, "RENEW_INTERVAL_S", 0.0)
        assert await send() == 200
        assert sent_keys[-2:] == ["Bearer first", "Bearer second"], "the same request once more"
        assert (await other.send("/v1/embeddings", {})).status == 200, "whoever shares the key has the new one"
        valid_key[0] = "third"
        assert await send() == 401, "the secret says no other key yet"
        save_secret('{"batch": "third"}')
        assert [await endpoint.is_up(), await endpoint.is_up()] == [False, True], (
            "what waits for the endpoint looks too"
        )
        save_secret("no JSON any more")
        valid_key[0] = "fourth"
        assert await send() == 401, "a secret that cannot be read ends nothing"
        await endpoint.close()
        await other.close()
        await runner.cleanup()

    asyncio.run(run())


def test_a_key_of_the_environment_is_sent_as_it_is(batch_settings: Any) -> None:
    key = ApiKey(replace(batch_settings, plain_api_key="of the environment"))
    assert key.value == "of the environment"
    assert not key.renew("of the environment")


def test_the_line_break_of_a_file_is_no_part_of_a_key(save_secret: SaveSecret, batch_settings: Any) -> None:
    assert ApiKey(replace(batch_settings, api_key=KeySecret(save_secret("key\n"), ""))).value == "key"
