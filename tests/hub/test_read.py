"""What the hub says of a model without its weights, and the faults of hubs, each as one message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_serving.catalog import gguf, models, records
from llm_serving.hub import client, make_gguf, read
from llm_serving.settings.errors import BlueprintError, InputError, Unavailable
from tests.hub.fixtures import COMMIT


def _set_config(hub: Any, **changes: object) -> None:
    hub.files["config.json"] = json.dumps({**models.read_config("tiny"), "random_weights": False, **changes}).encode()


def test_a_model_outside_the_catalog_is_exact_by_its_own_config_and_index(hub: Any) -> None:
    _set_config(hub, num_hidden_layers=7)
    hub.files["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": 123_456}}).encode()
    records.save(read.fetch_record(hub.id))
    model = models.find(hub.id)
    assert (model.layers, model.weight_bytes, model.hub) == (7, 123_456, hub.id)
    assert model.source == f"config.json of {hub.id} at {COMMIT[:12]}"


def test_nvidias_own_file_says_how_a_checkpoint_is_quantized(hub: Any) -> None:
    _set_config(hub)
    assert models.find(hub.id, fetch=read.fetch_record).quantization == "none"
    settings = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    hub.files["hf_quant_config.json"] = json.dumps(settings).encode()
    assert models.find(hub.id, fetch=read.fetch_record).quantization == "nvfp4"


def test_a_kind_that_is_not_known_is_read_only_unchecked(hub: Any) -> None:
    _set_config(hub, model_type="zebra")
    with pytest.raises(InputError, match='model_type: "zebra": its memory is not known here'):
        models.find(hub.id, fetch=read.fetch_record)
    model = models.find(hub.id, fetch=read.fetch_record, unchecked=True)
    assert (model.is_known, model.weight_bytes) == (False, 1_000_000)


def test_a_record_is_found_again_only_by_its_own_name(hub: Any) -> None:
    assert records.find(hub.id) is None
    records.save(read.fetch_record(hub.id))
    assert records.find(hub.id)
    for name in ("someone/other-model", "../someone/some-model", "/etc/passwd", "tiny"):
        assert records.find(name) is None


def test_what_was_read_before_serves_where_the_hub_is_away(hub: Any) -> None:
    _set_config(hub)
    records.save(read.fetch_record(hub.id))
    hub.status = 503
    assert models.find(hub.id, fetch=read.fetch_record).layers == 4
    with pytest.raises(Unavailable, match="returned HTTP 503"):
        models.find("someone/other-model", fetch=read.fetch_record)


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_says_where_its_licence_is_accepted(hub: Any, status: int) -> None:
    hub.gated, hub.gated_status = True, status
    with pytest.raises(Unavailable, match=rf"accept them at {hub.url}/{hub.id}, then set HF_TOKEN"):
        read.fetch_record(hub.id)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "no such model, or it is private|refuses the token"),
        (403, r"refuses the token \(HTTP 403\)"),
        (404, r"has no such model, or it is private\. Fix: use an existing id, or set HF_TOKEN"),
        (429, r"returned HTTP 429\. Fix: try again in some minutes; set HF_TOKEN"),
        (500, r"returned HTTP 500\. Fix: try again later"),
    ],
)
def test_a_hub_that_refuses_is_one_message(
    hub: Any, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.status = status
    with pytest.raises(BlueprintError, match=message) as error:
        read.fetch_record(hub.id)
    assert "\n" not in str(error.value)
    assert str(error.value).count("Fix:") == 1


def test_a_config_that_breaks_off_is_one_message(hub: Any) -> None:
    hub.broken_at["config.json"] = 5
    with pytest.raises(Unavailable) as error:
        client.fetch_json(hub.id, "config.json")
    assert str(error.value) == f"{hub.id}: {hub.url} stopped half-way. Fix: run the same command again."


@pytest.fixture(scope="module")
def made_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A GGUF file of `tiny`."""
    return (make_gguf.make("tiny", tmp_path_factory.mktemp("gguf") / "tiny") / gguf.FILE).read_bytes()


