from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import InputError
from llm_serving.validation.load import data_rows
from llm_serving.validation.load.load import cycle_prompts
from llm_serving.validation.load.load_plan import LoadPlan, Shard

CHAT = Traffic(users=1)
DATA = Path(__file__).parents[1] / "data"


def test_rows_are_read_with_their_expected_answers(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "2 + 2 =", "expected": "4"}\n\n{"messages": [{"role": "user", "content": "Hi"}]}\n')
    rows = data_rows.read_rows(file, CHAT)
    assert rows[0].messages == ({"role": "user", "content": "2 + 2 ="},)
    assert rows[0].expected == "4"
    assert rows[1].messages[0]["content"] == "Hi"
    assert rows[1].expected is None


@pytest.mark.parametrize("character", ["\u2028", "\u0085", "\u2029"])
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "with a mark"])
def test_a_line_ends_where_json_says_so(character: str, start: str, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    prompts = [f"one{character}two", "three"]
    text = "\r\n".join(json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    file.write_bytes(f"{start}{text}\r\n".encode())
    assert [row.messages[0]["content"] for row in data_rows.read_rows(file, CHAT)] == prompts


def test_all_invalid_lines_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(
        '{"prompt": "ok"}\n{"prompt"\n[]\n{"prompt": "a", "messages": []}\n{"prompt": "a", "expected": 4}\n'
    )
    with pytest.raises(InputError) as error:
        data_rows.read_rows(file, CHAT)
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{file}:2:10", f"{file}:3:1", f"{file}:4:1", f"{file}:5:1"]
    assert "it is not JSON" in lines[0]
    assert "it is not a JSON object" in lines[1]
    assert "exactly one of `prompt` and `messages`" in lines[2]
    assert "expected: {" in lines[3]


@pytest.mark.parametrize(
    ("text", "api", "message"),
    [
        ("", "chat", "it has no prompts"),
        ('{"messages": [{"role": "user", "content": "Hi"}]}', "completions", "takes a prompt"),
        ('{"messages": "Hi"}', "chat", "not a list of chat messages"),
        ('{"messages": [{"role": "user"}]}', "chat", "not a list of chat messages"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{}]}]}', "chat", "not a list of chat messages"),
        ('{"messages": [{"role": "user", "content": 5}]}', "chat", "not a list of chat messages"),
        ('{"messages": [{"role": "user", "content": ["Hi"]}]}', "chat", "not a list of chat messages"),
        ('{"prompt": ""}', "chat", "is empty or not a string"),
        ('{"prompt": "a", "output_tokens": "4"}', "chat", "it is not a number of tokens"),
        (
            '{"prompt": "a", "output_tokens": 65}',
            "chat",
            r"`output_tokens` of at most 64\. Fix: write 64 or less, or output_tokens: 65 in blueprint\.yaml",
        ),
        ('{"prompt": "a", "max_tokens": 65}', "chat", r"max_tokens: .*`output_tokens` of at most 64\. Fix: write 64"),
        (
            '{"prompt": "a", "max_tokens": 4, "output_tokens": 4}',
            "chat",
            "its exact length. Fix: remove one of the two",
        ),
        ("[1, {}]", "chat", "it is a list, and none of it is a conversation of ShareGPT. Fix: write a line such as {"),
        ("[", "chat", "it is not JSON"),
    ],
)
def test_unsendable_prompts_are_refused(tmp_path: Path, text: str, api: str, message: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        data_rows.read_rows(file, Traffic.model_validate({"users": 1, "api": api}))


def test_the_tool_calls_of_an_assistant_need_no_content(tmp_path: Path) -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]}
    messages = [{"role": "user", "content": "Hi"}, call, {"role": "tool", "tool_call_id": "1", "content": "4"}]
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"messages": messages}))
    assert list(data_rows.read_rows(file, CHAT)[0].messages) == messages


