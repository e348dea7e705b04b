"""Keys of teams: hashes in a document that is read again, and that nobody else may write."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from batch import team_keys
from batch.team_keys import EVERY_TEAM, BadKeys, TeamKeys


def hash_key(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_that_of_its_team_and_others_are_nobodys() -> None:
    document = {"ads": [hash_key("a1"), hash_key("a2")], "search": [hash_key("s")], "*": [hash_key("boss")]}
    keys = TeamKeys(lambda: json.dumps(document))
    assert [keys.find_team(key) for key in ("a1", "a2", "s", "boss")] == ["ads", "ads", "search", EVERY_TEAM]
    assert [keys.find_team(key) for key in ("", "A1", hash_key("a1"), "a1 ", "\udce4")] == [None] * 5


def test_every_hash_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    compare = hmac.compare_digest

    def note(known: Any, other: Any) -> bool:
        compared.append(known)
        return compare(known, other)

    monkeypatch.setattr(team_keys.hmac, "compare_digest", note)
    keys = TeamKeys(lambda: json.dumps({"ads": [hash_key("a")], "search": [hash_key("s")]}))
    assert keys.find_team("a") == "ads"
    assert len(compared) == 2


def test_a_new_key_counts_and_a_removed_one_does_not_after_a_minute_and_without_a_restart() -> None:
    clock, document, reads = Clock(), {"ads": [hash_key("old")]}, list[int]()

    def read() -> str:
        reads.append(1)
        return json.dumps(document)

    keys = TeamKeys(read, clock)
    document["ads"] = [hash_key("new")]
    clock.now = 59.9
    assert (keys.find_team("old"), keys.find_team("new"), len(reads)) == ("ads", None, 1)
    clock.now = 60.0
    assert (keys.find_team("old"), keys.find_team("new"), len(reads)) == (None, "ads", 2)


def test_a_document_that_got_damaged_leaves_the_keys_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    clock, texts = Clock(), [json.dumps({"ads": [hash_key("a")]}), "{broken", "[" * 100_000]
    keys = TeamKeys(lambda: texts.pop(0), clock)
    with caplog.at_level(logging.WARNING):
        for moment in (60.0, 120.0, 180.0):  # the last one finds none at all
            clock.now = moment
            assert keys.find_team("a") == "ads"
    damaged = (
        'The keys stay as they are: team keys: the document is not a JSON object. Fix: write {"TEAM": ["sha256:HEX"]}.'
    )
    assert [record.getMessage() for record in caplog.records][:2] == [damaged, damaged]
    assert len(caplog.records) == 3


HEX = "0" * 64


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the document is not a JSON object"),
        ("[]", "the document is not a JSON object"),
        ("[" * 100_000, "the document is not a JSON object"),
        (json.dumps({"a b;": []}), '"a b;": it is not the name of a team: a-z, 0-9 and -'),
        (json.dumps({"ads": "sha256:" + HEX}), "ads: it has no list of hashes"),
        (json.dumps({"ads": ["secret"]}), "ads: it has no list of hashes"),
        (json.dumps({"ads": [7]}), "ads: it has no list of hashes"),
        (json.dumps({"ads": ["sha256:" + HEX], "search": ["sha256:" + HEX]}), "search: ads has the same key"),
    ],
)
def test_a_document_of_another_form_is_refused_without_its_content(text: str, reason: str) -> None:
    with pytest.raises(BadKeys, match=f"^team keys: {reason}. Fix: ") as refused:
        TeamKeys(lambda: text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{}")
    file.chmod(0o600)
    assert team_keys.read_file(file) == "{}"
    file.chmod(mode)
    with pytest.raises(BadKeys, match=rf"^{re.escape(str(file))}: its mode is -.*\. Fix: chmod 600 "):
        team_keys.read_file(file)


def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    large = tmp_path / "large"
    large.write_bytes(b" " * (2**20 + 1))
    large.chmod(0o600)
    for name, reason in (("pipe", "its mode is prw"), ("missing", "No such file"), ("large", "larger than 1048576")):
        with pytest.raises(BadKeys, match=reason):
            team_keys.read_file(tmp_path / name)