@pytest.fixture
def gguf_hub(hub: Any, made_gguf: bytes) -> Any:
    """The hub with a repository of two GGUF files."""
    hub.id = "someone/some-model-GGUF"
    hub.files = {"some-model-Q8_0.gguf": made_gguf, "some-model-Q4_K_M.gguf": b"GGUF\3\0\0\0 and no more"}
    return hub


def test_a_gguf_file_of_any_repository_is_known_by_its_header_alone(gguf_hub: Any, made_gguf: bytes) -> None:
    name, row = f"{gguf_hub.id}:Q8_0", models.find("tiny")
    with pytest.raises(InputError, match=rf"or `blueprint model fit {name}`, which asks the hub once"):
        models.find(name)
    records.save(read.fetch_record(name))
    assert {file for file, _ in gguf_hub.requests} == {"some-model-Q8_0.gguf"}
    assert gguf_hub.sent_bytes < len(made_gguf), "not the whole file"
    model = models.find(name)
    assert (model.name, model.hub, model.formats) == (name, gguf_hub.id, ("gguf",))
    assert model.weight_bytes == gguf.parse_bytes(made_gguf, "made").weight_bytes
    for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "max_context"):
        assert getattr(model, field) == getattr(row, field), field


def test_a_header_of_several_pieces_is_read_a_piece_at_a_time(
    gguf_hub: Any, made_gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_RANGE_BYTES", 10_000)
    record = read.fetch_record(f"{gguf_hub.id}:Q8_0")
    assert record.gguf == gguf.parse_bytes(made_gguf, "made")
    starts = [start for _, start in gguf_hub.requests]
    assert starts == list(range(0, 10_000 * len(starts), 10_000)) and len(starts) > 2


def test_a_gguf_file_that_cannot_be_served_is_refused_before_it_is_copied(gguf_hub: Any, made_gguf: bytes) -> None:
    name = f"{gguf_hub.id}:Q4_K_M"
    for content, message in {
        made_gguf[:-1]: f"it is cut short: {len(made_gguf) - 1} bytes, {len(made_gguf)} by its header",
        made_gguf[:5000]: "it is cut short within its header. Fix: copy or download it again",
        made_gguf.replace(b"qwen3", b"qwenn"): '"qwenn": llama.cpp\'s version here runs no such model',
        b"PK an archive": "it is not a readable GGUF file: it does not begin with GGUF",
    }.items():
        gguf_hub.files["some-model-Q4_K_M.gguf"] = content
        with pytest.raises(InputError) as error:
            read.fetch_record(name)
        assert str(error.value).startswith(f"{gguf_hub.id}: some-model-Q4_K_M.gguf: ")
        assert message in str(error.value)
    with pytest.raises(InputError, match=r"it has no GGUF files of Q5_K_M\. Fix: choose Q4_K_M or Q8_0"):
        read.fetch_record(f"{gguf_hub.id}:Q5_K_M")


def test_a_hub_that_sends_whole_files_alone_is_asked_for_none(gguf_hub: Any) -> None:
    gguf_hub.sends_ranges = False
    with pytest.raises(
        Unavailable, match=r"sends some-model-Q8_0\.gguf only as a whole, and the header is at its start"
    ):
        read.fetch_record(f"{gguf_hub.id}:Q8_0")


def test_a_repository_of_gguf_files_alone_names_the_way_to_one(gguf_hub: Any) -> None:
    with pytest.raises(InputError) as error:
        read.fetch_record(gguf_hub.id)
    assert str(error.value) == (
        f"{gguf_hub.id}: it has no safetensors, only .gguf. Fix: choose {gguf_hub.id}:Q4_K_M or {gguf_hub.id}:Q8_0, one file "
        "for llama.cpp, or another model."
    )
