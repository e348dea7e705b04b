"""Answers to questions that mean the same: real LiteLLM, a real search module, and the vectors of a real model."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from redis.commands.search.query import Query

from llm_serving import paths, processes
from llm_serving.cli import main
from llm_serving.kinds.gateway import database, gateway_program
from llm_serving.kinds.gateway.deployment import GatewayDeployment
from llm_serving.kinds.gateway.usage import CACHE
from llm_serving.services import deployments
from llm_serving.services.deployment import FoundDeployment
from llm_serving.targets.deployment_dir import DeploymentDir
from tests.kinds.gateway import embedder, search_server
from tests.kinds.gateway.provider import ANSWER_TOKENS, Provider, run_provider

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200), pytest.mark.xdist_group("gateway")]

WAIT_S = 120.0
KEPT_S = 20
TEAMS = ("red", "green", "blue")
EMBEDDING_USD_H = 3.6

QUESTION, SAME, SAME_AGAIN = (
    "How do I reset my password?",
    "How can I reset my password?",
    "How should I reset my password?",
)
OTHER = "Which currencies do you accept?"
"""Of all-MiniLM-L6-v2, the first three are nearer to each other than SIMILARITY."""

SIMILARITY = 0.9

BLUEPRINT = """\
kind: gateway
pattern: gateway
teams:
  red: {models: [chat, short, exact]}
  green: {models: chat}
  blue: {models: chat}
  yellow: {models: chat}
  strict: {models: chat, personal_data: block}
routes:
  chat:
    deployments: {url: "PROVIDER", model: known}
    retries: 0
    cache: {keep: 1h, semantic: {embedding: {deployment: vectors}, similarity: 0.9, timeout: 60s}}
  short:
    deployments: {url: "PROVIDER", model: known}
    cache: {keep: KEPT_S, semantic: {embedding: {deployment: vectors}, similarity: 0.9, timeout: 60s}}
  exact:
    deployments: {url: "PROVIDER", model: known}
    cache: {keep: 1h}
shared_counts: redis://127.0.0.1:REDIS_PORT
"""


@dataclass
class Running:
    """A deployed gateway."""

    deployment: GatewayDeployment
    provider: Provider
    redis_port: int
    stop_search: Callable[[], None]
    """Stops the server with the search module."""

    start_search: Callable[[], None]

    def run(self, *arguments: str) -> Any:
        """Run `blueprint gateway`, and return its JSON."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert main.run(["gateway", *arguments, "--json"]) == 0
        return json.loads(output.getvalue())

    def connect(self, team: str) -> openai.OpenAI:
        key = self.run("key", "create", "edge", "--team", team)["key"]
        return openai.OpenAI(base_url=f"{self.deployment.url}/v1", api_key=key, max_retries=0, timeout=WAIT_S)

    @property
    def server(self) -> Any:
        return redis.Redis(port=self.redis_port)

    def list_vectors(self) -> list[Any]:
        """List what is kept of questions."""
        return [self.server.hgetall(name) for name in self.server.scan_iter("semantic-*")]

    def wait_for_vectors(self, count: int) -> None:
        """Wait until so many vectors are kept: LiteLLM keeps an answer after the client has it."""
        processes.wait_until(lambda: len(self.list_vectors()) >= count, f"{count} vectors", WAIT_S, 0.05)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, prisma_standin: Path) -> Iterator[Running]:
    """Deploy a gateway before a server that answers each request with its number."""
    assert prisma_standin.is_file()
    if missing := database.find_missing():
        pytest.skip(f"{missing}: there is none on this machine. To run this test: {database.INSTALL}")
    root = tmp_path_factory.mktemp("semantic")
    with contextlib.ExitStack() as stack:
        (port,) = processes.claim_free_ports(1)
        search = contextlib.ExitStack()
        stack.callback(search.close)
        search.enter_context(search_server.run_search_server(root, port))
        url = stack.enter_context(embedder.run_embedder(root))
        provider = stack.enter_context(run_provider())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        vectors = FoundDeployment(
            name="vectors", kind="serving", url=url, models=(embedder.MODEL,), task="embed", usd_h=EMBEDDING_USD_H,
            metrics_urls=(f"{url}/metrics",),
            metrics={"prompt-tokens": embedder.TOKENS, "output-tokens": "vllm:generation_tokens_total"},
        )  # fmt: skip
        patch.setattr(deployments, "find", lambda *_: vectors)
        patch.chdir(root)
        (root / "edge").mkdir()
        shutil.copy(paths.PATTERNS / "gateway" / "local.conf.j2", root / "edge")
        text = BLUEPRINT.replace("REDIS_PORT", str(port)).replace("PROVIDER", provider.url)
        (root / "edge" / "blueprint.yaml").write_text(text.replace("KEPT_S", f"{KEPT_S}s"))
        shutil.copy(paths.ROOT / "fleet.yaml", root)
        try:
            assert main.run(["deploy", "edge", "--yes"]) == 0
            deployment = DeploymentDir("edge", root).load_deployment()
            assert isinstance(deployment, GatewayDeployment)
            yield Running(
                deployment, provider, port, search.close,
                lambda: search.enter_context(search_server.run_search_server(root, port)),
            )  # fmt: skip
        finally:
            assert main.run(["destroy", "edge", "--yes"]) == 0


