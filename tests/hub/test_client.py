"""The hub client: file selection, resumed transfers, and a one-line error for each failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.catalog import models
from llm_serving.hub import client as hubs
from llm_serving.hub import files, read
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import InputError, Unavailable

REGION = "us-west-2"
SHARD = "model-00001-of-00002.safetensors"


class _Interrupted(Exception):
    """Simulates Ctrl-C."""


def _get_file(name: str) -> hubs.RepoFile:
    return next(file for file in hubs.fetch_snapshot("someone/some-model").files if file.name == name)


def _download(name: str, folder: Path, count: Any = lambda _: None) -> Path:
    return hubs.download(hubs.fetch_snapshot("someone/some-model"), _get_file(name), folder, count)


def test_only_safetensors_settings_and_tokenizer_are_selected(hub: Any) -> None:
    names = {file.name for file in hubs.select_files(hubs.fetch_snapshot(hub.id))}
    assert names == {"config.json", "tokenizer.json", SHARD, "model-00002-of-00002.safetensors"}


MISTRAL = ("config.json", "params.json", "tekken.json", "tokenizer.json", "consolidated.safetensors")
"""Files of mistralai/Mistral-Small-3.2-24B-Instruct-2506 on the hub, 2026-11-22, but for the weights' other form."""


def _read_nothing(_name: str) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("weights", "left_out"),
    [
        (["model-00001-of-00002.safetensors", "model.safetensors.index.json"], {"consolidated.safetensors"}),
        (["model.safetensors"], {"consolidated.safetensors"}),
        ([], set()),
        (["vision/model.safetensors"], set()),
    ],
)
def test_mistrals_weights_are_copied_once(weights: list[str], left_out: set[str]) -> None:
    names = [*MISTRAL, *weights]
    assert set(names) - hubs.select_names(names, "mistral", _read_nothing) == left_out
    several = [*names, "consolidated-00001-of-00002.safetensors", "consolidated.safetensors.index.json"]
    assert set(several) - hubs.select_names(several, "mistral", _read_nothing) == (
        left_out and {*left_out, "consolidated-00001-of-00002.safetensors", "consolidated.safetensors.index.json"}
    )


def test_all_files_are_selected_on_request(hub: Any) -> None:
    assert {file.name for file in hubs.select_files(hubs.fetch_snapshot(hub.id), all_files=True)} == set(hub.files)


def test_a_repository_without_safetensors_is_refused_with_its_formats(hub: Any) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(InputError, match=r"has no safetensors, only \.bin\. Fix: choose another model, or --all-files"):
        hubs.select_files(hubs.fetch_snapshot(hub.id))


@pytest.mark.parametrize("name", [SHARD, "config.json"])
def test_a_downloaded_file_equals_the_hub_s(hub: Any, tmp_path: Path, name: str) -> None:
    received: list[int] = []
    assert _download(name, tmp_path, received.append).read_bytes() == hub.files[name]
    assert sum(received) == len(hub.files[name])


def test_a_broken_connection_is_resumed(hub: Any, tmp_path: Path) -> None:
    hub.broken_at[SHARD] = 400_000
    assert _download(SHARD, tmp_path).read_bytes() == hub.files[SHARD]
    (_, first), (_, second) = hub.requests
    assert first == 0
    assert 0 < second <= 400_000
    assert hub.sent_bytes == 400_000 + len(hub.files[SHARD]) - second, "no more"


def test_an_interrupted_copy_requests_only_the_rest(hub: Any, tmp_path: Path) -> None:
    received_bytes = 0

    def interrupt(count: int) -> None:
        nonlocal received_bytes
        received_bytes += count
        if received_bytes > 300_000:
            raise _Interrupted

    with pytest.raises(_Interrupted):
        _download(SHARD, tmp_path, interrupt)
    partial_size = (tmp_path / f"{SHARD}.part").stat().st_size
    assert partial_size > 300_000
    remaining: list[int] = []
    assert _download(SHARD, tmp_path, remaining.append).read_bytes() == hub.files[SHARD]
    assert sum(remaining) == len(hub.files[SHARD]) - partial_size
    assert hub.requests[-1] == (SHARD, partial_size)


def test_an_existing_file_is_not_requested_again(hub: Any, tmp_path: Path) -> None:
    _download(SHARD, tmp_path)
    request_count = len(hub.requests)
    _download(SHARD, tmp_path)
    assert len(hub.requests) == request_count


def test_a_part_longer_than_the_file_is_restarted(hub: Any, tmp_path: Path) -> None:
    (tmp_path / f"{SHARD}.part").write_bytes(b"x" * 800_000)
    assert _download(SHARD, tmp_path).read_bytes() == hub.files[SHARD]


@pytest.mark.parametrize("name", [SHARD, "config.json"])
def test_a_damaged_file_is_refused_and_deleted(hub: Any, tmp_path: Path, name: str) -> None:
    hub.damaged.add(name)
    with pytest.raises(Unavailable, match=rf"{name} from .* does not match the hub's hash"):
        _download(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
    hub.damaged.clear()  # and the next try is not led astray by the first
    assert _download(name, tmp_path).read_bytes() == hub.files[name]


def test_a_listing_outside_the_folder_is_refused(hub: Any) -> None:
    hub.files["../../evil.json"] = b"{}"
    with pytest.raises(InputError, match="outside its own directory"):
        hubs.fetch_snapshot(hub.id)


def test_concurrent_copies_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        hubs.lock_folder(tmp_path),
        pytest.raises(Unavailable, match="another copy of this model is running"),
        hubs.lock_folder(tmp_path),
    ):
        pytest.fail("both went in")


