"""What is no share of a route; tests/targets/eks/test_release.py sees the shares on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], 'SHARE: "mine": it is not a deployment and its weight, 999 at the most. Fix: write NAME=WEIGHT, such as mine-v2=10.'),
        (["mine=1000"], 'SHARE: "mine=1000": it is not a deployment and its weight, 999 at the most. Fix: write NAME=WEIGHT, such as mine-v2=10.'),
        (["mine=²"], 'SHARE: "mine=²": it is not a deployment and its weight, 999 at the most. Fix: write NAME=WEIGHT, such as mine-v2=10.'),
        (["mine=0"], "SHARE: all weights are 0. Fix: write a weight above 0, such as mine=100."),
        (["a=1", "a=2"], 'SHARE: "a=2": a is listed twice. Fix: list each deployment once.'),
        (["mine=1", "--gateway", "edge"], '--gateway: "edge": it is not a Gateway. Fix: write NAMESPACE/NAME, such as gateway/edge.'),
        ([], "SHARE: pass either --back, or deployments with their weights, such as mine=90 mine-v2=10."),
    ],
)  # fmt: skip
def test_invalid_shares_are_refused_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert main.run(["shift", "chat", *arguments]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == message
