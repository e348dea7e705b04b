"""`blueprint gateway`: what is written wrong is refused before the gateway is asked, and tables are for people."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from llm_serving import console
from llm_serving.kinds.gateway import audit, commands, database, meter, usage
from llm_serving.kinds.gateway.blueprint import Team
from llm_serving.kinds.gateway.client import AdminClient, Key
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.deployment import GatewayDeployment
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import registry

TEXT = "sk-a-key-0123456789"
KEYS = [
    Key(hashlib.sha256(TEXT.encode()).hexdigest(), "search", "web", "2026-11-26T04:00:51.623000Z", "anna"),
    Key("ab" * 32, "ads", "", "2026-11-26T04:01:51.623000Z"),
    Key("ac" * 32, "ads", "", "2026-11-26T04:02:51.623000Z"),
]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Run commands on a gateway with the teams `search` and `ads` and three keys."""
    environment = SimpleNamespace(data_folder="/nowhere")
    deployment = GatewayDeployment.model_construct(
        name="edge",
        teams={"search": Team(models=("chat",)), "ads": Team(models=("chat",))},
        routes={}, environment=environment, database_port=1, admin_url="http://127.0.0.1:1", url="http://127.0.0.1:2",
    )  # fmt: skip

    @contextlib.contextmanager
    def open_validation(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(deployment=deployment)

    monkeypatch.setattr(registry, "load_target", lambda _: SimpleNamespace(open_validation=open_validation))
    monkeypatch.setattr(database, "read_login", lambda port, _: Login("password", port))
    monkeypatch.setattr(
        AdminClient, "list_keys", lambda _, team=None: [key for key in KEYS if team in (None, key.team)]
    )
    return CliRunner()


def invoke(runner: CliRunner, *arguments: str) -> str:
    result = runner.invoke(commands.app, list(arguments))
    return str(result.exception) if result.exception else result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["key", "create", "edge", "--team", "adz"],
         '--team: "adz": there is no such team. Fix: choose search or ads.'),
        (["usage", "edge", "--month", "2026-13"],
         '--month: "2026-13": it is not a month. Fix: write it as 2026-11.'),
        (["usage", "edge", "--month", "9999-12"],
         '--month: "9999-12": it is not a month. Fix: write it as 2026-11.'),
        (["usage", "edge", "--month", "2026-11", "--since", "7d"],
         "--month: a month has a beginning of its own. Fix: remove --since or --month."),
        (["usage", "edge", "--by", "team,person"],
         '--by: "person": there is no such column. Fix: use team or user or model or deployment, with commas between.'),
        (["usage", "edge", "--since", "7"],
         '--since: "7": it is not a length of time. Fix: use a length of time in s, min, h or d, such as 30s.'),
        (["key", "revoke", "edge", "a"], '"a": 2 keys begin so. Fix: see `blueprint gateway key list`.'),
        (["key", "revoke", "edge", "sk-other"], '"sk-other": there is no such key. Fix: see `blueprint gateway key list`.'),
    ],
)  # fmt: skip
def test_what_is_written_wrong_is_refused(runner: CliRunner, arguments: list[str], message: str) -> None:
    assert invoke(runner, *arguments) == message


