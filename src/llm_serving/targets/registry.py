"""Find the targets: every package next to this module that has a module `target` with an object `TARGET`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from llm_serving.settings.errors import require_choice

if TYPE_CHECKING:
    from llm_serving.targets.base import Target

DEFAULT = "local"
"""The target of a command without --target."""

_FOLDER = Path(__file__).parent
_MODULE = "target"


def list_targets() -> tuple[str, ...]:
    """List the targets by name, without importing them."""
    packages = [module.name for module in pkgutil.iter_modules([str(_FOLDER)]) if module.ispkg]
    return tuple(name for name in packages if (_FOLDER / name / f"{_MODULE}.py").is_file())


@functools.cache
def load_target(name: str) -> Target:
    """Return the target `name`.

    Raises:
        InputError: there is no such target.
    """
    require_choice("--target", name, "target", list_targets())
    target: Target = importlib.import_module(f"llm_serving.targets.{name}.{_MODULE}").TARGET
    return target
