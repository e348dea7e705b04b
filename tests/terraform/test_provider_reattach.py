"""A provider that stays for a run of Terraform: which one it is, how it is found, and that it ends."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from llm_serving.console import CommandFailed
from llm_serving.settings.errors import Unavailable
from llm_serving.terraform import provider_reattach, runner

REGISTRY = "registry.terraform.io/hashicorp/aws"
LOCK = 'provider "{name}" {{\n  version     = "{version}"\n  constraints = "5.100.0"\n}}\n'
PROVIDER_SCRIPT = """\
#!/bin/sh
echo "$PWD $1 [$AWS_CA_BUNDLE] $GOGC"
echo "  TF_REATTACH_PROVIDERS='{\\"registry.terraform.io/hashicorp/aws\\":{\\"Pid\\":$$}}'"
exec sleep 60
"""


def create_working_folder(folder: Path, text: str, *, name: str = REGISTRY, version: str = "5.100.0") -> Path:
    """A working folder as `terraform init` leaves it, with a provider that is a script."""
    (folder / ".terraform.lock.hcl").write_text(LOCK.format(name=name, version=version))
    program = folder / ".terraform/providers" / name / version / "linux_amd64" / f"terraform-provider-aws_v{version}_x5"
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o755)
    return folder


def read_pid(environment: dict[str, str], name: str = REGISTRY) -> int:
    return int(json.loads(environment["TF_REATTACH_PROVIDERS"])[name]["Pid"])


def test_the_provider_runs_for_the_block_and_a_variable_names_it(tmp_path: Path) -> None:
    with provider_reattach.start_provider(create_working_folder(tmp_path, PROVIDER_SCRIPT), {}) as environment:
        assert psutil.Process(read_pid(environment)).is_running()
        assert "TF_REATTACH_PROVIDERS" not in os.environ
    assert not psutil.pid_exists(read_pid(environment))


def test_it_runs_in_the_stacks_folder_with_terraforms_settings_and_no_bundle_of_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/somewhere.pem")
    with provider_reattach.start_provider(create_working_folder(tmp_path, PROVIDER_SCRIPT), {"GOGC": "400"}):
        pass
    assert (tmp_path / "provider.log").read_text().startswith(f"{tmp_path} -debug [] 400\n")


def test_opentofu_finds_it_under_its_own_registry(tmp_path: Path) -> None:
    name = "registry.opentofu.org/hashicorp/aws"
    with provider_reattach.start_provider(
        create_working_folder(tmp_path, PROVIDER_SCRIPT, name=name), {}
    ) as environment:
        assert read_pid(environment, name)


def test_the_locked_version_of_two_is_used(tmp_path: Path) -> None:
    create_working_folder(tmp_path, "#!/bin/sh\nexit 1\n", version="5.99.0")
    create_working_folder(tmp_path, "#!/bin/sh\nexit 1\n", version="6.0.0")
    with provider_reattach.start_provider(create_working_folder(tmp_path, PROVIDER_SCRIPT), {}) as environment:
        assert read_pid(environment)


@pytest.mark.parametrize("lock", ["", None], ids=["that names none", "none"])
def test_without_a_lock_of_it_the_provider_is_left_to_terraform(tmp_path: Path, lock: str | None) -> None:
    if lock is not None:
        (tmp_path / ".terraform.lock.hcl").write_text(lock)
    with provider_reattach.start_provider(tmp_path, {}) as environment:
        assert environment == {}


@pytest.mark.parametrize(
    ("ends", "limit_s", "why"),
    [("exit 1", 60.0, "it ended with 1"), ("exec sleep 60", 0.0, "its address: not ready within 0 s")],
)
def test_a_provider_that_does_not_start_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, limit_s: float, why: str
) -> None:
    monkeypatch.setattr(provider_reattach, "_START_LIMIT_S", limit_s)
    folder = create_working_folder(tmp_path, f"#!/bin/sh\necho no memory\n{ends}\n")
    with (
        pytest.raises(Unavailable, match=rf"the AWS provider did not start: {why}\. Its log: .*provider\.log"),
        provider_reattach.start_provider(folder, {}),
    ):
        pass
    assert limit_s == 0 or (folder / "provider.log").read_text() == "no memory\n"


@pytest.mark.terraform
def test_a_command_that_asks_nothing_leaves_the_provider_unread(tmp_path: Path) -> None:
    folder = create_working_folder(tmp_path, PROVIDER_SCRIPT)
    lock = folder / ".terraform.lock.hcl"
    lock.write_text(lock.read_text().replace("\n}", f'\n  hashes = ["h1:{"A" * 43}="]\n}}'))  # another's
    required = {"aws": {"source": "hashicorp/aws", "version": "5.100.0"}}
    (folder / "main.tf.json").write_text(json.dumps({"terraform": {"required_providers": required}}))
    program = replace(runner.find_terraform(tmp_path / "data", "5.100.0"), reuse_provider=True)
    for command in (("init", "-input=false", "-reconfigure"), ("state", "pull")):
        runner.run(program, {"mine": folder}, command)
    assert not (tmp_path / "provider.log").exists()
    with pytest.raises(CommandFailed):
        runner.run(replace(program, reuse_provider=False), {"mine": folder}, ("state", "pull"))
