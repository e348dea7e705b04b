"""`blueprint.yaml` of kind gateway: teams with their limits, and the routes to deployments. Plain typed data."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field

from llm_serving.fleet.model import Name
from llm_serving.services.addresses import CacheUrl, EndpointUrl
from llm_serving.services.blueprint import BaseBlueprint
from llm_serving.services.load_balancer import LoadBalancer
from llm_serving.services.rendered import S3Location
from llm_serving.services.slo import BaseSlo
from llm_serving.services.team_keys import Secret
from llm_serving.settings.document import AllowSingleItem, Conflict, Settings, check_one_of, parse_default
from llm_serving.settings.units import Count, Days, Duration, Memory, Quantity, Share, read_formats

_ONE = Decimal(1)

FORMATS = read_formats(Path(__file__).with_name("formats.yaml"))

RouteName = Annotated[str, FORMATS["route-name"]]
ModelName = Annotated[str, FORMATS["model-name"]]
BedrockModel = Annotated[str, FORMATS["bedrock-model"]]
MockText = Annotated[str, FORMATS["mock-text"]]

Money = Annotated[float, Quantity((("USD", _ONE),), "an amount of money", "50 USD", max=Decimal(10_000_000))]

TokenPrice = Annotated[
    float, Quantity((("USD", _ONE),), "a price of a million tokens", "0.5 USD", max=Decimal(10_000), allow_zero=True)
]

TokensPerMinute = Annotated[int, Count("a number of tokens", "200k", 1, 1_000_000_000)]


PromptCharacters = Annotated[int, Count("a number of characters", "40k", 1, 100_000_000)]

_FORMS = {"deployment": "NAME", "url": "https://HOST", "bedrock": "MODEL", "mock": "TEXT"}
"""What is written after each word that says who answers."""

PersonalData = Literal["credit-card", "email", "iban", "ip", "phone", "us-ssn"]


class Budget(Settings):
    """What a team may spend, at the prices of the routes; further requests are refused with 422 `budget_exceeded`."""

    day: Money | None = None
    """Maximum a day, UTC."""

    month: Money | None = None
    """Maximum a calendar month, UTC."""

    def _check_order(self) -> Iterator[Conflict]:
        if self.day is not None and self.month is not None and self.day > self.month:
            yield Conflict(("day",), f"it is more than the month's, {self.month:g} USD", f"set day: {self.month:g} USD")


class Team(Settings):
    """A team; its keys share its limits."""

    models: Annotated[tuple[RouteName, ...], Field(min_length=1), AllowSingleItem()]
    """Routes that its keys may call; one or a list."""

    budget: Budget | None = None
    """What it may spend; unlimited where left out."""

    requests_per_minute: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Maximum requests a minute; further ones are refused with 429."""

    prompt_characters: PromptCharacters | None = None
    """Maximum characters of a request's prompt, with its tools and documents; longer ones are refused with 413 before a
    deployment gets them."""

    tokens_per_minute: TokensPerMinute | None = None
    """Maximum tokens a minute, input and output together; further requests are refused with 429. A request counts with
    the longest answer that it asks for until it ends."""

    priority: Literal["high", "normal", "low"] = "normal"
    """Which of the waiting requests goes first, at deployments with `tuning.priority: on`."""

    personal_data: Literal["mask", "block"] | None = None
    """What becomes of a request with personal data, see `guardrails`: each is replaced by its kind, or the request is
    refused with 400. Nothing where left out."""


class Source(Settings):
    """What answers requests of the OpenAI API."""

    SOURCES: ClassVar[tuple[str, ...]]
    """Fields of which exactly one is written."""

    deployment: Name | None = None
    """Name of a running serving deployment."""

    url: EndpointUrl | None = None
    """Any OpenAI-compatible endpoint, without /v1. Its bearer token is BLUEPRINT_API_KEY in the environment, on AWS the
    secret `aws.api_key`."""

    bedrock: BedrockModel | None = None
    """Model of Amazon Bedrock in the fleet's account and region, or inference profile: its id."""

    model: ModelName | None = None
    """`model` of the requests to it; default is the first of a `deployment`."""

    def _check_one(self) -> Iterator[Conflict]:
        *other_forms, last_form = (f"{name}: {_FORMS[name]}" for name in self.SOURCES)
        return check_one_of(self, *self.SOURCES, fix=f"set {', '.join(other_forms)} or {last_form}")

    def _check_model(self) -> Iterator[Conflict]:
        if self.url and not self.model:
            yield Conflict(("url",), "requests to it must name a model", "set model: NAME")


