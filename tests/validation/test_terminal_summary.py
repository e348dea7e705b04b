from __future__ import annotations

import pytest

from llm_serving.validation import terminal_summary
from llm_serving.validation.report import PromptOverlap, Report


@pytest.mark.parametrize(
    ("prompts", "cached", "lines"),
    [
        (0.71, 0.54, ["71% of prompt text shared; 54% of prompt tokens found in engine caches"]),
        (0.71, 0.0, ["71% of prompt text shared; 0% of prompt tokens found in engine caches"]),
        (0.71, None, []),
        (0.0, 0.1, []),
        (None, None, []),
    ],
)
def test_a_result_shows_shared_prompt_text_and_cached_tokens(
    prompts: float | None, cached: float | None, lines: list[str]
) -> None:
    report = Report.model_construct(shared=PromptOverlap(prompts=prompts, of=300, cached=cached, traffic=""))
    assert list(terminal_summary._list_cache_lines(report)) == lines