def test_the_request_has_the_fields_of_its_row(tmp_path: Path) -> None:
    fields = {"temperature": 0.7, "max_tokens": 9, "tools": [{"type": "function", "function": {"name": "f"}}]}
    file = tmp_path / "data.jsonl"
    lines = [{**fields, "id": 1, "seed": None}, {"max_completion_tokens": 9}, {}]
    file.write_text("\n".join(json.dumps({"prompt": "a", **line}) for line in lines))
    plan = LoadPlan(url="http://x", models=("tiny",), traffic=CHAT, folder="/x")
    rows = data_rows.read_rows(file, CHAT)
    assert [row.ignored_keys for row in rows] == [{"id"}, set(), set()]
    prompts = itertools.islice(cycle_prompts(plan, "load", rows, {}), 3)
    whole, bounded, plain = (prompt.build_body("tiny", "chat", engine_dialect=True) for prompt in prompts)
    assert whole.items() >= fields.items() and not {"id", "seed", "min_tokens"} & whole.keys()
    assert (bounded["max_tokens"], plain["max_tokens"], plain["temperature"]) == (9, 64, 0)


def test_the_settings_name_every_key_of_a_row() -> None:
    blueprint_schema = paths.PATTERNS / "blueprint.schema.json"
    described = re.search(r'A JSONL file beside the blueprint[^"]*', blueprint_schema.read_text())
    assert described and set(re.findall(r"`(\w+)`", described[0])) == data_rows.OWN | data_rows.SENT


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8 text"):
        data_rows.read_rows(file, CHAT)


def test_conversations_without_a_question_and_its_answer_are_left_out(tmp_path: Path) -> None:
    question, answer = {"from": "human", "value": "2 + 2 ="}, {"from": "gpt", "value": "4"}
    odd = [[question], [question, None], [question, {"from": "gpt"}], [answer, question], [question, "4"]]
    file = tmp_path / "data.json"
    file.write_text(json.dumps([{"conversations": messages} for messages in [*odd, [question, answer]]]))
    assert [row.recorded_answer for row in data_rows.read_rows(file, CHAT)] == ["4"]


def test_a_row_s_own_length_and_that_of_a_recorded_answer_are_exact() -> None:
    plan = LoadPlan(url="http://x", models=("tiny",), traffic=CHAT, folder="/x")
    rows = [
        data_rows.DataRow(({"role": "user", "content": "a"},), output_tokens=12),
        data_rows.DataRow(({"role": "user", "content": "b"},)),
        *data_rows.read_rows(DATA / "sharegpt.json", CHAT),
    ]
    lengths = [(p.max_tokens, p.exact) for p in itertools.islice(cycle_prompts(plan, "load", rows, {"tiny": 0.1}), 4)]
    assert lengths == [(12, True), (64, False), (48, True), (12, True)]
    assert rows[2].messages[0]["content"] == "Are you familiar with the SAS programming language?"


@pytest.mark.parametrize(
    ("phase", "first", "sent"), [("load", 0, "abcd"), ("warm-up", 0, "dea"), ("load", 4, "eabc"), ("warm-up", 4, "cde")]
)
def test_a_load_goes_on_behind_the_prompts_of_the_one_before_and_its_warm_up_sends_none_of_it(
    phase: str, first: int, sent: str
) -> None:
    traffic = CHAT.model_copy(update={"warm_up": 2})
    plan = LoadPlan(url="http://x", models=("tiny",), traffic=traffic, first_prompt=first, folder="/x")
    rows = [data_rows.DataRow(({"role": "user", "content": letter},)) for letter in "abcde"]
    assert "".join(prompt.text for prompt in itertools.islice(cycle_prompts(plan, phase, rows, {}), len(sent))) == sent
    shards = [cycle_prompts(plan, phase, rows, {}, Shard(index, 2)) for index in (0, 1)]
    assert "".join(next(shards[number % 2]).text for number in range(len(sent))) == sent
