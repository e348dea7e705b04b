"""What a model's own `config.json` says about memory: its tensors and how each is split over accelerators.

The field names of `config.json` are those of Hugging Face transformers. Supported are decoders with grouped-query
attention (Llama, Qwen2, Qwen3, Mistral), their mixture-of-experts forms (Qwen3-MoE, gpt-oss), multi-head latent
attention (DeepSeek-V2 and V3) and encoders of the BERT kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from llm_serving.settings.errors import InputError

ENCODERS = ("bert", "roberta", "xlm-roberta")
DECODERS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")

Quantization = Literal["none", "fp8", "mxfp4", "nvfp4"]

TensorSplit = Literal["even", "kv", "none"]
"""How tensor parallelism divides a tensor: evenly; by key and value heads, so into no more parts; not at all."""

_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_FP8_SCALE_BYTES = 4
"""DeepSeek's block-wise FP8 keeps one float32 scale (`weight_scale_inv`) for each block, 128 x 128 by default."""
NVFP4_BYTES = 0.5 + 1 / 16
"""A number of NVIDIA's NVFP4: 4 bits, and one 8-bit scale for each 16 numbers."""
MXFP4_BYTES = 0.5 + 1 / 32
"""A number of OCP Microscaling MXFP4: 4 bits, and one 8-bit scale for each 32 numbers."""

EXPERTS = "experts"
"""Name of the group that holds the routed experts."""


class TensorGroup(NamedTuple):
    """A group of like tensors of one model."""

    name: str
    parameters: int
    bytes: float
    """As the checkpoint stores them."""

    split: TensorSplit
    active_share: float = 1.0
    """Share of the parameters that one token passes through: less than 1 for experts."""

    loaded: bool = True
    """Whether the engine loads them: it skips layers for multi-token prediction."""


class LatentAttention(BaseModel):
    """Multi-head latent attention: keys and values of all heads compressed into one vector a token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


class ModelError(InputError):
    """A model that cannot be used: its name is not known, or its config.json is wrong."""

    def __init__(self, reason: str, fix: str = "", *, subject: str = "", detail: str = "") -> None:
        super().__init__(f"{subject}{reason}.{f' Fix: {fix}.' if fix else ''}{detail}")
        self.reason = reason
        self.fix = fix or "another model"


class Architecture(BaseModel):
    """The numbers of `config.json` that memory follows from. Lengths are in numbers, not bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """transformers' `model_type`."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the output layer is the embedding itself, so that it takes memory once."""

    max_context: int
    """Most tokens of a request that the model was made for."""

    dtype: str
    quantization: Quantization = "none"
    fp8_block: int = 128
    """Side of the blocks that share a scale; 0 where a whole matrix does."""

    attention_bias: bool = False
    output_bias: bool = False
    query_key_norm: bool = False
    experts: int = 0
    active_experts: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    """Of a mixture of experts: the first layers, which have an ordinary feed-forward part."""

    prediction_layers: int = 0
    """Layers for multi-token prediction, stored behind the others."""

    latent: LatentAttention | None = None
    window: int | None = None
    """Tokens that a sliding layer looks back over."""

    sliding_layers: int = 0
    positions: int = 0
    """Learned position embeddings (encoders)."""

    labels: int = 0
    """Outputs of an encoder's classification head; 0 where it has none."""

    @property
    def encoder(self) -> bool:
        """Encoders read a text once and keep no KV cache."""
        return self.kind in ENCODERS

    def list_tensors(self) -> tuple[TensorGroup, ...]:
        """All tensors of the checkpoint, in groups that are split and stored alike."""
        return tuple(_list_encoder_tensors(self) if self.encoder else _list_decoder_tensors(self))

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint that the engine serves."""
        return sum(group.parameters for group in self.list_tensors() if group.loaded)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through; the embedding is looked up, the output layer counts."""
        return round(sum(group.parameters * group.active_share for group in self.list_tensors() if group.loaded))


