"""What the header of a GGUF file says: the model's numbers, its tensors with their sizes, and where the file must end.

GGUF is llama.cpp's form of a model: one file with weights, tokenizer and chat template. Source of the layout:
docs/gguf.md of github.com/ggml-org/ggml, version 3; sizes of the types: `GGML_QUANT_SIZES` of the package gguf 0.19.0,
which the tests compare with this table.
"""

from __future__ import annotations

import difflib
import functools
import io
import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

from llm_serving.catalog import families
from llm_serving.catalog.architecture import GGUF, Architecture, ModelError, State, check_layers
from llm_serving.settings import own_yaml
from llm_serving.settings.choices import Task
from llm_serving.settings.errors import quote_value
from llm_serving.settings.plain import PlainData
from llm_serving.settings.untrusted_file import open_regular

ARCHITECTURES_FILE = Path(__file__).with_name("gguf_architectures.txt")
SUFFIX = ".gguf"
FILE = "model.gguf"
"""Name of a model's one file in its bucket, whatever its name was before."""

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Formats of `struct` by GGUF's kinds of values."""

_MAX_TEXT, _MAX_COUNT = 2**24, 2**28
"""Longest text, and most entries of anything: a damaged file must not take all memory."""

_MAX_DIMENSIONS, _MAX_TENSORS, _MAX_TEXTS = 8, 100_000, 2**21
"""Most of a tensor, of a file, and of names and tokens in a header; ggml has 4 dimensions."""

MAX_HEADER_BYTES = 64_000_000
"""Largest header; a vocabulary of 262,144 tokens with its merges takes 12 MB."""

TYPES: dict[int, tuple[str, int, int]] = {
    number: (name, block, block_bytes)
    for number, (name, block, block_bytes) in own_yaml.read(Path(__file__).with_name("gguf_types.yaml")).items()
}
"""Name, numbers of a block and bytes of a block, by the number that a file has for a tensor's type."""


class Tensor(PlainData):
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int
    offset: int
    """From the start of the tensors' data."""


_RANKS = 4

_INTERVAL_KINDS = ("qwen3next", "qwen35", "qwen35moe")
"""Architectures of which each fourth layer has keys and values, unless the header has another interval."""


class Header(PlainData):
    """The header of one file."""

    architecture: str
    """llama.cpp's name of it, such as qwen3."""

    values: dict[str, Any]
    """Metadata; of an array only the first numbers, and its length under KEY.length."""

    tensors: tuple[Tensor, ...]
    file_bytes: int
    """Size that the file must have."""

    parts: int
    """Files that the model was split into; 1 for a whole one."""

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def task(self) -> Task:
        """What the model is for, by how llama.cpp pools what it computes of a text (`LLAMA_POOLING_TYPE`)."""
        pooling = self.get_number("pooling_type", 0)
        return "generate" if pooling == 0 else "rerank" if pooling == _RANKS else "embed"

    def get_number(self, key: str, default: int | None = None) -> int:
        """Return a number of the architecture's own metadata, of an array its largest.

        Raises:
            KeyError: it is missing, and there is no default.
        """
        value = self.values.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise KeyError(f"{self.architecture}.{key}")
        return int(max(value)) if isinstance(value, tuple | list) else int(value)

    def get_list(self, key: str) -> tuple[int, ...]:
        """Return the numbers of the architecture's own metadata, one for each layer; none where all have the same."""
        value = self.values.get(f"{self.architecture}.{key}", ())
        return tuple(value) if isinstance(value, tuple | list) else ()


def read_file(path: Path) -> Header:
    """Return the header of the file at `path`.

    Raises:
        ModelError: it is no GGUF file, is cut short, is one part of several, or has something that is not known here.
    """
    try:
        with open(path, "rb", opener=open_regular) as stream:
            header = parse(stream, str(path))
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: it cannot be read: {error.strerror}") from None
    check_whole(header, size, str(path))
    return header


