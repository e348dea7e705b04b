"""Models that see, on this machine: what vLLM needs for them beyond what requirements/engine.txt pins.

The code of every model that takes pictures imports torchvision, which no other model needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llm_serving.catalog import models
from llm_serving.catalog.architecture import ModelError
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import engine_env
from llm_serving.workloads.serving.blueprint import Blueprint

PACKAGE = "torchvision==0.28.0"
"""The release for torch 2.13 (PyPI, its metadata)."""


def sees(names: Iterable[str | None]) -> bool:
    """Whether one of the models takes pictures, as far as is known."""
    return any(_sees(name) for name in names if name)


def _sees(name: str) -> bool:
    try:
        return models.find(name, unchecked=True).vision is not None
    except ModelError:  # whoever needs the model reports it
        return False


def list_models(blueprint: Blueprint) -> list[str | None]:
    """The models of a blueprint's roles."""
    return [blueprint.select_model_settings(role).model for role in blueprint.roles.engine_roles.values()]


def check(names: Iterable[str | None], root: Path = engine_env.ROOT) -> None:
    """Check that the engine's environment runs the models.

    Raises:
        Unavailable: one of them sees, and torchvision is missing.
    """
    folder = root / engine_env.FOLDER
    if sees(names) and not any(folder.glob("lib/python3*/site-packages/torchvision")):
        raise Unavailable(
            f"{folder}: torchvision is missing, which vLLM imports for models that see. "
            f"Fix: uv pip install --python {engine_env.FOLDER}/bin/python --no-deps {PACKAGE}, in the folder {root}."
        )
