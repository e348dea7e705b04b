"""What the job makes of the prompt's fields, which `blueprint check` takes by the schema's names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests import maven

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("stream"),
    maven.REQUIRED,
]


def test_a_prompt_has_properties_of_any_name_and_type(build_program: Callable[..., list[str]]) -> None:
    template = "{{shopper}} {{ event.item-id }} {{ event.tags }} {{ event.price }} {{ event.note }}|{{ session }}"
    event = json.dumps({"item-id": "a$1", "tags": ["new", "red"], "price": {"eur": 5}, "note": None})
    command = build_program("stream.RenderPrompt", template, event)
    prompt = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert prompt == f'mia a$1 ["new","red"] {{"eur":5}} |{event}\n'
