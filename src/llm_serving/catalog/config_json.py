"""Reads a model's own `config.json`, by the row that families.yaml has for its kind.

The field names are those of Hugging Face transformers; quantizations.py reads how the checkpoint stores matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_serving.catalog import families, quantizations
from llm_serving.catalog.architecture import (
    GGUF,
    NUMBER_BYTES,
    Architecture,
    LatentAttention,
    ModelError,
    State,
    UnknownMemoryError,
    Vision,
    check_layers,
)
from llm_serving.catalog.families import Family, TensorShape, VisionNumbers
from llm_serving.catalog.quantizations import NamedModules, Scheme, UnknownSchemeError
from llm_serving.settings.errors import quote_value

_INDEX_SCALE_BYTES, _INDEX_BLOCK = 4, 128
"""The indexer of sparse attention keeps 8-bit numbers, and a 32-bit scale for each 128 (vLLM 0.32.0, DeepseekV32)."""


def parse(config: Mapping[str, Any], source: str) -> Architecture:
    """Return the architecture that a `config.json` describes; `source` names it in messages.

    Raises:
        ModelError: its kind is not known here, or a number is missing.
    """
    kind = config.get("model_type")
    family = families.load().get(kind) if isinstance(kind, str) and kind != GGUF else None
    if family is None:
        supported = ", ".join(sorted(name for name in families.load() if name != GGUF))
        raise UnknownMemoryError(
            f"{source}: model_type: {quote_value(kind)}: its memory is not known here",
            f"use a model of one of {supported}",
            read_names(config),
        )
    try:
        reader = _Reader(str(kind), family, config)
        if unknown := reader.find_unknown():
            reason = f"{source}: {unknown}: the memory of a model of {kind} with it is not known here"
            raise UnknownMemoryError(reason, f"use a model of {kind} without it", read_names(config))
        return reader.build()
    except UnknownSchemeError as error:
        raise UnknownMemoryError(
            f"{source}: {error.key}: the size of its weights is not known here",
            "use a model in 16 bits, fp8, fbgemm_fp8, mxfp4, NVFP4, AWQ, GPTQ or one scheme of compressed-tensors",
            read_names(config),
        ) from None
    except KeyError as error:
        raise ModelError(f"{source}: {error.args[0]}: it is missing, and memory follows from it") from None
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{source}: a number in it is of another kind: {error}") from None


def assume(config: Mapping[str, Any]) -> Architecture:
    """Return what a `config.json` of any kind says, for a model whose memory is not computed.

    Models of several parts keep the decoder's numbers in `text_config`. A number that is missing is 1, and the context
    is then without a bound.
    """
    text_config = config.get("text_config")
    decoder = text_config if isinstance(text_config, dict) else config

    def read(key: str, default: int = 1) -> int:
        value = decoder.get(key)
        return value if isinstance(value, int) and value > 0 else default

    heads, hidden = read("num_attention_heads"), read("hidden_size")
    return Architecture(
        kind=str(config.get("model_type", "")),
        is_known=False,
        layers=read("num_hidden_layers"),
        hidden=hidden,
        intermediate=read("intermediate_size"),
        heads=heads,
        kv_heads=read("num_key_value_heads", heads),
        head_dim=read("head_dim", max(1, hidden // heads)),
        vocabulary=read("vocab_size"),
        tied=False,
        max_context=read("max_position_embeddings", 2**31),
        dtype=str(decoder.get("torch_dtype") or decoder.get("dtype") or "bfloat16"),
    )


class _Reader:
    """Reads one config.json by the row of its family."""

    def __init__(self, kind: str, family: Family, config: Mapping[str, Any]) -> None:
        decoder = config.get(family.decoder) or config
        self.kind, self.family, self.whole = kind, family, config
        self.config: dict[str, Any] = {**family.defaults, **decoder}
        self.numbers = families.read_numbers(self.config)
        self.settings = config.get("quantization_config") or decoder.get("quantization_config")

    def build(self) -> Architecture:
        """Return all numbers, in the order in which they follow from each other."""
        self._read_common()
        self._read_layers()
        for name, formula in self.family.sizes.items():
            if name not in self._counted:
                self.numbers[name] = families.compute(formula, self.numbers)
        numbers, config = self.numbers, self.config
        index_width = numbers.get("index_head_dim", 0)
        index_bytes = index_width + -(-index_width // _INDEX_BLOCK) * _INDEX_SCALE_BYTES
        arch = Architecture(
            kind=self.kind,
            encoder=self.family.encoder,
            **{name: numbers[name] for name in _COPIED},
            tied=bool(self.whole.get("tie_word_embeddings", config.get("tie_word_embeddings", self.family.encoder))),
            dtype=str(
                _find_value(self.whole, "torch_dtype", "dtype")
                or _find_value(config, "torch_dtype", "dtype")
                or "bfloat16"
            ),
            scheme=quantizations.parse(self.settings),
            cache_type=quantizations.read_cache_type(self.settings),
            window=numbers["window"] or None,
            chunked=bool(numbers.get("chunked")),
            rotary_numbers=self._count_rotary_numbers(),
            index_bytes=numbers.get("index_bytes", index_bytes),
            cache_block=numbers.get("cache_block", 0),
            compressed=bool(numbers.get("compressed")),
            latent=self._read_latent(),
            state=self._read_state(),
            tensors=families.build_shapes(self.family.tensors, numbers),
            prediction_tensors=families.build_shapes(self.family.prediction, numbers)
            if numbers["prediction_layers"]
            else (),
            vision=self._read_vision(),
        )
        return arch.model_copy(update=self._read_named(arch, NamedModules(self.settings)))

    def find_unknown(self) -> str:
        """Return the first key with which the model is more than its family's row says, or nothing."""
        return next((key for key in self.family.absent if self.whole.get(key) or self.config.get(key)), "")

    def _read_common(self) -> None:
        config, numbers, names = self.config, self.numbers, read_names(self.whole)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        layers = check_layers(len(self._blocks) or int(config["num_hidden_layers"]))
        experts = int(_find_value(config, *_EXPERTS) or 0)
        active_experts = int(_find_value(config, *_ACTIVE_EXPERTS) or 0)
        intermediate = int(config["intermediate_size"])
        numbers |= {
            "layers": layers,
            "hidden": hidden,
            "intermediate": intermediate,
            "heads": heads,
            "kv_heads": int(_find_value(config, "num_key_value_heads", "num_attention_groups") or heads),
            "head_dim": int(config.get("head_dim") or hidden // heads),
            "full_kv_heads": 0,
            "full_head_dim": 0,
            "value_dim": 0,
            "vocabulary": int(config["vocab_size"]),
            "positions": int(config["max_position_embeddings"]),
            "max_context": int(config["max_position_embeddings"]),
            "labels": count_labels(self.whole) if any("SequenceClassification" in name for name in names) else 0,
            "pooler": any(name.endswith("Model") for name in names),
            "experts": experts,
            "active_experts": active_experts if experts else 0,
            "shared_experts": int(config.get("n_shared_experts") or 0),
            "expert_intermediate": int(config.get("moe_intermediate_size") or intermediate) if experts else 0,
            "dense_layers": self._count_dense(layers) if experts else 0,
            "feed_forward_layers": sum(self._blocks.count(name) for name in ("moe", "mlp")),
            "sparse_step": 1,
            "prediction_layers": int(config.get("num_nextn_predict_layers") or 0),
        }

    def _count_dense(self, layers: int) -> int:
        """Return how many of the layers are without experts, of a model that has some."""
        kinds, sparse, frequency = (
            self.config.get(key) for key in ("mlp_layer_types", "moe_layers_enum", "moe_layer_freq")
        )
        if kinds:
            return int(kinds[:layers].count("dense"))
        if sparse:  # numbers of layers, in a list or in one text with commas
            return layers - len(str(sparse).split(","))
        dense_count = frequency.count(0) if isinstance(frequency, list) else self._blocks.count("mlp")
        return int(self.config.get("first_k_dense_replace") or dense_count)

    def _read_layers(self) -> None:
        """Return how many layers look back over a window, or keep a state: by `layer_types`, or the family's row."""
        # Qwen's configs carry a window that `use_sliding_window` switches off.
        has_window = self.config.get("sliding_window") and self.config.get("use_sliding_window", True)
        self.numbers["window"] = int(self.config["sliding_window"]) if has_window else 0
        kinds = (self.config.get("layer_types") or self._blocks or self._reaches)[: self.numbers["layers"]]
        self.numbers["indexed_layers"] = len(self._indexed_layers)
        self.numbers["sliding_layers"] = kinds.count("sliding_attention") + kinds.count("chunked_attention")
        self.numbers["linear_layers"] = kinds.count("linear_attention") + kinds.count("mamba")
        self._counted = {"sliding_layers", "linear_layers"}
        if not kinds:
            self.numbers["sliding_layers"], self._counted = self.numbers["layers"], set()
        if not has_window and "window" not in self.family.sizes:
            self.numbers["sliding_layers"] = 0
            self._counted.add("sliding_layers")

    def _count_rotary_numbers(self) -> int:
        """Return a row for each position; positions stretched by a linear `rope_scaling` have a table of their own."""
        config, numbers = self.config, self.numbers
        if self.family.encoder:
            return 0
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        share = config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1
        width = int((config.get("qk_rope_head_dim") or numbers["head_dim"]) * share)
        is_linear = "linear" in (scaling.get("rope_type"), scaling.get("type"))
        stretch = (scaling["factor"] if is_linear else 1) + numbers.get("rotary_tables", 1) - 1
        return int(numbers["positions"] * width * stretch)

    def _read_latent(self) -> LatentAttention | None:
        config = self.config
        if not config.get("kv_lora_rank"):
            return None
        return LatentAttention(
            kv_rank=config["kv_lora_rank"],
            rope_dim=config["qk_rope_head_dim"],
            nope_dim=config["qk_nope_head_dim"],
            value_dim=config["v_head_dim"],
        )

    def _read_state(self) -> State | None:
        row = self.family.state
        if row is None or not self.numbers["linear_layers"]:
            return None
        compute = families.compute
        return State(
            convolution=compute(row.convolution, self.numbers),
            heads=compute(row.heads, self.numbers),
            number_bytes=int(
                NUMBER_BYTES.get(str(_find_value(self.config, "mamba_ssm_dtype", "mamba_ssm_cache_dtype")), 2)
            ),
        )

    def _read_vision(self) -> Vision | None:
        row = self.family.vision
        if row is None:
            return None
        own = self.whole.get(row.config) or {}
        own_numbers = families.read_numbers(own)
        numbers = {**row.defaults, "hidden": self.numbers["hidden"], **families.read_numbers({**self.whole, **own})}
        numbers |= {name: families.compute(formula, numbers) for name, formula in row.sizes.items()}
        return Vision(
            tensors=families.build_shapes(row.tensors, numbers),
            layers=own_numbers.get("num_hidden_layers") or own_numbers.get("vt_num_hidden_layers", 0),
            hidden=numbers["hidden_size"],
            **{name: families.compute(getattr(row, name), numbers) for name in VisionNumbers.model_fields},
        )

    @property
    def _blocks(self) -> Sequence[str]:
        """The one part that each layer is, where config.json says so by a list or by a letter each."""
        letters = self.config.get("hybrid_override_pattern") or ""
        return self.config.get("layers_block_type") or [_BLOCKS[letter] for letter in letters]

    @property
    def _reaches(self) -> Sequence[str]:
        """How far each layer looks back, where config.json has 1 for those with a window, or the tokens of a vector."""
        if ratios := self.config.get("compress_ratios"):
            return [_COMPRESSIONS[ratio] for ratio in ratios]
        return [
            "sliding_attention" if row else "full_attention" for row in self.config.get("hybrid_layer_pattern") or ()
        ]

    @property
    def _indexed_layers(self) -> Sequence[int]:
        """Layers with an indexer of sparse attention: those listed, or the first ones and every so many behind them.

        Source: vLLM 0.32.0, model_executor/models/deepseek_v2.py, `_skip_topk`.
        """
        if frequencies := (self.config.get("sparse_attention_config") or {}).get("sparse_attention_freq"):
            return [layer for layer, is_sparse in enumerate(frequencies) if is_sparse]
        compressions = (self.config.get("layer_types") or self._reaches)[: self.numbers["layers"]]
        if _COMPRESSIONS[4] in compressions:
            return [layer for layer, kind in enumerate(compressions) if kind == _COMPRESSIONS[4]]
        if not self.config.get("index_head_dim"):
            return ()
        offset, step = self.config.get("index_skip_topk_offset", 2), self.config.get("index_topk_freq") or 1
        return [layer for layer in range(self.numbers["layers"]) if max(layer - offset + 1, 0) % step == 0]

    def _read_named(self, arch: Architecture, modules: NamedModules) -> dict[str, tuple[TensorShape, ...]]:
        """Return the tensors, with the layers in which the checkpoint names them."""
        layers = range(arch.layers)
        if not modules.is_mixed:
            return {"tensors": tuple(self._count_spared(shape, modules) for shape in arch.tensors)}
        behind = range(arch.layers, arch.layers + arch.prediction_layers)
        counted = {
            "tensors": tuple(
                _count_schemes(shape, modules, layers, arch.count_layers(shape.layer_kind)) for shape in arch.tensors
            ),
            "prediction_tensors": tuple(
                _count_schemes(shape, modules, behind, len(behind)) for shape in arch.prediction_tensors
            ),
        }
        modules.check_read()
        return counted

    def _count_spared(self, shape: TensorShape, modules: NamedModules) -> TensorShape:
        if shape.form not in ("linear", "expert"):  # stored as it was in any case
            return shape
        layers, dense = range(self.numbers["layers"]), self.numbers["dense_layers"]
        layers_by_kind: dict[str, Sequence[int]] = {"indexed": self._indexed_layers}
        if dense and self.numbers["sparse_step"] == 1:
            layers_by_kind |= {"dense": layers[:dense], "sparse": layers[dense:]}
        spared = modules.count_spared(shape.module, layers_by_kind.get(shape.layer_kind, layers))
        scheme_counts: list[tuple[Scheme | None, int]] = [(None, spared)] if spared else []
        is_fp8 = self.settings and self.settings.get("quant_method") == "fp8"
        if shape.form == "expert" and is_fp8 and self.config.get("expert_dtype") == "fp4":  # as in DeepSeek V4
            scheme_counts.append((quantizations.MXFP4, len(layers)))
        return shape.model_copy(update={"named": tuple(scheme_counts)}) if scheme_counts else shape


def _count_schemes(shape: TensorShape, modules: NamedModules, layers: Sequence[int], count: int) -> TensorShape:
    """Return the tensor of a checkpoint of mixed precision, which keeps as it was what it does not name."""
    if not shape.module:
        return shape
    schemes = modules.count_schemes(shape.module, layers)
    spared = max(0, count - sum(scheme_layers for _, scheme_layers in schemes))
    return shape.model_copy(update={"named": ((None, spared), *schemes)})


_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_ACTIVE_EXPERTS = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k", "moe_top_k")

_COMPRESSIONS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
"""What a layer with that number in `compress_ratios` is in `layer_types` (transformers 5.19.0, DeepseekV4Config)."""

_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
"""What a letter of `hybrid_override_pattern` stands for."""

_COPIED = (
    "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "full_kv_heads", "full_head_dim", "value_dim",
    "vocabulary", "max_context", "experts", "active_experts", "expert_intermediate", "dense_layers",
    "sparse_step", "prediction_layers", "sliding_layers", "linear_layers", "feed_forward_layers", "indexed_layers",
    "labels",
)  # fmt: skip
"""Fields of an architecture that are numbers of the same name."""


def _find_value(config: Mapping[str, Any], *keys: str) -> Any:
    """Return the value of the first key that has one."""
    return next((config[key] for key in keys if config.get(key)), None)


def read_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return names of a model's classes, by which engines choose their own code."""
    names = config.get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def count_labels(config: Mapping[str, Any]) -> int:
    """Return outputs of a classification head, one where the config says nothing."""
    labels, number = config.get("id2label"), config.get("num_labels")
    return (len(labels) if isinstance(labels, dict) else 0) or (number if isinstance(number, int) else 0) or 1
