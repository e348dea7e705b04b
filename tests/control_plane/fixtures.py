"""What tests against the control plane share: one a session, on one worker (tests/conftest.py sees to that)."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from llm_serving.console import CommandFailed
from llm_serving.settings.errors import Unavailable
from tests import go_programs, known_server
from tests.control_plane import control_plane as planes
from tests.control_plane import programs
from tests.control_plane.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without machines. What connects to any pod reaches a server with the OpenAI API."""
    try:
        helm = go_programs.find_or_build(go_programs.HELM)
        for program in programs.ALL_PROGRAMS:
            go_programs.find_or_build(program)
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no control plane: {error}")
    folder = tmp_path_factory.mktemp("control-plane")
    with known_server.run_server() as url, planes.run(folder, helm, urlsplit(url).port or 0) as plane:
        yield plane
