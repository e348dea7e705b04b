"""How quantized checkpoints store matrices: the bytes of each, and which of a model's they spare."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from llm_serving.settings.errors import quote_value
from llm_serving.settings.plain import PlainData

Quantization = Literal["none", "fp8", "mxfp4", "nvfp4", "int4", "int8"]

_SPARED_KEYS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
"""Keys of `quantization_config` that name what stays as it is, one for each tool that makes checkpoints."""

_MIXED = "MIXED_PRECISION"
"""ModelOpt's `quant_algo` of a checkpoint whose modules have schemes of their own, in `quantized_layers`."""

_MAX_PATTERN, _MAX_REPEATS = 500, 3
"""Longest pattern, and most of its repeats and of its groups: the time grows with the name's length to that power."""

_PREFIXES = ("model.layers", "language_model.model.layers", "model.language_model.layers", "backbone.layers")
"""What stands before a layer's number, in models of one part and of several."""


_FP8_CACHE = {"dynamic": False, "num_bits": 8, "type": "float"}
"""ModelOpt's `kv_cache_scheme` of a KV cache in 8 bits."""

_NUMBER = re.compile(r"\.\d+")
"""Of a layer or an expert, in a module's name."""


class Scheme(PlainData):
    """How one matrix of (rows, columns) numbers is stored; columns are what it multiplies."""

    label: Quantization
    bits: float
    """Of a number."""

    block_rows: int = 0
    block_columns: int = 0
    """Numbers that share a scale: of so many rows and columns; 0 for all."""

    scale_bytes: float = 0
    zero_bits: float = 0
    """Of each block's zero point."""

    column_bytes: float = 0
    """Of each column: the group that it belongs to."""

    matrix_bytes: float = 0
    """Of each matrix: scales of its own, or its shape."""

    experts_only: bool = False
    is_deprecated: bool = False
    """Whether vLLM loads it only where it is told to (0.32.0, quantization/__init__.py)."""

    def compute_bytes(self, rows: int, columns: int) -> float:
        """Return bytes of a matrix."""
        blocks = _count_blocks(rows, self.block_rows) * _count_blocks(columns, self.block_columns)
        numbers = rows * columns * self.bits / 8
        return (
            numbers + blocks * (self.scale_bytes + self.zero_bits / 8) + columns * self.column_bytes + self.matrix_bytes
        )


FP8_TENSOR = Scheme(label="fp8", bits=8, scale_bytes=4)
"""What vLLM makes of 16 bits as it loads them: one scale a matrix."""

NVFP4 = Scheme(label="nvfp4", bits=4, block_rows=1, block_columns=16, scale_bytes=1, matrix_bytes=8)
"""NVIDIA's: an 8-bit scale for each 16 numbers, and for each matrix one of weights and one of inputs, in 32 bits."""

MXFP4 = Scheme(label="mxfp4", bits=4, block_rows=1, block_columns=32, scale_bytes=1, experts_only=True)
"""OCP Microscaling, as gpt-oss has its experts: an 8-bit scale for each 32 numbers."""


class UnknownSchemeError(Exception):
    """A way to store weights whose size is not known here; `key` is the key of config.json with its value."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def parse(settings: Mapping[str, Any] | None) -> Scheme | None:
    """Return the scheme of a config.json's `quantization_config`; None where weights are as the model was trained.

    Raises:
        UnknownSchemeError: the size of such weights is not known here.
    """
    if not settings:
        return None
    method = settings.get("quant_method")
    if method not in _READERS:
        raise UnknownSchemeError(f"quantization_config.quant_method: {quote_value(method)}")
    return _READERS[method](settings)


def read_cache_type(settings: Mapping[str, Any] | None) -> str:
    """Return the type of numbers in the KV cache for which a checkpoint has scales: `fp8`, or `auto` where it has none.

    Source: vLLM 0.32.0, utils/torch_utils.py, get_kv_cache_quant_algo_string.
    """
    if not settings or settings.get("quant_method") != "modelopt":
        return "auto"
    scheme = settings.get("kv_cache_scheme") or settings.get("kv_cache_quant_algo")
    return "fp8" if scheme in ("FP8", _FP8_CACHE) else "auto"


def _read_fp8(settings: Mapping[str, Any]) -> Scheme:
    if settings.get("quant_algo"):  # of modules that another tool made smaller, as in nvidia/DeepSeek-V4-Flash-NVFP4
        raise UnknownSchemeError(f"quantization_config.quant_algo: {quote_value(settings['quant_algo'])}")
    # DeepSeek's and Qwen's: `weight_scale_inv` for each block. In float32; Qwen's may be half of that.
    if settings.get("weight_block_size"):
        rows, columns = settings["weight_block_size"]
        return Scheme(label="fp8", bits=8, block_rows=rows, block_columns=columns, scale_bytes=4)
    is_static = settings.get("activation_scheme") == "static"
    return FP8_TENSOR.model_copy(update={"matrix_bytes": 4 if is_static else 0})


_MODELOPT: Mapping[Any, Scheme] = {
    "FP8": FP8_TENSOR.model_copy(update={"matrix_bytes": 4}),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(label="fp8", bits=8, block_rows=1, scale_bytes=4),
    "FP8_PB_WO": Scheme(label="fp8", bits=8, block_rows=128, block_columns=128, scale_bytes=4),
    "MXFP8": Scheme(label="fp8", bits=8, block_rows=1, block_columns=32, scale_bytes=1),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4.model_copy(update={"matrix_bytes": 4}),
}
"""By `quant_algo`. Source: vLLM 0.32.0, quantization/modelopt.py, what each scheme's `create_weights` registers."""