def parse(config: Mapping[str, Any], source: str) -> Architecture:
    """The architecture that a `config.json` describes; `where` names it in messages.

    Raises:
        ModelError: its kind is not known here, or a number is missing.
    """
    kind = config.get("model_type")
    if kind not in (*DECODERS, *ENCODERS):
        supported = ", ".join(sorted((*DECODERS, *ENCODERS)))
        raise ModelError(
            f"{source}: model_type: now {kind!r}: its memory is not known here", f"a model of one of {supported}"
        )
    try:
        return _parse_architecture(kind, config, source)
    except KeyError as error:
        raise ModelError(f"{source}: {error.args[0]}: it is missing, and memory follows from it") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{source}: a number in it is of another kind: {error}") from None


def _parse_architecture(kind: str, config: Mapping[str, Any], source: str) -> Architecture:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    quantization, block = _parse_quantization(config, source)
    dense_layers = int(config.get("first_k_dense_replace", 0))
    experts = int(config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0)
    return Architecture(
        kind=kind,
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", kind in ENCODERS)),
        max_context=_parse_max_context(kind, config),
        dtype=str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"),
        quantization=quantization,
        fp8_block=block,
        attention_bias=bool(config.get("attention_bias", kind == "qwen2")),
        output_bias=kind == "gpt_oss",
        query_key_norm=kind in ("qwen3", "qwen3_moe"),
        experts=experts,
        active_experts=int(config.get("num_experts_per_tok") or config.get("experts_per_token") or 0) if experts else 0,
        shared_experts=int(config.get("n_shared_experts") or 0),
        expert_intermediate=int(config.get("moe_intermediate_size") or config["intermediate_size"]) if experts else 0,
        dense_layers=dense_layers if experts else 0,
        prediction_layers=int(config.get("num_nextn_predict_layers", 0)),
        latent=_parse_latent(config),
        window=_parse_window(config),
        sliding_layers=_count_sliding_layers(kind, config),
        positions=int(config["max_position_embeddings"]) if kind in ENCODERS else 0,
        labels=len(config.get("id2label") or "1") if _is_classifier(config) and kind in ENCODERS else 0,
    )


def _is_classifier(config: Mapping[str, Any]) -> bool:
    return any("SequenceClassification" in name for name in config.get("architectures") or ())


def _parse_max_context(kind: str, config: Mapping[str, Any]) -> int:
    positions = int(config["max_position_embeddings"])
    # RoBERTa's position numbers start behind the padding token's: 514 positions hold 512 tokens.
    return positions - 2 if kind in ("roberta", "xlm-roberta") else positions


def _parse_latent(config: Mapping[str, Any]) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    return LatentAttention(
        query_rank=config.get("q_lora_rank"),
        kv_rank=config["kv_lora_rank"],
        rope_dim=config["qk_rope_head_dim"],
        nope_dim=config["qk_nope_head_dim"],
        value_dim=config["v_head_dim"],
    )


def _parse_window(config: Mapping[str, Any]) -> int | None:
    # Qwen's configs carry a window that `use_sliding_window` switches off.
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return None
    return int(config["sliding_window"])


def _count_sliding_layers(kind: str, config: Mapping[str, Any]) -> int:
    if _parse_window(config) is None:
        return 0
    layers, kinds = int(config["num_hidden_layers"]), config.get("layer_types")
    if kinds:
        return int(kinds.count("sliding_attention"))
    if kind == "gpt_oss":  # every second layer, beginning with the first: transformers' default for this kind
        return (layers + 1) // 2
    # Qwen2 and Qwen3: the first `max_window_layers` look back over everything.
    return layers - min(layers, int(config.get("max_window_layers", 0)))


def _parse_quantization(config: Mapping[str, Any], source: str) -> tuple[Quantization, int]:
    settings = config.get("quantization_config")
    if not settings:
        return "none", 128
    method = settings.get("quant_method")
    if method == "fp8":
        return "fp8", int((settings.get("weight_block_size") or [128])[0])
    if method == "mxfp4":
        return "mxfp4", 128
    if method == "modelopt" and settings.get("quant_algo") == "NVFP4":
        return "nvfp4", 128
    raise ModelError(
        f"{source}: quantization_config.quant_method: now {method!r}: the size of its weights is not known here",
        "a model in bfloat16, fp8, mxfp4 or NVFP4",
    )


