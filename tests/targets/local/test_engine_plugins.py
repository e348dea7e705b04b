from __future__ import annotations

import pytest

from tests.engines_own import EngineProbe


@pytest.mark.engine
def test_a_further_process_is_a_copy_whose_imports_are_not_looked_through_for_garbage(
    engine_probe: EngineProbe,
) -> None:
    without, with_plugins = engine_probe("processes", [False, True])
    assert without == {"said": 0}
    assert with_plugins["said"] > 100_000
