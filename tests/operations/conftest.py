"""Stand-ins for helm, aws and the cluster's API, which write down how they were called."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_serving.operations import chart_archives, kube_api
from llm_serving.operations.kube_api import Kind, Manifest

SMALL_FLEET = """\
name: small
region: us-west-2
zones: us-west-2a
orchestrator: eks
pools:
  general: {types: g6e.2xlarge, size: 0..4}
"""

EXISTING = "eks: {cluster: platform}\nnetwork: {vpc: vpc-01234567, private_subnets: subnet-01234567}\n"
"""More of it, by which it is on a cluster that exists."""

UNKNOWN_DIGEST = f"sha256:{'0' * 64}"
"""Of every chart that the table has no digest of."""

_RECORDER = """\
#!{python}
import json, os, sys
if sys.argv[1:] == ["version", "--short"]:
    print("v3.22.0")
    sys.exit()
with open({log!r}, "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
    log.flush()
if any(word in " ".join(sys.argv) for word in {failing!r}):
    sys.exit({message!r})
"""

_UNREACHABLE = "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout"


@dataclass(frozen=True)
class Recorder:
    """Stands for helm, aws and the API: proves in which order and how they are called, nothing of what they do."""

    folder: Path

    @property
    def calls(self) -> list[list[str]]:
        """Every call's words, in order."""
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def install(self, *names: str, failing: tuple[str, ...] = (), message: str = _UNREACHABLE) -> None:
        """Puts programs of these names on PATH; calls with one of the words `failing` fail with `message`."""
        for name in names:
            file = self.folder / name
            file.write_text(
                _RECORDER.format(
                    python=sys.executable, log=str(self.folder / "calls"), failing=list(failing), message=message
                )
            )
            file.chmod(0o755)

    def record(self, *words: str) -> None:
        """Write down a call that is no program's."""
        with (self.folder / "calls").open("a") as log:
            log.write(json.dumps(words) + "\n")


class RecordedApi:
    """Stands for the API of a cluster that has every kind and no object."""

    def __init__(self, recorder: Recorder, kubeconfig: Path | None) -> None:
        self._recorder = recorder
        recorder.record("api", "open", str(kubeconfig))

    def require_ready(self) -> None:
        self._recorder.record("api", "ready")

    def has_kind(self, kind: Kind) -> bool:
        return bool(kind)

    def find(self, kind: Kind, name: str) -> Manifest:
        return {"metadata": {"uid": f"{kind.kind} {name}"}}

    def list_objects(self, *_: object, **__: object) -> list[Manifest]:
        return []

    def apply(self, manifests: Sequence[Manifest]) -> None:
        self._recorder.record("api", "apply", *sorted({manifest["kind"] for manifest in manifests}))

    def delete_all(self, kind: Kind, **_: object) -> None:
        self._recorder.record("api", "delete", kind.kind)

    def delete_objects(self, objects: Sequence[Manifest], _: float) -> None:
        self._recorder.record("api", "delete", *sorted({manifest["kind"] for manifest in objects}))


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """An empty folder as PATH, and the working folder beside it; charts are not pulled."""
    fake_programs = Recorder(tmp_path / "bin")
    fake_programs.folder.mkdir()
    monkeypatch.setenv("PATH", str(fake_programs.folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chart_archives, "fetch", lambda archive, _: archive.digest or UNKNOWN_DIGEST)
    monkeypatch.setattr(chart_archives, "read_crds", lambda _: [])
    monkeypatch.setattr(kube_api, "open_api", lambda kubeconfig: RecordedApi(fake_programs, kubeconfig))
    return fake_programs