@pytest.fixture
def empty(gateway: Running) -> Running:
    """The gateway without kept answers, also none in LiteLLM's own memory, where this test's have keys of their own.

    A test that uses it ends when its own answers are kept.
    """
    for name in gateway.server.scan_iter("semantic-*"):
        gateway.server.delete(name)
    return gateway


def ask(client: openai.OpenAI, text: Any, model: str = "chat", seed: int = 1, **options: Any) -> str:
    """Ask; `seed` of another test lets no answer of before be found."""
    messages: Any = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16, seed=seed, **options)
    return str(answer.choices[0].message.content)


def stream(client: openai.OpenAI, text: str, seed: int) -> tuple[str, int]:
    """Ask for a stream; returns its text and the tokens of its usage."""
    messages: Any = [{"role": "user", "content": text}]
    events = client.chat.completions.create(
        model="chat", messages=messages, max_tokens=16, seed=seed, stream=True, stream_options={"include_usage": True}
    )
    texts, tokens = [], 0
    for event in events:
        texts += [choice.delta.content or "" for choice in event.choices]
        tokens = event.usage.completion_tokens if event.usage else tokens
    return "".join(texts), tokens


def test_a_question_in_other_words_gets_the_answer_and_no_deployment_gets_it(empty: Running) -> None:
    client = empty.connect("red")
    answer = ask(client, QUESTION, seed=10)
    empty.wait_for_vectors(1)
    received = len(empty.provider.received)
    assert [ask(client, text, seed=10) for text in (SAME, SAME_AGAIN)] == [answer, answer]
    assert ask(client, [{"type": "text", "text": SAME}], seed=10) == answer
    assert len(empty.provider.received) == received
    assert ask(empty.connect("red"), SAME, seed=10) == answer, "of another key of the team"


def test_what_differs_in_more_than_the_last_message_s_words_gets_an_answer_of_its_own(empty: Running) -> None:
    client = empty.connect("red")
    answer = ask(client, "Which plan has 20 seats for my team?", seed=20)
    empty.wait_for_vectors(1)
    assert ask(client, "Which plan has got 20 seats for my team?", seed=20) == answer, "the control"
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    same = "Which plan has 20 seats for a team?"
    others = [
        ask(client, OTHER, seed=20),
        ask(client, "Which plan has 30 seats for my team?", seed=20),
        ask(client, "Which plan hasn't 20 seats for my team?", seed=20),
        ask(client, same, seed=21),
        ask(client, same, seed=20, temperature=0.7),
        ask(client, same, seed=20, extra_body={"min_p": 0.5}),
        ask(client, same, seed=20, extra_body={"min_p": 0.6}),
        ask(client, [{"type": "text", "text": same}, picture], seed=20),
        ask(client, same, "exact", seed=20),
    ]
    system: Any = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": same}]
    french = client.chat.completions.create(model="chat", messages=system, max_tokens=16, seed=20)
    others.append(str(french.choices[0].message.content))
    assert answer not in others
    assert len(set(others)) == len(others)
    empty.wait_for_vectors(len(others) - 1)  # and the first one; not that of the picture, nor of the route `exact`


