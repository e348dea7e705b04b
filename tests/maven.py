"""Maven and a compiler of Java, for tests of programs in Java."""

from __future__ import annotations

import shutil

import pytest

REQUIRED = pytest.mark.skipif(
    not (shutil.which("mvn") and shutil.which("javac")),
    reason="Maven or Java is not installed. Fix: run apt-get install maven openjdk-17-jdk-headless.",
)
