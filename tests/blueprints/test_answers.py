"""Calls of tools, structured output, reasoning, pictures and priorities: the official client, the router, the real engine.

The weights are random, so what a model would write is forced: the engine's constrained decoding writes it token by token,
and the engine's parsers read it as they would read a model's own words. Parsers of streams look for whole tokens such as
`</think>`, which the generated model never chooses by itself: forced answers have no other token with `<`.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import openai
import pytest

from llm_serving import processes
from llm_serving.catalog import models
from llm_serving.hub import make_tiny
from llm_serving.kinds.serving.checks.pictures import MARK_TOKENS
from llm_serving.kinds.serving.validation import validate as validation
from llm_serving.services.traffic import Images
from llm_serving.settings.units import Bounds
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.load import pictures

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "find_city",
        "description": "Finds a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = r'<tool_call>\n\{"name": "find_city", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>'

THOUGHT = "<think>so</think>"

MODEL = "tiny-vision"
PICTURE = Images(count=Bounds(0, 2), width=64, height=48)

EXTRA_FIELDS = ("structured_outputs", "allowed_token_ids", "ignore_eos", "priority", "chat_template_kwargs")
"""Of the engine's own, which the client takes apart."""

Forced = Callable[[str], dict[str, Any]]

SEQUENCES = 2
"""Requests of one step: further ones wait."""

LONG = 15_000
"""Tokens of an answer that does not end before it is given up, however busy the machine."""


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """The aggregated pattern with one replica that sees, reads reasoning, and takes priorities and an engine's option."""
    root = tmp_path_factory.mktemp("answers")
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder)
    file = folder / "blueprint.yaml"
    text = (
        file.read_text()
        .replace("context: 2k", "context: 16k")
        .replace("replicas: 2", "replicas: 1")
        .replace("model: tiny #", f"model: {MODEL} #")
    )
    images = f"  images: {{count: 0..2, width: {PICTURE.width}, height: {PICTURE.height}}}\n"
    text = text.replace("  requests: 300\n", f"  requests: 10\n{images}")
    # What the tests force begins with the thought, where the engine by itself forces nothing.
    arguments = f"{{max_num_seqs: {SEQUENCES}, structured_outputs_config: {{enable_in_reasoning: true}}}}"
    file.write_text(f"{text}reasoning: qwen3\ntuning: {{priority: on}}\nengine_arguments: {arguments}\n")
    with start_blueprint(folder, root) as running:
        yield running


@pytest.fixture(scope="module")
def client(plan: DeploymentPlan) -> openai.OpenAI:
    """Through the router, as clients come."""
    return openai.OpenAI(base_url=f"{plan.deployment.url}/v1", api_key="none", timeout=200, max_retries=0)


@pytest.fixture(scope="module")
def forced() -> Forced:
    """The fields of a request whose answer matches a regular expression, written as a trained model writes its marks."""
    tokenizer = make_tiny.train_tokenizer(MODEL)
    tokens = range(tokenizer.get_vocab_size())
    marks = {
        token for token in tokens if re.fullmatch(r"</?(think|tool_call)>|<\|im_end\|>", tokenizer.id_to_token(token))
    }
    allowed = [token for token in tokens if token in marks or "<" not in tokenizer.id_to_token(token)]
    assert len(marks) == 5
    return lambda pattern: {"structured_outputs": {"regex": pattern}, "allowed_token_ids": allowed}


def _ask(client: openai.OpenAI, **body: Any) -> Any:
    extra = {name: body.pop(name) for name in EXTRA_FIELDS if name in body}
    messages = [{"role": "user", "content": "Where?"}]
    return client.chat.completions.create(
        **{"model": MODEL, "messages": messages, "max_tokens": 160, "extra_body": extra, **body}
    )


def test_a_call_of_a_tool_is_read_from_the_answer(client: openai.OpenAI, forced: Forced) -> None:
    answer = _ask(client, tools=[TOOL], **forced(THOUGHT + CALL)).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    assert call.function.name == "find_city"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


