from __future__ import annotations

import shutil
import subprocess
import sys
import types
from pathlib import Path

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


EARLY_FORK = """
import gc, multiprocessing, os, sys, threading, types
import engine_plugins

def answer():
    print(kept, os.environ.get("SET_LATER"), os.environ.get("GONE_LATER"), threading.active_count(), gc.get_threshold()[0], flush=True)
    sys.exit(3)

kept = ["never imported again"]
utils = sys.modules["vllm.utils.system_utils"] = types.ModuleType("vllm.utils.system_utils")
utils.multiprocessing, utils.set_process_title = multiprocessing, print
thread = threading.Thread(target=threading.Event().wait, daemon=True)
if sys.argv[1] == "threads":
    thread.start()
engine_plugins.fork_processes()
if sys.argv[1] == "threads":
    sys.exit(utils.multiprocessing is not multiprocessing)
thread.start()
os.environ["SET_LATER"] = os.environ.pop("GONE_LATER")
process = utils.multiprocessing.get_context("spawn").Process(target=answer)
process.start()
process.join()
print(process.exitcode)
"""


def _fork_early(*words: str) -> str:
    """Return what a process and those that it starts print, when all of them have ended."""
    environment = {
        "PYTHONPATH": str(engine_env._PLUGINS_FILE.parent),
        SHORTCUTS_VARIABLE: "early-fork",
        "GONE_LATER": "yes",
    }
    command = [sys.executable, "-c", EARLY_FORK, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_process_that_will_have_threads_forks_others_from_a_fork_of_it_without_them() -> None:
    assert _fork_early("none").splitlines() == ["ForkServer", "['never imported again'] yes None 1 50000", "3"]


def test_a_process_that_has_threads_starts_others_as_the_engine_does() -> None:
    assert _fork_early("threads") == ""


@pytest.fixture
def fake_engine(tmp_path: Path) -> Path:
    """A folder with an engine that changes the compiler, and compiles a function, when it is imported."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text(
        "import vllm.env_override, torch\n\n@torch.compile(dynamic=True)\ndef double(x): return 2 * x\n"
        "half = torch.compile(lambda x: x / 2)\n"
    )
    (tmp_path / "vllm/env_override.py").write_text("import torch.compiler_of_torch\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        "def compile(model=None, **options):\n  import torch.compiler_of_torch\n  return model or (lambda f: f)\n"
    )
    (tmp_path / "torch/compiler_of_torch.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("switch", "disabled", "name", "threshold", "compiles"),
    [
        ("on", "1", "vllm-router", 50_000, False),
        ("early-fork", "1", "vllm-router", 50_000, False),
        ("on", "", "vllm-router", 50_000, True),
        ("on", "1", "vllm", 5_000_000, False),
        ("off", "1", "vllm", None, True),
    ],
)
def test_imports_search_for_garbage_more_rarely_and_leave_the_compiler_out_where_nothing_compiles(
    fake_engine: Path, switch: str, disabled: str, name: str, threshold: int | None, compiles: bool
) -> None:
    program = fake_engine / "bin" / name
    program.parent.mkdir()
    program.write_text(
        f"import gc, sys; first = gc.get_threshold()[0]; {engine_env._STARTUP_CODE.strip()}; import vllm; "
        "print(gc.get_threshold()[0], first, vllm.double(2), vllm.half(2), 'torch.compiler_of_torch' in sys.modules)"
    )
    environment = {
        "PYTHONPATH": f"{fake_engine}:{engine_env._STARTUP_FILE.parent}",
        SHORTCUTS_VARIABLE: switch,
        "TORCH_COMPILE_DISABLE": disabled,
    }
    ended = subprocess.run(
        [sys.executable, program, "serve"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    chosen, first, *rest = ended.stdout.split()
    assert int(chosen) == (threshold or int(first)) and first != str(threshold)
    assert rest == ["4", "1.0", str(compiles)]


@pytest.mark.parametrize(("switch", "reads"), [("on", 0), ("off", 2)])
def test_what_transformers_finds_in_its_folder_is_kept_by_the_set_up(tmp_path: Path, switch: str, reads: int) -> None:
    shutil.copy(engine_env._STARTUP_FILE, tmp_path)
    (tmp_path / "transformers/utils").mkdir(parents=True)
    (tmp_path / "transformers/utils/import_utils.py").write_text(
        "def define_import_structure(path, prefix=None):\n  print('read')\n  return {frozenset(): {prefix: {'Qwen3'}}}\n"
    )
    start = (
        f"{engine_env._STARTUP_CODE.strip()}; from transformers.utils import import_utils; "
        "found = [import_utils.define_import_structure('models', prefix) for prefix in ('models', None)]; "
        "print(found == [{frozenset(): {prefix: {'Qwen3'}}} for prefix in ('models', None)]); found[0].clear()"
    )

    def run(program: str, switch: str) -> list[str]:
        environment = {"PYTHONPATH": str(tmp_path), SHORTCUTS_VARIABLE: switch}
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout.split()

    assert run(f"{start}; engine_startup.contents.write()", "on") == ["read", "read", "True"]
    assert run(start, switch) == [*["read"] * reads, "True"]


@pytest.mark.parametrize(("switch", "first"), [("on", []), ("off", ["imported"])])
def test_the_router_imports_its_balancer_in_python_when_one_is_asked_for(
    tmp_path: Path, switch: str, first: list[str]
) -> None:
    (tmp_path / "vllm_router").mkdir()
    (tmp_path / "vllm_router/mini_lb.py").write_text("print('imported')\nMiniLoadBalancer = str\n")
    program = (
        f"{engine_env._STARTUP_CODE.strip()}; from vllm_router.mini_lb import MiniLoadBalancer; print('asked'); "
        "print(MiniLoadBalancer(1), MiniLoadBalancer is str)"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{engine_env._STARTUP_FILE.parent}", SHORTCUTS_VARIABLE: switch}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    later = [] if first else ["imported"]
    assert ended.stdout.split() == [*first, "asked", *later, "1", str(switch == "off")]
