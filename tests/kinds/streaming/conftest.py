"""Programs of Java that these tests run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving.kinds.streaming import programs


@pytest.fixture(scope="session")
def build_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Compile all programs beside this file at once; what it returns builds the command of a class with its arguments."""
    programs.install(lambda _: None)
    *java, class_path = programs.build_java(heap_mb=128)
    classes, sources = tmp_path_factory.mktemp("classes"), map(str, Path(__file__).parent.glob("*.java"))
    # The second compiler takes more time than it saves, and none of the jars has a processor of annotations.
    options = ["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none", "-cp", class_path, "-d", str(classes)]
    subprocess.run(["javac", *options, *sources], check=True, timeout=120)
    return lambda main, *arguments: [*java, f"{classes}:{class_path}", main, *arguments]
