"""`tuning` of a blueprint: the engine's settings, speculative decoding, and where cached prompts are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from llm_serving.catalog import cache_keepers, models
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.models import Model
from llm_serving.fleet.model import TierBucketName
from llm_serving.kinds.serving.formats import FORMATS
from llm_serving.kinds.serving.roles import ModelName
from llm_serving.settings.document import Conflict, Settings
from llm_serving.settings.units import Memory, Switch, Tokens

CompileCache = Annotated[str, FORMATS["compile-cache"]]


class Speculative(Settings):
    """Speculative decoding: draft tokens that the model verifies together."""

    method: Literal["ngram", "eagle", "eagle3", "draft_model", "mtp"]
    """Source of the draft tokens: the prompt itself, a small draft model, or the model's own prediction layers."""

    tokens: Annotated[int, Field(ge=1, le=16)] = 3
    """Draft tokens at a time."""

    model: ModelName | None = None
    """The draft model; for eagle, eagle3 and draft_model. It is read from the fleet's model bucket, where
    `blueprint model copy` puts it."""

    def _check_model(self) -> Iterator[Conflict]:
        needs_model = self.method in ("eagle", "eagle3", "draft_model")
        if needs_model and not self.model:
            yield Conflict(("method",), "this method needs a draft model", "set model: NAME too, or ngram")
        if self.model and not needs_model:
            reason = f"{self.method} needs no second model"
            yield Conflict(("model",), reason, "remove model, or set method: draft_model")


class SharedTier(Settings):
    """A file system of many nodes that keeps cached prompts."""

    size: Memory
    """Of all replicas together."""

    claim: Annotated[str, FORMATS["claim"]]
    """PersistentVolumeClaim on EKS that many nodes may write to: of FSx for Lustre, or of EFS."""


class S3Tier(Settings):
    """A bucket that keeps cached prompts."""

    size: Memory
    """What its lifecycle rule leaves of it, about; nothing else limits it."""

    bucket: TierBucketName
    """A bucket of `storage.tier_buckets` of the fleet."""


