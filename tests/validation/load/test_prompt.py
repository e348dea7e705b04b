"""Tokens of a prompt, as a server's answer reports them."""

from __future__ import annotations

import re

import pytest

from llm_serving.validation.load.prompt import Prompt

PROMPT = Prompt(({"role": "user", "content": "two words"},), max_tokens=1)
START = "returned HTTP 200 to a request with stream: false, and "


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [(b'{"usage": {"prompt_tokens": 7}}', 7), (b'{"usage": null}', 2), (b'{"usage": {}}', 2), (b"{}", 2)],
)
def test_the_tokens_of_a_prompt_are_its_words_where_the_server_reports_none(answer: bytes, tokens: int) -> None:
    assert PROMPT.count_tokens(answer) == tokens


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"data: {}", "no JSON object: 'data: {}'. Fix: use a server that answers such requests too; they count "),
        (b"[1]", "no JSON object: '[1]'. Fix: use a server that answers such requests too; they count "),
        (
            b'{"usage": {"prompt_tokens": "many"}}',
            "a usage without a number of prompt_tokens: {'prompt_tokens': 'many'}. "
            "Fix: use a server that reports a number, or no usage; it counts ",
        ),
        (
            b'{"usage": [7]}',
            "a usage without a number of prompt_tokens: [7]. "
            "Fix: use a server that reports a number, or no usage; it counts ",
        ),
    ],
)
def test_an_answer_that_counts_nothing_is_refused_by_what_it_has(answer: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{START}{problem}the tokens of prompts.')}$"):
        PROMPT.count_tokens(answer)