def test_a_stream_is_kept_and_answered_as_any_other(empty: Running) -> None:
    client = empty.connect("red")
    text, tokens = stream(client, QUESTION, seed=30)
    empty.wait_for_vectors(1)
    received = len(empty.provider.received)
    assert stream(client, SAME, seed=30) == (text, tokens) == (text, ANSWER_TOKENS)
    assert ask(client, SAME_AGAIN, seed=30) == text
    assert len(empty.provider.received) == received


@pytest.fixture(scope="module")
def answers(gateway: Running) -> dict[str, tuple[str, str]]:
    """What each team gets for a question, and then for the same in other words; the teams ask in turn."""
    clients = {team: gateway.connect(team) for team in TEAMS}
    before = len(gateway.list_vectors())
    first = {}
    for number, (team, client) in enumerate(clients.items()):
        first[team] = ask(client, QUESTION, seed=40)
        gateway.wait_for_vectors(before + number + 1)
    return {team: (first[team], ask(client, SAME, seed=40)) for team, client in clients.items()}


@pytest.mark.parametrize(("team", "other"), [*itertools.permutations(TEAMS, 2)])
def test_no_team_gets_another_s_answer(
    gateway: Running, answers: dict[str, tuple[str, str]], team: str, other: str
) -> None:
    (own, again), (theirs, _) = answers[team], answers[other]
    assert own == again != theirs
    own_scopes, their_scopes = (
        {row[b"scope"] for row in gateway.list_vectors() if row[b"key"].startswith(f"team {name}:".encode())}
        for name in (team, other)
    )
    assert own_scopes and their_scopes
    assert own_scopes.isdisjoint(their_scopes)


def test_without_the_team_in_the_search_another_s_answer_would_be_the_nearest(
    gateway: Running, answers: dict[str, tuple[str, str]]
) -> None:
    """The control of the test above: the vectors of all teams' same question are the same, and lie in one index."""
    assert answers
    [index] = gateway.server.execute_command("FT._LIST")
    [vector, *_] = [row[b"vector"] for row in gateway.list_vectors() if row[b"key"].startswith(b"team red:")]
    query = Query("*=>[KNN 9 @vector $vector AS distance]").return_fields("key", "distance").dialect(2)
    found = gateway.server.ft(index).search(query, query_params={"vector": vector})
    near = {row.key.partition(":")[0] for row in found.docs if 1 - float(row.distance) >= SIMILARITY}
    assert near >= {"team red", "team green", "team blue"}


def test_an_entry_that_names_another_team_s_answer_gives_nothing(empty: Running) -> None:
    """Even where the index itself is wrong: the key says whose answer it is."""
    red, green = empty.connect("red"), empty.connect("green")
    theirs = ask(green, QUESTION, seed=50)
    empty.wait_for_vectors(1)
    [(name, kept)] = [(name, empty.server.hgetall(name)) for name in empty.server.scan_iter("semantic-*")]
    own = ask(red, SAME, seed=50)
    empty.wait_for_vectors(2)
    [scope] = {row[b"scope"] for row in empty.list_vectors()} - {kept[b"scope"]}
    [own_name] = {*empty.server.scan_iter("semantic-*")} - {name}
    empty.server.delete(own_name)
    empty.server.hset(name, "scope", scope)
    assert ask(red, SAME_AGAIN, seed=50) not in (own, theirs)
    empty.wait_for_vectors(2)


def test_a_blocked_question_is_neither_embedded_nor_kept(empty: Running) -> None:
    strict = empty.connect("strict")
    with pytest.raises(openai.BadRequestError, match="personal data"):
        ask(strict, f"{QUESTION} My address is pat@example.com.", seed=60)
    allowed = ask(strict, QUESTION, seed=60)
    empty.wait_for_vectors(1)
    assert [row[b"key"].partition(b":")[0] for row in empty.list_vectors()] == [b"team strict"]
    assert ask(strict, SAME, seed=60) == allowed


