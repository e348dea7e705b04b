from __future__ import annotations

import pytest

from llm_serving.validation.load import prompts, trace
from llm_serving.validation.load.load_plan import RequestLength
from tests import known_server


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
    texts = [
        maker.generate(RequestLength(tokens, tokens // 2, group=0, output_tokens=1), number) for number in range(20)
    ]
    assert {_count_tokens(text) for text in texts} == {tokens}


def test_a_prompt_is_exact_where_words_cost_several_tokens_each() -> None:
    costs = prompts.TokenCosts(3, {"the": 1, "of": 2, "and": 3})
    text = prompts.PromptGenerator(costs, "seed").generate(RequestLength(50, 10, 0, 1), 0)
    assert costs.base + sum(costs.words[word] for word in text.split()[1:]) == 50


def test_a_prompt_shorter_than_the_template_is_the_shortest_possible(maker: prompts.PromptGenerator) -> None:
    assert maker.generate(RequestLength(1, 0, 0, 1), 0) == prompts.FIRST_WORD


def test_prompts_of_a_group_begin_alike_and_end_differently(maker: prompts.PromptGenerator) -> None:
    first, second = (
        maker.generate(RequestLength(200, 100, group=1, output_tokens=1), number).split() for number in (0, 1)
    )
    other = maker.generate(RequestLength(200, 100, group=2, output_tokens=1), 2).split()
    shared = 100 - known_server.CHAT_OVERHEAD
    assert first[:shared] == second[:shared]
    assert first[shared : shared + 20] != second[shared : shared + 20]
    assert first[1:20] != other[1:20]


def test_without_a_shared_prefix_prompts_differ_from_the_start(maker: prompts.PromptGenerator) -> None:
    first, second = (
        maker.generate(RequestLength(64, 0, group=0, output_tokens=1), number).split() for number in (0, 1)
    )
    assert first[1:12] != second[1:12]


def test_the_same_seed_makes_the_same_prompts() -> None:
    costs = prompts.measure_costs(_count_tokens)

    def generate(seed: str) -> list[str]:
        generator = prompts.PromptGenerator(costs, seed)
        return [generator.generate(RequestLength(40, 10, number % 2, 1), number) for number in range(6)]

    assert generate("a") == generate("a")
    assert generate("a") != generate("b")


def test_prompts_of_a_trace_share_the_text_of_the_blocks_that_they_share(maker: prompts.PromptGenerator) -> None:
    def generate(tokens: int, *blocks: int) -> list[str]:
        prompt = maker.generate(RequestLength(tokens, 0, 0, 1, blocks), 0)
        assert _count_tokens(prompt) == tokens
        return prompt.split()

    first, second, other = generate(1100, 1, 2, 3), generate(1300, 1, 2, 4), generate(1100, 5, 2, 3)
    block = trace.BLOCK_TOKENS - known_server.CHAT_OVERHEAD  # words: long ones are two tokens
    assert first[:block] == second[:block]
    assert first[1:20] != other[1:20]
    cut = generate(300, 1)
    assert first[: len(cut) - 1] == cut[:-1]


def test_the_tokens_of_recorded_answers_are_measured_by_one_request() -> None:
    texts: list[str] = []

    def count(text: str) -> int:
        texts.append(text)
        return 7 + len(text) // 4

    rate = prompts.measure_tokens_per_character(count, ["word " * 100, "more " * 5000])
    assert rate == pytest.approx(0.25, rel=0.01)
    assert [len(text) <= prompts.MEASURED_CHARACTERS + 10 for text in texts] == [True, True]