class Backend(Source):
    """What answers: exactly one of `deployment`, `url`, `bedrock` and `mock`."""

    SOURCES: ClassVar = ("deployment", "url", "bedrock", "mock")
    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in SOURCES]})

    bedrock: BedrockModel | None = None
    """Model of Amazon Bedrock in the fleet's account and region, or inference profile: its id. On this machine a mock
    answers in its place."""

    mock: MockText | None = None
    """The same answer to every request, to try a gateway without a model."""

    prompt_characters: PromptCharacters | None = None
    """Maximum characters of the prompts that it gets; longer ones go to those of the route without a limit, or with a
    higher one."""

    weight: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Share of the requests, relative to the route's others. Without weights the first answers, and the next ones in
    order only where it fails."""


class Embedding(Source):
    """What turns questions into vectors: exactly one of `deployment`, with `task: embed`, `url` and `bedrock`."""

    SOURCES: ClassVar = ("deployment", "url", "bedrock")
    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in SOURCES]})


class Price(Settings):
    """List price of a million tokens, which budgets count."""

    input: TokenPrice
    """Of prompts."""

    output: TokenPrice
    """Of answers."""


class Semantic(Settings):
    """Which other questions get a kept answer: those that mean the same, by the cosine similarity of their vectors."""

    embedding: Embedding
    """What turns questions into vectors."""

    similarity: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Least similarity of two questions that get the same answer."""

    timeout: Annotated[Duration, Field(ge=0.1, le=60)] = parse_default("5s")
    """Longest time that a request waits for its vector and the search; then a deployment answers."""


class Cache(Settings):
    """Answers that are kept: a request that the team sent before gets the same answer, and no deployment gets it."""

    keep: Annotated[Duration, Field(ge=1, le=30 * 86400)] = parse_default("1h")
    """How long an answer is kept."""

    semantic: Semantic | None = None
    """Which other questions get a kept answer: chats that differ in the wording of the last message only. Where left
    out, requests of the same body get it. It needs a search module in `shared_counts`; on AWS the stack has one."""


class Route(Settings):
    """A public model name."""

    deployments: Annotated[tuple[Backend, ...], Field(min_length=1, max_length=20), AllowSingleItem()]
    """What answers, in order; one or a list."""

    price: Price | None = None
    """List price that budgets count; nothing where left out."""

    cache: Cache | None = None
    """Answers that are kept, of each team for itself, in `shared_counts`; none where left out."""

    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """Further attempts of a request that failed."""

    timeout: Annotated[Duration, Field(ge=1, le=86400)] = parse_default("10min")
    """Maximum time of an attempt."""

    fallback: Annotated[tuple[RouteName, ...], Field(max_length=10), AllowSingleItem()] = ()
    """Routes that answer, in order, where none of its deployments does; one or a list."""

    def _check_prompts(self) -> Iterator[Conflict]:
        if all(backend.prompt_characters for backend in self.deployments):
            last = len(self.deployments) - 1
            reason = "no deployment of the route gets longer prompts"
            yield Conflict(("deployments", last, "prompt_characters"), reason, "remove it from one of them")

    def _check_weights(self) -> Iterator[Conflict]:
        weighted = [backend.weight is not None for backend in self.deployments]
        if any(weighted) and not all(weighted):
            reason = "others of the route have a weight"
            yield Conflict(("deployments", weighted.index(False)), reason, "set weight for each, or for none")


class Audit(Settings):
    """What is recorded of requests, and of changes of keys and teams. Prompts and answers are not."""

    keep: Days = parse_default("400d")
    """How long records are kept; `gateway usage` reaches back as far."""

    export: S3Location | None = None
    """Where each hour's records are written too, s3://BUCKET/PREFIX; nowhere where left out."""


class BedrockGuardrail(Settings):
    """A guardrail of Amazon Bedrock, in the fleet's account and region."""

    id: Annotated[str, FORMATS["guardrail-id"]]
    """Its id."""

    version: Annotated[str, FORMATS["guardrail-version"]]
    """A version of it, in quotes: "1"."""


class Guardrails(Settings):
    """What requests are searched for."""

    find: Annotated[tuple[PersonalData, ...], Field(min_length=1), AllowSingleItem()] = get_args(PersonalData)
    """Personal data that teams with `personal_data` mask or block; one or a list. It is found by patterns and check
    digits: names and addresses, which need a language model, are not."""

    bedrock: BedrockGuardrail | None = None
    """Guardrail that every request must pass, on AWS; what it refuses gets 400."""


