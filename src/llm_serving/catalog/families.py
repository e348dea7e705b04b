"""The families of models in families.yaml: which tensors a model has, as formulas of its own config.json."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, field_validator

from llm_serving.catalog.quantizations import Scheme
from llm_serving.settings import own_yaml
from llm_serving.settings.plain import PlainData

FILE = Path(__file__).with_name("families.yaml")

Formula = str | int

_Number = TypeVar("_Number", Formula, int)
"""How a size is written: as a formula of a model's config.json, or as its number."""

TensorSplit = Literal["even", "kv", "full-kv", "none"]
"""How tensor parallelism divides a tensor: evenly; by key and value heads, so into no more parts, or by those of layers
that look back over everything; not at all."""

TensorForm = Literal["plain", "linear", "expert"]
"""What quantization makes smaller: matrices and experts, and nothing else."""

LayerKind = Literal[
    "model", "embedding", "output", "layers", "attention", "sliding", "full", "linear", "indexed", "unindexed", "dense",
    "sparse",
]  # fmt: skip
"""How often a tensor is there: once in the model, or in each layer of a kind; those `unindexed` look back over
everything and have no indexer."""


class Tensor(PlainData, Generic[_Number]):
    """One tensor, or several of one shape."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    layer_kind: LayerKind = Field("model", alias="in")
    form: TensorForm = "plain"
    module: str = ""
    """Its name in a layer, as checkpoints list what they do not quantize."""

    split: TensorSplit = "none"
    routed: bool = False
    """Whether a token passes only through the share of it that belongs to its experts."""

    number_bytes: float | None = None
    """Where it is stored in another type than the model's."""

    times: _Number = Field(1)
    rows: _Number = Field(1)
    columns: _Number = Field(1)


TensorRow = Tensor[Formula]
"""Those of a family."""


class TensorShape(Tensor[int]):
    """Those of a model, with its numbers."""

    named: tuple[tuple[Scheme | None, int], ...] = ()
    """Schemes in which a quantized checkpoint stores it in layers that it names, None as it was, and how many of each;
    in the others it is stored as the model's other matrices."""


class VisionNumbers(PlainData, Generic[_Number]):
    """What is counted of what turns a picture into tokens: by formulas of a family, or in numbers of a model."""

    image_tokens: _Number
    """Most tokens that one picture takes in the context."""

    token_side: _Number = Field(0)
    """Pixels across and down that become one token, where the size of a picture decides its tokens; else 0."""

    row_ends: _Number = Field(0)
    """Tokens that end a row of a picture's tokens."""

    min_image_tokens: _Number = Field(1)
    """Tokens up to which a smaller picture is enlarged."""

    patches: _Number
    """Parts that the largest picture is cut into."""

    split_width: _Number
    """Most numbers of a patch at once that accelerators split: those of a feed-forward part."""

    whole_width: _Number
    """Most numbers of a patch beside them."""

    video_pictures: _Number = Field(0)
    """Most pictures of a video, as it is put into the context; 0 where a video has no more tokens than a picture."""

    video_picture_tokens: _Number = Field(1)
    """Most tokens of one of them."""

    outputs: _Number = Field(1)
    """Vectors of the decoder's width for each token of a picture."""


class VisionRow(VisionNumbers[Formula]):
    """What turns a picture into tokens."""

    config: str
    tensors: tuple[TensorRow, ...]
    defaults: Mapping[str, int] = {}
    sizes: Mapping[str, Formula] = {}
    """Numbers of the tower under the names that the tensors have for them."""

    split_width: Formula = "2 * intermediate_size"
    whole_width: Formula = "4 * hidden_size"

    _flatten = field_validator("tensors", mode="before")(lambda tensors: tuple(own_yaml.flatten(tensors)))


class StateRow(PlainData):
    """What a layer without keys and values keeps of a request: numbers, whatever its length."""

    convolution: Formula
    heads: Formula


class Family(PlainData):
    """One row of families.yaml."""

    source: str
    encoder: bool = False
    decoder: str = ""
    defaults: Mapping[str, Any] = {}
    sizes: Mapping[str, Formula] = {}
    absent: tuple[str, ...] = ()
    """Keys of config.json whose models have tensors or a cache that this row does not say."""

    tensors: tuple[TensorRow, ...]
    prediction: tuple[TensorRow, ...] = ()
    """Of one layer for multi-token prediction, stored behind the others."""

    uncounted_prediction: bool = False
    """Whether its models have such layers, of which this row does not say the tensors."""

    state: StateRow | None = None
    vision: VisionRow | None = None

    _flatten = field_validator("tensors", "prediction", mode="before")(lambda tensors: tuple(own_yaml.flatten(tensors)))


@functools.cache
def load() -> Mapping[str, Family]:
    rows = own_yaml.read(FILE)
    return MappingProxyType(
        {name: Family.model_validate(row) for name, row in rows.items() if not name.startswith("_")}
    )


def build_shapes(rows: tuple[TensorRow, ...], numbers: Mapping[str, int]) -> tuple[TensorShape, ...]:
    """Return the tensors of a model, without those that it has none of.

    Raises:
        KeyError: a number is missing; its name.
    """
    shapes = (
        TensorShape(
            **{
                **dict(row),
                "times": compute(row.times, numbers),
                "rows": compute(row.rows, numbers),
                "columns": compute(row.columns, numbers),
            }
        )
        for row in rows
        if row.layer_kind != "sparse" or numbers.get("experts")
    )
    return tuple(shape for shape in shapes if shape.times * shape.rows * shape.columns)


def read_numbers(config: Mapping[str, Any]) -> dict[str, int]:
    """Return whole numbers of a config.json: yes is 1, null is 0, and a list is its length; a mapping's are KEY.KEY."""
    numbers: dict[str, int] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            numbers |= {f"{key}.{name}": int(number) for name, number in value.items() if isinstance(number, int)}
        elif value is None or isinstance(value, bool | int):
            numbers[key] = int(value or 0)
        elif isinstance(value, list):
            numbers[key] = len(value)
    return numbers


def compute(formula: Formula, numbers: Mapping[str, int]) -> int:
    """Return the value of a formula.

    Raises:
        KeyError: it names a number that is missing.
    """
    if isinstance(formula, int):
        return formula
    return _compute_node(_parse_formula(formula), numbers)


@functools.cache
def _parse_formula(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _compute_node(node: ast.expr, numbers: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name() | ast.Attribute():
            return numbers[ast.unparse(node)]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_compute_node(left, numbers), _compute_node(right, numbers))
        case ast.BoolOp(op=ast.Or(), values=[first, second]):
            return _compute_node(first, numbers) or _compute_node(second, numbers)
        case ast.Compare(left=left, ops=[ast.Gt()], comparators=[right]):
            return int(_compute_node(left, numbers) > _compute_node(right, numbers))
        case ast.Call(func=ast.Name(id="min"), args=[first, second]):
            return min(_compute_node(first, numbers), _compute_node(second, numbers))
        case _:
            raise ValueError(f"no formula of families.yaml: {ast.unparse(node)}")
