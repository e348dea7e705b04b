"""Parsers of what others wrote, each with valid files; `python -m tests.fuzzing PARSER INPUTS` breaks these in a
process with little memory and processor time, and prints what came of it.

Whatever a parser raises that is not its own refusal counts as uncaught, as does more processor time than a case has.
"""

from __future__ import annotations

import io
import json
import math
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from llm_serving import paths

SEED = 27
CASE_LIMIT_S, MEMORY_BYTES = 3.0, 2 * 2**30
"""Processor time of an input, and address space of the process, libraries among it."""

sys.path.insert(0, str(paths.IMAGES / "batch-worker"))
DATA = paths.ROOT / "tests" / "validation" / "data"

Parse = Callable[[bytes], object]
SHAPES: tuple[Any, ...] = (
    None, True, -1, 0, 10**9, 10**30, 1e300, math.inf, "", "x", "é\x00", [], [[]], {}, {"a": 1}, [None], "9" * 5000
)  # fmt: skip


class Parser(NamedTuple):
    """What reads an input, how it refuses one, and valid inputs."""

    parse: Parse
    refusals: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


class TimeIsUp(BaseException):
    """An input took all of its processor time; no parser catches it."""


def mutate(seed: bytes, chance: random.Random) -> bytes:
    """Return a broken variant of a valid file."""
    return chance.choice((_damage_bytes, _cut, _repeat, _nest, _replace_value, _replace_value))(seed, chance)


def _damage_bytes(seed: bytes, chance: random.Random) -> bytes:
    content = bytearray(seed)
    for _ in range(chance.randint(1, 6)):
        content[chance.randrange(len(content))] = chance.choice((0, 9, 34, 127, 255, chance.randrange(256)))
    return bytes(content)


def _cut(seed: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.randrange(len(seed) + 1) for _ in range(2))
    return seed[:start] + seed[end:] if chance.random() < 0.5 else seed[:end]


def _repeat(seed: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(seed))
    return seed[:start] + seed[start : start + chance.randint(1, 40)] * chance.choice((2, 50, 2000)) + seed[start:]


def _nest(seed: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(seed))
    piece = chance.choice((b"[", b'{"a":', b"(", b"{", b"- ", b"9"))
    return seed[:start] + piece * chance.choice((30, 5000)) + seed[start:]


def _replace_value(seed: bytes, chance: random.Random) -> bytes:
    """Put another value at one place of a JSON document or of one of its lines; damage what is no JSON."""
    lines = seed.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    for text, before, after in (
        (seed, b"", b""),
        (lines[place], b"".join(lines[:place]), b"".join(lines[place + 1 :])),
    ):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        holders = [holder for holder in _list_holders(value) if holder]
        if not holders:
            return json.dumps(chance.choice(SHAPES)).encode()
        holder = chance.choice(holders)
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key] = chance.choice(SHAPES)
        return before + json.dumps(value).encode() + b"\n" + after
    return _damage_bytes(seed, chance)


def _list_holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from _list_holders(child)


def run(parser: Parser, inputs: int) -> dict[str, Any]:
    """Parse that many inputs; returns how many were refused, what was uncaught, and the slowest's processor time."""
    chance = random.Random(SEED)
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # ends what never returns to Python
    for seed in parser.seeds:
        parser.parse(seed)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _stop)
    refused, slowest, uncaught = 0, 0.0, []
    for number in range(inputs):
        content = mutate(chance.choice(parser.seeds), chance)
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, CASE_LIMIT_S)
        try:
            parser.parse(content)
        except parser.refusals:
            refused += 1
        except (Exception, TimeIsUp) as error:  # noqa: BLE001 - what is looked for
            trace, last = error.__traceback__, ""
            while trace:
                last, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
            uncaught.append(f"{number}: {type(error).__name__}: {str(error)[:150]} ({last})")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - start)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"inputs": inputs, "refused": refused, "uncaught": uncaught, "slowest_s": slowest, "memory_mib": memory}


def _stop(*_: object) -> NoReturn:
    raise TimeIsUp(f"more than {CASE_LIMIT_S:g} s")


def _build_config(folder: Path) -> Parser:
    from llm_serving.catalog import models
    from llm_serving.settings.errors import InputError

    config = dict(models.read_config("Qwen/Qwen3-8B"))
    quantized = config | {"quantization_config": {"quant_method": "fp8", "ignore": ["re:.*lm_head", "*.mlp.*"]}}
    return Parser(
        _into(folder / "config.json", lambda: models.read_folder(folder, unchecked=True)),
        (InputError,),
        tuple(json.dumps(value).encode() for value in (config, quantized)),
    )


