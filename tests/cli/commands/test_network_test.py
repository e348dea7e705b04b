"""`blueprint fleet test-network`: which pools it takes, and the verdict's exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.cli import main
from llm_serving.settings.errors import InputError

PUBLISHED = Path(__file__).parents[2] / "operations/network_test/published"
FLEET = """\
name: demo
region: us-east-2
zones: [us-east-2a, us-east-2b]
orchestrator: eks
pools:
  large: {types: p5.48xlarge, size: 2, zones: us-east-2b, efa: on}
  single: {types: p5.48xlarge, size: 1, zones: us-east-2b, efa: on}
  neuron: {types: trn2.48xlarge, size: 2, zones: us-east-2b, efa: on}
  plain: {types: g6e.2xlarge, size: 2}
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(["fleet", "test-network", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_healthy_output_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "large", "--output", str(PUBLISHED / "p5-2-nodes.txt"))
    assert (code, err) == (0, "")
    assert out == (
        "p5.48xlarge: 487.1 GB/s of bus bandwidth at 17,179,869,184 bytes (healthy from 320); "
        "network: Libfabric, provider efa\n"
    )


def test_a_fall_back_to_tcp_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "large", "--json", "--output", str(PUBLISHED / "socket-fallback.txt"))
    assert (code, json.loads(out)["healthy"]) == (1, False)
    assert err.startswith("the network of pool large is not healthy: NCCL fell back to Socket: it did not use EFA")


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("other", "POOL: other: fleet.yaml has no such pool. Fix: use one of large, single, neuron, plain."),
        ("plain", "nccl-tests needs EFA. Fix: set efa: on in the pool."),
        ("neuron", "nccl-tests measures NVIDIA GPUs, and trn2.48xlarge has none."),
        (
            "single",
            "2 instances are to be tested, and the pool has at most 1. Fix: choose a larger pool, or fewer --nodes.",
        ),
    ],
)
def test_a_pool_that_cannot_be_tested_is_refused(pool: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, pool, "--yes")
    assert (code, out) == (InputError.exit_code, "")
    assert message in err


def test_without_a_terminal_nothing_runs_unasked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    code, _, err = _run(capsys, "large")
    assert code == InputError.exit_code
    assert "Run nccl-tests on 2 x p5.48xlarge" in err
    assert "--yes" in err
