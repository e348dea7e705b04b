"""`blueprint model`: what a person sees, what a script reads, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm_serving import console, processes
from llm_serving.catalog import models
from llm_serving.cli import main
from llm_serving.hub import make_gguf, upload
from llm_serving.rehearsal import emulator


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}")
    monkeypatch.setattr(console.out, "_width", 140)


def _run_cli(*words: str) -> int:
    return main.run(["model", *words])


def test_make_tiny_generates_the_model_and_warns_that_it_is_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_cli("make-tiny", "--to", str(tmp_path / "m")) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'm'}\n"
    assert models.RANDOM_NOTICE in output.err
    assert models.find(str(tmp_path / "m")).random


def test_an_unknown_size_of_make_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("make-tiny", "--to", str(tmp_path / "m"), "--size", "huge") == 2
    assert capsys.readouterr().err == (
        '--size: "huge": there is no such size. '
        "Fix: use tiny or mid or tiny-embed or tiny-rerank or tiny-classify or tiny-vision or tiny-draw.\n"
    )


def test_fit_shows_cache_tokens_or_missing_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "Qwen/Qwen3-32B") == 0
    text = capsys.readouterr().out
    assert "262,144 bytes per token" in text
    row = next(line for line in text.splitlines() if "g6e.12xlarge" in line)
    assert re.split(r"\s{2,}", row.strip())[1:5] == ["4 x L40S 45 GiB", "-24.4 GB", "47.6", "345.1"]
    assert "short by this much memory per accelerator" in text
    assert "m8g.medium" in text


@pytest.mark.parametrize(
    ("model", "others"),
    [
        ("Qwen/Qwen3-8B", "trn1.32xlarge, inf2.48xlarge"),
        ("Qwen/Qwen3-30B-A3B", "trn1.32xlarge, trn2.48xlarge, inf2.48xlarge"),
    ],
)
def test_fit_has_no_row_of_neuron_devices_that_the_engine_refuses(
    model: str, others: str, capsys: pytest.CaptureFixture[str]
) -> None:
    types = ("trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge")
    assert _run_cli("fit", model, *(word for name in types for word in ("--type", name))) == 0
    text = capsys.readouterr().out
    assert f"vllm does not run it on {others}" in text
    assert {line.split(",")[0] for line in text.splitlines() if "split 8 ways" in line} == set(types) - set(
        others.split(", ")
    )


@pytest.mark.parametrize("model", ["Qwen/Qwen3-235B-A22B-FP8", "openai/gpt-oss-20b", "tiny"])
def test_in_80_columns_fit_cuts_no_name_and_no_number(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "_width", 80)
    assert _run_cli("fit", model) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert all(name in text for name in ("g6e.48xlarge", "p6-b200.48xlarge", "trn1n.32xlarge"))
    assert max(map(len, text.splitlines())) <= 80


def test_in_80_columns_the_list_of_models_cuts_no_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "_width", 80)
    assert _run_cli("list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in models.load())
    assert max(map(len, text.splitlines())) <= 80


def test_fit_of_a_gguf_file_says_on_which_kinds_of_accelerators_it_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_gguf.make("tiny", tmp_path / "mine")
    assert _run_cli("fit", str(tmp_path / "mine"), "--type", "g6.xlarge", "--type", "c7i.large") == 0
    text = capsys.readouterr().out
    assert "llama.cpp does not run it on GPUs" in text
    assert "c7i.large" in text


def test_fit_explains_why_a_model_cannot_be_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "zai-org/GLM-4.7-Flash") == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "g6.48xlarge" in line)
    assert re.split(r"\s{2,}", row.strip())[2:6] == ["-40.9 GB", "-12.9 GB", "39.6", "no split"]
    assert "no split  20 attention heads do not divide by 8" in text


def test_fit_explains_one_instance_type_in_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "Qwen/Qwen3-32B", "--type", "p5.4xlarge", "--context", "32k") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "p5.4xlarge, whole: does not fit: the cache holds 31344 tokens, 656 short of one request of 32000" in text


def test_the_legend_of_types_without_accelerators_names_no_share_of_an_accelerator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run_cli("fit", "Qwen/Qwen3-8B", "--type", "m8g.large", "--type", "m8g.4xlarge") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "with 85% of its memory" in text and "Computed, not measured; --type NAME" in text
    assert "92%" not in text and "H100" not in text and "per accelerator" not in text
    assert _run_cli("fit", "Qwen/Qwen3-8B", "--type", "g6e.xlarge") == 0
    assert "92% of an accelerator's memory is used" in " ".join(capsys.readouterr().out.split())


def test_fit_without_videos_gives_their_memory_to_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("fit", "Qwen/Qwen2.5-VL-7B-Instruct", "--type", "g6.xlarge", "--context", "32900")
    assert _run_cli(*command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "videos up to 32,768 tokens, with room for one; --no-videos leaves it out" in text
    assert "g6.xlarge, whole: does not fit" in text and "GB of it for a video" in text
    assert _run_cli(*command, "--no-videos") == 0
    text = capsys.readouterr().out
    assert "for a video" not in text and "requests of 32,900" in text


def test_fit_warns_of_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "tiny", "--type", "g6e.xlarge") == 0
    assert models.RANDOM_NOTICE in capsys.readouterr().out


def test_an_encoder_fits_without_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "BAAI/bge-reranker-v2-m3", "--type", "g6e.xlarge") == 0
    text = capsys.readouterr().out
    assert "KV cache  none (encoder)" in text
    assert "Whether it fits, by number of GPUs" in text


def test_fit_as_json_is_the_whole_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "Qwen/Qwen3-32B", "--json") == 0
    response = json.loads(capsys.readouterr().out)
    assert response["kv_bytes_per_token"] == 262144
    fits_by_type = {row["name"]: row["fits"] for row in response["instances"]}
    assert [fit["tensor_parallel"] for fit in fits_by_type["p5.48xlarge"]] == [1, 2, 4, 8]
    assert fits_by_type["p5.48xlarge"][0]["cache_tokens"] == 31344
    assert fits_by_type["g6e.xlarge"][0]["why"].startswith("weights 65.5 GB and reserve 2.61 GB are 24.4 GB more")
    assert [fit["fits"] for name in ("m8g.large", "m8g.16xlarge") for fit in fits_by_type[name]] == [False, True]


def test_a_cache_in_fp8_fits_twice_as_many_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = []
    for dtype in ("auto", "fp8"):
        assert _run_cli("fit", "mid", "--type", "g6e.xlarge", "--kv-cache-dtype", dtype, "--json") == 0
        tokens.append(json.loads(capsys.readouterr().out)["instances"][0]["fits"][0]["cache_tokens"])
    assert tokens[1] == pytest.approx(2 * tokens[0], rel=1e-3)


def test_fit_with_a_draft_counts_its_weights_and_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "Qwen/Qwen3-32B", "--type", "p5.4xlarge", "--draft", "Qwen/Qwen3-0.6B") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "whole: weights 66.7 GB, 1.2 GB of them the draft's, reserve" in text
    assert "18,608 tokens" in text, "31,344 without"


@pytest.mark.parametrize(
    ("model", "draft", "message"),
    [
        ("BAAI/bge-reranker-v2-m3", "tiny", '--draft: "tiny": BAAI/bge-reranker-v2-m3 generates no tokens. Fix: leave out --draft.'),
        ("bartowski/Qwen_Qwen3-4B-GGUF:Q4_0", "tiny", '--draft: "tiny": this repository deploys bartowski/Qwen_Qwen3-4B-GGUF:Q4_0 with none. Fix: leave out --draft.'),
        ("tiny", "BAAI/bge-reranker-v2-m3", '--draft: "BAAI/bge-reranker-v2-m3": it generates no tokens. Fix: use a small model that does.'),
        ("Qwen/Qwen3-32B", "tiny", "and that of Qwen/Qwen3-32B 151936, and the engine starts with equal ones only. Fix: use a model whose config.json has the same vocab_size."),
        ("tiny", "nothing-like-it", 'model: "nothing-like-it": neither in the catalog'),
    ],
)  # fmt: skip
def test_a_draft_that_cannot_be_is_refused(
    model: str, draft: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_cli("fit", model, "--draft", draft) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "nothing-like-it", "--type", "p5.48xlarge"), 'model: "nothing-like-it": neither in the catalog'),
        (
            ("fit", "https://huggingface.co/Qwen/Qwen3-8B"),
            'model: "https://huggingface.co/Qwen/Qwen3-8B": a model has no such URL here. Fix: write ORGANIZATION/MODEL, '
            "as a hub names it, the path of a folder, or s3://BUCKET/PREFIX.",
        ),
        (("fit", "tiny", "--type", "p5.49xlarge"), "p5.49xlarge: the catalog has no such instance type."),
        (
            ("fit", "tiny", "--context", "-3"),
            '--context: "-3": it is not a number of tokens. Fix: use a number of tokens such as 8k.',
        ),
        (("fit", "tiny", "--kv-cache-dtype", "int4"), '--kv-cache-dtype: "int4": there is no such type.'),
        (("copy", "nothing", "--to", "s3://b-b-b/x"), "nothing: it is neither a folder nor an id on the hub."),
        (("fit", "s3://b/x"), '"s3://b/x": it is not a location in S3. Fix: write s3://BUCKET/PREFIX, with a bucket'),
        (("copy", "a/b", "--to", "b/x"), '--to: "b/x": it is not a location in S3.'),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_cli(*arguments) == 2
    last_line = capsys.readouterr().err.strip().splitlines()[-1]
    assert last_line.startswith(message)


def test_a_model_that_no_hub_can_be_asked_for_is_one_message_with_similar_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run_cli("fit", "someone/zebra") == 3
    fix = "Fix: check the network, or set HF_ENDPOINT to a mirror"
    pattern = r"someone/zebra: no hub answers at http://127\.0\.0\.1:\d+ \([^)]+\)\. "
    assert re.fullmatch(f"{pattern}{fix}\\.\n", capsys.readouterr().err)
    assert _run_cli("fit", "Qwen/Qwen3-33B") == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.count("Fix:") == 1
    assert f"{fix}; or Qwen/Qwen3-32B or " in line and line.endswith(", which the catalog has.")


def test_a_path_that_leads_nowhere_is_not_asked_for_at_the_hub(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("fit", "./models/zebra") == 2
    assert capsys.readouterr().err == (
        f'model: "./models/zebra": {Path.cwd() / "models/zebra"} is no folder that holds config.json. '
        "Fix: write the path of one, absolute or from the current directory.\n"
    )


def test_list_names_every_model_and_marks_the_random_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli("list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in models.load())
    assert text.count("(random weights") == sum(model.random for model in models.load().values())
    assert _run_cli("list", "--json") == 0
    response = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in response} == set(models.load())
    assert all(row["source"] and row["read_on"] for row in response)


@pytest.mark.terraform
def test_copy_without_a_hub_is_one_line_and_exit_3(
    bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_cli("copy", "Qwen/Qwen3-0.6B", "--to", str(bucket.location), "--staging", str(tmp_path)) == 3
    assert "Qwen/Qwen3-0.6B: no hub answers at http://127.0.0.1:" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.terraform
def test_copy_of_a_folder_reports_what_it_uploaded(
    bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_cli("make-tiny", "--to", str(tmp_path / "m")) == 0
    capsys.readouterr()
    assert _run_cli("copy", str(tmp_path / "m"), "--to", str(bucket.location), "--json") == 0
    response = json.loads(capsys.readouterr().out)
    assert response["to"] == str(bucket.location)
    assert response["sent"] == response["bytes"] == sum(bucket.list_sizes().values())
    assert _run_cli("copy", str(tmp_path / "m"), "--to", str(bucket.location)) == 0
    assert "up to date" in capsys.readouterr().err


@pytest.mark.terraform
def test_copy_to_a_fleet_uploads_to_its_model_bucket(
    aws: str, hub: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    name = "demo-models-123456789012-us-west-2"
    client = emulator.create_client("s3", aws, "us-west-2")
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    fleet = Path(__file__).parents[3] / "fleet.yaml"
    assert _run_cli("copy", hub.id, "--fleet", str(fleet), "--staging", str(tmp_path)) == 0
    assert capsys.readouterr().out.strip() == f"s3://{name}/models/{hub.id}/"
    listing = client.list_objects_v2(Bucket=name, Prefix=f"models/{hub.id}/")
    # The model's four files, and where they came from.
    assert listing["KeyCount"] == 5


@pytest.mark.terraform
def test_a_model_in_s3_without_record_is_read_from_its_config_and_sizes(
    bucket: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = str(bucket.location)
    assert _run_cli("fit", uri) == 2
    assert f"{uri}: no config.json is there. Fix: name the prefix of a model's folder" in capsys.readouterr().err
    (folder / "config.json").write_text(json.dumps(dict(models.read_config("tiny"))))
    upload.upload(folder, uri)
    assert not [name for name in bucket.list_sizes() if name.startswith(".")]
    assert _run_cli("fit", uri, "--type", "g6e.xlarge") == 0
    model, row = models.find(uri.rstrip("/")), models.find("tiny")
    assert (model.layers, model.vocabulary, model.hub) == (row.layers, row.vocabulary, None)
    assert model.weight_bytes == (folder / "model.safetensors").stat().st_size


_PREDICT = ("predict", "Qwen/Qwen3-32B", "--type", "p5.48xlarge", "--tensor", "2", "--input-tokens", "1024")


def test_predict_gives_the_means_of_a_published_closed_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_cli(*_PREDICT, "--output-tokens", "1024", "--concurrency", "16", "--json") == 0
    predicted = json.loads(capsys.readouterr().out)
    # serving-points.csv: Qwen3-32B on two H100, vLLM 0.12.0, 16 users, 1,024 tokens each way.
    assert predicted["itl_ms"] == pytest.approx(17.38, rel=0.15)
    assert predicted["ttft_ms"] > predicted["itl_ms"]
    assert predicted["basis"] == "catalog"
    assert predicted["interval"]["low"] < 1 < predicted["interval"]["high"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--precision", "fp7"), '--precision: "fp7": there is no such precision. Fix: use bf16 or fp8 or fp4.\n'),
        (("--tensor", "16"), "--tensor: 16: p5.48xlarge has 8. Fix: use that or less.\n"),
        (("--tensor", "3"), "--tensor: 3: 64 attention heads do not divide by 3. Fix: use 1 or 2 or 4 or 8.\n"),
        (
            ("--output-tokens", "50000"),
            "--output-tokens: 50000: with the prompt it is longer than the context of 40960 tokens. "
            "Fix: use shorter requests.\n",
        ),
    ],
)
def test_predict_refuses_what_cannot_be(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_cli(*_PREDICT, "--output-tokens", "100", "--concurrency", "4", *words) == 2
    assert capsys.readouterr().err == message


def test_predict_says_what_a_model_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", "Qwen/Qwen3-32B", "--type", "g6e.xlarge", "--input-tokens", "1024", "--output-tokens", "100")
    assert _run_cli(*words, "--concurrency", "4") == 1
    assert "are 24.4 GB more than the 43.7 GB of one accelerator" in capsys.readouterr().err
