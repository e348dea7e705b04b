"""What each Python of an engine's environment does first, so that its imports take less CPU time.

The set-up of the environment copies this file into it, so it imports nothing of this package.
BLUEPRINT_LOCAL_SHORTCUTS=off turns it off.
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_PATCHES = "vllm.env_override"
"""vLLM's first import: its environment variables for accelerators, and its changes to torch's compiler."""


class _CompilerLeftOut:
    """Leaves torch's compiler out of vLLM's imports, where TORCH_COMPILE_DISABLE has `torch.compile` compile nothing.

    vLLM imports it to change it, and `torch.compile` before it looks at that variable. Without it a start takes 6.6
    CPU-seconds, not 7.5, and 65 MB less of 1,120 (medians of 3 in turn, 2026-11-27).
    """

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == _PATCHES else None  # type: ignore[arg-type]

    def create_module(self, _: ModuleSpec) -> None:
        """Python's own."""

    def exec_module(self, module: ModuleType) -> None:
        torch: Any = importlib.import_module("torch")
        torch.compile = _return_as_it_is
        vars(module)["_apply_constrain_to_fx_strides_patch"] = lambda: None  # some modules of the engine import it


def _return_as_it_is(function: Any = None, **_: Any) -> Any:
    return _return_as_it_is if function is None else function


_BALANCER = "vllm_router.mini_lb"


class _BalancerLater:
    """Imports the router's balancer in Python when one is asked for, by --mini-lb.

    The router imports it first of all, with a web server and a client: 1.2 of 1.3 CPU-seconds of its start.
    """

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == _BALANCER else None  # type: ignore[arg-type]

    def create_module(self, _: ModuleSpec) -> None:
        """Python's own."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["MiniLoadBalancer"] = self._make

    def _make(self, *arguments: Any) -> Any:
        sys.meta_path.remove(self)
        del sys.modules[_BALANCER]
        return importlib.import_module(_BALANCER).MiniLoadBalancer(*arguments)


_LAZY_IMPORTS = "transformers.utils.import_utils"

_CONTENTS_FILE = Path(__file__).with_name("engine_contents.marshal")
"""What `_ContentsKept` found in this environment."""


class _ContentsKept:
    """Keeps what transformers finds in its folder of models: it reads all 2,400 modules of it for their names, twice.

    The set-up of the environment writes it, and a start reads it: the engine's imports take 0.7 of 6.1 CPU-seconds
    less (mean of 7 pairs in turn, 2026-11-27).
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, str | None], bytes] = {}
        if _CONTENTS_FILE.exists():
            self.found = marshal.loads(_CONTENTS_FILE.read_bytes())

    def find_spec(self, name: str, path: Any = None, *_: Any) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _LAZY_IMPORTS else None
        if spec and spec.loader:
            run = spec.loader.exec_module

            def run_and_change(module: ModuleType) -> None:
                run(module)
                vars(module)["define_import_structure"] = self._keep(vars(module)["define_import_structure"])

            vars(spec.loader)["exec_module"] = run_and_change
        return spec

    def _keep(self, define: Any) -> Any:
        def define_once(module_path: Any, prefix: str | None = None) -> Any:
            key = (str(module_path), prefix)
            if key not in self.found:
                self.found[key] = marshal.dumps(define(*key))
            return marshal.loads(self.found[key])  # a new one, since who gets it changes it

        return define_once

    def write(self) -> None:
        _CONTENTS_FILE.write_bytes(marshal.dumps(self.found))


contents = _ContentsKept()

SERVERS = ("vllm", "dynamo.vllm")
"""Programs that load the engine's plugins once they have imported nearly all."""


def main() -> None:
    """Search for garbage more rarely, read no folder twice, and leave out what compiles and what nothing asks for.

    Imports create millions of objects that stay, and Python searches them for garbage after each 700. With a higher
    threshold the engine's imports take 8.0 CPU-seconds, not 8.8 (medians of 6 in turn). A server of the engine does not
    search before engine_plugins sets the threshold: 5.1 CPU-seconds until it answers, not 5.6 (9 pairs, 2026-11-29).
    """
    if os.environ.get("BLUEPRINT_LOCAL_SHORTCUTS") == "off" or contents in sys.meta_path:
        return  # off, or called again: Python reads the environment's .pth twice
    is_server = any(Path(word).name in SERVERS for word in sys.orig_argv[1:3])
    gc.set_threshold(50_000 * (100 if is_server else 1), 20, 20)
    sys.meta_path[:0] = [contents, _BalancerLater()]
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        sys.meta_path.insert(0, _CompilerLeftOut())
