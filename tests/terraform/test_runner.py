from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.terraform import runner

VERSION = "5.100.0"
PLATFORM = "linux_amd64"


@pytest.fixture(autouse=True)
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it: no Terraform, no mirror, no settings. Returns the folder that is its PATH."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(runner, "_GO_ENV", {})
    monkeypatch.setattr(runner, "_PREFIXES", (str(tmp_path / "opt"), "~/.local/share", "~"))
    for name in (
        runner.BINARY_VARIABLE,
        runner.MIRROR_VARIABLE,
        "TF_CLI_CONFIG_FILE",
        "TF_PLUGIN_CACHE_DIR",
        "TF_WORKSPACE",
    ):
        monkeypatch.delenv(name, raising=False)
    return programs


def write_program(folder: Path, name: str = "terraform", version: str = "1.11.4", warning: str = "") -> Path:
    path = folder / name
    title = "OpenTofu" if name == "tofu" else "Terraform"
    path.write_text(f"#!/bin/sh\necho '{warning}'\necho '{title} v{version}'\necho 'on {PLATFORM}'\n")
    path.chmod(0o755)
    return path


def write_mirror(folder: Path, version: str = VERSION, registry: str = "registry.terraform.io") -> Path:
    (folder / registry / "hashicorp/aws" / version / PLATFORM).mkdir(parents=True)
    return folder


def test_without_terraform_it_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"no terraform or tofu on this machine's PATH\. Fix: install Terraform \(https://"
    ):
        runner.find_terraform(tmp_path / "data", VERSION)


def test_opentofu_serves_where_terraform_is_missing(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder, "tofu")
    detected = runner.find_terraform(tmp_path / "data", VERSION)
    assert (detected.kind, str(detected)) == ("tofu", "OpenTofu 1.11.4")


def test_the_environment_can_name_the_program(
    tmp_path: Path, path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(path_folder)
    other = write_program(tmp_path, "terraform-1.12", version="1.12.0")
    monkeypatch.setenv(runner.BINARY_VARIABLE, str(other))
    assert runner.find_terraform(tmp_path / "data", VERSION).version == "1.12.0"


def test_a_named_program_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runner.BINARY_VARIABLE, "/nowhere/terraform")
    with pytest.raises(InputError, match="TERRAFORM_BINARY_NAME: /nowhere/terraform: this machine has no such program"):
        runner.find_terraform(tmp_path / "data", VERSION)


def test_a_version_without_a_lock_file_in_s3_is_refused(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder, version="1.9.8")
    with pytest.raises(Unavailable, match=r"terraform: 1\.9\.8: the stacks need 1\.10 or later"):
        runner.find_terraform(tmp_path / "data", VERSION)


def test_a_program_that_is_no_terraform_is_refused(tmp_path: Path, path_folder: Path) -> None:
    (path_folder / "terraform").write_text("#!/bin/sh\necho hello\n")
    (path_folder / "terraform").chmod(0o755)
    with pytest.raises(Unavailable, match="terraform does not answer `version` as Terraform does"):
        runner.find_terraform(tmp_path / "data", VERSION)


def test_a_warning_before_the_version_is_read_over(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder, warning="Warning: Unable to open CLI configuration file")
    assert runner.find_terraform(tmp_path / "data", VERSION).version == "1.11.4"


@pytest.mark.parametrize("folder", ["opt", "opt/tf-plugins", "opt/terraform/plugins", "home/.local/share/x", "home/x"])
def test_a_mirror_below_the_usual_prefixes_is_found(tmp_path: Path, path_folder: Path, folder: str) -> None:
    write_program(path_folder)
    mirror_folder = write_mirror(tmp_path / folder)
    detected = runner.find_terraform(tmp_path / "data", VERSION)
    config_file = Path(detected.environment["TF_CLI_CONFIG_FILE"])
    assert detected.provider_from == str(mirror_folder)
    assert config_file.parent == tmp_path / "data"
    assert f'path    = "{mirror_folder}"' in config_file.read_text()
    assert 'exclude = ["registry.terraform.io/hashicorp/aws"]' in config_file.read_text()