def _build_safetensors(folder: Path) -> Parser:
    from llm_serving.catalog import safetensors

    def parse(content: bytes) -> object:
        return safetensors.compute_file_bytes(lambda start, length: content[start : start + length], len(content) + 64)

    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}, "__metadata__": {"a": "b"}})
    return Parser(parse, (), (struct.pack("<Q", len(header)) + header.encode(),))


def _build_index(folder: Path) -> Parser:
    from llm_serving.catalog import models
    from llm_serving.settings.errors import InputError

    (folder / "config.json").write_text(json.dumps(dict(models.read_config("Qwen/Qwen3-8B"))), encoding="utf-8")
    index = {"metadata": {"total_size": 16}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    read = _into(folder / models.INDEX_FILE, lambda: models.read_folder(folder, unchecked=True))
    return Parser(read, (InputError,), (json.dumps(index).encode(),))


def _build_gguf(folder: Path) -> Parser:
    from llm_serving.catalog import gguf
    from llm_serving.catalog.architecture import ModelError

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = text("general.architecture") + struct.pack("<I", 8) + text("qwen3")
    pairs += text("qwen3.block_count") + struct.pack("<II", 4, 2)
    pairs += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    tensor = text("w") + struct.pack("<IQQIQ", 2, 32, 32, 0, 0)
    whole = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + pairs + tensor
    return Parser(lambda content: gguf.parse_bytes(content, "model.gguf"), (ModelError,), (whole,))


def _build_rows(folder: Path) -> Parser:
    from llm_serving.services.traffic import Traffic
    from llm_serving.settings.errors import InputError
    from llm_serving.validation.load import data_rows

    traffic = Traffic.model_validate({"users": 1, "data": "own.jsonl"})
    rows = (
        b'{"prompt": "a", "expected": "4", "output_tokens": 3}\n'
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}\n'
    )
    file = folder / "own.jsonl"
    read = _into(file, lambda: data_rows.read_rows(file, traffic))
    return Parser(read, (InputError,), (rows, (DATA / "sharegpt.json").read_bytes()))


def _build_schemas(folder: Path) -> Parser:
    """Rows with a schema, by which an answer is then scored."""
    from llm_serving.services.traffic import Traffic
    from llm_serving.settings.errors import InputError
    from llm_serving.validation.load import data_rows
    from llm_serving.validation.load.answer import Sample
    from llm_serving.validation.statistics import scoring

    traffic = Traffic.model_validate({"users": 1, "data": "own.jsonl", "score_by": "json_schema"})
    file = folder / "own.jsonl"

    def read_and_score() -> None:
        answer = '{"city": "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "n": [1, 2]}'
        for row in data_rows.read_rows(file, traffic):
            scoring.score(traffic, [Sample(0, 0.0, text=answer, expected=row.expected)], folder)

    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^a+!$"}, "n": {"$ref": "#/$defs/n"}},
        "patternProperties": {"^c": {"minLength": 1}},
        "$defs": {"n": {"type": "array", "items": {"type": "integer", "multipleOf": 1}, "uniqueItems": True}},
    }
    return Parser(
        _into(file, read_and_score),
        (InputError,),
        (json.dumps({"prompt": "a", "expected": schema}).encode(),),
    )


def _build_traces(folder: Path) -> Parser:
    from llm_serving.settings.errors import InputError
    from llm_serving.validation.load import trace

    file = folder / "trace"
    seeds = tuple((DATA / name).read_bytes() for name in ("azure.csv", "burstgpt.csv", "mooncake.jsonl"))
    return Parser(_into(file, lambda: trace.read(file, 10_000)), (InputError,), seeds)


_PAGE = b"""# HELP vllm:time_to_first_token_seconds Time.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.5
vllm:time_to_first_token_seconds_count{model_name="m"} 4.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop",model_name="m"} 4.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 2.0
"""


_EVENTS = b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n"
    for event in (
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "", "reasoning_content": "so"}}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    )
)  # fmt: skip
_POOLED = {"data": [{"embedding": [0.5, 1.5]}, {"embedding": "AAAAAA=="}], "usage": {"prompt_tokens": 4}}


