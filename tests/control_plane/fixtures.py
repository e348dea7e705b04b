"""What tests against the control plane share: one, on one worker (tests/conftest.py sees to that)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from llm_serving.console import CommandFailed
from llm_serving.settings.errors import Unavailable
from tests import go_programs, known_server
from tests.control_plane import control_plane as planes
from tests.control_plane import programs
from tests.control_plane.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, share_in_group: Callable[[str], ExitStack]) -> ControlPlane:
    """A control plane without machines. What connects to any pod reaches a server with the OpenAI API."""
    try:
        helm = go_programs.find_or_build(go_programs.HELM)
        for program in programs.ALL_PROGRAMS:
            go_programs.find_or_build(program)
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no control plane: {error}")
    folder = tmp_path_factory.mktemp("control-plane")
    until_the_end = share_in_group("control plane")
    url = until_the_end.enter_context(known_server.run_server())
    return until_the_end.enter_context(planes.run(folder, helm, urlsplit(url).port or 0))