def test_a_mirror_of_another_version_or_registry_is_passed_over(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder)
    write_mirror(tmp_path / "opt/old", version="5.99.0")
    write_mirror(tmp_path / "opt/tofu", registry="registry.opentofu.org")
    assert runner.find_terraform(tmp_path / "data", VERSION).provider_from == "registry.terraform.io"


def test_opentofu_takes_its_own_registrys_mirror(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder, "tofu")
    mirror_folder = write_mirror(tmp_path / "opt/tofu", registry="registry.opentofu.org")
    assert runner.find_terraform(tmp_path / "data", VERSION).provider_from == str(mirror_folder)


def test_a_packed_mirror_is_found(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder)
    folder = tmp_path / "opt/packed/registry.terraform.io/hashicorp/aws"
    folder.mkdir(parents=True)
    (folder / f"terraform-provider-aws_{VERSION}_{PLATFORM}.zip").touch()
    assert runner.find_terraform(tmp_path / "data", VERSION).provider_from == str(tmp_path / "opt/packed")


def test_the_environment_can_name_the_mirror(
    tmp_path: Path, path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(path_folder)
    write_mirror(tmp_path / "opt/a")
    monkeypatch.setenv(runner.MIRROR_VARIABLE, str(write_mirror(tmp_path / "elsewhere")))
    assert runner.find_terraform(tmp_path / "data", VERSION).provider_from == str(tmp_path / "elsewhere")


def test_a_named_mirror_without_the_provider_is_refused(
    tmp_path: Path, path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(path_folder)
    monkeypatch.setenv(runner.MIRROR_VARIABLE, str(tmp_path))
    expected = f"BLUEPRINT_PROVIDER_MIRROR: {tmp_path}: it has no registry.terraform.io/hashicorp/aws 5.100.0"
    with pytest.raises(InputError, match=expected):
        runner.find_terraform(tmp_path / "data", VERSION)


def test_the_users_own_configuration_is_left_alone(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder)
    write_mirror(tmp_path / "opt/a")
    user_config = tmp_path / "home/.terraformrc"
    user_config.write_text("provider_installation {\n  direct {}\n}\n")
    detected = runner.find_terraform(tmp_path / "data", VERSION)
    assert (detected.environment, detected.provider_from) == ({}, f"as {user_config} says")


def test_a_configuration_file_that_is_named_and_missing_is_replaced(
    tmp_path: Path, path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(path_folder)
    write_mirror(tmp_path / "opt/a")
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", str(tmp_path / "not-there"))
    assert runner.find_terraform(tmp_path / "data", VERSION).environment == {
        "TF_CLI_CONFIG_FILE": str(tmp_path / "data/terraform.rc")
    }


def test_without_a_mirror_the_registry_fills_one_cache_for_all_stacks(tmp_path: Path, path_folder: Path) -> None:
    write_program(path_folder)
    detected = runner.find_terraform(tmp_path / "data", VERSION)
    assert detected.environment["TF_PLUGIN_CACHE_DIR"] == str(tmp_path / "data/plugin-cache")
    assert detected.provider_from == "registry.terraform.io"


def test_the_users_own_cache_is_used(tmp_path: Path, path_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(path_folder)
    monkeypatch.setenv("TF_PLUGIN_CACHE_DIR", str(tmp_path))
    assert runner.find_terraform(tmp_path / "data", VERSION).environment == {}


def test_settings_of_other_projects_are_emptied(
    tmp_path: Path, path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(path_folder)
    write_mirror(tmp_path / "opt/a")
    monkeypatch.setenv("TF_WORKSPACE", "production")
    monkeypatch.setenv("TF_CLI_ARGS_plan", "-destroy")
    environment = runner.find_terraform(tmp_path / "data", VERSION).environment
    assert (environment["TF_WORKSPACE"], environment["TF_CLI_ARGS_plan"]) == ("", "")
