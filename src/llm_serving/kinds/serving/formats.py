"""Forms of texts in settings of served models, by name."""

from __future__ import annotations

from pathlib import Path

from llm_serving.settings.units import read_formats

FORMATS = read_formats(Path(__file__).with_suffix(".yaml"))
