from __future__ import annotations

from pathlib import Path

import pytest

from infra import main
from llm_serving.cli import main as cli

ROOT = Path(__file__).parents[2]


def test_cdktf_and_the_command_line_refuse_the_same_fleets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text((ROOT / "fleet.yaml").read_text().replace("100 USD/h", "1 USD/h"))
    monkeypatch.setenv("BLUEPRINT_FLEET", str(file))
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path / "out"))
    with pytest.raises(SystemExit, match="2"):
        main.main()
    errors = capsys.readouterr().err
    assert errors.startswith(f"{file}:8:14: spend_limit: now '1 USD/h': at full size the pools cost ")
    assert not (tmp_path / "out").exists()
    assert cli.run(["fleet", "synth", "--fleet", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == errors
