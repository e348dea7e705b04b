"""nginx before the router asks for keys of teams, limits each team, and counts what it used."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from llm_serving import paths, processes
from llm_serving.catalog.own_image import OwnImage
from tests.http_handler import QuietHandler
from tests.images.router import test_router_front
from tests.images.router.test_router_front import PROGRAM, ROUTER_HOST, Router, run_front, send

SEARCH, SLOW, OPERATOR = "sk-search-0123456789", "sk-slow-0123456789", "sk-operator-0123456789"
PATH = "/v1/chat/completions"
WAIT_S = 60.0


class Door(NamedTuple):
    """A front that asks for keys."""

    port: int
    usage_port: int
    file: Path
    router: Router


def hash_key(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def write_keys(file: Path, **keys: list[str]) -> None:
    """Replace the document of keys at once."""
    part = file.with_suffix(".part")
    part.touch(0o600)
    part.write_text(json.dumps({team: [hash_key(key) for key in own] for team, own in keys.items()}))
    part.rename(file)


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    module_router = Router()
    with module_router.serve():
        yield module_router


@contextlib.contextmanager
def run_door(router: Router, file: Path, place: str = "", log: IO[bytes] | None = None) -> Iterator[Door]:
    [usage_port] = processes.claim_free_ports(1)
    options = ("--keys", place or str(file), "--usage", f"{ROUTER_HOST}:{usage_port}", "--limit", "slow=2")
    with run_front(router, options=options, output=log) as (port, _):
        yield Door(port, usage_port, file, router)


@pytest.fixture(scope="module")
def module_door(router: Router, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    write_keys(file, search=[SEARCH], slow=[SLOW], **{"*": [OPERATOR]})
    with run_door(router, file) as running:
        yield running


@pytest.fixture
def door(module_door: Door) -> Door:
    """A front with the keys of two teams."""
    module_door.router.requests.clear()
    module_door.router.headers.clear()
    return module_door


@pytest.fixture
def changing_door(router: Router, tmp_path: Path) -> Iterator[Door]:
    """A front of the test alone, with `log` beside its keys: for a while after a change nginx's earlier workers answer too."""
    write_keys(tmp_path / "keys.json", search=[SEARCH])
    with (tmp_path / "log").open("wb") as log, run_door(router, tmp_path / "keys.json", log=log) as running:
        yield running


