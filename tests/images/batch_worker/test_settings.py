"""The settings that the tool writes and the image reads, and what the image refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from batch import settings
from batch.settings import BadSettings

from llm_serving.kinds.batch import worker_settings
from tests import batch_kills

DOCUMENT = batch_kills.build_document("http://127.0.0.1:1")


def read(document: Any, **variables: str) -> settings.Settings:
    text = document if isinstance(document, str) else json.dumps(document)
    return settings.read({"BATCH_SETTINGS": text, **variables})


def test_the_image_reads_every_setting_that_the_tool_writes() -> None:
    assert (worker_settings.VARIABLE, worker_settings.VERSION) == ("BATCH_SETTINGS", settings.VERSION)
    read_settings = read(DOCUMENT)
    assert read_settings.teams["ads"] == settings.Team(
        20, "low", 86_400.0, None, {priority: f"mine-ads-{priority}" for priority in ("high", "normal", "low")}
    )
    assert read_settings.run_queues["ads", "high"] == "mine-ads-high"
    assert set(read_settings.metrics) == set(worker_settings.LOAD_METRICS)
    for name, value in DOCUMENT.items():
        if not isinstance(value, list | dict) and name != "version":
            assert getattr(read_settings, name) == value, name


def test_what_a_container_alone_knows_and_what_is_secret_are_variables_of_their_own() -> None:
    cache = {"url": "rediss://127.0.0.1:1", "ttl_s": 60, "is_cluster": False, "login_secret": ""}
    own = read({**DOCUMENT, "cache": cache}, BATCH_WORKER="w", BLUEPRINT_API_KEY="k", BATCH_CACHE_PASSWORD="p")
    assert own.cache is not None
    assert (own.worker, own.plain_api_key, own.cache.password, own.is_emulated) == ("w", "k", "p", False)
    assert read(DOCUMENT).worker, "the host's name"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {**DOCUMENT, "version": 2},
            "BATCH_SETTINGS: version 2; this image reads version 1. Fix: build the image of the version that deploys "
            "it, with images/build batch-worker, and deploy again.",
        ),
        ("{", "BATCH_SETTINGS: JSONDecodeError.* Fix: deploy with `blueprint deploy`, which writes it."),
        ({}, "BATCH_SETTINGS: KeyError.'version'.. Fix: deploy with `blueprint deploy`, which writes it."),
        ({**DOCUMENT, "surprise": 1}, "unexpected keyword argument 'surprise'. Fix: deploy with the version of this"),
        (
            {name: value for name, value in DOCUMENT.items() if name != "bucket"},
            "missing 1 required positional argument: 'bucket'. Fix: deploy with the version of this image.",
        ),
    ],
    ids=["another version", "no JSON", "no version", "unknown", "missing"],
)
def test_settings_that_cannot_be_read_are_refused_with_a_fix(document: Any, message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        read(document)
    with pytest.raises(BadSettings, match="KeyError"):
        settings.read({})
