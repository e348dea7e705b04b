from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llm_serving import paths
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.settings import overrides, yaml_source
from llm_serving.settings.errors import InputError

TEXT = """\
# What to serve.
pattern: aggregated # the folder
model: "tiny"
roles:
  # One of two may fail.
  worker: {pool: general, replicas: 2} # as few as can be

traffic: {arrivals: 20/s}
"""


def test_values_are_written_with_comments_order_and_layout_as_they_were() -> None:
    assert overrides.apply(TEXT, {"roles.worker.replicas": "4", "tuning.batch_tokens": "2k"}) == (
        TEXT.replace("replicas: 2", "replicas: 4") + "tuning:\n  batch_tokens: 2k\n"
    )


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("a: {b: 1} # c\nd: 2\n", "a.e.f", "{g: 1}", "a: {b: 1, e: {f: {g: 1}}} # c\nd: 2\n"),
        ("a: {} # c\n", "a.b", "1", "a: {b: 1} # c\n"),
        ("a: text\n", "a.b", "1", "a: {b: 1}\n"),
        ("a:\n  b: 1 # c\n\n# d\ne: 2\n", "a.f", "3", "a:\n  b: 1 # c\n  f: 3\n\n# d\ne: 2\n"),
        ("a:\n  b:\n    - 1\n    - 2 # c\n# d\ne: 2\n", "a.b", "[3]", "a:\n  b: [3] # c\n# d\ne: 2\n"),
        ("a: 'x'\r\nb: 2", "c.d", "3", "a: 'x'\r\nb: 2\r\nc:\r\n  d: 3"),
    ],
)
def test_a_value_is_written_in_the_layout_of_its_file(before: str, key: str, value: str, after: str) -> None:
    assert overrides.apply(before, {key: value}) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# top\n\nb: m # which\nc: {}\n", "# top\n\nb: m # which\na: new\nc: {}\n"),
        ("c: {a: old}\r\nb: m", "c: {a: old}\r\nb: m\r\na: new"),
        ("c:\n  b: 1\n", "c:\n  b: 1\na: new\n"),
        ("a:   'old'   # why # so\nb: m\n", "a:   new   # why # so\nb: m\n"),
        ("{b: m, a: old}\n", "{b: m, a: new}\n"),
    ],
)
def test_a_key_is_added_below_the_one_that_is_named_at_the_top(before: str, after: str) -> None:
    assert overrides.apply(before, {"a": "new"}, after="b") == after


@given(value=st.text(max_size=12))
def test_no_value_can_change_more_than_its_key(value: str) -> None:
    try:
        text = overrides.apply("b: m # x\na: old # y\nc: {d: 1}\n", {"a": value})
    except InputError:
        return
    assert yaml.safe_load(text) == {"b": "m", "a": yaml.safe_load(value), "c": {"d": 1}}
    assert "# x" in text and "# y" in text


def test_a_value_that_an_anchor_shares_is_refused() -> None:
    with pytest.raises(InputError, match=r"b: its value is shared by an anchor\. Fix: write b without an anchor"):
        overrides.apply("a: &x 1\nb: *x\n", {"b": "2"})


@pytest.mark.parametrize("file", sorted(paths.PATTERNS.glob("*/**/*.yaml")), ids=lambda file: "/".join(file.parts[-3:]))
def test_every_blueprint_of_this_repository_comes_back_as_it_is(file: Path) -> None:
    text = file.read_text()
    assert overrides.apply(text, {}) == text


def test_commas_within_braces_belong_to_a_value() -> None:
    parsed = overrides.parse("--over", "tuning.speculative={method: ngram, tokens: 3}, {method: ngram, tokens: 5}")
    assert parsed.values == ("{method: ngram, tokens: 3}", "{method: ngram, tokens: 5}")
    assert overrides.parse("--over", "tuning.batch_tokens=2k,8k") == ("tuning.batch_tokens", ("2k", "8k"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tuning", '--over: "tuning": it is not KEY=VALUE,VALUE. Fix: write tuning.batch_tokens=2k,8k.'),
        ("a=1,,2", '--over: "a=1,,2": it is not KEY=VALUE,VALUE. Fix: write tuning.batch_tokens=2k,8k.'),
        ("a=1,1", '--over: "a=1,1": a value is there twice. Fix: write each value once.'),
        ("a={b", '--over: "a={b": {b is not YAML. Fix: write a value as in blueprint.yaml.'),
    ],
)
def test_what_is_no_override_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        overrides.parse("--over", text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("tuning.batch_token", "tuning.batch_tokens"),
        ("tunning.batch_tokens", "tuning"),
        ("roles.worker.replica", "roles.worker.replicas"),
        ("roles.worker.replicas.min", "roles.worker.replicas itself"),
        ("roles.models.chat.replicas", "roles.models itself"),
    ],
)
def test_a_key_that_does_not_exist_is_refused_with_the_nearest(key: str, fix: str, tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(TEXT)
    with pytest.raises(InputError) as error:
        overrides.require_key("--over", Blueprint, yaml_source.read(file).data, key)
    assert str(error.value).endswith(f" to vary. Fix: use {fix}.")


def test_reserved_keys_are_refused_and_others_of_the_model_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "blueprint.yaml"
    file.write_text(TEXT)
    data = yaml_source.read(file).data
    for key in ("tuning.batch_tokens", "roles.worker.accelerators", "engine", "tuning.speculative.tokens"):
        overrides.require_key("--over", Blueprint, data, key, reserved=["traffic"])
    with pytest.raises(InputError, match="traffic is the same for all that are compared"):
        overrides.require_key("--over", Blueprint, data, "traffic.arrivals", reserved=["traffic"])
