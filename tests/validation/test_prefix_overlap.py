from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from llm_serving.validation import prefix_overlap
from llm_serving.validation.load import Prompt
from llm_serving.validation.prefix_overlap import Beginnings


def _prompt(text: str, model: str = "one") -> Prompt:
    return Prompt(({"role": "user", "content": text},), max_tokens=1, model=model)


def _text(draw: random.Random, characters: int) -> str:
    return "".join(draw.choice("abcdefgh ") for _ in range(characters))


def _made(shared: float, prompts: int = 200, groups: int = 4, length: int = 4000) -> Iterator[Prompt]:
    draw = random.Random(f"{shared}/{groups}")
    begin = [_text(draw, round(shared * length)) for _ in range(groups)]
    for _ in range(prompts):
        start = draw.choice(begin)
        yield _prompt(start + _text(draw, length - len(start)))


@pytest.mark.parametrize("shared", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_it_is_the_share_that_prompts_were_made_with(shared: float) -> None:
    looked = Beginnings()
    for prompt in _made(shared):
        looked.add(prompt)
    assert looked.prompts == 200
    # The first of each group has nothing before it, and blocks are whole.
    assert looked.share == pytest.approx(shared * 196 / 200, abs=0.02)


def test_only_the_start_counts_and_only_where_the_same_model_has_read_it() -> None:
    draw = random.Random(1)
    same, other = _text(draw, 1000), _text(draw, 1000)
    looked = Beginnings()
    for text, model in ((same + other, "one"), (other + same, "one"), (same + other, "two")):
        looked.add(_prompt(text, model))
    assert looked.share == pytest.approx(0, abs=0.02)
    looked.add(_prompt(same + other, "two"))
    assert looked.share == pytest.approx(1 / 4, abs=0.02)


def test_all_messages_of_a_conversation_count() -> None:
    draw = random.Random(2)
    turns: list[dict[str, str]] = [{"role": "user", "content": _text(draw, 2000)} for _ in range(4)]
    looked = Beginnings()
    for end in range(1, 5):
        looked.add(Prompt(tuple(turns[:end]), max_tokens=1))
    assert looked.share == pytest.approx((1 + 2 + 3) / (1 + 2 + 3 + 4), abs=0.03)


def test_prompts_that_come_again_because_a_file_is_over_are_not_looked_at() -> None:
    rows = [_prompt(_text(random.Random(seed), 500)) for seed in range(3)]
    looked = Beginnings()
    passed = list(looked.over(itertools.islice(itertools.cycle(rows), 30), first=3))
    assert (len(passed), looked.prompts, looked.share) == (30, 3, 0)
    blind = Beginnings()
    list(blind.over(itertools.islice(itertools.cycle(rows), 30), first=None))
    assert blind.share is not None and blind.share > 0.8, "which they would otherwise seem to share"


def test_a_long_load_does_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_overlap, "MOST", 100)
    looked = Beginnings()
    assert len(list(looked.over(_made(0), first=None))) == 200
    assert looked.prompts == 2


def test_without_a_prompt_there_is_no_share() -> None:
    assert Beginnings().share is None
