"""blueprint.yaml: the patterns' own, every way to write it wrong, and the folder around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.kinds.serving import blueprint, roles, tuning
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.services.traffic import Traffic
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Bounds
from llm_serving.validation.search import sweep
from tests.kinds.serving import texts

ROOT = Path(__file__).parents[3]

VALID = """\
pattern: aggregated
model: tiny
roles:
  worker: {pool: general}
traffic: {users: 8}
slo: {}
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder holds an empty folder `mine`."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()


def read(text: str) -> Blueprint:
    Path("mine/blueprint.yaml").write_text(text)
    return blueprint.read(Path("mine")).value


def list_errors(text: str) -> list[str]:
    """The messages about a mine/blueprint.yaml that holds `text`, without its name."""
    with pytest.raises(InputError) as error:
        read(text)
    lines = str(error.value).splitlines()
    assert all(line.startswith("mine/blueprint.yaml:") for line in lines)
    return [line.removeprefix("mine/blueprint.yaml:").lstrip() for line in lines]


SERVING_FOLDERS = sorted(
    path.parent for path in ROOT.glob("blueprints/*/blueprint.yaml") if "\nkind:" not in path.read_text()
)


@pytest.mark.parametrize("folder", SERVING_FOLDERS)
def test_every_pattern_is_valid_and_has_its_folders_name(folder: Path) -> None:
    assert blueprint.read(folder).value.pattern == folder.name


BLUEPRINTS = [
    file
    for file in (*ROOT.glob("blueprints/*/blueprint.yaml"), *ROOT.glob("blueprints/*/presets/*.yaml"))
    if "\nkind:" not in file.read_text()
]


@pytest.mark.parametrize("file", BLUEPRINTS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_pattern_and_preset_sends_an_open_loop_of_enough_requests_to_show_its_slo(file: Path) -> None:
    value = load(file, Blueprint).value  # presets lie apart from the files that they name
    assert value.traffic.is_open_loop
    assert value.traffic.requests >= sweep.count_least_requests(value.slo)


def test_an_omitted_field_has_its_default() -> None:
    value = read(VALID)
    assert (value.name, value.engine, value.weights, value.context) == (None, "vllm", "s3", 4096)
    assert value.roles.worker is not None
    assert (value.roles.worker.replicas, value.roles.worker.accelerators) == (Bounds(1, 1), 1)
    assert value.roles.router.policy is None, "it follows from the traffic"
    traffic = value.traffic
    assert (traffic.users, traffic.arrivals, traffic.requests, traffic.warm_up) == (8, None, 300, 10)
    assert (traffic.time_limit, traffic.deadline) == (600.0, 60.0)
    assert (traffic.input_tokens, traffic.output_tokens) == (Bounds(256, 256), Bounds(64, 64))
    assert (traffic.shared_prefix, value.slo.errors, value.slo.ttft_ms.p95) == (0.0, 0.0, None)


DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:v0.32.0",
        "vllm/vllm-router:nightly",
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/demo/vllm:0.32.0-efa.2",
        "registry.internal:5000/vllm:1",
        f"vllm/vllm-openai{DIGEST}",
        f"vllm/vllm-openai:v0.32.0{DIGEST}",
    ],
)
def test_an_immutable_image_is_accepted(image: str) -> None:
    assert read(f"{VALID}image: {image}\n").image == image


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai", "vllm/vllm1", "vllm/vllm-openai:latest", f"vllm/vllm-openai:latest{DIGEST}"]
)
def test_a_mutable_image_is_refused(image: str) -> None:
    with pytest.raises(InputError, match="it is not an image with a tag other than latest, or a digest"):
        read(f"{VALID}image: {image}\n")


def test_traffic_round_trips_through_json() -> None:
    traffic = read(VALID.replace("users: 8", "arrivals: 0.5/s, shared_prefix: 12.5%, input_tokens: 2k..4k, context: 8k")
                   .replace(", context: 8k", "").replace("model: tiny", "model: tiny\ncontext: 8k")).traffic  # fmt: skip
    assert Traffic.model_validate_json(traffic.model_dump_json()) == traffic
    assert traffic.shared_prefix == 0.125


