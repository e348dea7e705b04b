"""Programs that write down how they were called, in the place of helm, kubectl and aws; the cluster is not theirs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_serving.operations import chart_archives

SMALL_FLEET = """\
name: small
region: us-west-2
zones: us-west-2a
orchestrator: eks
pools:
  general: {types: g6e.2xlarge, size: 0..4}
"""

UNKNOWN_DIGEST = f"sha256:{'0' * 64}"
"""Of every chart that the table has no digest of."""

_RECORDER = """\
#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
    log.flush()
if any(word in " ".join(sys.argv) for word in {failing!r}):
    sys.exit("Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout")
if "crd" in sys.argv:
    print("customresourcedefinition.apiextensions.k8s.io/nodepools.karpenter.sh")
"""


@dataclass(frozen=True)
class Recorder:
    """Stands for helm, kubectl and aws: proves in which order and how they are called, nothing of what they do."""

    folder: Path

    @property
    def calls(self) -> list[list[str]]:
        """Every call's words, in order."""
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def install(self, *names: str, failing: tuple[str, ...] = ()) -> None:
        """Puts programs of these names on PATH; calls with one of the words `failing` fail."""
        for name in names:
            file = self.folder / name
            file.write_text(
                _RECORDER.format(python=sys.executable, log=str(self.folder / "calls"), failing=list(failing))
            )
            file.chmod(0o755)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """An empty folder as PATH, and the working folder beside it; charts are not pulled."""
    fake_programs = Recorder(tmp_path / "bin")
    fake_programs.folder.mkdir()
    monkeypatch.setenv("PATH", str(fake_programs.folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chart_archives, "fetch", lambda archive, _: archive.digest or UNKNOWN_DIGEST)
    return fake_programs
