"""Two versions side by side: the route's shares, what is refused, and the way back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from scripts import cli

HELM = """#!{python}
import pathlib, sys
with pathlib.Path("{calls}").open("a") as calls:
    print(*sys.argv[1:], file=calls)
"""


@pytest.fixture
def shift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs the command with a helm that only writes down what it is asked."""
    program = tmp_path / "bin" / "helm"
    program.parent.mkdir()
    program.write_text(HELM.format(python=sys.executable, calls=tmp_path / "calls"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        return cli.run(["shift", *words]), capfd.readouterr().err

    return run


def test_a_route_shares_requests_by_weight_and_its_values_can_be_read(
    tmp_path: Path, shift: Callable[..., tuple[int, str]]
) -> None:
    assert shift("chat", "mine=90", "mine-v2=10", "--gateway", "edge/public")[0] == 0
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("upgrade --install chat ") and "--namespace serving" in call
    route = yaml.safe_load((tmp_path / "rendered/chat/eks/chat.yaml").read_text())["route"]
    assert route["gateway"] == {"name": "public", "namespace": "edge", "section": ""}
    assert [(one["release"], one["port"], one["weight"]) for one in route["backends"]] == [
        ("mine", 8080, 90),
        ("mine-v2", 8080, 10),
    ]


def test_one_command_goes_back(tmp_path: Path, shift: Callable[..., tuple[int, str]]) -> None:
    assert shift("chat", "--back")[0] == 0
    assert (tmp_path / "calls").read_text() == "rollback chat --namespace serving\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine"], "SHARE: now 'mine': it is no deployment and its weight. Write NAME=WEIGHT, such as mine-v2=10."),
        (["mine=0"], "SHARE: no deployment would get a request. Write a weight above 0, such as mine=100."),
        (["a=1", "a=2"], "SHARE: now 'a=2': a has its weight already. Write each deployment once."),
        (["mine=1", "--gateway", "edge"], "--gateway: now 'edge': it is no Gateway. Write NAMESPACE/NAME, such as gateway/edge."),
        ([], "SHARE: write either deployments with their weights, such as mine=90 mine-v2=10, or --back."),
    ],
)  # fmt: skip
def test_what_is_no_share_is_refused(
    tmp_path: Path, shift: Callable[..., tuple[int, str]], words: list[str], message: str
) -> None:
    code, err = shift("chat", *words)
    assert (code, err.splitlines()[-1]) == (2, message)
    assert not (tmp_path / "calls").exists()