def test_a_call_of_a_tool_is_read_from_a_stream(client: openai.OpenAI, forced: Forced) -> None:
    chunks = _ask(client, tools=[TOOL], **forced(THOUGHT + CALL), stream=True)
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert "".join(call.function.name or "" for call in calls) == "find_city"
    assert json.loads("".join(call.function.arguments or "" for call in calls))["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "find_city"}}])
def test_requests_with_tools_are_answered(client: openai.OpenAI, choice: Any) -> None:
    assert _ask(client, tools=[TOOL], tool_choice=choice, max_tokens=20).choices


def test_what_the_model_thinks_comes_apart_from_its_answer(client: openai.OpenAI, forced: Forced) -> None:
    message = _ask(client, **forced(THOUGHT + "(yes|no)")).choices[0].message
    assert message.reasoning.strip() == "so"
    assert message.content.strip() in ("yes", "no")


def test_what_the_model_thinks_is_streamed_apart_from_its_answer(client: openai.OpenAI, forced: Forced) -> None:
    chunks = list(_ask(client, **forced(THOUGHT + "(yes|no)"), stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas).strip() == "so"
    assert "".join(delta.content or "" for delta in deltas).strip() in ("yes", "no")


def test_a_schema_shapes_the_answer_and_the_stream_ends_with_its_usage(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    shape = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
    tokenizer = make_tiny.train_tokenizer(MODEL)
    # Where a schema allows spaces, random weights may choose nothing else until the answer has all its tokens.
    printed = [token for token in range(tokenizer.get_vocab_size()) if not tokenizer.decode([token]).isspace()]
    body: dict[str, Any] = {
        "response_format": shape,
        "chat_template_kwargs": {"enable_thinking": False},
        "allowed_token_ids": printed,
    }
    chunks = list(_ask(client, **body, stream=True, stream_options={"include_usage": True}))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    text = "".join((delta.content or "") + (getattr(delta, "reasoning", None) or "") for delta in deltas)
    assert isinstance(json.loads(text)["warm"], bool)
    assert chunks[-1].usage.completion_tokens > 0


def _describe(client: openai.OpenAI, *seeds: str) -> tuple[int, str]:
    """Tokens of a question with made pictures, and its answer: always the same one for the same pictures."""
    parts = [pictures.build_content("What is it?", PICTURE, 1, seed)[1] for seed in seeds]
    content = [{"type": "text", "text": "What is it?"}, *parts]
    answer = _ask(client, messages=[{"role": "user", "content": content}], max_tokens=24, temperature=0)
    return answer.usage.prompt_tokens, answer.choices[0].message.reasoning  # it never ends its thought by itself


def test_an_answer_depends_on_the_pictures_of_its_question(client: openai.OpenAI) -> None:
    vision = models.find(MODEL).vision
    assert vision
    picture_tokens = vision.count_tokens(PICTURE.width, PICTURE.height)
    (text_tokens, _), (tokens, seen), (_, again), (_, other) = (
        _describe(client, *seeds) for seeds in ([], ["one"], ["one"], ["other"])
    )
    assert text_tokens < tokens <= text_tokens + picture_tokens + MARK_TOKENS
    assert seen == again != other
    assert _describe(client, "one", "other")[0] - tokens == tokens - text_tokens


def test_users_send_made_pictures(plan: DeploymentPlan, client: openai.OpenAI, tmp_path: Path) -> None:
    options = ValidationOptions(logs=plan.directory.logs, runs=tmp_path / "runs", folder=plan.folder)
    report, _ = validation.validate(plan.deployment, options)
    assert (report.requests.total, report.requests.failed) == (10, 0)


def test_urgent_requests_overtake_those_that_wait(client: openai.OpenAI, plan: DeploymentPlan) -> None:
    """All wait behind those that run; those with the lowest priority run next, though they came last."""
    [metrics_url] = plan.deployment.metrics_urls.values()
    begun: list[str] = []
    given_up = {name: threading.Event() for name in ("running", "waiting", "urgent")}

    def wait_for_queue(**expected: int) -> None:
        def is_reached() -> bool:
            with urllib.request.urlopen(metrics_url, timeout=60) as response:
                counts = dict(
                    re.findall(r"^vllm:num_requests_(\w+)\{.*\} (\d+)", response.read().decode(), re.MULTILINE)
                )
            return {state: int(counts[state]) for state in expected} == expected

        processes.wait_until(is_reached, f"the engine's queue: {expected}", 60)

    def send(name: str, count: int, priority: int) -> list[threading.Thread]:
        def ask() -> None:
            # Without a grammar: the engine passes over a request whose grammar is not ready, whatever its priority.
            with _ask(client, priority=priority, max_tokens=LONG, ignore_eos=True, stream=True) as answer:
                next(answer)
                begun.append(name)
                given_up[name].wait(200)

        threads = [threading.Thread(target=ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads

    # Each answer is so long that none ends before it is given up: on a busy machine a short one might.
    threads = send("running", SEQUENCES, 0)
    wait_for_queue(running=SEQUENCES, waiting=0)
    threads += send("waiting", 2 * SEQUENCES, 0)
    wait_for_queue(running=SEQUENCES, waiting=2 * SEQUENCES)
    threads += send("urgent", SEQUENCES, -1)
    wait_for_queue(running=SEQUENCES, waiting=3 * SEQUENCES)
    given_up["running"].set()
    processes.wait_until(lambda: len(begun) >= 2 * SEQUENCES, "the next answers begin", 60)
    assert begun == ["running"] * SEQUENCES + ["urgent"] * SEQUENCES
    for event in given_up.values():
        event.set()
    for thread in threads:
        thread.join(200)
    assert begun[2 * SEQUENCES :] == ["waiting"] * 2 * SEQUENCES
