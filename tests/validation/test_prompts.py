from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import InputError
from llm_serving.validation import prompts
from llm_serving.validation.load_plan import RequestLength
from scripts.benchmarks import known_server


def _count_tokens(text: str) -> int:
    """Tokens by the rule of the server with known delays: a long word is two, and the chat adds some."""
    return known_server.count_tokens(text) + known_server.CHAT_OVERHEAD


@pytest.fixture
def maker() -> prompts.PromptGenerator:
    return prompts.PromptGenerator(prompts.measure_costs(_count_tokens), "seed")


def test_the_tokens_of_each_word_and_of_the_template_are_measured() -> None:
    costs = prompts.measure_costs(lambda text: 5 + sum(2 if word == "which" else 1 for word in text.split()))
    assert costs.base == 6
    assert costs.words["which"] == 2
    assert costs.words["the"] == 1


def test_a_word_whose_cost_depends_on_its_neighbours_is_not_used() -> None:
    costs = prompts.measure_costs(lambda text: len(text.split()) - text.count("the the") // 3)
    assert "the" not in costs.words
    assert "of" in costs.words


@pytest.mark.parametrize("tokens", [9, 16, 17, 64, 255, 4000])
def test_a_prompt_has_exactly_the_requested_tokens(maker: prompts.PromptGenerator, tokens: int) -> None:
    texts = [maker.generate(RequestLength(tokens, tokens // 2, group=0, output_tokens=1)) for _ in range(20)]
    assert {_count_tokens(text) for text in texts} == {tokens}


def test_a_prompt_is_exact_where_words_cost_several_tokens_each() -> None:
    costs = prompts.TokenCosts(3, {"the": 1, "of": 2, "and": 3})
    text = prompts.PromptGenerator(costs, "seed").generate(RequestLength(50, 10, 0, 1))
    assert costs.base + sum(costs.words[word] for word in text.split()[1:]) == 50


def test_a_prompt_shorter_than_the_template_is_the_shortest_possible(maker: prompts.PromptGenerator) -> None:
    assert maker.generate(RequestLength(1, 0, 0, 1)) == prompts.FIRST_WORD


def test_prompts_of_a_group_begin_alike_and_end_differently(maker: prompts.PromptGenerator) -> None:
    first, second = (maker.generate(RequestLength(200, 100, group=1, output_tokens=1)).split() for _ in range(2))
    other = maker.generate(RequestLength(200, 100, group=2, output_tokens=1)).split()
    shared = 100 - known_server.CHAT_OVERHEAD
    assert first[:shared] == second[:shared]
    assert first[shared : shared + 20] != second[shared : shared + 20]
    assert first[1:20] != other[1:20]


def test_without_a_shared_prefix_prompts_differ_from_the_start(maker: prompts.PromptGenerator) -> None:
    first, second = (maker.generate(RequestLength(64, 0, group=0, output_tokens=1)).split() for _ in range(2))
    assert first[1:12] != second[1:12]


def test_the_same_seed_makes_the_same_prompts() -> None:
    costs = prompts.measure_costs(_count_tokens)
    lengths = [RequestLength(40, 10, group % 2, 1) for group in range(6)]
    first, second = ([prompts.PromptGenerator(costs, "a").generate(length) for length in lengths] for _ in range(2))
    assert first == second
    assert first != [prompts.PromptGenerator(costs, "b").generate(length) for length in lengths]


def test_rows_are_read_with_their_expected_answers(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "2 + 2 =", "expected": "4"}\n\n{"messages": [{"role": "user", "content": "Hi"}]}\n')
    rows = prompts.read_rows(file, "chat")
    assert rows[0].messages == ({"role": "user", "content": "2 + 2 ="},)
    assert rows[0].expected == "4"
    assert rows[1].messages[0]["content"] == "Hi"
    assert rows[1].expected is None


def test_all_invalid_lines_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(
        '{"prompt": "ok"}\n{"prompt"\n[]\n{"prompt": "a", "messages": []}\n{"prompt": "a", "expected": 4}\n'
    )
    with pytest.raises(InputError) as error:
        prompts.read_rows(file, "chat")
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{file}:2:10", f"{file}:3:1", f"{file}:4:1", f"{file}:5:1"]
    assert "it is not JSON" in lines[0]
    assert "it is not a JSON object" in lines[1]
    assert "exactly one of `prompt` and `messages`" in lines[2]
    assert "expected: now" in lines[3]


@pytest.mark.parametrize(
    ("text", "api", "message"),
    [
        ("", "chat", "it has no prompts"),
        ('{"messages": [{"role": "user", "content": "Hi"}]}', "completions", "takes a prompt"),
        ('{"messages": "Hi"}', "chat", "not a list of chat messages"),
        ('{"prompt": ""}', "chat", "is empty or not a string"),
    ],
)
def test_unsendable_prompts_are_refused(tmp_path: Path, text: str, api: str, message: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        prompts.read_rows(file, api)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8 text"):
        prompts.read_rows(file, "chat")