def add_traffic(text: str) -> str:
    return VALID.replace("{users: 8}", "{" + text + "}")


CHOICE = "not one of the choices."
TOKENS = "Fix: use a number of tokens such as"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        # a key is missing, unknown or twice
        (
            "pattern: aggregated\n",
            [
                "1:1: roles: required field is missing. Fix: set roles: {worker: {pool: general}}.",
                "1:1: traffic: required field is missing. Fix: set traffic: {arrivals: 20/s}.",
                "1:1: slo: required field is missing. Fix: set slo: {ttft_ms: {p95: 800}}.",
                "1:1: model: required field is missing. Fix: set model: Qwen/Qwen3-0.6B.",
            ],
        ),
        (VALID + "modle: tiny\n", ["7:1: modle: unknown key. Fix: use one of auth, chat_template, context, disruption, engine, engine_arguments, environment, framework, image, kind, load_balancer, logs, media_hosts, memory, name, reasoning, revision, task, tools, traces, tuning, warm_prompt, weights."]),
        (VALID.replace("model:", "modle:"), ["2:1: modle: unknown key. Fix: write model:."]),
        (VALID + "max_model_len: 8k\n", ["7:1: max_model_len: unknown key. Fix: write context:."]),
        (VALID + "tuning: {max-num-seqs: 8}\n", ["7:10: tuning.max-num-seqs: unknown key. Fix: write sequences:."]),
        (VALID.replace("pool: general", "pool: general, tensor_parallel_size: 2"), ["4:27: roles.worker.tensor_parallel_size: unknown key. Fix: write accelerators:."]),
        (VALID + "model: mid\n", ["7:1: model: duplicate key, first on line 2. Fix: remove one."]),
        (VALID.replace("worker: {pool: general}", "router: {}"), ["3:1: roles.worker: the pattern aggregated needs it, and it is missing. Fix: set worker: {pool: general}."]),
        (VALID + "policy: random\n", [f"{VALID.count(chr(10)) + 1}:1: policy: unknown key. Fix: write it below roles.router:."]),
        (VALID.replace("roles:\n  worker: {pool: general}\n", "roles:\n"), ["3:7: roles: the key has no value. Fix: write a value, or leave it out."]),
        (VALID.replace("pool: general", "pool: general, replicas: 1..4, scale: {queue: 4, peaks: [{at: 16:00..23:00, replicas: 2}, {at: 22:59..01:00, replicas: 3}]}"), ['4:107: roles.worker.scale.peaks[1].at: "22:59..01:00": it meets 16:00..23:00. Fix: leave a minute between both, or make one of them.']),
        (VALID.replace("pool: general", "pool: general, replicas: 1..4, scale: {queue: 4, peaks: {at: 16:00..16:00, replicas: 2}}"), ['4:73: roles.worker.scale.peaks.at: "16:00..16:00": it ends as it begins. Fix: raise the least of `replicas` for the whole day.']),
        (VALID.replace("pool: general", "pool: general, replicas: 1..4, scale: {queue: 4, peaks: {at: 16:00..18:00, replicas: 2}, time_zone: Europe/Paria}"), ['4:112: roles.worker.scale.time_zone: "Europe/Paria": there is no such time zone. Fix: use a name of the tz database such as America/Los_Angeles.']),
        (VALID.replace("pool: general", "pool: general, replicas: 1..4, scale: {queue: 4, time_zone: Europe/Paris}"), ['4:72: roles.worker.scale.time_zone: "Europe/Paris": it is that of peaks, and there are none. Fix: remove time_zone.']),
        (VALID.replace("pool: general", "pool: general, replicas: 1..4, scale: {queue: 4, peaks: {at: 16:00..18:00, replicas: 5}}"), ["4:97: roles.worker.scale.peaks.replicas: 5: the role has 1 to 4. Fix: set 2 to 4."]),
        (VALID.replace("pool: general", "pool: general, tp: 2"), ["4:27: roles.worker.tp: unknown key. Fix: use one of accelerators, adapters, data, engine_arguments, environment, expert, gang, gives_way, max_requests, pipeline, replicas, scale, weight."]),
        (VALID.replace("aggregated", "disaggregated").replace("worker: {pool: general}", "decode: {pool: general}\n  prefill: {pool: general, adapters: {tone: tone}}"), ["5:38: roles.prefill.adapters: each request takes prefill and decode, and decode has other adapters. Fix: name the same in both roles."]),
        # a value has the wrong kind or form
        (VALID.replace("aggregated", "agregated"), [f"1:10: pattern: \"agregated\": {CHOICE} Fix: use aggregated; the choices are 'aggregated', 'disaggregated', 'distributed', 'multi-model' or 'real-time'."]),
        (VALID + "tools: true\n", ["7:8: tools: true: it is not auto, off, or the engine's name of a parser. Fix: use auto, off, or the engine's name of a parser such as hermes."]),
        (VALID.replace("model: tiny", "model: 5"), ["2:8: model: 5: it is not text. Fix: write it in quotes: '5'."]),
        (VALID.replace("model: tiny", "model: --trust-remote-code"), ['2:8: model: "--trust-remote-code": it is not a model: a name of the catalog, a hub id or a folder. Fix: use a model such as Qwen/Qwen3-0.6B.']),
        (VALID.replace("model: tiny", 'model: ""'), ['2:8: model: "": it is not a model: a name of the catalog, a hub id or a folder. Fix: use a model such as Qwen/Qwen3-0.6B.']),
        (VALID.replace("model: tiny", "model: ${MODEL}"), ["2:8: model: it holds ${ or %{, which Terraform would read as an expression; settings hold plain values. Fix: write the value itself."]),
        (VALID + "engine: vlm\n", [f"7:9: engine: \"vlm\": {CHOICE} Fix: use vllm; the choices are 'diffusion', 'llama.cpp', 'sglang', 'tensorrt-llm' or 'vllm'."]),
        (VALID + "weights: /models\n", ['7:10: weights: "/models": it is not a place to stream weights from: s3 or s3://BUCKET/PREFIX. Fix: use a place to stream weights from such as s3://my-models/qwen3-32b.']),
        (VALID + "context: long\n", [f'7:10: context: "long": it is not a number of tokens. {TOKENS} 8k.']),
        (VALID + "context: 0\n", [f'7:10: context: 0: it is not from 1 to 10000000. {TOKENS} 8k.']),
        (VALID + "name: Mine\n", ['7:7: name: "Mine": it is not a name of 2 to 32 characters: a-z, 0-9 and -, a letter first. Fix: use a name of 2 to 32 characters such as general.']),
        (VALID.replace("{pool: general}", "general"), ['4:11: roles.worker: "general": it is a text. Fix: use a mapping of keys to values; the keys are accelerators, adapters, data, engine_arguments, environment, expert, gang, gives_way, max_requests, pipeline, pool, replicas, scale, weight.']),
        (VALID.replace("{pool: general}", "{pool: general, replicas: two}"), ['4:37: roles.worker.replicas: "two": it is neither a number of replicas nor a range. Fix: use a number of replicas such as 4, or a range such as 1..8.']),
        (VALID.replace("{pool: general}", "{pool: general, replicas: 0}"), ['4:37: roles.worker.replicas: 0: nothing would ever run. Fix: set replicas: 1, or a range such as 0..4.']),
        (add_traffic("users: 8, deadline: 45min"), ['5:31: traffic.deadline: "45min": the router cuts a request off after 1800 s, roles.router.request_timeout. Fix: set deadline: 1800s or less, or request_timeout: 2700s or more for the router.']),
        (VALID.replace("{pool: general}", "{pool: general}\n  router: {request_timeout: 2d}"), ['5:29: roles.router.request_timeout: "2d": it is too large. Fix: use 1d or less.']),
        (VALID.replace("{pool: general}", "{pool: general}\n  router: {request_timeout: 0.5s}"), ['5:29: roles.router.request_timeout: "0.5s": it is too small. Fix: use 1s or more.']),
        (VALID.replace("{pool: general}", "{pool: general, accelerators: 1025}"), ['4:41: roles.worker.accelerators: 1025: it is too large. Fix: use 1024 or less.']),
        (VALID.replace("{pool: general}", "{pool: general}\n  router: {policy: random-ish}"), [f"5:20: roles.router.policy: \"random-ish\": {CHOICE} Fix: use random; the choices are 'cache-aware', 'kv-aware', 'load-aware', 'round-robin', 'random' or 'consistent-hash'."]),
        (VALID.replace("{pool: general}", "{pool: general}\n  router: {max_requests: 0}"), ["5:26: roles.router.max_requests: 0: it is too small. Fix: use 1 or more."]),
        (VALID + "warm_prompt: system.txt\n", ['7:14: warm_prompt: "system.txt": there is no such file in mine. Fix: name a text file beside the blueprint.']),
        (VALID + "warm_prompt: ../system.txt\n", ["7:14: warm_prompt: \"../system.txt\": it is not a text file in the blueprint's folder. Fix: use a text file in the blueprint's folder such as system-prompt.txt."]),
        (VALID + "task: embed\nwarm_prompt: system.txt\n", ['8:14: warm_prompt: "system.txt": an answer of the task embed has no tokens. Fix: remove warm_prompt.']),
        # traffic
        (add_traffic("users: 0"), ['5:18: traffic.users: 0: it is too small. Fix: use 1 or more.']),
        (add_traffic("users: 8.5"), ['5:18: traffic.users: 8.5: it is a number with a fraction. Fix: use a whole number.']),
        (add_traffic("arrivals: 20"), ['5:21: traffic.arrivals: 20: it has no unit. Fix: use a rate such as 20/s.']),
        (add_traffic("users: 8, time_limit: 5m"), ['5:33: traffic.time_limit: "5m": it is not a length of time. Fix: use a length of time in s, min, h or d, such as 30s.']),
        (add_traffic("users: 8, shared_prefix: 0.5"), ['5:36: traffic.shared_prefix: 0.5: it has no unit. Fix: use a percentage such as 5%.']),
        (add_traffic("users: 8, input_tokens: 64..32"), ['5:35: traffic.input_tokens: "64..32": the least, 64, is more than the most, 32. Fix: write 32..64.']),
        (add_traffic("users: 8, data: ../../etc/passwd"), ["5:27: traffic.data: \"../../etc/passwd\": it is not a JSONL file, or ShareGPT's JSON, in the blueprint's folder. Fix: use a JSONL file, or ShareGPT's JSON, in the blueprint's folder such as prompts.jsonl."]),
        (add_traffic("users: 8, data: prompts.jsonl"), ['5:27: traffic.data: "prompts.jsonl": there is no such file in mine. Fix: name a JSONL file beside the blueprint.']),
        (add_traffic("users: 8, seed: -1"), ['5:27: traffic.seed: -1: it is too small. Fix: use 0 or more.']),
        (add_traffic("users: 8, seed: 4294967296"), ['5:27: traffic.seed: 4294967296: it is too large. Fix: use a number below 4294967296.']),
        # slo
        (VALID.replace("slo: {}", "slo: {ttft_ms: 800}"), ['6:16: slo.ttft_ms: 800: it is a whole number. Fix: use a mapping of keys to values; the keys are mean, p50, p90, p95, p99.']),
        (VALID.replace("slo: {}", "slo: {ttft_ms: {p97: 800}}"), ["6:17: slo.ttft_ms.p97: unknown key. Fix: write p99:."]),
        (VALID.replace("slo: {}", "slo: {ttft_ms: {p95: 0}}"), ['6:22: slo.ttft_ms.p95: 0: it is too small. Fix: use a number above 0.']),
        (VALID.replace("slo: {}", "slo: {ttft_ms: {p95: .nan}}"), ['6:22: slo.ttft_ms.p95: ".nan": it is a text. Fix: use a number.']),
        (VALID.replace("slo: {}", "slo: {errors: 0.1}"), ['6:15: slo.errors: 0.1: it has no unit. Fix: use a percentage such as 5%.']),
        (VALID.replace("slo: {}", "slo: {errors: 101%}"), ['6:15: slo.errors: "101%": it is not up to 100%. Fix: use a percentage such as 5%.']),
        # contradictions, each at its own field
        (add_traffic("requests: 100"), ["5:10: traffic: it must have exactly one of users and arrivals. Fix: write arrivals: 20/s, or users: 8."]),
        (add_traffic("users: 8, arrivals: 20/s"), ['5:31: traffic.arrivals: "20/s": it must have exactly one of users and arrivals. Fix: write arrivals: 20/s, or users: 8.']),
        (add_traffic("users: 8, process: constant"), ['5:30: traffic.process: "constant": it spaces the arrivals of the open loop, and users is the closed loop. Fix: write arrivals: 20/s in place of users, or leave process out.']),
        (add_traffic("users: 8, burstiness: 0.5"), ['5:33: traffic.burstiness: 0.5: it spaces arrivals, and there are none. Fix: write arrivals: 20/s, or leave burstiness out.']),
        (add_traffic("arrivals: 8/s, process: constant, burstiness: 2"), ['5:57: traffic.burstiness: 2: constant arrivals have none. Fix: write process: poisson, or leave burstiness out.']),
        (add_traffic("users: 8, trace_speed: 2"), ['5:34: traffic.trace_speed: 2: it is for the times of a trace, which are not used here. Fix: write trace: FILE without users and arrivals, or leave trace_speed out.']),
        (add_traffic("trace: azure.csv, output_tokens: 1..10"), ["5:1: traffic.input_tokens: it bounds the lengths of a trace, and is missing. Fix: write input_tokens: 1..8k."]),
        (add_traffic("users: 8, trace: a.csv, data: b.jsonl, input_tokens: 1..9, output_tokens: 1..9"), ['5:28: traffic.trace: "a.csv": data says what is sent, and so does a trace. Fix: keep either data or trace.']),
        (add_traffic("trace: a.csv, input_tokens: 1..9, output_tokens: 1..9"), ['5:18: traffic.trace: "a.csv": there is no such file in mine. Fix: name a trace file beside the blueprint.']),
        (add_traffic("users: 8, input_tokens: {mean: 20, within: 1..10}"), ['5:42: traffic.input_tokens.mean: 20: it is outside 1..10. Fix: write a mean within the bounds, or wider bounds.']),
        (add_traffic("users: 8, input_tokens: {mean: 20, shape: pareto, within: 1..30}"), ["5:53: traffic.input_tokens.shape: \"pareto\": not one of the choices. Fix: use one of 'normal', 'lognormal' or 'gamma'."]),
        (add_traffic("users: 8, input_tokens: {mean: 1k, within: 1..5k}"), ["5:35: traffic.input_tokens: a request of this traffic takes up to 5064 tokens, input and output together, and the context is 4096. Fix: set context: 5064 or more, or shorter input_tokens and output_tokens."]),
        (add_traffic("users: 8, score_by: contains"), ['5:31: traffic.score_by: "contains": it scores the answers to data, and there is none. Fix: write data: FILE with expected answers, or leave score_by out.']),
        (add_traffic("users: 8, data: a.jsonl, score_by: judge"), ['5:46: traffic.score_by: "judge": it goes with judge, which is missing. Fix: write judge: {url: URL, model: NAME}, or another score_by.']),
        (add_traffic("users: 8, data: a.jsonl, judge: {url: 'https://a', model: b}"), ["5:43: traffic.judge: score_by is not judge. Fix: write score_by: judge, or remove judge."]),
        (add_traffic("users: 8, data: a.jsonl, score_by: judge, judge: {url: ftp://a, model: b}"), ['5:66: traffic.judge.url: "ftp://a": it is not a URL of an OpenAI-compatible server. Fix: use a URL of an OpenAI-compatible server such as https://judge.example.']),
        (VALID.replace("slo: {}", "slo: {score: 90%}"), ['6:14: slo.score: "90%": no answer is expected: traffic has no data. Fix: set data: FILE with expected answers in traffic, or remove score.']),
        (add_traffic("users: 8, turns: 2, api: completions"), ['5:28: traffic.turns: 2: completions have no conversation. Fix: write api: chat, or leave turns out.']),
        (add_traffic("users: 8, turns: 2, data: a.jsonl"), ['5:28: traffic.turns: 2: data has single requests. Fix: write turns without data, or data without turns.']),
        (add_traffic("users: 8, turns: 2..20"), ["5:1: traffic.input_tokens: a request of this traffic takes up to 6400 tokens, input and output together, and the context is 4096. Fix: set context: 6400 or more, or shorter input_tokens and output_tokens."]),
        (add_traffic("users: 8, prefix_groups: 4"), ['5:36: traffic.prefix_groups: 4: the prompts of a group have nothing in common while shared_prefix is 0%. Fix: write shared_prefix: 50% too, or leave prefix_groups out.']),
        (VALID.replace("slo: {}", "slo: {goodput: 100%}"), ['6:16: slo.goodput: "100%": no number of requests shows that every one will meet the limits. Fix: write 99.9% or less.']),
        (VALID.replace("slo: {}", "slo: {itl_ms: {p50: 40, p95: 30}}"), ['6:21: slo.itl_ms.p50: 40: p95 is 30, which p50 cannot exceed: this limit would say nothing. Fix: write 30 or less, or leave p50 out.']),
        (VALID + "context: 300\n", ['7:10: context: 300: a request of this traffic takes up to 320 tokens, input and output together, and the context is 300. Fix: set context: 320 or more, or shorter input_tokens and output_tokens.']),
        (add_traffic("users: 8, input_tokens: 4k..5k"), ['5:35: traffic.input_tokens: "4k..5k": a request of this traffic takes up to 5064 tokens, input and output together, and the context is 4096. Fix: set context: 5064 or more, or shorter input_tokens and output_tokens.']),
        # the file as a whole
        ("", ["it is empty. Fix: write at least its required keys; `blueprint schema fleet` or `blueprint schema blueprint` lists them."]),
        ("tiny", ['1:1: "tiny": the file is not a mapping of keys to values. Fix: write KEY: VALUE lines.']),
        ("pattern: [aggregated", ["1:10: it is not YAML: the list that starts here is not closed. Fix: write a list such as [a, b]."]),
    ],
)  # fmt: skip
def test_each_mistake_has_a_position_a_reason_and_a_fix(text: str, messages: list[str]) -> None:
    assert list_errors(text) == messages


