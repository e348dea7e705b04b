"""A blueprint and a fleet from texts, resolved at a place as the commands find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import resolve
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.document import load
from llm_serving.targets import registry


def resolve_files(folder: Path, blueprint: str, fleet: str, target: str, **overrides: Any) -> ServingDeployment:
    """What `blueprint` comes to on `fleet`, both written to `folder`.

    Args:
        local: what the place is like where the target is this machine.
    """
    (folder / "blueprint.yaml").write_text(blueprint)
    (folder / "fleet.yaml").write_text(fleet)
    blueprint_document, fleet_document = load(folder / "blueprint.yaml", Blueprint), load(folder / "fleet.yaml", Fleet)
    selected_target = registry.load_target(target)
    target_environment = selected_target.assume_environment(blueprint_document.value, fleet_document.value, cores=0)
    if not selected_target.needs_aws:
        target_environment = target_environment.model_copy(update=overrides)
    return resolve.resolve(blueprint_document, fleet_document, target_environment)
