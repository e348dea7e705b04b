"""Modules that stand in for libraries which an engine imports and which its environment does not have."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
import unittest.mock
from collections.abc import Sequence
from typing import Any


class StandIn(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.mock.MagicMock(name=f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the libraries that an engine's GPU build brings along, and that nothing calls here."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_missing = any(name == own or name.startswith(f"{own}.") for own in self._names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandIn(spec.name)
        vars(module).update(__version__="9.9", __path__=[])
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""