def check_whole(header: Header, size: int, source: str) -> None:
    """Check that a file of `size` bytes is all of a model.

    Raises:
        ModelError: it ends too early, or is one part of several.
    """
    if header.parts > 1:
        reason = f"{source}: it is one of {header.parts} parts, and llama.cpp is given one file"
        fix = "name the file that `llama-gguf-split --merge FIRST-PART model.gguf` makes of all parts"
        raise ModelError(reason, fix)
    if size < header.file_bytes:
        reason = f"{source}: it is cut short: {size} bytes, {header.file_bytes} by its header"
        raise ModelError(reason, "copy or download it again")


def check_known(header: Header, source: str) -> None:
    """Check that llama.cpp of the catalog's version runs the architecture.

    Raises:
        ModelError: it does not.
    """
    if header.architecture not in load_architectures():
        close = difflib.get_close_matches(header.architecture, load_architectures(), n=3, cutoff=0.4)
        raise ModelError(
            f"{source}: general.architecture: {quote_value(header.architecture)}: "
            "llama.cpp's version here runs no such model",
            f"use a model of {' or '.join(close) or 'another architecture'}",
        )


@functools.cache
def load_architectures() -> tuple[str, ...]:
    """Return the architectures that llama.cpp of the catalog's version knows."""
    return tuple(ARCHITECTURES_FILE.read_text(encoding="utf-8").split("\n\n", 1)[1].split())


def parse(stream: BinaryIO, source: str) -> Header:
    """Return the header at the start of `stream`; `source` names it in messages.

    Raises:
        ModelError: it is no GGUF file, or has something that is not known here.
    """
    try:
        header = _Parser(stream).parse()
        header.get_number("pooling_type", 0)  # which `task` reads
        return header
    except EOFError:
        raise ModelError(f"{source}: it is cut short within its header", "copy or download it again") from None
    except (ValueError, TypeError, KeyError, ArithmeticError, struct.error) as error:
        raise ModelError(f"{source}: it is not a readable GGUF file: {error}", "name a GGUF file") from None


def parse_bytes(content: bytes, source: str) -> Header:
    """Return the same of a file's first bytes."""
    return parse(io.BytesIO(content), source)