def test_an_unreachable_hub_is_one_line_with_its_url_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    port = processes.claim_free_ports(1)[0]
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:p@ss@127.0.0.1:{port}")
    for ask in (hubs.fetch_snapshot, lambda name: hubs.fetch_json(name, "config.json")):
        monkeypatch.setattr("time.sleep", lambda _: None)
        with pytest.raises(Unavailable, match=rf"no hub answers at http://127\.0\.0\.1:{port}") as error:
            ask("someone/some-model")
        assert "\n" not in str(error.value)


def test_a_missing_model_is_one_line(hub: Any) -> None:
    with pytest.raises(InputError, match=rf"someone/else: {hub.url} has no such model, or it is private"):
        hubs.fetch_snapshot("someone/else")


def test_a_missing_revision_is_one_line(hub: Any) -> None:
    with pytest.raises(InputError, match="has no revision 'v9' of it"):
        hubs.fetch_snapshot(hub.id, "v9")


def test_a_missing_file_is_one_line(hub: Any) -> None:
    del hub.files["config.json"]
    with pytest.raises(InputError, match=r"has no config\.json of it"):
        hubs.fetch_json(hub.id, "config.json")


def test_an_invalid_id_is_one_line(hub: Any) -> None:
    with pytest.raises(InputError, match="it is not a model id"):
        hubs.fetch_snapshot("a/b/c")


def test_a_gated_model_is_refused_with_the_url_of_its_terms(hub: Any, tmp_path: Path) -> None:
    hub.gated = True
    with pytest.raises(Unavailable, match=rf"accept them at {hub.url}/someone/some-model, then set HF_TOKEN"):
        _download(SHARD, tmp_path)


def test_the_token_opens_a_gated_model_and_is_never_shown(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.gated, hub.token = True, "hf_secretsecretsecret"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert _download(SHARD, tmp_path).read_bytes() == hub.files[SHARD]
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    (tmp_path / SHARD).unlink()
    with pytest.raises(Unavailable) as error:
        _download(SHARD, tmp_path)
    output = "".join(capfd.readouterr()) + str(error.value)
    assert "hf_" not in output


def test_the_token_goes_to_no_other_machine_in_clear_text(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated, hub.token = True, "hf_secretsecretsecret"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert _download(SHARD, tmp_path).read_bytes() == hub.files[SHARD]
    monkeypatch.setattr(hubs.loopback, "is_loopback", lambda _: False)  # as if the hub were elsewhere
    with pytest.raises(Unavailable, match=r"asks for a token, .* in clear text\. Fix: write https in HF_ENDPOINT"):
        _download(SHARD, tmp_path / "again")
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert "authorization" in hubs._build_headers()


@pytest.mark.terraform
def test_the_token_can_come_from_a_secret_that_the_environment_names(
    hub: Any, aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated, hub.token = True, "hf_secretsecretsecret"
    secrets = emulator.create_client("secretsmanager", aws, REGION)
    arn = secrets.create_secret(Name="hub-token", SecretString=f"{hub.token}\n")["ARN"]
    for name in ("hub-token", arn):
        monkeypatch.setenv("HF_TOKEN_SECRET", name)
        assert _download(SHARD, tmp_path / name[:9]).read_bytes() == hub.files[SHARD]
    monkeypatch.setenv("HF_TOKEN_SECRET", "no-such-secret")
    with pytest.raises(
        Unavailable, match=rf'HF_TOKEN_SECRET: "no-such-secret" in {REGION}: .* Fix: name a secret'
    ) as error:
        _download(SHARD, tmp_path / "none")
    assert "hf_" not in str(error.value) and str(error.value).count("Fix:") == 1


def test_a_secret_without_a_region_is_refused(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_SECRET", "hub-token-elsewhere")
    with pytest.raises(InputError, match=r"its region is not known\. Fix: write its ARN, or set AWS_REGION"):
        hubs.fetch_snapshot(hub.id)


def test_a_hub_that_fails_is_one_line(hub: Any) -> None:
    hub.status = 500
    with pytest.raises(Unavailable, match=r"someone/some-model: http://\S+ returned HTTP 500\. Fix: try again later"):
        hubs.fetch_snapshot(hub.id)


def test_a_full_disk_is_reported_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r".* free, staging needs 5e\+03 TB\. Fix: free disk space, or pass --x"):
        files.check_disk_space(tmp_path / "not" / "there" / "yet", 5 * 10**15, purpose="staging", fix="pass --x")


def test_a_model_missing_from_the_catalog_is_read_from_the_hub(hub: Any) -> None:
    import json

    hub.files["config.json"] = json.dumps({**models.read_config("tiny"), "random_weights": False}).encode()
    assert models.find(hub.id, fetch=read.fetch_record).layers == 4


def test_an_unknown_model_names_similar_ones_of_the_catalog(hub: Any) -> None:
    with pytest.raises(InputError, match=r"has no such model, or it is private\. Fix: .*; or Qwen/Qwen3-32B or "):
        models.find("Qwen/Qwen3-33B", fetch=read.fetch_record)