class Aws(Settings):
    """What runs on AWS."""

    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Replicas of the proxy, of a core each: some 20 requests a second."""

    database_type: Annotated[str, FORMATS["database-type"]] = "db.t4g.medium"
    """Instance class of the database, which has a standby in another zone."""

    database_storage: Annotated[Memory, Field(ge=20 * 2**30, le=32 * 2**40)] = parse_default("20Gi")
    """Storage of the database, which grows by itself to ten times as much."""

    backup_days: Annotated[int, Field(ge=1, le=35)] = 7
    """How long the database can be restored to any second; after `destroy` once its key is taken back, within 30
    days."""

    cache_type: Annotated[str, FORMATS["cache-type"]] = "cache.t4g.small"
    """Node type of the cache of counts, which has a node in each of two zones."""

    api_key: Secret | None = None
    """Secret with the key of URLs, and of deployments with `auth`; on this machine it is BLUEPRINT_API_KEY."""


class Sample(Settings):
    """The requests that `validate` sends."""

    requests: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Requests to each model of each team; every second one is a stream."""

    output_tokens: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Maximum tokens of an answer."""


class GatewaySlo(BaseSlo):
    """Limits for the sample. A call that is answered without a valid key, or for another team's model, always fails."""

    failed_requests: Share = parse_default("0%")
    """Maximum share of requests without an answer."""

    answer_p95: Duration | None = None
    """95th percentile of the time from a request to its whole answer."""


class Blueprint(BaseBlueprint):
    """A user's copy of a pattern that gives teams one endpoint."""

    kind: Literal["gateway"] = "gateway"
    """Kind of work."""

    pattern: Literal["gateway"] = "gateway"
    """Pattern that this is a copy of, a folder of blueprints/."""

    teams: Annotated[dict[Name, Team], Field(min_length=1, max_length=1000, examples=[{"search": {"models": "chat"}}])]
    """Teams, by name."""

    routes: Annotated[
        dict[RouteName, Route],
        Field(min_length=1, max_length=200, examples=[{"chat": {"deployments": [{"deployment": "chat"}]}}]),
    ]
    """What each public model name leads to."""

    shared_counts: CacheUrl | None = None
    """Valkey or Redis through which replicas share the counts of limits and budgets. The user and the password are
    REDIS_USERNAME and REDIS_PASSWORD of the environment. A single replica needs none; on AWS the stack has one."""

    guardrails: Guardrails = Guardrails()
    """What requests are searched for."""

    load_balancer: LoadBalancer | None = None
    """What has TLS before the gateway, on AWS; where left out, clients in the VPC call it without TLS."""

    aws: Aws = Aws()
    """What runs on AWS."""

    audit: Audit = Audit()
    """What is recorded."""

    sample: Sample = Sample()
    """The requests that `validate` sends."""

    slo: GatewaySlo = GatewaySlo()
    """Limits for the sample."""

    def _check_models(self) -> Iterator[Conflict]:
        for name, team in self.teams.items():
            for number, model in enumerate(team.models):
                if model not in self.routes:
                    reason = "there is no such route"
                    yield Conflict(("teams", name, "models", number), reason, self._choose_route(), model)

    def _check_fallbacks(self) -> Iterator[Conflict]:
        """Check that a fallback, which answers whoever may call the route, is theirs too."""
        for name, route in self.routes.items():
            for number, other in enumerate(route.fallback):
                key_path = ("routes", name, "fallback", number)
                if other not in self.routes or other == name:
                    reason = "it is the route itself" if other == name else "there is no such route"
                    yield Conflict(key_path, reason, self._choose_route(name), other)
                    continue
                for team_name, team in self.teams.items():
                    if name in team.models and other not in team.models:
                        reason = f"team {team_name} may call {name}, and not this one"
                        yield Conflict(key_path, reason, f"add {other} to teams.{team_name}.models", other)

    def _check_prices(self) -> Iterator[Conflict]:
        for name, team in self.teams.items():
            unpriced = [model for model in team.models if model in self.routes and self.routes[model].price is None]
            if team.budget and unpriced:
                reason = f"nothing counts against it: the route {unpriced[0]} has no price"
                fix = f"set routes.{unpriced[0]}.price: {{input: 0.5 USD, output: 1.5 USD}}"
                yield Conflict(("teams", name, "budget"), reason, fix)

    def _choose_route(self, besides: str = "") -> str:
        others = [name for name in self.routes if name != besides]
        return f"choose {' or '.join(others)}" if others else "remove it"