def test_all_mistakes_of_the_file_are_reported_together_conflicts_included() -> None:
    text = "pattern: aggregated\nmodel: 5\ncontext: 100\nroles: {worker: {pol: general, replicas: 0}}\ntraffic: {users: 8, process: constant, requests: -1}\nslo: {errors: 1, itl_ms: {p50: 9, p90: 8}}\n"
    assert [": ".join(line.split(": ")[:2]) for line in list_errors(text)] == [
        "2:8: model",
        "3:10: context",
        "4:18: roles.worker.pol",
        "4:42: roles.worker.replicas",
        "5:30: traffic.process",
        "5:50: traffic.requests",
        "6:15: slo.errors",
        "6:32: slo.itl_ms.p50",
    ]


def test_a_binary_file_and_a_huge_one_are_refused() -> None:
    Path("mine/blueprint.yaml").write_bytes(b"\x1f\x8b\x08\x00\x00")
    with pytest.raises(InputError) as error:
        blueprint.read(Path("mine"))
    assert str(error.value) == "mine/blueprint.yaml: it is binary, not text in UTF-8. Fix: name a YAML file."
    Path("mine/blueprint.yaml").write_bytes(b"#" * 10_000_000)
    with pytest.raises(InputError) as error:
        blueprint.read(Path("mine"))
    assert str(error.value) == (
        "mine/blueprint.yaml: it holds 10,000,000 bytes, and settings hold at most 200,000. "
        "Fix: name settings of a screenful, not a data file."
    )


