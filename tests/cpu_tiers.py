"""vLLM's tiers of the KV cache on a machine without GPUs: the copy between accelerator and memory alone is replaced.

Managers, eviction, threads, files and metrics are vLLM's own. `spec_name` and `spec_module_path` of the connector's
settings name this module.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.cpu import spec as cpu_spec
from vllm.v1.kv_offload.tiering import spec as tier_spec


class MemcpyWorker(base.OffloadingWorker):
    """Copies blocks at once."""

    def __init__(
        self,
        kv_caches: Any,
        blocks_per_chunk: int,
        num_cpu_chunks: int,
        mmap_region: Any = None,
        canonical_layout: bool = False,  # noqa: ARG002 - of GPUs
    ) -> None:
        self.region, self.groups, self.per_chunk = mmap_region, kv_caches.group_data_refs, blocks_per_chunk
        self.finished: list[Any] = []
        tensors = kv_caches.tensors
        self.device = [row.tensor.view(torch.int8).view((-1, row.page_size_bytes)) for row in tensors]
        self.host = [
            mmap_region.create_next_worker_view(row.page_size_bytes * blocks_per_chunk)
            if mmap_region is not None
            else torch.zeros((num_cpu_chunks, row.page_size_bytes * blocks_per_chunk), dtype=torch.int8)
            for row in tensors
        ]

    def _copy(self, job_id: Any, device: Any, host: Any, *, stores: bool) -> bool:
        size = device_start = host_start = 0
        start = time.perf_counter()
        for references, blocks, index in zip(self.groups, device.group_sizes, device.block_indices, strict=True):
            if not blocks:
                continue
            skipped = index % self.per_chunk
            chunks = -(-(blocks + skipped) // self.per_chunk)
            chunk_ids = host.block_ids[host_start : host_start + chunks, None]
            slots = (chunk_ids * self.per_chunk + np.arange(self.per_chunk)).ravel()[skipped : skipped + blocks]
            for reference in references:
                pages, slabs = self.device[reference.tensor_idx], self.host[reference.tensor_idx]
                page_bytes = pages.shape[1]
                for block, slot in zip(device.block_ids[device_start : device_start + blocks], slots, strict=True):
                    chunk, place = divmod(int(slot), self.per_chunk)
                    kept = slabs[chunk].narrow(0, place * page_bytes, page_bytes)
                    target, source = (kept, pages[int(block)]) if stores else (pages[int(block)], kept)
                    target.copy_(source)
                    size += page_bytes
            device_start, host_start = device_start + blocks, host_start + chunks
        result = base.TransferResult(
            job_id=job_id, success=True, transfer_size=size, transfer_time=time.perf_counter() - start
        )
        self.finished.append(result)
        return True

    def submit_store(self, job_id: Any, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, stores=True)

    def submit_load(self, job_id: Any, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, stores=False)

    def get_finished(self) -> list[Any]:
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: Any) -> None:
        """All copies are done when they are submitted."""

    def shutdown(self) -> None:
        self.device = self.host = []
        if self.region is not None:
            self.region.cleanup()
            self.region = None


class CpuTieringSpec(tier_spec.TieringOffloadingSpec):
    """The spec of the tiers, whose own worker refuses CPUs."""

    def get_worker(self, kv_caches: Any) -> Any:
        if not self._worker:
            self._worker = self.create_worker(kv_caches)
        return self._worker


cpu_spec.CPUOffloadingWorker = tier_spec.CPUOffloadingWorker = MemcpyWorker