def _read_modelopt(settings: Mapping[str, Any]) -> Scheme:
    algorithm = settings.get("quant_algo")
    if algorithm == _MIXED:
        return min(_read_mixed(settings).values(), key=lambda scheme: scheme.bits)
    if algorithm not in _MODELOPT:
        raise UnknownSchemeError(f"quantization_config.quant_algo: {quote_value(algorithm)}")
    return _MODELOPT[algorithm]


def _read_mixed(settings: Mapping[str, Any] | None) -> Mapping[str, Scheme]:
    """Return the scheme of each module that a ModelOpt checkpoint of mixed precision names; else nothing."""
    if not settings or settings.get("quant_algo") != _MIXED:
        return {}
    modules = settings.get("quantized_layers")
    if not modules:
        raise UnknownSchemeError(f"quantization_config.quantized_layers: {quote_value(modules)}")
    return {name: _read_modelopt({"quant_algo": module["quant_algo"]}) for name, module in modules.items()}


def _read_awq(settings: Mapping[str, Any]) -> Scheme:
    # vLLM 0.32.0, quantization/awq.py: qweight and qzeros packed in int32, scales in 16 bits, one group of inputs each.
    bits = settings.get("bits") or settings.get("w_bit") or 4
    scheme = _build_grouped(bits, settings.get("group_size") or settings.get("q_group_size") or 128)
    return scheme if settings.get("zero_point", True) else scheme.model_copy(update={"zero_bits": 0})


def _read_gptq(settings: Mapping[str, Any]) -> Scheme:
    # As AWQ's, with `g_idx`: the group of each input, in int32.
    bits = settings.get("bits") or 4
    if bits not in (4, 8):
        raise UnknownSchemeError(f"quantization_config.bits: {quote_value(bits)}")
    return _build_grouped(bits, settings.get("group_size", 128)).model_copy(update={"column_bytes": 4})


def _build_grouped(bits: int, group: int) -> Scheme:
    label: Quantization = "int4" if bits == 4 else "int8"
    return Scheme(label=label, bits=bits, block_rows=1, block_columns=max(0, group), scale_bytes=2, zero_bits=bits)


def _read_compressed(settings: Mapping[str, Any]) -> Scheme:
    """Return vLLM's and Neural Magic's compressed-tensors: one scheme for all matrices."""
    groups = list((settings.get("config_groups") or {}).values())
    weights = [group.get("weights") or {} for group in groups]
    if len(groups) != 1 or settings.get("sparsity_config"):
        raise UnknownSchemeError(f"quantization_config.config_groups: {len(groups)} of them, or sparse")
    scheme, inputs, form = weights[0], groups[0].get("input_activations") or {}, str(settings.get("format"))
    bits, kind = scheme.get("num_bits"), scheme.get("type")
    if "nvfp4" in form:
        return NVFP4.model_copy(update={"matrix_bytes": 8 if inputs else 4})
    if (bits, kind) not in ((4, "int"), (8, "int"), (8, "float")):
        raise UnknownSchemeError(f"quantization_config.config_groups: {bits} bits of type {kind!r}")
    return Scheme(
        label="fp8" if kind == "float" else "int4" if bits == 4 else "int8",
        bits=bits,
        **_read_blocks(scheme),
        # In the model's 16 bits; a symmetric scheme has no zero points.
        scale_bytes=2,
        zero_bits=0 if scheme.get("symmetric", True) else bits,
        column_bytes=4 if scheme.get("actorder") == "group" else 0,
        # A packed matrix brings its own shape, two int64; inputs with a fixed scale bring that.
        matrix_bytes=(16 if "pack" in form else 0) + (2 if inputs and not inputs.get("dynamic", True) else 0),
    )