def test_no_text_is_in_the_index(empty: Running) -> None:
    ask(empty.connect("red"), "A secret-4711 of mine?", seed=70)
    empty.wait_for_vectors(1)
    [row] = empty.list_vectors()
    assert row.keys() == {b"key", b"scope", b"vector"}
    assert b"4711" not in row[b"key"] + row[b"scope"] + row[b"vector"]


def test_an_answer_is_found_as_long_as_it_is_kept(empty: Running) -> None:
    client = empty.connect("red")
    answer = ask(client, QUESTION, "short", seed=80)
    empty.wait_for_vectors(1)
    [name] = empty.server.scan_iter("semantic-*")
    assert 0 < empty.server.ttl(name) <= KEPT_S
    processes.wait_until(lambda: not empty.server.exists(name), "the end of the answer", WAIT_S, 0.1)
    assert ask(client, SAME, "short", seed=80) != answer
    empty.wait_for_vectors(1)


def test_the_usage_has_the_hit_rate_the_saved_tokens_and_what_vectors_cost(empty: Running) -> None:
    client = empty.connect("yellow")  # which no other test asks as
    answer = ask(client, QUESTION, seed=90)
    empty.wait_for_vectors(1)
    forged: Any = {"metadata": {"spend_logs_metadata": {"similarity": "near"}}}
    assert [ask(client, text, seed=90, extra_body=forged) for text in (SAME, QUESTION)] == [answer] * 2
    rows: dict[str, Any] = {}

    def is_recorded() -> bool:
        used = empty.run("usage", "edge", "--by", "team,deployment")
        rows.update((row["deployment"], row) for row in used if row["team"] == "yellow")
        return sum(row["requests"] for row in rows.values()) == 3 and "vectors" in rows

    processes.wait_until(is_recorded, "three requests", WAIT_S, 1.0)
    kept, embedding = rows[CACHE], rows["vectors"]
    assert [kept[name] for name in ("requests", "similar_requests", "saved_tokens")] == [2, 1, 2 * 12]
    [total] = [row for row in empty.run("usage", "edge", "--by", "team") if row["team"] == "yellow"]
    assert total["hit_rate"] == round(2 / 3, 4)
    assert embedding["input_tokens"] > 0
    assert (embedding["requests"], embedding["output_tokens"]) == (0, 0)
    assert embedding["usd"] > 0
    entries = [row for row in empty.run("audit", "edge") if row["event"] == "request" and row["team"] == "yellow"]
    similar, exact = ((row["verdict"], row.get("similarity")) for row in entries if row["deployment"] == CACHE)
    assert similar[0] == exact[0] == "cached"
    assert SIMILARITY <= similar[1] < 1
    assert exact[1] is None


def test_requests_go_on_without_the_search_module_and_find_answers_again_once_it_is_back(empty: Running) -> None:
    client = empty.connect("red")
    ask(client, QUESTION, seed=100)
    empty.wait_for_vectors(1)
    empty.stop_search()
    assert ask(client, "Is anybody there?", seed=100).startswith("Answer ")
    assert ask(client, "Is anyone there?", seed=100).startswith("Answer ")
    empty.start_search()

    def is_found() -> bool:
        """Ask anew each time: the pause after a failure leaves questions without a vector."""
        seed = time.time_ns() // 1_000_000
        answer = ask(client, QUESTION, seed=seed)
        time.sleep(1)
        return ask(client, SAME, seed=seed) == answer

    processes.wait_until(is_found, "an answer to other words", WAIT_S, 1.0)


def test_a_team_cannot_call_what_makes_vectors(gateway: Running) -> None:
    client = gateway.connect("red")
    semantic = json.loads(gateway.deployment.entries[0].env[gateway_program.SEMANTIC_VARIABLE])
    [name] = {row["embedding"] for row in semantic.values()}
    assert name not in [model.id for model in client.models.list()]
    with pytest.raises(openai.PermissionDeniedError):
        client.embeddings.create(model=name, input="hi")
