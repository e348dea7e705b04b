"""What drafts tokens for a model: another model, or layers of its own."""

from __future__ import annotations

from llm_serving.catalog import models
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.models import Model
from llm_serving.kinds.serving.tuning import Tuning


def find_draft(tuning: Tuning, model: Model | None = None) -> Model | None:
    """Return the draft model; None without one, or where its architecture is one of its own.

    Args:
        model: whose tokens they are, and whose layers for multi-token prediction may be the other one.
    """
    speculative = tuning.speculative
    if predicts_itself(tuning):
        return model.build_prediction() if model and model.is_known else None
    try:
        return models.find(speculative.model) if speculative and speculative.model else None
    except ModelError:
        return None


def predicts_itself(tuning: Tuning) -> bool:
    """Return whether layers of the model itself draft tokens."""
    return tuning.speculative is not None and tuning.speculative.method == "mtp"