class KvTiers(Settings):
    """Where cached prompts stay that no longer fit into the accelerators, the fastest first. A prompt is looked for in
    each."""

    by: Literal["engine", "lmcache", "mooncake"] = "engine"
    """What keeps them: the engine itself; LMCache's server beside each replica's engine, on CPUs too; or Mooncake, in
    one pool of all replicas' `ram`, on EKS."""

    ram: Memory | None = None
    """Memory of the node, of each replica. The slower ones are read and written through it."""

    disk: Memory | None = None
    """The node's NVMe, of all the deployment's replicas on it together; what was written longest ago makes room."""

    shared: SharedTier | None = None
    """A file system that all replicas share: what one has computed, another finds."""

    s3: S3Tier | None = None
    """Amazon S3, which all replicas share; by LMCache."""

    @property
    def keeper(self) -> cache_keepers.CacheKeeper | None:
        """What keeps them in place of the engine."""
        return cache_keepers.load_cache_keepers().get(self.by)

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers that are asked for."""
        return tuple(name for name in type(self).model_fields if name != "by" and getattr(self, name) is not None)

    def _check_ram(self) -> Iterator[Conflict]:
        if self.ram is None:
            reason = "the engine reads and writes every other tier through ram"
            yield Conflict((), reason, "set ram: 16Gi too")

    def _check_pool(self) -> Iterator[Conflict]:
        others = [name for name in self.names if self.keeper and name not in self.keeper.tiers]
        if self.keeper and others:
            reason = self.keeper.reasons["other_tiers"]
            keepers = cache_keepers.suggest_cache_keepers(lambda row: {*self.names} <= {*row.tiers})
            yield Conflict(
                (others[0],), reason, ", or ".join(filter(None, (f"remove {' and '.join(others)}", keepers)))
            )


class Tuning(Settings):
    """Settings of the engine; defaults are the engine's."""

    other_names: ClassVar = {
        "kv_cache_dtype": "kv_cache",
        "enable_prefix_caching": "prefix_cache",
        "enable_chunked_prefill": "chunked_prefill",
        "max_num_batched_tokens": "batch_tokens",
        "max_num_seqs": "sequences",
        "speculative_config": "speculative",
    }

    quantization: Literal["fp8"] | None = None
    """Quantizes 16-bit weights when they are loaded; not needed for a quantized checkpoint."""

    kv_cache: Literal["auto", "fp8"] = "auto"
    """Number format of the KV cache: the model's own, or 8 bits for twice the tokens."""

    prefix_cache: Annotated[bool, Switch()] = True
    """Keeps the cache of prompts' prefixes for later requests."""

    chunked_prefill: Annotated[bool, Switch()] = True
    """Splits long prompts, so that they do not delay other answers."""

    batch_tokens: Tokens | None = None
    """Maximum tokens of one step."""

    sequences: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Maximum requests of one step."""

    kv_offload: Memory | None = None
    """Memory of the node, for each replica, for cached prompts that no longer fit into the accelerators: `ram` of
    `kv_tiers`, without any other."""

    kv_tiers: KvTiers | None = None
    """Where cached prompts stay that no longer fit into the accelerators: memory, NVMe, a shared file system."""

    speculative: Speculative | None = None
    """Speculative decoding."""

    compile_cache: CompileCache | None = None
    """Keeps compiled programs for later starts: `node` on the node's disk, NVMe where it has any; `claim:NAME` on EKS
    in a PersistentVolumeClaim. Each image, model and accelerator has its own. Engines execute these
    files: give nobody else write access. Default is off."""

    stream_weights: Annotated[bool, Switch()] = True
    """Streams weights from S3 into memory, where the engine can; `off` copies them to the node's disk first, and the
    engine reads them there."""

    priority: Annotated[bool, Switch()] = False
    """Reads `priority` from the body of a request, an integer: the lowest goes first; default is 0."""

    kv_transfer: Literal["auto", "rdma", "host"] = "auto"
    """How prefill sends its cache to decode: between accelerators by EFA, through the nodes' memory, or the best."""

    @property
    def ram_bytes(self) -> int:
        """Memory of the node for cached prompts, of each replica."""
        return self.kv_offload or (self.kv_tiers.ram if self.kv_tiers else None) or 0

    @property
    def keeper(self) -> cache_keepers.CacheKeeper | None:
        """What keeps cached prompts in place of the engine."""
        return self.kv_tiers.keeper if self.kv_tiers else None

    @property
    def folder_bytes(self) -> dict[str, int]:
        """Tiers that are folders of files, and their sizes."""
        tiers = self.kv_tiers
        disk = {"disk": tiers.disk} if tiers and tiers.disk else {}
        return disk | ({"shared": tiers.shared.size} if tiers and tiers.shared else {})

    @property
    def tier_bytes(self) -> dict[str, int]:
        """Tiers and their sizes, the fastest first."""
        s3 = self.kv_tiers.s3 if self.kv_tiers else None
        return {"ram": self.ram_bytes, **self.folder_bytes, **({"s3": s3.size} if s3 else {})}

    @property
    def predicts_itself(self) -> bool:
        """Whether layers of the model itself draft tokens."""
        return self.speculative is not None and self.speculative.method == "mtp"

    def find_draft(self, model: Model | None = None) -> Model | None:
        """Return the model that drafts tokens; None without one, or where its architecture is one of its own.

        Args:
            model: whose tokens they are, and whose layers for multi-token prediction may be the other one.
        """
        if self.predicts_itself:
            return model.build_prediction() if model and model.is_known else None
        try:
            return models.find(self.speculative.model) if self.speculative and self.speculative.model else None
        except ModelError:
            return None

    def _check_one_offload(self) -> Iterator[Conflict]:
        if self.kv_offload and self.kv_tiers:
            yield Conflict(("kv_offload",), "kv_tiers says it too", "keep ram of kv_tiers, and remove kv_offload")
