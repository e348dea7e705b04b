"""The stack that docs/terraform.md shows is a stack: it synthesizes, keeps the rules, and has the fleet's tags."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

from llm_serving.fleet import loading
from tests.infra.conftest import FLEETS, Stack
from tests.infra.deployments import ROOT, read_stack

FLEET = f"name: demo\nregion: us-west-2\npools: {{general: {{types: g6e.2xlarge, size: 0..8}}}}\n{FLEETS['eks']}"


def test_a_stack_of_ones_own_is_a_module_of_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from infra import main
    from infra.stacks import base

    [text] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/terraform.md").read_text("utf-8"), re.M | re.S)
    assert len(text.splitlines()) < 25
    module = types.ModuleType("ledger")
    exec(compile(text, "docs/terraform.md", "exec"), module.__dict__)
    monkeypatch.setattr(base, "_import_modules", lambda: iter([module]))
    (tmp_path / "fleet.yaml").write_text(FLEET)
    folders = main.synthesize(loading.load_fleet(tmp_path / "fleet.yaml"), tmp_path / "out")
    assert list(folders) == ["ledger"]
    stack: Stack = read_stack(tmp_path / "out", "ledger")
    assert stack["resource"]["aws_sqs_queue"]["queue"]["name"] == "demo-ledger"
    assert stack["provider"]["aws"][0]["default_tags"][0]["tags"]["team"] == "serving"
    assert stack["terraform"]["backend"]["local"]["path"].endswith("terraform.demo.ledger.tfstate")
