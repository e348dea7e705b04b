"""The conventions of a target, by its name."""

from __future__ import annotations

import importlib

from llm_serving.workloads.environment import Conventions


def load_conventions(target: str) -> Conventions:
    """What the target does in its own way: `conventions.CONVENTIONS` of its package."""
    conventions: Conventions = importlib.import_module(f"llm_serving.targets.{target}.conventions").CONVENTIONS
    return conventions
