"""What memory follows from in a model: its tensors and how each is split over accelerators.

config_json.py reads it, families.yaml has a row for each kind of model, quantizations.py the ways in which checkpoints
store matrices.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

from llm_serving.catalog import families
from llm_serving.catalog.families import LayerKind, TensorShape, TensorSplit, VisionNumbers
from llm_serving.catalog.quantizations import Quantization, Scheme
from llm_serving.settings.errors import InputError
from llm_serving.settings.plain import PlainData

GGUF = "gguf"
"""The row of families.yaml for models that are no kind of transformers'."""

MAX_LAYERS = 1000
"""Most layers of a model, several times those of any in the catalog: each is looked at by itself."""

EXPERTS = "experts"
"""Name of the group that holds the routed experts."""

NUMBER_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
"""By torch's name of the type."""


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


class LatentAttention(PlainData):
    """Multi-head latent attention: keys and values of all heads compressed into one vector a token."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


class State(PlainData):
    """What a layer without keys and values keeps of a request, in numbers, whatever its length."""

    convolution: int
    heads: int
    number_bytes: int = 2
    """Of the heads' numbers; those of the convolution have 16 bits."""


class Vision(VisionNumbers[int]):
    """What turns pictures into tokens."""

    tensors: tuple[TensorShape, ...]
    layers: int
    """Of the tower, where config.json has them as `num_hidden_layers` or `vt_num_hidden_layers`; else 0."""

    hidden: int

    def count_tokens(self, width: int, height: int) -> int:
        """Return most tokens of a picture of that many pixels; one row and column fewer if the engine rounds down."""
        if not self.token_side:
            return self.image_tokens
        scale = max(1.0, math.sqrt(self.min_image_tokens * self.token_side**2 / (width * height)))
        rows, columns = (math.ceil(pixels * scale / self.token_side) for pixels in (height, width))
        return min(self.image_tokens, rows * (columns + self.row_ends))

    def copy_whole(self) -> Vision:
        """Return the same where no accelerators split it."""
        tensors = tuple(shape.model_copy(update={"split": "none"}) for shape in self.tensors)
        width = self.split_width + self.whole_width
        return self.model_copy(update={"tensors": tensors, "split_width": 0, "whole_width": width})

    def count_video_tokens(self, context: int) -> int:
        """Return tokens of the largest video of a context; 0 where no video has more than a picture."""
        pictures = max(1, context // self.video_picture_tokens)
        return min(self.video_pictures, pictures) * self.video_picture_tokens


class ModelError(InputError):
    """A model that cannot be used: its name is not known, or its config.json is wrong."""

    def __init__(self, reason: str, fix: str = "use another model", *, subject: str = "") -> None:
        super().__init__(f"{subject}{reason}. Fix: {fix}.")
        self.reason = reason
        self.fix = fix


class UnknownMemoryError(ModelError):
    """A model whose config.json can be read, and whose memory is not known here."""

    def __init__(self, reason: str, fix: str, architectures: tuple[str, ...]) -> None:
        super().__init__(reason, fix)
        self.architectures = architectures


class Architecture(PlainData):
    """The numbers of `config.json` that memory follows from. Lengths are in numbers, not bytes."""

    kind: str
    """transformers' `model_type`."""

    is_known: bool = True
    """Whether its memory is known here; if not, its numbers are what config.json happens to have."""

    encoder: bool = False
    """Encoders read a text once and keep no KV cache."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    full_kv_heads: int = 0
    full_head_dim: int = 0
    """Of layers that look back over everything, where those with a window have other heads: 0 is the same."""

    value_dim: int = 0
    """Numbers of a head's values, where they are other than those of its keys: 0 is as many."""

    vocabulary: int
    tied: bool
    """Whether the output layer is the embedding itself, so that it takes memory once."""

    max_context: int
    """Most tokens of a request that the model was made for."""

    dtype: str
    scheme: Scheme | None = None
    """How a quantized model's matrices are stored; of mixed precision, the smallest of them."""

    cache_type: str = "auto"
    """Of the KV cache's numbers where nobody chooses one: 16 bits, or `fp8` where the checkpoint has scales for it."""

    experts: int = 0
    active_experts: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    """Of a mixture of experts: the layers with an ordinary feed-forward part, mostly the first ones."""

    sparse_step: int = 1
    """Every so many layers behind these have experts."""

    prediction_layers: int = 0
    """Layers for multi-token prediction, stored behind the others."""

    latent: LatentAttention | None = None
    index_bytes: int = 0
    """Of a token in the KV cache of a layer with an indexer of sparse attention."""

    indexed_layers: int = 0
    """Layers with an indexer; the others look where the last of these did, or at everything."""

    cache_block: int = 0
    """Tokens of a block of the KV cache that sparse attention picks by; 0 where it picks tokens, or nothing."""

    compressed: bool = False
    """Whether layers that look back over everything keep a vector for each 4 tokens if they have an indexer, else for
    each 128, and every layer those of a window."""

    window: int | None = None
    """Tokens that a sliding layer looks back over."""

    chunked: bool = False
    """Whether sliding layers look at a chunk of that many tokens instead."""

    sliding_layers: int = 0
    linear_layers: int = 0
    """Layers that keep a state in place of keys and values."""

    feed_forward_layers: int = 0
    """Layers that are a feed-forward part or experts only, where each layer has one part; 0 where each has both."""

    rotary_numbers: int = 0
    """Of the tables that turn positions into angles, which engines make as they load a model."""

    labels: int = 0
    """Outputs of a classification head; 0 where it has none."""

    pooled: bool = False
    """Whether it answers with numbers for a whole text, and has no output layer for tokens."""

    state: State | None = None
    tensors: tuple[TensorShape, ...] = ()
    prediction_tensors: tuple[TensorShape, ...] = ()
    vision: Vision | None = None

    @property
    def quantization(self) -> Quantization:
        return self.scheme.label if self.scheme else "none"

    @property
    def fp8_block(self) -> int:
        """Side of the blocks of 8-bit weights that share a scale; 0 where a row or a whole matrix does."""
        return self.scheme.block_columns if self.scheme and self.scheme.label == "fp8" and self.scheme.block_rows else 0

    def list_tensors(self) -> tuple[TensorGroup, ...]:
        """Return all tensors of the checkpoint, in groups that are split and stored alike."""
        vision_tensors = self.vision.tensors if self.vision else ()
        return (
            *(_build_group(self, shape, self.count_layers(shape.layer_kind)) for shape in self.tensors),
            *(
                _build_group(self, shape, self.prediction_layers)._replace(loaded=False)
                for shape in self.prediction_tensors
            ),
            *(_build_group(self, shape, 1)._replace(active_share=0.0) for shape in vision_tensors),
        )

    @property
    def predicts(self) -> bool:
        """Whether it has layers for multi-token prediction."""
        family = families.load().get(self.kind)
        return self.prediction_layers > 0 or (family is not None and family.uncounted_prediction)

    @property
    def full_heads(self) -> tuple[int, int]:
        """Key and value heads of a layer that looks back over everything, and the numbers of each."""
        return self.full_kv_heads or self.kv_heads, self.full_head_dim or self.head_dim

    @property
    def full_layers(self) -> int:
        """Layers that look back over everything."""
        return self.layers - self.sliding_layers - self.linear_layers - self.feed_forward_layers

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return (self.feed_forward_layers or self.layers) - self.dense_layers if self.experts else 0

    def count_layers(self, kind: LayerKind) -> int:
        """Return how often a tensor of that kind is there."""
        counts: dict[LayerKind, int] = {
            "model": 1,
            "embedding": 1,
            "output": 0 if self.tied or self.pooled else 1,
            "layers": self.layers,
            "attention": self.full_layers + self.sliding_layers,
            "sliding": self.sliding_layers,
            "full": self.full_layers,
            "linear": self.linear_layers,
            "indexed": self.indexed_layers,
            "unindexed": self.full_layers - self.indexed_layers,
            "dense": (self.feed_forward_layers or self.layers) - self.sparse_layers,
            "sparse": self.sparse_layers,
        }
        return counts[kind]

    def build_prediction(self) -> Self | None:
        """Return its layers for multi-token prediction as a draft model; None where it has none.

        Both ends are this model's, whatever a checkpoint stores (vLLM 0.32.0, v1/spec_decode/llm_base_proposer.py).
        """
        if not self.prediction_tensors:
            return None
        absent = ("dense_layers", "sliding_layers", "linear_layers", "feed_forward_layers", "rotary_numbers")
        own = {
            "layers": self.prediction_layers,
            "indexed_layers": min(self.indexed_layers, self.prediction_layers),
            "tensors": tuple(shape for shape in self.prediction_tensors if shape.rows != self.vocabulary),
            "prediction_layers": 0,
            "prediction_tensors": (),
            "vision": None,
        }
        return self.model_copy(update=own | dict.fromkeys(absent, 0))

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint that the engine serves."""
        return sum(group.parameters for group in self.list_tensors() if group.loaded)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through; the embedding is looked up, the output layer counts."""
        return round(sum(group.parameters * group.active_share for group in self.list_tensors() if group.loaded))


def _build_group(model: Architecture, shape: TensorShape, layers: int) -> TensorGroup:
    """Return the tensors of one shape in so many layers, of which a checkpoint may store some in another way."""
    count = shape.times * shape.rows * shape.columns
    plain_bytes = count * (shape.number_bytes or NUMBER_BYTES.get(model.dtype, 2.0))
    is_quantized = model.scheme and (
        shape.form == "expert" or (shape.form == "linear" and not model.scheme.experts_only)
    )
    size, layers_left = 0.0, layers
    for scheme, scheme_layers in (*shape.named, (model.scheme if is_quantized else None, layers)):
        stored_layers = min(layers_left, scheme_layers)
        size += stored_layers * (
            shape.times * scheme.compute_bytes(shape.rows, shape.columns) if scheme else plain_bytes
        )
        layers_left -= stored_layers
    active_share = model.active_experts / model.experts if shape.routed else 1.0
    if shape.layer_kind == "embedding":
        active_share = 1.0 if model.tied and not model.encoder and not model.pooled else 0.0
    return TensorGroup(shape.name, layers * count, size, shape.split, active_share)


def check_layers(count: int) -> int:
    """Return a number of layers.

    Raises:
        ValueError: no model has so many.
    """
    if count > MAX_LAYERS:
        raise ValueError(f"{count} layers, more than {MAX_LAYERS}")
    return count
