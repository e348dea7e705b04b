"""Multimodal models, whose engines may not be forked: they prepare pictures in threads."""

from __future__ import annotations

from llm_serving.catalog import models
from llm_serving.catalog.architecture import ModelError
from llm_serving.kinds.serving.blueprint import Blueprint


def sees(blueprint: Blueprint) -> bool:
    """Return whether one of the roles' models takes pictures, as far as is known."""
    names = {blueprint.select_model_settings(role).model for role in blueprint.roles.engine_roles.values()}
    return any(_sees(name) for name in names if name)


def _sees(name: str) -> bool:
    try:
        return models.find(name, unchecked=True).vision is not None
    except ModelError:  # whoever needs the model reports it
        return False
