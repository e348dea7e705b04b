"""What the hub says of a model without its weights, and the faults of hubs, each as one message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_serving.catalog import models, records
from llm_serving.hub import client, read
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
    with pytest.raises(InputError, match="model_type: now 'zebra': its memory is not known here"):
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
    with pytest.raises(InputError, match="returned HTTP 503"):
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
        (404, "has no such model|returned HTTP 404"),
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


def test_a_config_that_breaks_off_is_one_message(hub: Any) -> None:
    hub.broken_at["config.json"] = 5
    with pytest.raises(Unavailable) as error:
        client.fetch_json(hub.id, "config.json")
    assert str(error.value).startswith(f"{hub.id}: ")
    assert "\n" not in str(error.value)
