"""Two teams and an operator at the real Batch API with keys: who may do what with whose files and batches."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import openai
import pytest

from llm_serving import processes
from llm_serving.kinds.batch.client import FINAL_STATES, BatchClient
from llm_serving.settings.errors import InputError
from tests import batch_kills
from tests.batch_kills import BUCKET, BatchRun
from tests.images.batch_worker.test_team_keys import hash_key

pytestmark = pytest.mark.timeout(900)

KEYS = {"ads": "key-of-ads", "search": "key-of-search", "*": "key-of-the-operator"}
ENDPOINT = "/v1/chat/completions"
INBOX = "batch/mine/inbox"
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchRun]:
    folder = tmp_path_factory.mktemp("teams")
    file = folder / "keys.json"
    file.write_text(json.dumps({team: [hash_key(key)] for team, key in KEYS.items()}))
    file.chmod(0o600)
    keys = {"file": str(file)}
    with batch_kills.start_run(folder / "run", workers=1, delay_ms=5, takeover_s=10, team_keys=keys) as running:
        running.open_jobs()
        yield running


@pytest.fixture(scope="module")
def url(run: BatchRun) -> str:
    return run.wait_for_api()


def send(
    url: str, method: str, path: str, key: str = "", body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Send a request; returns the status and the parsed answer."""
    data = None if body is None else json.dumps(body).encode()
    sent = {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
        **(headers or {}),
    }
    request = urllib.request.Request(f"{url}{path}", data, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def connect(url: str, who: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[who], max_retries=0)


def run_batch(url: str, team: str, file_name: str) -> dict[str, str]:
    """Run a batch of a team; returns the ids of what it has."""
    client = connect(url, team)
    rows = {"good": f"answer {team} {file_name}", "bad": f"refuse {team} {file_name}"}
    file = client.files.create(file=(file_name, batch_kills.format_rows(rows)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    processes.wait_until(lambda: client.batches.retrieve(batch.id).status in FINAL_STATES, batch.id, LIMIT_S, 0.3)
    ended = client.batches.retrieve(batch.id)
    assert ended.status == "completed", ended
    return {"file": file.id, "batch": batch.id, "output": str(ended.output_file_id), "errors": str(ended.error_file_id)}


def wait_for_all(url: str) -> None:
    client = connect(url, "*")
    batches = client.batches
    processes.wait_until(
        lambda: all(batch.status in FINAL_STATES for batch in batches.list(limit=100)), "all batches", LIMIT_S, 0.3
    )


def create(source: Mapping[str, str]) -> dict[str, Any]:
    return {**source, "endpoint": ENDPOINT, "completion_window": "24h", "metadata": {"again": "table"}}


OPERATIONS: dict[str, Callable[[str, str, dict[str, str], str], tuple[int, Any]]] = {
    "show file": lambda url, key, ids, _: send(url, "GET", f"/v1/files/{ids['file']}", key),
    "download file": lambda url, key, ids, _: send(url, "GET", f"/v1/files/{ids['file']}/content", key),
    "download output": lambda url, key, ids, _: send(url, "GET", f"/v1/files/{ids['output']}/content", key),
    "download errors": lambda url, key, ids, _: send(url, "GET", f"/v1/files/{ids['errors']}/content", key),
    "count file": lambda url, key, ids, _: send(
        url, "POST", "/v1/batches/count", key, {"input_file_id": ids["file"], "model": "m"}
    ),
    "count inbox": lambda url, key, _, team: send(
        url, "POST", "/v1/batches/count", key, {"input_uri": f"s3://{BUCKET}/{INBOX}/{team}/rows.jsonl", "model": "m"}
    ),
    "submit file": lambda url, key, ids, _: send(
        url, "POST", "/v1/batches", key, create({"input_file_id": ids["file"]})
    ),
    "submit output": lambda url, key, ids, _: send(
        url, "POST", "/v1/batches", key, create({"input_file_id": ids["output"]})
    ),
    "submit inbox": lambda url, key, _, team: send(
        url, "POST", "/v1/batches", key, create({"input_uri": f"s3://{BUCKET}/{INBOX}/{team}/rows.jsonl"})
    ),
    "show batch": lambda url, key, ids, _: send(url, "GET", f"/v1/batches/{ids['batch']}", key),
    "retry batch": lambda url, key, ids, _: send(url, "POST", f"/v1/batches/{ids['batch']}/retry", key, {}),
    "cancel batch": lambda url, key, ids, _: send(url, "POST", f"/v1/batches/{ids['batch']}/cancel", key, {}),
    "resume batch": lambda url, key, ids, _: send(url, "POST", f"/v1/batches/{ids['batch']}/resume", key, {}),
    "delete output": lambda url, key, ids, _: send(url, "DELETE", f"/v1/files/{ids['output']}", key),
    "delete file": lambda url, key, ids, _: send(url, "DELETE", f"/v1/files/{ids['file']}", key),
}
"""What a client may try with a file or a batch of a team, the harmless ones first."""

REFUSED_ANYWAY = ("resume batch", "delete output")
"""Refused with 400 to whoever may see the batch: it has not failed, and its results stay with it."""


def test_each_operation_is_its_own_teams_and_as_if_absent_for_the_other(run: BatchRun, url: str) -> None:
    """Every pair of client and owner: a team's own, the other's, the operator's, without a key, with a wrong one."""
    for team in ("ads", "search"):
        run.s3.put_object(
            Bucket=BUCKET, Key=f"{INBOX}/{team}/rows.jsonl", Body=batch_kills.format_rows({"in": f"answer {team}"})
        )
    owned = {team: run_batch(url, team, "first.jsonl") for team in ("ads", "search")}
    clients = {**KEYS, "no key": "", "wrong key": "key-of-nobody"}
    table: dict[tuple[str, str], dict[str, int]] = {}
    for name, operate in OPERATIONS.items():
        if name == "delete file":
            wait_for_all(url)  # a file that a batch reads is not deleted
        # Strangers first: what they are refused must still be there for the owner.
        for client in ("no key", "wrong key", "search", "ads", "*"):
            for owner in sorted(owned, key=lambda team: team == client):
                if name == "delete file" and client == "*":
                    continue  # its owner has just deleted it
                table.setdefault((client, owner), {})[name] = operate(url, clients[client], owned[owner], owner)[0]
    print_table(table)
    for (client, owner), statuses in table.items():
        for name, status in statuses.items():
            may = client in ("*", owner)
            expected_status = 401 if "key" in client else 400 if name in REFUSED_ANYWAY else 200
            if not may and "key" not in client:
                expected_status = 400 if "inbox" in name else 404
            assert status == expected_status, (client, owner, name, status)


def print_table(table: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
    """Print who gets which status."""
    columns = list(table)
    print(f"\n{'':16}" + "".join(f"{client + ' > ' + owner:>20}" for client, owner in columns))
    for name in OPERATIONS:
        print(f"{name:16}" + "".join(f"{table[column].get(name, '-'):>20}" for column in columns))


def test_lists_have_the_own_teams_entries_alone(run: BatchRun, url: str) -> None:
    owned = {team: run_batch(url, team, "listed.jsonl") for team in ("ads", "search")}
    for team, other in (("ads", "search"), ("search", "ads")):
        client = connect(url, team)
        files, batches = [entry.id for entry in client.files.list()], [entry.id for entry in client.batches.list()]
        assert owned[team]["file"] in files and owned[other]["file"] not in files
        assert owned[team]["batch"] in batches and owned[other]["batch"] not in batches
        assert [row["team"] for row in send(url, "GET", "/teams", KEYS[team])[1]["data"]] == [team]
        after = send(url, "GET", f"/v1/batches?after={owned[other]['batch']}", KEYS[team])[1]
        assert {entry["team"] for entry in after["data"]} == {team}
    listed_ids = [entry.id for entry in connect(url, "*").batches.list(limit=100)]
    assert {ids["batch"] for ids in owned.values()} <= set(listed_ids)
    teams = send(url, "GET", "/teams", KEYS["*"])[1]["data"]
    assert [row["team"] for row in teams] == ["default", "search", "ads"]


def test_the_same_content_of_two_teams_is_two_files(url: str) -> None:
    rows = batch_kills.format_rows({"same": "answer same"})
    ids = {
        team: connect(url, team).files.create(file=("same.jsonl", rows), purpose="batch").id
        for team in ("ads", "search")
    }
    assert ids["ads"] != ids["search"]
    assert connect(url, "ads").files.delete(ids["ads"]).deleted
    assert connect(url, "search").files.content(ids["search"]).read() == rows


def test_the_team_of_a_batch_is_that_of_its_key_and_never_what_metadata_says(url: str) -> None:
    client = connect(url, "ads")
    file = client.files.create(file=("rows.jsonl", batch_kills.format_rows({"a": "answer a"})), purpose="batch")
    options: Any = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError, match="search is not the team of this key, ads") as refused:
        client.batches.create(**options, metadata={"team": "search"})
    assert refused.value.param == "metadata.team"
    assert client.batches.create(**options, metadata={"team": "ads"}).model_dump()["team"] == "ads"
    assert client.batches.create(**options, metadata={"again": "unnamed"}).model_dump()["team"] == "ads"
    team_batch = connect(url, "*").batches.create(**options, metadata={"team": "search"})
    assert team_batch.model_dump()["team"] == "search"


@pytest.mark.parametrize(
    "key",
    [
        f"{INBOX}/search/rows.jsonl",
        f"{INBOX}/ads/../search/rows.jsonl",
        f"{INBOX}/ads//rows.jsonl",
        f"{INBOX}/ads",
        "batch/mine/jobs/x/output.jsonl",
        "batch/mine/scheduled/rows.jsonl",
    ],
)
def test_a_uri_of_the_bucket_outside_the_teams_inbox_is_as_if_absent(url: str, key: str) -> None:
    status, answer = send(url, "POST", "/v1/batches", KEYS["ads"], {"input_uri": f"s3://{BUCKET}/{key}"})
    assert (status, answer["error"]["message"]) == (400, f"there is no s3://{BUCKET}/{key}")


def test_a_call_without_a_valid_key_gets_401_in_openais_form(url: str) -> None:
    messages = {
        "": "there is no API key: send it as Authorization: Bearer KEY",
        "key-of-nobody": "the API key belongs to no team of this batch: it is wrong, or was removed",
    }
    for key, message in messages.items():
        for method, path in (("GET", "/v1/batches"), ("GET", "/workers"), ("GET", "/teams"), ("POST", "/v1/none")):
            status, answer = send(url, method, path, key)
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
            assert (status, answer) == (401, {"error": error}), path
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).files.list()
    assert send(url, "GET", "/health")[0] == 200


def test_the_command_lines_client_sends_the_key_of_its_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEPRINT_API_KEY", KEYS["ads"])
    assert [row["team"] for row in BatchClient(url).list_teams()] == ["ads"]
    monkeypatch.delenv("BLUEPRINT_API_KEY")
    expected_message = (
        "there is no API key: send it as Authorization: Bearer KEY. Fix: set BLUEPRINT_API_KEY to a key of the team."
    )
    with pytest.raises(InputError) as refused:
        BatchClient(url).list_teams()
    assert str(refused.value) == expected_message
    monkeypatch.setenv("BLUEPRINT_API_KEY", KEYS["ads"])
    with pytest.raises(InputError, match="without TLS everybody on the way could read the key"):
        BatchClient("http://batch.example.com:8080")


def test_no_key_and_no_hash_is_in_the_programs_settings_or_logs(run: BatchRun) -> None:
    log = (run.folder / "batch-api.log").read_text(encoding="utf-8")
    for key in KEYS.values():
        for text in (key, hash_key(key)):
            assert text not in json.dumps(run.env) and text not in log