def get_error(folder: str) -> str:
    with pytest.raises(InputError) as error:
        blueprint.read(Path(folder))
    return str(error.value)


def test_a_path_without_a_blueprint_is_refused_with_a_fix() -> None:
    fix = "Fix: name the folder of a blueprint; `blueprint new` creates one."
    assert get_error("mine") == f"mine: the folder holds no blueprint.yaml. {fix}"
    assert get_error("nowhere") == f"nowhere: there is no such folder. {fix}"
    Path("mine/blueprint.yaml").write_text(VALID)
    assert get_error("mien") == "mien: there is no such folder. Fix: name the folder of a blueprint, such as mine."
    assert get_error("mine/blueprint.yaml") == (
        'mine/blueprint.yaml: it is a file, and a blueprint is a folder. Fix: name the folder that holds it, "mine".'
    )
    (nearest,) = [line for line in [get_error("agregated")] if "such as" in line]
    assert nearest.endswith(f"such as {ROOT / 'blueprints/aggregated'}.")


def test_what_the_engine_calls_a_key_leads_to_one_that_exists() -> None:
    for model in (Blueprint, tuning.Tuning, roles.EngineRole):
        assert model.other_names
        assert {*model.other_names.values()} <= {*model.model_fields}
        assert not {*model.other_names} & {*model.model_fields}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            "served_name: a/b",
            "served_name: a/b",
            '5:52: roles.models.two.served_name: "a/b": clients put a/b in `model`, and it is in roles.models.one too. '
            "Fix: use a name of its own.",
        ),
        (
            "context: 8k",
            "context: 300",
            "5:48: roles.models.two.context: 300: a request of this traffic takes up to 320 tokens, input and output "
            "together, and the context is 300. Fix: set context: 320 or more, or shorter input_tokens and output_tokens.",
        ),
        ("served_name: two", "context: 2k", "clients put two in `model`, and it is in roles.models.one too."),
        ("served_name: tone", "adapters: {tone: x}", "clients put tone in `model`, and it is in roles.models.one too."),
        ("served_name: a b", "context: 2k", 'served_name: "a b": it is not a model\'s name for clients'),
    ],
)
def test_every_model_has_a_name_of_its_own_for_clients_and_room_for_their_requests(
    tmp_path: Path, first: str, second: str, message: str
) -> None:
    text = (
        f"pattern: multi-model\nroles:\n  models:\n    one: {{model: tiny, pool: general, {first}}}\n"
        f"    two: {{model: tiny, pool: general, {second}}}\ntraffic: {{users: 2}}\nslo: {{}}\n"
    )
    (tmp_path / "blueprint.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        blueprint.read(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b" \n", "it has no text"), (b"\xff", "it is not UTF-8"), (b"x" * (16 * 1024 + 1), "it has more than 16 KiB")],
)
def test_a_file_that_is_no_system_prompt_is_refused(content: bytes, reason: str) -> None:
    Path("mine/system.txt").write_bytes(content)
    assert list_errors(f"{VALID}warm_prompt: system.txt\n") == [
        f'7:14: warm_prompt: "system.txt": {reason}. Fix: keep what all clients send first, as plain text.'
    ]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"{{ \xff }}", "it is not UTF-8"), (b"x" * (48 * 1024 + 1), "it has more than 48 KiB")]
)
def test_a_file_that_no_command_holds_is_no_chat_template(content: bytes, reason: str) -> None:
    Path("mine/chat.jinja").write_bytes(content)
    assert list_errors(f"{VALID}chat_template: chat.jinja\n") == [
        f'7:16: chat_template: "chat.jinja": {reason}. Fix: use a template in UTF-8, or the model\'s own.'
    ]