def _read_blocks(scheme: Mapping[str, Any]) -> dict[str, int]:
    strategy = scheme.get("strategy") or ("group" if scheme.get("group_size") else "tensor")
    if strategy == "tensor":
        return {}
    if strategy == "block":
        rows, columns = scheme["block_structure"]
        return {"block_rows": rows, "block_columns": columns}
    return {"block_rows": 1, "block_columns": max(0, scheme.get("group_size") or 0) if strategy == "group" else 0}


_READERS: Mapping[Any, Callable[[Mapping[str, Any]], Scheme]] = {
    "fp8": _read_fp8,
    # transformers 5.19.0, integrations/fbgemm_fp8.py: `weight_scale` of (rows, 1) in float32.
    "fbgemm_fp8": lambda _: Scheme(label="fp8", bits=8, block_rows=1, scale_bytes=4, is_deprecated=True),
    "mxfp4": lambda _: MXFP4,
    "modelopt": _read_modelopt,
    "awq": _read_awq,
    "gptq": _read_gptq,
    "compressed-tensors": _read_compressed,
}
"""By `quant_method`."""


class NamedModules:
    """Modules that a checkpoint names, to keep them as they were or, of mixed precision, each with its scheme."""

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        self._schemes = _read_mixed(settings)
        self._unread = {_NUMBER.sub("", name): name for name in self._schemes}
        rules = [str(rule) for key in _SPARED_KEYS for rule in (settings or {}).get(key) or ()]
        self._names = {rule for rule in rules if not rule.startswith("re:") and "*" not in rule}
        self._patterns = [_compile_rule(rule) for rule in rules if rule not in self._names]

    @property
    def is_mixed(self) -> bool:
        """Whether each module that is quantized is named, with its scheme."""
        return bool(self._schemes)

    def count_spared(self, module: str, layers: Iterable[int]) -> int:
        """Return of these layers, those that keep the module as it was."""
        if not module or not (self._names or self._patterns):
            return 0
        return sum(any(self._has(f"{prefix}.{layer}.{module}") for prefix in _PREFIXES) for layer in layers)

    def count_schemes(self, module: str, layers: Iterable[int]) -> list[tuple[Scheme, int]]:
        """Return how many of these layers name the module with each scheme, the largest first.

        A module outside the layers has its name only, and all experts of a layer may have one.
        """
        names = [module, *(f"{prefix}.{layer}.{module}" for prefix in _PREFIXES for layer in layers)]
        names += {f"{name.partition('.experts.')[0]}.experts" for name in names}
        scheme_names = [name for name in names if name in self._schemes]
        for name in scheme_names:
            self._unread.pop(_NUMBER.sub("", name), None)
        schemes = Counter(self._schemes[name] for name in scheme_names)
        return sorted(schemes.items(), key=lambda item: -item[0].bits)

    def check_read(self) -> None:
        """Check that every module with a scheme was counted.

        Raises:
            UnknownSchemeError: one was not, so the model has tensors that are not known here.
        """
        for name in self._unread.values():
            raise UnknownSchemeError(f"quantization_config.quantized_layers: {quote_value(name)}")

    def _has(self, name: str) -> bool:
        if any(pattern.match(name) for pattern in self._patterns):
            return True
        return bool(self._names) and not self._names.isdisjoint(_list_parts(name))


def _compile_rule(rule: str) -> re.Pattern[str]:
    """Return the pattern of a rule, which anybody may have written."""
    if not rule.startswith("re:"):
        return re.compile(fnmatch.translate(rule))
    pattern = rule.removeprefix("re:")
    try:
        if not _is_fast(pattern):
            raise ValueError
        return re.compile(pattern)
    except (re.error, ValueError, ArithmeticError, RecursionError):
        raise UnknownSchemeError(f"quantization_config: {quote_value(rule[:100])}") from None


def _is_fast(pattern: str) -> bool:
    """Return whether no group repeats, and few characters and groups can match in several ways."""
    return (
        len(pattern) <= _MAX_PATTERN
        and not re.search(r"\)[*+{]", pattern)
        and len(re.findall(r"[*+{]|(?<!\()\?", pattern)) <= _MAX_REPEATS
        and pattern.count("(") <= _MAX_REPEATS
    )


@functools.lru_cache(maxsize=4096)
def _list_parts(name: str) -> Sequence[str]:
    """Return all runs of a dotted name's words: a rule names a module by its end, beginning or middle."""
    words = name.split(".")
    return tuple(".".join(words[start:end]) for start, end in itertools.combinations(range(len(words) + 1), 2))


def _count_blocks(length: int, block: int) -> int:
    return -(-length // block) if block else 1