def _compute_matrix(
    a: Architecture, rows: int, columns: int, kind: Literal["plain", "linear", "expert"]
) -> tuple[int, float]:
    """Parameters and bytes of one matrix. Quantization spares embeddings, norms and routers (`plain`)."""
    count = rows * columns
    if kind == "expert" and a.quantization == "mxfp4":
        return count, count * MXFP4_BYTES
    if kind != "plain" and a.quantization == "nvfp4":
        return count, count * NVFP4_BYTES
    if kind != "plain" and a.quantization == "fp8":
        return count, count + _FP8_SCALE_BYTES * _count_blocks(rows, a.fp8_block) * _count_blocks(columns, a.fp8_block)
    return count, count * _find_dtype_bytes(a)


def _find_dtype_bytes(a: Architecture) -> float:
    return _BYTES.get(a.dtype, 2.0)


def _count_blocks(length: int, block: int) -> int:
    return -(-length // block) if block else 1


def _build_group(
    name: str, repeats: int, matrices: list[tuple[int, float]], split: TensorSplit, active_share: float = 1.0
) -> TensorGroup:
    """`times` layers (or experts in layers) of the same few matrices."""
    count, size = sum(matrix[0] for matrix in matrices), sum(matrix[1] for matrix in matrices)
    return TensorGroup(name, repeats * count, repeats * size, split, active_share)


def _list_decoder_tensors(a: Architecture) -> Iterator[TensorGroup]:
    sparse_layers = a.layers - a.dense_layers if a.experts else 0
    dense_layers = a.layers - sparse_layers
    embedding = _compute_matrix(a, a.vocabulary, a.hidden, "plain")
    yield _build_group("embedding", 1, [embedding], "even", active_share=1.0 if a.tied else 0.0)
    if not a.tied:
        yield _build_group("output layer", 1, [embedding], "even")
    yield _build_group("norms", 2 * a.layers + 1, [_compute_matrix(a, 1, a.hidden, "plain")], "none")
    yield from _list_attention_tensors(a, a.layers)
    if dense_layers:
        matrices = [_compute_matrix(a, a.intermediate, a.hidden, "linear")] * 3
        yield _build_group("feed-forward", dense_layers, matrices, "even")
    if sparse_layers:
        yield from _list_expert_tensors(a, sparse_layers)
    if a.prediction_layers:
        yield _build_prediction_tensors(a)


def _list_attention_tensors(a: Architecture, layers: int) -> Iterator[TensorGroup]:
    if a.latent:
        yield from _list_latent_tensors(a, a.latent, layers)
        return
    width, kv_width = a.heads * a.head_dim, a.kv_heads * a.head_dim
    yield _build_group("query", layers, [_compute_matrix(a, width, a.hidden, "linear")], "even")
    yield _build_group("key and value", layers, [_compute_matrix(a, kv_width, a.hidden, "linear")] * 2, "kv")
    yield _build_group("attention output", layers, [_compute_matrix(a, a.hidden, width, "linear")], "even")
    if a.attention_bias:
        yield _build_group("query bias", layers, [_compute_matrix(a, 1, width, "plain")], "even")
        yield _build_group("key and value bias", layers, [_compute_matrix(a, 2, kv_width, "plain")], "kv")
    if a.output_bias:
        yield _build_group("attention output bias", layers, [_compute_matrix(a, 1, a.hidden, "plain")], "none")
        yield _build_group("attention sinks", layers, [_compute_matrix(a, 1, a.heads, "plain")], "even")
    if a.query_key_norm:
        yield _build_group("query and key norms", layers, [_compute_matrix(a, 2, a.head_dim, "plain")], "none")


def _list_latent_tensors(a: Architecture, latent: LatentAttention, layers: int) -> Iterator[TensorGroup]:
    """Engines replicate the down-projections and split the up-projections by heads."""
    query_width, up_width = latent.nope_dim + latent.rope_dim, latent.nope_dim + latent.value_dim
    down_matrices = [_compute_matrix(a, latent.kv_rank + latent.rope_dim, a.hidden, "linear")]
    norms = [_compute_matrix(a, 1, latent.kv_rank, "plain")]
    if latent.query_rank:
        down_matrices.append(_compute_matrix(a, latent.query_rank, a.hidden, "linear"))
        norms.append(_compute_matrix(a, 1, latent.query_rank, "plain"))
    up_matrices = [
        _compute_matrix(a, a.heads * query_width, latent.query_rank or a.hidden, "linear"),
        _compute_matrix(a, a.heads * up_width, latent.kv_rank, "linear"),
    ]
    yield _build_group("latent down-projections", layers, down_matrices, "none")
    yield _build_group("latent up-projections", layers, up_matrices, "even")
    yield _build_group(
        "attention output", layers, [_compute_matrix(a, a.hidden, a.heads * latent.value_dim, "linear")], "even"
    )
    yield _build_group("latent norms", layers, norms, "none")


def _list_expert_tensors(a: Architecture, layers: int) -> Iterator[TensorGroup]:
    share = a.active_experts / a.experts
    yield _build_group(
        EXPERTS, layers * a.experts, [_compute_matrix(a, a.expert_intermediate, a.hidden, "expert")] * 3, "even", share
    )
    yield _build_group("expert router", layers, [_compute_matrix(a, a.experts, a.hidden, "plain")], "none")
    if a.kind == "gpt_oss":
        biases = _compute_matrix(a, a.experts, 2 * a.expert_intermediate + a.hidden, "plain")
        yield _build_group("expert biases", layers, [biases], "even", share)
        yield _build_group("expert router bias", layers, [_compute_matrix(a, 1, a.experts, "plain")], "none")
    if a.kind == "deepseek_v3":
        yield _build_group("expert router correction", layers, [(a.experts, 4.0 * a.experts)], "none")
    if a.shared_experts:
        shared = _compute_matrix(a, a.shared_experts * a.expert_intermediate, a.hidden, "linear")
        yield _build_group("shared experts", layers, [shared] * 3, "even")


def _build_prediction_tensors(a: Architecture) -> TensorGroup:
    """DeepSeek-V3's multi-token prediction: a whole sparse layer with its own copies of embedding and output layer."""
    layer_tensors = [*_list_attention_tensors(a, 1), *_list_expert_tensors(a, 1)]
    other_parameters = 2 * a.vocabulary * a.hidden + 2 * a.hidden * a.hidden + 5 * a.hidden
    count = a.prediction_layers * (sum(part.parameters for part in layer_tensors) + other_parameters)
    size = a.prediction_layers * (sum(part.bytes for part in layer_tensors) + other_parameters * _find_dtype_bytes(a))
    return TensorGroup("multi-token prediction", count, size, "none", loaded=False)


def _list_encoder_tensors(a: Architecture) -> Iterator[TensorGroup]:
    """BERT's kind: biases everywhere, two norms of two vectors a layer."""

    def compute_plain_matrix(rows: int, columns: int) -> tuple[int, float]:
        return _compute_matrix(a, rows, columns, "plain")

    # One row of token types for RoBERTa's kind, two for BERT's; the norm behind them has two vectors.
    kinds = 2 if a.kind == "bert" else 1
    yield _build_group("embedding", 1, [compute_plain_matrix(a.vocabulary, a.hidden)], "even", active_share=0.0)
    yield _build_group(
        "positions", 1, [compute_plain_matrix(a.positions + kinds + 2, a.hidden)], "none", active_share=0.0
    )
    yield _build_group("attention", a.layers, [compute_plain_matrix(a.hidden, a.hidden)] * 4, "even")
    yield _build_group("feed-forward", a.layers, [compute_plain_matrix(a.hidden, a.intermediate)] * 2, "even")
    yield _build_group(
        "biases and norms",
        a.layers,
        [compute_plain_matrix(9, a.hidden), compute_plain_matrix(1, a.intermediate)],
        "none",
    )
    if a.labels:
        head = [compute_plain_matrix(a.hidden + 1, a.hidden), compute_plain_matrix(a.labels, a.hidden + 1)]
        yield _build_group("classification head", 1, head, "none")
