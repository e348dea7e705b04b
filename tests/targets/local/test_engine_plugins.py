from __future__ import annotations

import subprocess
import sys
import types

import pytest

from llm_serving.targets.local import engine_env, engine_plugins
from llm_serving.targets.local.environment import SHORTCUTS_VARIABLE
from tests.engines_own import EngineProbe


@pytest.mark.engine
def test_a_further_process_is_a_fork_whose_imports_are_exempt_from_garbage_collection(
    engine_probe: EngineProbe,
) -> None:
    without, with_plugins = engine_probe("processes", [False, True])
    assert without == {"result": 0}
    assert with_plugins["result"] > 100_000


class _Config:
    """A fake of NIXL's configuration with only the delay."""


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_switch_disables_every_local_shortcut(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    utils, bindings = types.ModuleType("vllm.utils.system_utils"), types.ModuleType("nixl._bindings")
    vars(utils)["_maybe_force_spawn"] = spawn = object()
    vars(bindings)["nixlAgentConfig"] = _Config
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    monkeypatch.setitem(sys.modules, bindings.__name__, bindings)
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
    monkeypatch.setenv(SHORTCUTS_VARIABLE, switch)
    engine_plugins.fork_processes()
    engine_plugins.let_transfers_sleep()
    config = vars(bindings)["nixlAgentConfig"]()
    config.pthrDelay = 0
    assert (vars(utils)["_maybe_force_spawn"] is spawn) == (switch == "off")
    assert config.pthrDelay == (0 if switch == "off" else engine_plugins.PROGRESS_DELAY_US)


def test_the_switch_turns_off_the_rarer_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_threshold(switch: str, startup: str = engine_env._STARTUP_CODE) -> int:
        monkeypatch.setenv(SHORTCUTS_VARIABLE, switch)
        program = f"{startup}import gc; print(gc.get_threshold()[0])"
        return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60).stdout)

    assert read_threshold("on") == 50_000
    assert read_threshold("off") == read_threshold("on", startup="") != 50_000
