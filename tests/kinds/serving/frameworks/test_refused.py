"""Frameworks of other projects that nothing is rendered for."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from llm_serving.settings.errors import InputError
from llm_serving.tables.matrix_table import MatrixTable
from tests.kinds.serving.frameworks import test_llm_d

REASONS = {
    "triton": (
        "Triton starts its own engines from a repository of models, and none of its versions of an engine was compared "
        "here. Fix: use framework: plain with engine: vllm or tensorrt-llm, which answer the same API without Triton."
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_framework_that_is_not_offered_is_refused_with_what_to_use_instead(tmp_path: Path, name: str) -> None:
    text = test_llm_d.format_blueprint().replace("llm-d", name)
    with pytest.raises(InputError) as error:
        test_llm_d.resolve(tmp_path, text)
    assert f'framework: "{name}": {REASONS[name]}' in str(error.value)


def test_the_matrix_says_so_too() -> None:
    console = Console(width=1000, no_color=True)
    with console.capture() as capture:
        console.print(MatrixTable([]))
    text = " ".join(capture.get().split())
    assert all(f"No framework {name}: {reason}" in text for name, reason in REASONS.items())