class _Parser:
    """Reads one header; every number is little-endian."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._position = self._texts = 0

    def parse(self) -> Header:
        if self._read(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._read_scalar("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}")
        tensor_count, value_count = self._read_count(), self._read_count()
        values: dict[str, Any] = {}
        for _ in range(value_count):
            self._read_pair(values)
        if tensor_count > _MAX_TENSORS:
            raise ValueError(f"{tensor_count} tensors")
        tensors = tuple(self._read_tensor() for _ in range(tensor_count))
        alignment = int(values.get("general.alignment", _ALIGNMENT))
        data_start = -(-self._position // alignment) * alignment
        return Header(
            architecture=str(values["general.architecture"]),
            values=values,
            tensors=tensors,
            file_bytes=data_start + max((tensor.offset + tensor.bytes for tensor in tensors), default=0),
            parts=int(values.get("split.count", 1)) or 1,
        )

    def _read(self, count: int) -> bytes:
        if self._position + count > MAX_HEADER_BYTES:
            raise ValueError(f"a header of more than {MAX_HEADER_BYTES} bytes")
        content = self._stream.read(count)
        self._position += len(content)
        if len(content) < count:
            raise EOFError
        return content

    def _read_scalar(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _read_count(self) -> int:
        count = int(self._read_scalar("<Q"))
        if count > _MAX_COUNT:
            raise ValueError(f"{count} entries")
        return count

    def _read_text(self) -> str:
        length = self._read_count()
        if length > _MAX_TEXT:
            raise ValueError(f"a text of {length} bytes")
        self._texts += 1
        if self._texts > _MAX_TEXTS:
            raise ValueError(f"more than {_MAX_TEXTS} texts")
        return self._read(length).decode("utf-8", errors="replace")

    def _read_pair(self, values: dict[str, Any]) -> None:
        key, kind = self._read_text(), self._read_scalar("<I")
        if kind == _ARRAY:
            numbers, length = self._read_array()
            values[key], values[f"{key}.length"] = numbers, length
        else:
            values[key] = self._read_value(kind)

    def _read_value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._read_text()
        if kind not in _SCALARS:
            raise ValueError(f"a value of kind {kind}")
        return self._read_scalar(_SCALARS[kind])

    def _read_array(self) -> tuple[tuple[Any, ...], int]:
        """Return numbers of an array, none of texts, and its length."""
        kind, length = self._read_scalar("<I"), self._read_count()
        if kind == _STRING:
            for _ in range(length):
                self._read_text()
            return (), length
        if kind not in _SCALARS:
            raise ValueError(f"an array of kind {kind}")
        size = struct.calcsize(_SCALARS[kind])
        content = self._read(size * length)
        return struct.unpack(f"<{length}{_SCALARS[kind][1]}", content) if length <= 10_000 else (), length

    def _read_tensor(self) -> Tensor:
        name = self._read_text()
        dimensions = self._read_scalar("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = tuple(self._read_count() for _ in range(dimensions))
        number, offset = self._read_scalar("<I"), self._read_scalar("<Q")
        if number not in TYPES:
            raise ValueError(f"{name} has a type of number {number}")
        type_name, block, block_bytes = TYPES[number]
        return Tensor(
            name=name, shape=shape, type=type_name, bytes=math.prod(shape) // block * block_bytes, offset=offset
        )


def build_architecture(header: Header, source: str) -> Architecture:
    """Return the numbers that memory follows from.

    Raises:
        ModelError: one of them is missing.
    """
    try:
        heads, hidden = header.get_number("attention.head_count"), header.get_number("embedding_length")
        head_dim = header.get_number("attention.key_length", hidden // heads)
        names = {tensor.name for tensor in header.tensors}
        vocabulary = header.values.get("tokenizer.ggml.tokens.length") or header.get_number("vocab_size")
        numbers = {
            "labels": 0,
            "layers": check_layers(header.get_number("block_count")),
            "hidden": hidden,
            "intermediate": header.get_number("feed_forward_length", 0),
            "heads": heads,
            "kv_heads": header.get_number("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "vocabulary": int(vocabulary),
            "experts": header.get_number("expert_count", 0),
            "active_experts": header.get_number("expert_used_count", 0),
            "expert_intermediate": header.get_number("expert_feed_forward_length", 0),
        }
        norms = {"query_key_norm": int("blk.0.attn_q_norm.weight" in names)}
        return Architecture(
            kind=header.architecture,
            **numbers,
            **_count_other_layers(header, numbers["layers"]),
            state=_read_state(header),
            tied="output.weight" not in names,
            max_context=header.get_number("context_length"),
            dtype="float16",
            tensors=families.build_shapes(families.load()[GGUF].tensors, numbers | norms),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{source}: {error}: it is missing, and memory follows from it") from None


def _count_other_layers(header: Header, layers: int) -> dict[str, int]:
    """Return how many layers keep a state, or are a feed-forward part only, in place of keys and values.

    Source: llama.cpp, src/models, load_arch_hparams of granite-hybrid, nemotron-h and qwen35.
    """
    if header.architecture in _INTERVAL_KINDS:
        interval = header.get_number("full_attention_interval", 4)
        return {"linear_layers": layers - layers // interval, "feed_forward_layers": 0}
    heads = header.get_list("attention.head_count_kv")
    widths = header.get_list("feed_forward_length") or (0,) * len(heads)
    # Layers have one part each where some have no feed-forward part.
    has_one_part = 0 in widths
    widths_without_heads = [width for count, width in zip(heads, widths, strict=True) if not count]
    feed_forward = sum(1 for width in widths_without_heads if width and has_one_part)
    return {"linear_layers": len(widths_without_heads) - feed_forward, "feed_forward_layers": feed_forward}


def _read_state(header: Header) -> State | None:
    """Return what a layer keeps of a request in place of keys and values; None where none does.

    Not read: those of falcon-h1, whose layers have both, and of kimi-linear, whose states have other sizes.
    Source: llama.cpp, src/llama-hparams.cpp, n_embd_r and n_embd_s.
    """
    inner, size = header.get_number("ssm.inner_size", 0), header.get_number("ssm.state_size", 0)
    if not inner:
        return None
    width = inner + 2 * header.get_number("ssm.group_count", 0) * size
    return State(convolution=(header.get_number("ssm.conv_kernel") - 1) * width, heads=size * inner, number_bytes=4)
