from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infra.bindings import runtime

ROOT = Path(__file__).parents[3]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )


def test_only_bindings_that_the_stacks_use_are_imported(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from infra import main\n"
        "from llm_serving.fleet.model import Fleet\n"
        "from llm_serving.settings.document import load\n"
        f"main.synthesize(load(Path('fleet.yaml'), Fleet), Path({str(tmp_path)!r}))\n"
        f"print(sum(name.startswith({runtime.AWS!r} + '.') for name in sys.modules))\n"
    )
    assert int(run_python(code).stdout) < 120


def test_no_node_or_deprecation_warning_is_printed(tmp_path: Path) -> None:
    code = (
        "from infra.bindings import aws, cdktf\n"
        f"app = cdktf.App(outdir={str(tmp_path)!r})\n"
        "stack = cdktf.TerraformStack(app, 'quiet')\n"
        "aws.provider.AwsProvider(stack, 'aws', region='us-west-2')\n"
        "aws.vpc.Vpc(stack, 'vpc', cidr_block='10.0.0.0/16', tags={'a': 'b'})\n"
        "app.synth()\n"
    )
    result = run_python(code)
    assert result.stdout + result.stderr == ""


def test_importing_the_bindings_restores_the_environment() -> None:
    before = {key: os.environ.get(key) for key in ("JSII_NODE", "NODE_OPTIONS")}
    from infra.bindings import cdktf  # noqa: F401

    assert {key: os.environ.get(key) for key in before} == before


def test_an_unknown_module_is_an_attribute_error() -> None:
    from infra.bindings import aws

    assert aws.s3_bucket.S3Bucket.__name__ == "S3Bucket"
    with pytest.raises(AttributeError, match="has no attribute 's4_bucket'"):
        _ = aws.s4_bucket


@pytest.mark.parametrize("name", ["plain", "with a space", 'with "quotes"', "with \\ backslash"])
def test_node_takes_the_preload_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    preload = folder / "preload.cjs"
    preload.write_text("console.log('preloaded')")
    monkeypatch.setattr(runtime, "_LAZY_EXPORTS", preload)
    settings = runtime._build_node_settings()
    result = subprocess.run(
        [settings["JSII_NODE"], "-e", "0"], env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    assert result.stdout == "preloaded\n"


def test_a_node_program_of_the_user_is_used_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSII_NODE", "/usr/bin/node")
    monkeypatch.setenv("NODE_OPTIONS", "--no-warnings")
    settings = runtime._build_node_settings()
    assert settings["JSII_NODE"] == "/usr/bin/node"
    assert settings["NODE_OPTIONS"].startswith("--no-warnings --require=")
    assert "--disable-warning" not in settings["NODE_OPTIONS"]


def test_without_a_writable_home_the_package_cache_is_a_private_folder_that_ends_with_the_process(
    tmp_path: Path,
) -> None:
    code = (
        "import pathlib, tempfile\n"
        "from infra.bindings import aws, cdktf\n"
        "cache, = pathlib.Path(tempfile.gettempdir()).glob('jsii-package-cache-*')\n"
        "assert list(cache.iterdir()) and cache.stat().st_mode & 0o077 == 0\n"
        f"stack = cdktf.TerraformStack(cdktf.App(outdir={str(tmp_path / 'out')!r}), 'stack')\n"
        "print(aws.vpc.Vpc(stack, 'vpc').terraform_resource_type)\n"
    )
    (tmp_path / "home").write_text("a file, so nothing can be created below it")
    (tmp_path / "tmp").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (result.returncode, result.stdout) == (0, "aws_vpc\n"), result.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_package_cache_that_another_user_prepared_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = tmp_path / f"jsii-package-cache-{os.getuid()}"
    prepared.mkdir()
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = runtime._build_node_settings()
    assert Path(settings["JSII_RUNTIME_PACKAGE_CACHE_ROOT"]) != prepared
    assert settings != runtime._build_node_settings(), "its name cannot be guessed"


def test_a_package_cache_of_the_user_is_used_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("JSII_RUNTIME_PACKAGE_CACHE_ROOT", "/var/cache/jsii")
    assert "JSII_RUNTIME_PACKAGE_CACHE_ROOT" not in runtime._build_node_settings()
