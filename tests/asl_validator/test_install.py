from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import Unavailable
from tests.asl_validator import fixtures


def test_without_node_the_reason_of_the_skip_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as refusal:
        fixtures.install()
    assert str(refusal.value) == "node: not found on PATH. Fix: install Node.js 20 or later."