@pytest.mark.parametrize("name", ["router", "prefill", "decode"])
def test_a_model_is_not_called_as_a_role_of_its_own_meaning_is(tmp_path: Path, name: str) -> None:
    text = texts.MULTI_MODEL + texts.TRAFFIC_AND_SLO
    texts.resolve_blueprint(tmp_path, text, "local")
    assert texts.get_error(tmp_path, text.replace("{one:", f"{{{name}:"), "local") == (
        f"blueprint.yaml:3:{len(name) + 14}: roles.models.{name}: {name} is the name of another role. "
        "Fix: name it after its model, such as qwen3."
    )


@pytest.mark.parametrize("framework", ["", "framework: dynamo\n"])
@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware"])
def test_a_policy_that_follows_caches_is_refused_where_engines_keep_none(
    tmp_path: Path, policy: str, framework: str
) -> None:
    text = f"{framework}tuning: {{prefix_cache: off}}\n" + texts.format_aggregated("tiny", pool="general").replace(
        "traffic:", f"  router: {{policy: {policy}}}\ntraffic:"
    )
    assert (
        f'roles.router.policy: "{policy}": with tuning: {{prefix_cache: off}} no engine keeps a prompt'
        in texts.get_error(tmp_path, text, "local")
    )
    texts.resolve_blueprint(tmp_path, text.replace("prefix_cache: off", "prefix_cache: on"), "local")