def bear(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def wait_for(door: Door, key: str, status: int) -> None:
    def has_status() -> bool:
        return send(door.port, "GET", "/v1/models", **bear(key)) == status

    processes.wait_until(has_status, f"{status} for {key}", WAIT_S, interval_s=0.02)


def answer(door: Door, *chunks: str) -> None:
    """Let the team `search` have an answer of these chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions?stream", b"{}", bear(SEARCH))
        for chunk in (*chunks, ""):
            door.router.chunks.put(chunk.encode())
        assert connection.getresponse().read() == "".join(chunks).encode()


def read_usage(door: Door) -> dict[str, int]:
    """Read what the team `search` used, and what was refused, by the metric and its last label."""
    connection = http.client.HTTPConnection(ROUTER_HOST, door.usage_port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.findall(r'^team_(\w+)_total\{team="(.*)",\w+="(.*)"\} (\d+)$', text, re.MULTILINE)
    assert len(found) == len(text.splitlines())
    return {f"{name} {team} {label}": int(number) for name, team, label, number in found}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bear("sk-unknown-0123456789"),
        bear(SEARCH.upper()),
        bear(OPERATOR),
        bear(""),
        bear(hash_key(SEARCH)),
        {"Authorization": f"Basic {SEARCH}"},
        {"X-Team": "search"},
    ],
)
def test_a_request_without_a_team_s_key_gets_401_and_never_reaches_the_router(
    door: Door, headers: dict[str, str]
) -> None:
    for path in (PATH, f"{PATH}?api_key={SEARCH}&key={SEARCH}"):
        assert send(door.port, "POST", path, **headers) == 401
    assert send(door.port, "GET", "/v1/models", **headers) == 401
    assert door.router.requests == []
    assert send(door.port, "POST", PATH, **bear(SEARCH)) == 200, "a team's key does"


def test_a_refusal_says_which_way_to_log_in(door: Door) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", PATH, b"{}")
        response = connection.getresponse()
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert json.loads(response.read())["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("headers", [bear(SEARCH), {"Authorization": f"bearer  {SEARCH}"}, {"X-Api-Key": SEARCH}])
def test_a_key_passes_and_ends_at_the_front(door: Door, headers: dict[str, str]) -> None:
    assert send(door.port, "POST", PATH, **headers) == 200
    assert door.router.requests == [("POST", PATH)]
    assert SEARCH not in json.dumps(door.router.headers)


def test_probes_need_no_key_and_other_paths_stay_outside_with_one(door: Door) -> None:
    for path in ("/health", "/health/liveliness", "/liveness", "/readiness"):
        assert send(door.port, "GET", path) == 200
    assert send(door.port, "POST", "/flush_cache", **bear(SEARCH)) == 404
    assert send(door.port, "GET", "/metrics", **bear(SEARCH)) == 404


def test_a_changed_document_counts_without_a_restart_and_a_stream_goes_on(changing_door: Door) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", changing_door.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions?stream", b"{}", bear(SEARCH))
        changing_door.router.chunks.put(b"one")
        response = connection.getresponse()
        assert response.read1(3) == b"one"
        write_keys(changing_door.file, ads=["sk-ads-0123456789"])
        wait_for(changing_door, "sk-ads-0123456789", 200)
        wait_for(changing_door, SEARCH, 401)
        changing_door.router.chunks.put(b"two")
        changing_door.router.chunks.put(b"")
        assert response.read() == b"two"


def test_a_document_that_cannot_be_used_leaves_the_keys_as_they_are(changing_door: Door) -> None:
    log = changing_door.file.with_name("log")
    for text, reason in {"no JSON": "object", '{"search": ["sk-plain"]}': "search", '{"a b": []}': "a b"}.items():
        changing_door.file.write_text(text)
        line = re.compile(f"router-front: the keys stay as they are: .*{reason}")
        processes.wait_until(lambda line=line: line.search(log.read_text()) is not None, text, WAIT_S)  # type: ignore[misc]
        assert send(changing_door.port, "POST", PATH, **bear(SEARCH)) == 200
    write_keys(changing_door.file, ads=["sk-ads-0123456789"])
    wait_for(changing_door, "sk-ads-0123456789", 200)


def test_a_team_beyond_its_requests_a_minute_gets_429_and_others_do_not(door: Door) -> None:
    statuses = [send(door.port, "POST", PATH, **bear(SLOW)) for _ in range(5)]  # a new minute lets two more pass
    assert 429 in statuses
    assert statuses.count(200) == len(door.router.requests) >= 2
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=60)
    with contextlib.closing(connection):
        for _ in range(5):
            connection.request("POST", PATH, b"{}", bear(SLOW))
            response = connection.getresponse()
            body = response.read()
            if response.status == 429:
                break
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        assert json.loads(body)["error"]["type"] == "rate_limit_exceeded"
    assert send(door.port, "POST", PATH, **bear(SEARCH)) == 200
    assert read_usage(door)["refused_requests slow 429"] >= 1


def test_the_tokens_of_answers_and_streams_are_counted_by_team_and_model(changing_door: Door) -> None:
    """Of a front of its own: nginx counts an answer once its client has it, so those of other tests may come late."""
    usage = '"usage":{"prompt_tokens":%d,"total_tokens":9,"completion_tokens":%d}'
    # What a model writes has a backslash before each quote.
    text = json.dumps(usage % (900, 900))
    answer(changing_door, '{"model":"tiny","choices":[{"text":', text, "}],", usage % (20, 4), "}")
    chunks = ('data: {"model":"tiny","choices":[]}\n\n', *["data: {}\n\n"] * 3, f"data: {{{usage % (3, 1)}}}\n\n")
    answer(changing_door, *chunks)
    # Of Anthropic's API: the last says all.
    started = '"usage":{"input_tokens":7,"output_tokens":0}'
    answer(changing_door, f'{{"model": "big", {started}}}\n', '"usage":{"input_tokens":7,"output_tokens":5}')
    answer(changing_door, '{"model":"big"}', "x" * 100_000)
    expected = {
        "answers search tiny": 2, "input_tokens search tiny": 23, "output_tokens search tiny": 5,
        "answers search big": 2, "input_tokens search big": 7, "output_tokens search big": 5,
    }  # fmt: skip
    answers = expected["answers search tiny"] + expected["answers search big"]

    def has_all() -> bool:
        return sum(count for name, count in read_usage(changing_door).items() if "answers" in name) >= answers

    processes.wait_until(has_all, f"{answers} answers", WAIT_S, interval_s=0.02)
    assert read_usage(changing_door) == expected


def test_models_that_clients_make_up_take_no_more_than_the_room_for_names(
    router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some engines answer with whatever model a request names."""
    folder = shutil.copytree(PROGRAM.parent, tmp_path / "router")
    script = (folder / "keys.js").read_text()
    assert script.count("const MAX_NAMES = 9000;") == 1
    (folder / "keys.js").write_text(script.replace("MAX_NAMES = 9000", "MAX_NAMES = 6"))
    monkeypatch.setattr(test_router_front, "PROGRAM", folder / PROGRAM.name)
    write_keys(tmp_path / "keys.json", search=[SEARCH])
    with run_door(router, tmp_path / "keys.json") as door:
        for model in ("made-up-1", "made-up-2", "made-up-3", "made-up-4", "made-up-1"):
            answer(door, f'{{"model":"{model}"}}')
        expected = {"answers search made-up-1": 2, "answers search made-up-2": 1, "answers search ": 2}

        def has_all() -> bool:
            answers = {name: count for name, count in read_usage(door).items() if name.startswith("answers")}
            return answers == expected

        processes.wait_until(has_all, str(expected), WAIT_S, interval_s=0.02)


def test_without_a_document_nobody_passes(router: Router, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with run_door(router, file) as door:
        assert send(door.port, "POST", PATH, **bear(SEARCH)) == 401
        write_keys(file, search=[SEARCH])
        wait_for(door, SEARCH, 200)


def test_a_document_that_others_may_read_gives_nobody_a_key(router: Router, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    write_keys(file, search=[SEARCH])
    file.chmod(0o640)
    with run_door(router, file) as door:
        assert send(door.port, "POST", PATH, **bear(SEARCH)) == 401
        file.chmod(0o600)
        wait_for(door, SEARCH, 200)


class SecretsManager(QuietHandler):
    """Answers GetSecretValue with the text of a file."""

    file: Path

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = self.headers["X-Amz-Target"] == "secretsmanager.GetSecretValue" and asked == {"SecretId": "llm/keys"}
        text = self.file.read_text() if is_known else ""
        body = json.dumps({"SecretString": text}).encode()
        self.send_response(200 if text and "us-west-2/secretsmanager" in self.headers["Authorization"] else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_the_keys_of_a_secret_open_the_door(router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SecretsManager.file = tmp_path / "keys.json"
    write_keys(SecretsManager.file, search=[SEARCH])
    server = ThreadingHTTPServer(("127.0.0.1", 0), SecretsManager)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": f"http://127.0.0.1:{server.server_port}",
        "AWS_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        with run_door(router, SecretsManager.file, "secret:llm/keys") as door:
            wait_for(door, SEARCH, 200)
            assert send(door.port, "POST", PATH, **bear(OPERATOR)) == 401
        with run_door(router, SecretsManager.file, "secret:another") as door:
            assert send(door.port, "POST", PATH, **bear(SEARCH)) == 401, "who cannot read the secret lets nobody in"
    finally:
        server.shutdown()
        server.server_close()


def test_a_secret_that_is_read_again_gives_nginx_other_keys_and_one_that_fails_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    front = importlib.import_module("router_front")
    minutes, texts = iter([0, 0, 1, 2, 3]), iter([json.dumps({"search": [hash_key(SEARCH)]}), None, "{}"])

    def read() -> str:
        text = next(texts)
        if text is None:
            raise OSError("Secrets Manager is away")
        return text

    keys = front.TeamKeys(read, lambda: next(minutes), {}, tmp_path)
    keys.start()
    file = tmp_path / "team_of_key.map"
    own = file.read_text()
    assert own == f"{hash_key(SEARCH).removeprefix('sha256:')} search;\n"
    assert [keys.update(), keys.update(), file.read_text()] == [False, False, own], "the same minute; an error"
    assert [keys.update(), file.read_text()] == [True, ""]


def test_the_program_is_in_its_image_with_all_its_files() -> None:
    copied = next(line for line in (PROGRAM.parent / "Dockerfile").read_text().splitlines() if "keys.js" in line)
    files = [path for path in PROGRAM.parent.iterdir() if path.suffix in (".py", ".conf", ".js")]
    assert {path.name for path in files if not path.is_symlink()} == set(copied.split()[1:-1])


def test_the_keys_are_read_by_the_batch_api_s_module_in_the_image_and_here() -> None:
    module = paths.IMAGES / "batch-worker" / "batch" / "team_keys.py"
    assert [path.resolve() for path in PROGRAM.parent.iterdir() if path.is_symlink()] == [module]
    for image in ("router", "gateway"):
        assert module in OwnImage(image).list_files()