def _build_answers(folder: Path) -> Parser:
    """Answers of an endpoint, whose numbers a report then adds up."""
    from llm_serving.services.tasks import POOLED
    from llm_serving.validation.load import answer, pooled_answer
    from llm_serving.validation.load.prompt import Prompt

    prompt = Prompt(({"role": "user", "content": "word"},), max_tokens=1)

    def parse(content: bytes) -> None:
        streamed = answer.parse_stream([(1.0, content[:40]), (2.0, content[40:])])
        pooled = pooled_answer.parse([(1.0, content)], next(iter(POOLED.values())), 2)
        for result in (streamed, pooled):
            assert all(isinstance(count, int | None) for count in (result.input_tokens, result.output_tokens))
            assert isinstance(result.finish_reason, str | None)
            result.compute_gaps()
            answer.set_error(answer.Sample(0, 0.0), result)
        prompt.count_tokens(content)

    seeds = (_EVENTS, b'data: {"error": {"message": "a", "code": 1}}\n\ndata: [DONE]\n\n', json.dumps(_POOLED).encode())
    return Parser(_may_refuse(parse, ValueError), (), seeds)


def _build_metrics(folder: Path) -> Parser:
    from llm_serving.catalog import engines
    from llm_serving.validation.statistics import engine_metrics

    engine = engines.load_engines()["vllm"]
    before = engine_metrics.parse(_PAGE.decode(), engine)

    def parse(content: bytes) -> None:
        page = content.decode(errors="replace")
        for after in engine_metrics.parse_pages({"replica": page}, engine).values():
            for histogram in after.subtract(before).histograms.values():
                histogram.find_bucket_ms(0.9)
        engine_metrics.count_requests(page, "vllm:.*")

    return Parser(parse, (), (_PAGE,))


def _build_worker_metrics(folder: Path) -> Parser:
    from batch.burn import BurnMeter
    from batch.metrics import parse_histograms, parse_load
    from batch.settings import Objective

    name = "vllm:time_to_first_token_seconds"
    meter = BurnMeter([Objective(name, limit_s=0.5, allowed=0.05)])
    times = iter(range(10**9))

    def parse(content: bytes) -> None:
        page = content.decode(errors="replace")
        parse_load([page], {"running": ["vllm:num_requests_running"]})
        meter.observe({"a": parse_histograms(page, [name])}, float(next(times)))

    return Parser(parse, (), (_PAGE,))


def _build_report(folder: Path, broken: str = "report.json") -> Parser:
    """A validation's folder with one broken file, compared with an intact one."""
    from llm_serving.cli.commands import compare
    from llm_serving.settings.errors import InputError
    from llm_serving.validation.reports import comparison
    from tests.validation.reports.test_comparison import _simulate

    simulated = _simulate(1, count=4)
    (folder / "requests.jsonl").write_text("".join(f"{sample.to_json()}\n" for sample in simulated.samples))
    (folder / "report.json").write_text(json.dumps({**simulated.report, "name": "mine", "requests": {"total": 4}}))
    intact = compare.read_run(folder)
    seed = (folder / broken).read_bytes()
    read = _into(folder / broken, lambda: comparison.compare(intact, compare.read_run(folder)))
    return Parser(read, (InputError,), (seed,))


def _build_samples(folder: Path) -> Parser:
    return _build_report(folder, "requests.jsonl")


def _build_blueprint(folder: Path) -> Parser:
    from llm_serving.services import inputs
    from llm_serving.settings.errors import InputError

    seeds = (
        (paths.PATTERNS / "aggregated" / "blueprint.yaml").read_bytes(),
        b"a: &a [x, x]\nb: &b [*a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b]\nname: [*c, *c, *c]\nname: 1\n",
    )
    read = _into(folder / "blueprint.yaml", lambda: inputs.read_blueprint(folder))
    return Parser(_may_refuse(read, InputError), (InputError,), seeds)


def _build_fleet(folder: Path) -> Parser:
    from llm_serving.services import inputs
    from llm_serving.settings.errors import InputError

    file = folder / "fleet.yaml"
    read = _into(file, lambda: inputs.read_fleet(file))
    return Parser(read, (InputError,), ((paths.ROOT / "fleet.yaml").read_bytes(),))


def _build_state(folder: Path) -> Parser:
    from llm_serving.settings.errors import Unavailable
    from llm_serving.terraform import state

    resource_ = {"mode": "managed", "type": "aws_vpc", "name": "vpc", "instances": [{"attributes": {"id": "vpc-1"}}]}
    text = json.dumps({"outputs": {"url": {"value": "x"}}, "resources": [resource_]})
    return Parser(
        lambda content: state.parse_state("network", content.decode(errors="replace")), (Unavailable,), (text.encode(),)
    )


