"""Makes a Qwen3 with random weights and a real tokenizer, so that all of serving can be tried without a hub.

The seed is fixed: the same size gives the same bytes each time and on each machine. What such a model says has no
meaning; its timing, its memory and its errors are real. One thing is not random: no token that prints nothing is ever
chosen (see `_steer`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from llm_serving.catalog import models
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.settings.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

Size = Literal["tiny", "mid"]
SIZES: tuple[Size, ...] = get_args(Size)
OnProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

CORPUS = Path(__file__).with_name("corpus.txt")
MARKER = "made.json"
RECIPE_VERSION = 1
"""Goes up with every change that gives other bytes."""

SEED = 20261120
_SHARD_BYTES: dict[Size, int] = {"tiny": 2_000_000, "mid": 128_000_000}

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
# Qwen3 writes these into text, so they are tokens of their own but not special ones.
_TEXT_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_SPREAD = 0.02
"""Standard deviation of the matrices: transformers' `initializer_range`."""

_EMBEDDING_SPREAD = 0.5
"""Wider than the matrices, so that each answer depends on its own prompt and not on the layers alone."""

_LOGIT_SPREAD = 3.0
"""Standard deviation of what the output layer gives: wide enough that some tokens are much likelier than others."""

_STEER_INDEX = 0
"""The one number of the residual stream that no layer writes to."""


class Tensor(NamedTuple):
    """One tensor of the checkpoint under Hugging Face's name; `spread` 0 means that it is all ones."""

    name: str
    shape: tuple[int, ...]
    spread: float

    @property
    def bytes(self) -> int:
        """In bfloat16."""
        count = 2
        for length in self.shape:
            count *= length
        return count


