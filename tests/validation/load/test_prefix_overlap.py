from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from llm_serving.validation.load import prefix_overlap
from llm_serving.validation.load.prefix_overlap import PrefixOverlap
from llm_serving.validation.load.prompt import Prompt


def _build_prompt(text: str, model: str = "one") -> Prompt:
    return Prompt(({"role": "user", "content": text},), max_tokens=1, model=model)


def _make_text(rng: random.Random, characters: int) -> str:
    return "".join(rng.choice("abcdefgh ") for _ in range(characters))


def _make_prompts(shared: float, prompts: int = 200, groups: int = 4, length: int = 4000) -> Iterator[Prompt]:
    rng = random.Random(f"{shared}/{groups}")
    begin = [_make_text(rng, round(shared * length)) for _ in range(groups)]
    for _ in range(prompts):
        start = rng.choice(begin)
        yield _build_prompt(start + _make_text(rng, length - len(start)))


@pytest.mark.parametrize("shared", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_the_measured_share_is_the_generated_one(shared: float) -> None:
    overlap = PrefixOverlap()
    for prompt in _make_prompts(shared):
        overlap.add(prompt)
    assert overlap.prompts == 200
    # The first of each group has nothing before it, and blocks are whole.
    assert overlap.share == pytest.approx(shared * 196 / 200, abs=0.02)


def test_only_a_prefix_for_the_same_model_counts() -> None:
    rng = random.Random(1)
    shared_text, other = _make_text(rng, 1000), _make_text(rng, 1000)
    overlap = PrefixOverlap()
    for text, model in ((shared_text + other, "one"), (other + shared_text, "one"), (shared_text + other, "two")):
        overlap.add(_build_prompt(text, model))
    assert overlap.share == pytest.approx(0, abs=0.02)
    overlap.add(_build_prompt(shared_text + other, "two"))
    assert overlap.share == pytest.approx(1 / 4, abs=0.02)


def test_all_messages_of_a_conversation_count() -> None:
    rng = random.Random(2)
    turns: list[dict[str, str]] = [{"role": "user", "content": _make_text(rng, 2000)} for _ in range(4)]
    overlap = PrefixOverlap()
    for end in range(1, 5):
        overlap.add(Prompt(tuple(turns[:end]), max_tokens=1))
    assert overlap.share == pytest.approx((1 + 2 + 3) / (1 + 2 + 3 + 4), abs=0.03)


def test_repeated_prompts_of_a_file_are_not_measured() -> None:
    rows = [_build_prompt(_make_text(random.Random(seed), 500)) for seed in range(3)]
    overlap = PrefixOverlap()
    passed_prompts = list(overlap.observe(itertools.islice(itertools.cycle(rows), 30), unique_count=3))
    assert (len(passed_prompts), overlap.prompts, overlap.share) == (30, 3, 0)
    unlimited = PrefixOverlap()
    list(unlimited.observe(itertools.islice(itertools.cycle(rows), 30), unique_count=None))
    assert unlimited.share is not None and unlimited.share > 0.8, "which they would otherwise seem to share"


def test_a_long_load_uses_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_overlap, "MAX_BLOCKS", 100)
    overlap = PrefixOverlap()
    assert len(list(overlap.observe(_make_prompts(0), unique_count=None))) == 200
    assert overlap.prompts == 2


def test_a_load_without_prompts_has_no_share() -> None:
    assert PrefixOverlap().share is None