@pytest.mark.parametrize("given", [TEXT, KEYS[0].id, KEYS[0].id[:12]])
def test_a_key_is_revoked_by_its_text_its_id_or_its_beginning(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(AdminClient, "_request", lambda _, path, body: sent.append((path, body)))
    assert invoke(runner, "key", "revoke", "edge", given) == f"{KEYS[0].id[:12]}: revoked, a key of search\n"
    assert sent == [("/key/delete", {"keys": [KEYS[0].id]})]
    monkeypatch.setattr(AdminClient, "list_keys", lambda _: KEYS[:1])
    refusal = '"": there is no such key. Fix: see `blueprint gateway key list`.'
    assert invoke(runner, "key", "revoke", "edge", "") == refusal, (
        "a variable that is not set names no key, not the only one"
    )


def test_an_administration_that_ends_half_way_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AdminClient("http://127.0.0.1:1", "secret")
    monkeypatch.setattr(client._opener, "open", Mock(side_effect=http.client.IncompleteRead(b"{", 99)))
    with pytest.raises(
        Unavailable, match=r"the gateway does not answer: IncompleteRead\(1 bytes read, 99 more expected\)"
    ):
        client.list_keys()


def test_keys_are_listed_by_team(runner: CliRunner) -> None:
    assert invoke(runner, "key", "list", "edge", "--team", "search").splitlines() == [
        "id            team    user  name  created         ",
        f"{KEYS[0].id[:12]}  search  anna  web   2026-11-26 04:00",
    ]


def test_the_usage_is_a_table(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"team": "ads", "model": "chat", "backend": "chat/llm.example.com", "requests": 1_000, "list_usd": 0.25,
               "input_tokens": 90_000, "output_tokens": 10_000}  # fmt: skip
    monkeypatch.setattr(meter, "record", lambda *_: None)
    monkeypatch.setattr(usage, "read", lambda *_: usage.Records([request], []))
    assert invoke(runner, "usage", "edge").splitlines() == [
        "team  model  requests  tokens in  tokens out     USD  USD/M tokens",
        "ads   chat      1,000     90,000      10,000  0.2500         2.500",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_usage_has_each_name_and_number_whole_however_narrow_the_terminal(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    request = {"team": "quite-a-long-name", "model": "chat-model-0123456789", "backend": "chat/llm.example.com",
               "requests": 1_234_567, "list_usd": 0.25, "input_tokens": 90_000, "output_tokens": 10_000,
               "cached_requests": 1, "similar_requests": 1, "saved_tokens": 1, "masked": 1, "blocked": 1}  # fmt: skip
    monkeypatch.setattr(meter, "record", lambda *_: None)
    monkeypatch.setattr(usage, "read", lambda *_: usage.Records([request], []))
    monkeypatch.setattr(console.out, "width", 80)
    monkeypatch.setattr(console.out, "_force_terminal", is_terminal)
    *titles, row = [line.split() for line in invoke(runner, "usage", "edge").splitlines()]
    assert row[:6] == ["quite-a-long-name", "chat-model-0123456789", "1,234,567", "90,000", "10,000", "0.2500"]
    assert len(titles) == (2 if is_terminal else 1)
    assert {"cached", "requests", "tokens", "USD/M"} <= {word for line in titles for word in line}


def test_keys_are_exported_as_hashes_by_team(runner: CliRunner) -> None:
    assert json.loads(invoke(runner, "key", "export", "edge")) == {
        "search": [f"sha256:{KEYS[0].id}"],
        "ads": [f"sha256:{KEYS[1].id}", f"sha256:{KEYS[2].id}"],
    }


def test_the_usage_of_a_month_is_csv_for_the_books(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"team": "ads", "model": "chat", "backend": "chat/llm.example.com", "requests": 1_000, "list_usd": 0.25,
               "input_tokens": 90_000, "output_tokens": 10_000}  # fmt: skip
    periods: list[usage.Period] = []
    monkeypatch.setattr(meter, "record", lambda *_: None)
    monkeypatch.setattr(usage, "read", lambda _, period, __: periods.append(period) or usage.Records([request], []))
    assert invoke(runner, "usage", "edge", "--month", "2026-12", "--csv").splitlines() == [
        "team,model,requests,input_tokens,output_tokens,usd,usd_per_million_tokens",
        "ads,chat,1000,90000,10000,0.25,2.5",
    ]
    starts = [datetime.datetime(*month, 1, tzinfo=datetime.UTC).timestamp() for month in ((2026, 12), (2027, 1))]
    assert [list(period) for period in periods] == [starts]


def test_the_audit_is_a_table(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    created = {"at": "2026-11-26T04:00:51Z", "event": "key created", "team": "ads", "key": "ab" * 32, "detail": "web"}
    request = {"at": "2026-11-26T04:01:00Z", "event": "request", "team": "ads", "key": "ab" * 32, "model": "chat",
               "deployment": "big", "verdict": "answered", "input_tokens": 7, "output_tokens": 10,
               "user": "anna"}  # fmt: skip
    monkeypatch.setattr(audit, "read", lambda *_: [created, request])
    monkeypatch.setattr(console.out, "width", 100)
    assert [line.rstrip() for line in invoke(runner, "audit", "edge").splitlines()] == [
        "at                event        team  key           detail",
        "2026-11-26 04:00  key created  ads   abababababab  web",
        "2026-11-26 04:01  request      ads   abababababab  chat, answered, 7 + 10 tokens, anna",
    ]


def test_a_deployment_of_another_kind_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def open_validation(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(deployment=SimpleNamespace(kind="serving"))

    monkeypatch.setattr(registry, "load_target", lambda _: SimpleNamespace(open_validation=open_validation))
    message = "mine: kind: serving: it has no keys. Fix: name a gateway blueprint."
    assert invoke(CliRunner(), "key", "list", "mine") == message
    assert Path("mine").name in message