def _build_plan(folder: Path) -> Parser:
    from llm_serving.settings.errors import Unavailable
    from llm_serving.terraform import plan

    change = {"actions": ["update"], "before": {"a": 1}, "after": {"a": 2}, "after_unknown": {}}
    resource_ = {"address": "aws_vpc.vpc", "mode": "managed", "type": "aws_vpc", "name": "vpc", "change": change}
    text = json.dumps({"format_version": "1.2", "resource_changes": [resource_], "output_changes": {"url": change}})
    return Parser(lambda content: plan.parse_plan(content.decode(errors="replace")), (Unavailable,), (text.encode(),))


def _build_batch_rows(folder: Path) -> Parser:
    from batch import rows

    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [], "model": "m"}}
    return Parser(lambda content: rows.parse(content), (rows.RowError,), (json.dumps(line).encode(),))


def _build_batch_messages(folder: Path) -> Parser:
    """Messages of queues, and what the state machine caught."""
    from batch import cache_reader, inbox, steps

    def parse(content: bytes) -> None:
        text = content.decode(errors="replace")
        inbox.parse_schedule(text)
        inbox.parse_event(text)
        cache_reader.parse_value(content)
        steps._describe_cause({"Error": "a", "Cause": text})

    record = {"s3": {"bucket": {"name": "b"}, "object": {"key": "batch/inboxes/a/b+c.jsonl"}}}
    values = (
        {"detail": {"bucket": {"name": "b"}, "object": {"key": "batch/inboxes/a/b.jsonl"}}},
        {"Records": [record]},
        {"schedule": {"name": "night", "file": "a.jsonl", "team": "default", "time": "t"}},
        {"code": "bad_input", "message": "a", "line": 3},
    )
    return Parser(parse, (), tuple(json.dumps(value).encode() for value in values))


def _build_parquet(folder: Path) -> Parser:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from batch import parquet
    from batch.reader import BadTemplate, CorruptFile

    template = parquet.Template('{"custom_id": "{sku}", "body": {"prompt": "{title}"}}')
    table = pa.table({"sku": list(range(50)), "title": [f"thing {number % 5}" for number in range(50)]})
    seeds = []
    for compression in ("none", "snappy", "zstd"):
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=20, compression=compression)
        seeds.append(sink.getvalue())

    def parse(content: bytes) -> None:
        opened = parquet.open_file(lambda start, end: [content[start:end]], len(content))
        for _ in parquet.read_rows(opened, template):
            pass

    return Parser(parse, (BadTemplate, CorruptFile), tuple(seeds))


def _build_careless(folder: Path) -> Parser:
    """Reads JSON without care: what the harness must see."""
    return Parser(lambda content: json.loads(content)["a"]["b"], (json.JSONDecodeError,), (b'{"a": {"b": 1}}',))


def _build_endless(folder: Path) -> Parser:
    """Never ends on a broken input."""

    def parse(content: bytes) -> None:
        while content != b"{}":
            pass

    return Parser(parse, (), (b"{}",))


def _into(file: Path, read: Callable[[], object]) -> Parse:
    def parse(content: bytes) -> object:
        file.write_bytes(content)
        return read()

    return parse


def _may_refuse(parse: Parse, refusal: type[Exception]) -> Parse:
    """Take a seed that is refused, such as a bomb of aliases."""

    def attempt(content: bytes) -> None:
        try:
            parse(content)
        except refusal:
            return

    return attempt


PARSERS: dict[str, tuple[Callable[[Path], Parser], int]] = {
    "config.json": (_build_config, 1500),
    "safetensors header": (_build_safetensors, 3000),
    "safetensors index": (_build_index, 800),
    "GGUF header": (_build_gguf, 3000),
    "data rows": (_build_rows, 1000),
    "schemas": (_build_schemas, 500),
    "traces": (_build_traces, 1000),
    "metrics page, validate": (_build_metrics, 1500),
    "metrics page, batch worker": (_build_worker_metrics, 3000),
    "report.json": (_build_report, 300),
    "requests.jsonl": (_build_samples, 150),
    "blueprint.yaml": (_build_blueprint, 60),
    "fleet.yaml": (_build_fleet, 100),
    "Terraform state": (_build_state, 3000),
    "Terraform plan": (_build_plan, 2000),
    "answers": (_build_answers, 3000),
    "rows of a batch": (_build_batch_rows, 3000),
    "messages of a batch": (_build_batch_messages, 3000),
    "Parquet": (_build_parquet, 1000),
}
"""Parsers with as many inputs as take a few seconds together."""

CONTROLS = {"careless": (_build_careless, 200), "endless": (_build_endless, 1)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder_name:
        build, input_count = (PARSERS | CONTROLS)[sys.argv[1]]
        print(json.dumps(run(build(Path(folder_name)), input_count)))
