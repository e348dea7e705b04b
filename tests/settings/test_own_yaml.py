"""What is filled into YAML of this repository."""

from __future__ import annotations

import pytest

from llm_serving.settings import own_yaml


def test_an_unknown_name_is_not_a_value() -> None:
    with pytest.raises(KeyError):
        own_yaml.fill_values({"a": ["{nobody}"]}, {"cluster": "demo"})
