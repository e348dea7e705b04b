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
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_PATCHES = "vllm.env_override"
"""vLLM's first import: its environment variables for accelerators, and its changes to torch's compiler."""


_PACKAGES = ("torch._dynamo", "torch._inductor")
"""The compiler."""

_ALONE = ("torch._inductor.config", "torch._inductor.custom_graph_pass", "torch._inductor.runtime")
"""Modules of it that need no other."""

_STAND_INS = tuple(
    f"torch._dynamo.{name}"
    for name in ("_trace_wrapped_higher_order_op", "decorators", "symbolic_convert", "trace_rules", "utils")
)
"""Modules of it from which vLLM, transformers and torchvision import names that they use where they compile."""

_MARKS = ("allow_in_graph", "assume_constant_result", "clear_lru_cache", "disable", "mark_unbacked")
"""Functions that tell it what to do: nothing, where it does nothing."""


class _CompilerLeftOut:
    """Leaves torch's compiler out of the engine's imports, where TORCH_COMPILE_DISABLE has `torch.compile` do nothing.

    vLLM imports it to change it, it and others for names that they use where they compile, and `torch.compile` and
    `torch.compiler.disable` before they look at that variable. Who uses it after all gets all of it. vLLM's changes to
    it alone are 0.9 of 7.5 CPU-seconds of a start, and the rest of it, with what `_ContentsKept` saves beyond the names
    of transformers' models, 1.4 of 8.5 CPU-seconds of the imports (means of 4 pairs in turn on a busy machine,
    2026-11-27).
    """

    def __init__(self) -> None:
        self.put_off: dict[str, Callable[[ModuleType], None]] = {}

    def find_spec(self, name: str, path: Any = None, *_: Any) -> ModuleSpec | None:
        if name in (_PATCHES, *_STAND_INS):
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        if name in _PACKAGES:
            spec = PathFinder.find_spec(name, path)
            if spec and spec.loader:
                self.put_off[name] = spec.loader.exec_module
                vars(spec.loader)["exec_module"] = self.exec_module
            return spec
        if name.rpartition(".")[0] in _PACKAGES and name not in _ALONE:
            self.load()
            return _find_loaded(name)
        return None

    def create_module(self, _: ModuleSpec) -> None:
        """Python's own."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name == _PATCHES:
            torch: Any = importlib.import_module("torch")
            torch.compile = torch.compiler.disable = _return_as_it_is
            vars(module)["_apply_constrain_to_fx_strides_patch"] = lambda: None  # some modules of the engine import it
            return

        def find(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            if attribute in _MARKS:
                return _return_as_it_is
            if name in _STAND_INS:
                return _Later(self, name, attribute)
            if f"{name}.{attribute}" in _STAND_INS:
                return importlib.import_module(f"{name}.{attribute}")
            self.load()
            return getattr(module, attribute)

        vars(module)["__getattr__"] = find

    def load(self) -> None:
        """Import it after all."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        for name in _STAND_INS:
            sys.modules.pop(name, None)
        packages = [(sys.modules[name], run) for name, run in sorted(self.put_off.items())]
        for package, _ in packages:
            del vars(package)["__getattr__"]
        for package, run in packages:
            run(package)


class _Later:
    """A name of the compiler, which is imported when it is used."""

    def __init__(self, compiler: _CompilerLeftOut, module: str, name: str) -> None:
        self._compiler, self._place = compiler, (module, name)

    def _find(self) -> Any:
        self._compiler.load()
        module, name = self._place
        return getattr(importlib.import_module(module), name)

    def __call__(self, *words: Any, **named: Any) -> Any:
        return self._find()(*words, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)


def _find_loaded(name: str) -> ModuleSpec | None:
    """Return what gives a module that is loaded already, so that it is not loaded twice."""
    module = sys.modules.get(name)
    spec = module and module.__spec__
    if spec and spec.loader:
        vars(spec.loader).update(create_module=lambda _: module, exec_module=lambda _: None)
    return spec or None


def _return_as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
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
_SOURCES = "torch._library.utils"

_CONTENTS_FILE = Path(__file__).with_name("engine_contents.marshal")
"""What `_ContentsKept` found in this environment."""


class _ContentsKept:
    """Keeps what transformers finds in the environment: it reads all 2,400 modules of its folder of models for their
    names, twice, and all packages for the modules that they have.

    The set-up of the environment writes it, and a start reads it: the engine's imports take 0.7 of 6.1 CPU-seconds
    less (mean of 7 pairs in turn, 2026-11-27). Nor does torch look through all modules for the source of each operator.
    """

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        if _CONTENTS_FILE.exists():
            self.found = marshal.loads(_CONTENTS_FILE.read_bytes())

    def find_spec(self, name: str, path: Any = None, *_: Any) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in (_LAZY_IMPORTS, _SOURCES) else None
        if spec and spec.loader:
            run = spec.loader.exec_module

            def run_and_change(module: ModuleType) -> None:
                if name == _LAZY_IMPORTS:
                    self._keep(importlib.import_module("importlib.metadata"), "packages_distributions")
                run(module)
                if name == _LAZY_IMPORTS:
                    self._keep(module, "define_import_structure")
                else:
                    vars(module)["get_source"] = _name_line

            vars(spec.loader)["exec_module"] = run_and_change
        return spec

    def _keep(self, module: ModuleType, name: str) -> None:
        find = getattr(module, name)

        def find_once(*words: Any, **named: Any) -> Any:
            key = f"{name}{(*map(str, words), named)}"
            if key not in self.found:
                self.found[key] = marshal.dumps(find(*words, **named))
            return marshal.loads(self.found[key])  # a new one, since who gets it changes it

        setattr(module, name, find_once)

    def write(self) -> None:
        _CONTENTS_FILE.write_bytes(marshal.dumps(self.found))


def _name_line(level: int) -> str:
    """File and line of a caller, as `torch._library.utils.get_source` writes it."""
    frame = sys._getframe(level)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


contents = _ContentsKept()


def main() -> None:
    """Search for garbage more rarely, read no folder twice, and leave out what compiles and what nothing asks for.

    Imports create millions of objects that stay, and Python searches them for garbage after each 700. With a higher
    threshold the engine's imports take 8.0 CPU-seconds, not 8.8 (medians of 6 in turn).
    """
    if os.environ.get("BLUEPRINT_LOCAL_SHORTCUTS") == "off" or contents in sys.meta_path:
        return
    gc.set_threshold(50_000, 20, 20)
    sys.meta_path[:0] = [contents, _BalancerLater()]
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        sys.meta_path.insert(0, _CompilerLeftOut())