def make(size: Size, folder: Path, on_progress: OnProgress | None = None) -> Path:
    """Makes the model `size` in `folder`, or leaves it if it is there already, and returns `folder`.

    The folder comes into being complete or not at all.

    Raises:
        InputError: `folder` holds something else.
        Unavailable: the disk has no room for it.
    """
    if size not in SIZES:
        raise InputError(f"size: now {size!r}: there is no such size. Fix: one of {', '.join(SIZES)}.")
    folder = folder.expanduser().absolute()
    if _is_complete(size, folder):
        return folder
    if folder.exists() and not _is_ours(folder):
        raise InputError(f"{folder}: it is there and holds something else. Fix: a folder that is not there yet.")
    _check_disk_space(size, folder)
    # Beside the folder, hence on its file system, where a rename is one step.
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        draft.mkdir(parents=True)
        _write_model(size, draft, on_progress or (lambda _done, _all: None))
        if folder.exists() and not _is_complete(size, folder):
            shutil.rmtree(folder)
        if not folder.exists():
            draft.rename(folder)
    except OSError as error:
        # Another process that made the same model at the same time may have been first.
        if not _is_complete(size, folder):
            raise Unavailable(f"{folder}: the model cannot be written there: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


ADAPTED_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTER_RANK = 8


def make_adapter(folder: Path) -> Path:
    """Makes a LoRA adapter of the model `tiny` in `folder`, as PEFT writes one, and returns `folder`.

    It says something else than the model alone, and than adapters of other names: its numbers follow from the
    folder's name.

    Raises:
        InputError: `folder` is there.
        Unavailable: it cannot be written.
    """
    folder = folder.expanduser().absolute()
    if folder.exists():
        raise InputError(f"{folder}: it is there already. Fix: a folder that is not there yet.")
    seed = int(hashlib.sha256(folder.name.encode()).hexdigest()[:8], 16)
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        draft.mkdir(parents=True)
        _write_json(draft / "adapter_config.json", _build_adapter_config())
        _write_shard(draft / "adapter_model.safetensors", list(_list_adapter_tensors()), seed, [])
        draft.rename(folder)
    except OSError as error:
        raise Unavailable(f"{folder}: the adapter cannot be written there: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _build_adapter_config() -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(ADAPTED_MODULES),
    }


def _list_adapter_tensors() -> Iterator[Tensor]:
    """Two narrow matrices beside each that is adapted; wide enough in their numbers to change what is said."""
    for tensor in list_tensors("tiny"):
        name = tensor.name.removesuffix(".weight")
        if name.endswith(ADAPTED_MODULES):
            out_features, in_features = tensor.shape
            yield Tensor(f"base_model.model.{name}.lora_A.weight", (ADAPTER_RANK, in_features), 0.05)
            yield Tensor(f"base_model.model.{name}.lora_B.weight", (out_features, ADAPTER_RANK), 0.5)


def list_tensors(size: Size) -> Iterator[Tensor]:
    """The checkpoint's tensors in the order of the shards."""
    m = models.find(size)
    width, kv_width = m.heads * m.head_dim, m.kv_heads * m.head_dim
    yield Tensor("model.embed_tokens.weight", (m.vocabulary, m.hidden), _EMBEDDING_SPREAD)
    for layer in range(m.layers):
        prefix = f"model.layers.{layer}"
        yield Tensor(f"{prefix}.input_layernorm.weight", (m.hidden,), 0)
        yield Tensor(f"{prefix}.self_attn.q_proj.weight", (width, m.hidden), _SPREAD)
        yield Tensor(f"{prefix}.self_attn.k_proj.weight", (kv_width, m.hidden), _SPREAD)
        yield Tensor(f"{prefix}.self_attn.v_proj.weight", (kv_width, m.hidden), _SPREAD)
        yield Tensor(f"{prefix}.self_attn.q_norm.weight", (m.head_dim,), 0)
        yield Tensor(f"{prefix}.self_attn.k_norm.weight", (m.head_dim,), 0)
        yield Tensor(f"{prefix}.self_attn.o_proj.weight", (m.hidden, width), _SPREAD)
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", (m.hidden,), 0)
        yield Tensor(f"{prefix}.mlp.gate_proj.weight", (m.intermediate, m.hidden), _SPREAD)
        yield Tensor(f"{prefix}.mlp.up_proj.weight", (m.intermediate, m.hidden), _SPREAD)
        yield Tensor(f"{prefix}.mlp.down_proj.weight", (m.hidden, m.intermediate), _SPREAD)
    yield Tensor("model.norm.weight", (m.hidden,), 0)
    yield Tensor("lm_head.weight", (m.vocabulary, m.hidden), _LOGIT_SPREAD / m.hidden**0.5)


def train_tokenizer(vocabulary: int) -> Tokenizer:
    """A byte-level BPE of exactly `vocabulary` tokens, trained on the corpus, the special ones last as in Qwen3."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(_SPECIAL) - len(_TEXT_MARKS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS.read_text(encoding="utf-8")], trainer)
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in _SPECIAL])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in _TEXT_MARKS])
    # A number without a token would decode to nothing, and a stream would show empty pieces.
    assert tokenizer.get_vocab_size() == vocabulary, "the corpus is too short for the vocabulary"
    return tokenizer


def find_silent_tokens(tokenizer: Tokenizer) -> list[int]:
    """Tokens that print nothing by themselves: special ones, pieces of a UTF-8 character, control characters."""
    ordinary = tokenizer.get_vocab_size(with_added_tokens=False)
    silent = list(range(ordinary, tokenizer.get_vocab_size()))
    for number in range(ordinary):
        text = tokenizer.decode([number])
        if "\ufffd" in text or not all(char.isprintable() or char == "\n" for char in text):
            silent.append(number)
    return sorted(silent)


def _write_model(size: Size, folder: Path, on_progress: OnProgress) -> None:
    tokenizer = train_tokenizer(models.find(size).vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in _build_configs(size, tokenizer).items():
        _write_json(folder / name, content)
    _write_weights(size, folder, find_silent_tokens(tokenizer), on_progress)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    _write_json(folder / MARKER, {"recipe": _build_recipe(size), "files": files})


def _build_configs(size: Size, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """The JSON files beside the weights."""
    end, pad = tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)
    config = dict(models.read_config(size))
    return {
        "config.json": {**config, "bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad},
        "generation_config.json": {"bos_token_id": pad, "eos_token_id": [end, pad], "pad_token_id": pad},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def _write_weights(size: Size, folder: Path, silent: list[int], on_progress: OnProgress) -> None:
    shards = _split_shards(size)
    total = sum(tensor.bytes for shard in shards for tensor in shard)
    shard_names: dict[str, str] = {}
    done_bytes, tensor_number = 0, 0
    for shard_number, shard in enumerate(shards, 1):
        name = f"model-{shard_number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / name, shard, tensor_number, silent)
        shard_names |= {tensor.name: name for tensor in shard}
        tensor_number += len(shard)
        done_bytes += sum(tensor.bytes for tensor in shard)
        on_progress(done_bytes, total)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_names.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _split_shards(size: Size) -> list[list[Tensor]]:
    """The tensors in files of about equal size, so that several are streamed at once and one is in memory at a time."""
    shards: list[list[Tensor]] = [[]]
    shard_bytes = 0
    for tensor in list_tensors(size):
        if shard_bytes and shard_bytes + tensor.bytes > _SHARD_BYTES[size]:
            shards.append([])
            shard_bytes = 0
        shards[-1].append(tensor)
        shard_bytes += tensor.bytes
    return shards


def _write_shard(path: Path, shard: list[Tensor], first_number: int, silent: list[int]) -> None:
    """Writes one safetensors file; `first` is the number of its first tensor in the model, which seeds it."""
    from safetensors import TensorSpec, serialize_file

    arrays = {
        tensor.name: _generate_values(tensor, first_number + offset, silent) for offset, tensor in enumerate(shard)
    }
    # numpy has no bfloat16, so the library is given the bytes and their kind.
    specs = {
        name: TensorSpec(dtype="bfloat16", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
        for name, array in arrays.items()
    }
    serialize_file(specs, path, {"format": "pt"})
    path.chmod(0o644)  # the library makes it readable for its owner alone; a container runs as another user


def _generate_values(tensor: Tensor, number: int, silent: list[int]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """A tensor's numbers as bfloat16 bit patterns. Whole numbers all the way, so that every machine gets the same."""
    import numpy as np

    count = tensor.bytes // 2
    if not tensor.spread:
        values = np.full(count, _encode_bfloat16(1.0), dtype="<u2")
    else:
        source = np.random.PCG64(np.random.SeedSequence([SEED, number]))
        draws = source.random_raw((count + 3) // 4).astype("<u8", copy=False).view("<u2")[:count]
        values = _build_normal_table(tensor.spread)[draws]
    values = values.reshape(tensor.shape)
    _steer(tensor.name, values, silent)
    return values


def _steer(name: str, values: np.ndarray[Any, np.dtype[np.uint16]], silent: list[int]) -> None:
    """Keeps the model from choosing tokens that print nothing, the end of its answer among them.

    An answer then has just as many tokens as were asked for, and each of them shows in the stream, so that lengths and
    times can be foreseen. One number of the residual stream is the same for every token, no layer changes it, and the
    output layer gives those tokens a large negative weight on it.
    """
    if name == "model.embed_tokens.weight":
        values[:, _STEER_INDEX] = _encode_bfloat16(0.5)
    elif name.endswith(("o_proj.weight", "down_proj.weight", "o_proj.lora_B.weight")):
        values[_STEER_INDEX, :] = 0
    elif name == "model.norm.weight":
        values[_STEER_INDEX] = _encode_bfloat16(16.0)
    elif name == "lm_head.weight":
        values[:, _STEER_INDEX] = 0
        values[silent, _STEER_INDEX] = _encode_bfloat16(-64.0)


_tables: dict[float, Any] = {}


def _build_normal_table(spread: float) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """65,536 bfloat16 quantiles of a normal distribution: 16 random bits choose one."""
    import numpy as np

    if spread not in _tables:
        normal = NormalDist(0, spread)
        _tables[spread] = np.array(
            [_encode_bfloat16(normal.inv_cdf((i + 0.5) / 65536)) for i in range(65536)], dtype="<u2"
        )
    return _tables[spread]  # type: ignore[no-any-return]


def _encode_bfloat16(value: float) -> int:
    """The bit pattern: the upper half of the float32, rounded to nearest."""
    import struct

    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _build_recipe(size: Size) -> dict[str, Any]:
    """What the bytes depend on."""
    corpus = hashlib.sha256(CORPUS.read_bytes()).hexdigest()
    config = hashlib.sha256(json.dumps(dict(models.read_config(size)), sort_keys=True).encode()).hexdigest()
    return {"size": size, "version": RECIPE_VERSION, "seed": SEED, "corpus_sha256": corpus, "config_sha256": config}


def _read_marker(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and ("recipe" in _read_marker(folder) or not any(folder.iterdir()))


def _is_complete(size: Size, folder: Path) -> bool:
    """Whether `folder` holds this very model, with no file missing or cut short."""
    marker = _read_marker(folder)
    if marker.get("recipe") != _build_recipe(size):
        return False
    files: dict[str, int] = marker["files"]
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == file_size for name, file_size in files.items()
    )


def _check_disk_space(size: Size, folder: Path) -> None:
    required_bytes = models.find(size).weight_bytes + 2_000_000  # the tokenizer, the headers and the JSON files
    disk_path = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(disk_path).free
    if free_bytes < required_bytes:
        raise Unavailable(
            f"{disk_path}: the disk has {format_bytes(free_bytes)} free and the model {size} takes {format_bytes(required_bytes)}. "
            "Free some, or write a folder on another disk."
        )
