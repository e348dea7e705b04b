"""A deployment's stack beside the fleet's: `cdktf deploy` creates its dependencies first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from infra import main
from llm_serving.fleet import loading
from llm_serving.services import rendered


def test_each_manifest_of_the_fleet_is_a_stack_after_ecs(
    manifests: dict[str, Path], fleet: Path, tmp_path: Path
) -> None:
    document = loading.load_fleet(fleet)
    for name, text in (("single", manifests["single"].read_text()), ("other", "name: other\nfleet: cotton\n")):
        file = tmp_path / "rendered" / name / "ecs" / "ecs.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    manifest_files = rendered.find(document.value, tmp_path)
    assert [file.parts[-3] for file in manifest_files] == ["single"], (
        "what is rendered for another fleet is not this one's"
    )
    folders = main.synthesize(document, tmp_path / "out", manifest_files)
    assert list(folders) == ["network", "storage", "ecs", "serving-single"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["stacks"]["serving-single"]["dependencies"] == ["ecs", "storage"]
    assert manifest["stacks"]["ecs"]["dependencies"] == ["network"]
    single_stack = main.synthesize(document, tmp_path / "alone", manifest_files[:1], stack_names=["serving-single"])
    assert (single_stack["serving-single"] / "cdk.tf.json").read_text() == (
        folders["serving-single"] / "cdk.tf.json"
    ).read_text(), "by both ways the stack is the same"
    shutil.rmtree(tmp_path / "out")
