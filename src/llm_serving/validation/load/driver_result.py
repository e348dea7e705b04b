"""The driver's result besides the samples, and the names of its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_serving.settings.plain import PublishedData

PLAN_FILE = "plan.json"
SAMPLES_FILE = "requests.jsonl"
PROGRESS_FILE = "progress.json"
OVERLAP_FILE = ".overlap"
RESULT_FILE = ".result"
"""Hidden files do not go into the run's folder."""
CSV_PREFIX = "locust"
"""Prefix of Locust's own CSV files."""
LOG_FILE = "locust.log"


def name_part(name: str, index: int) -> str:
    """Return the name of a process's own file: the first one's is the name itself."""
    path = Path(name)
    return f"{path.stem}-{index}{path.suffix}" if index else name


class Progress(BaseModel):
    """Progress of the load; each process rewrites its own twice a second."""

    phase: str
    total: int = 0
    sent: int = 0
    answered: int = 0
    failed: int = 0
    ttft_p95_ms: float | None = None
    remaining_s: float | None = None


def read_progress(folder: Path, index: int) -> Progress | None:
    try:
        return Progress.model_validate_json((folder / name_part(PROGRESS_FILE, index)).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def merge_progress(parts: Sequence[Progress], total: int) -> Progress:
    """Return the progress of all processes; the first one's phase is the load's."""
    return Progress(
        phase=parts[0].phase,
        total=total,
        sent=sum(part.sent for part in parts),
        answered=sum(part.answered for part in parts),
        failed=sum(part.failed for part in parts),
        ttft_p95_ms=max((part.ttft_p95_ms for part in parts if part.ttft_p95_ms is not None), default=None),
        remaining_s=max((part.remaining_s for part in parts if part.remaining_s is not None), default=None),
    )


def format_progress(progress: Progress) -> str:
    if progress.phase != "load":
        return f"{progress.phase}: not counted"
    parts = [f"sent {progress.sent} of {progress.total}", f"answered {progress.answered}", f"failed {progress.failed}"]
    if progress.ttft_p95_ms is not None:
        parts.append(f"TTFT p95 so far {progress.ttft_p95_ms:.0f} ms")
    if progress.remaining_s:
        parts.append(f"about {progress.remaining_s:.0f} s left")
    return ", ".join(parts)


class ProcessWatch(PublishedData):
    """What one process of the driver was kept from during the counted load."""

    cpu_share: float = 0.0
    """CPU time, as a share of one core."""

    queue_share: float | None = None
    """Share of the time in which it was ready and waited for a core; null where the kernel does not say."""

    lag_p99_ms: float = 0.0
    """99th percentile of the delay with which its own timer fires: how long it left other things undone."""

    @property
    def busy_share(self) -> float:
        return self.cpu_share + (self.queue_share or 0.0)


class DriverResult(BaseModel):
    """Result of the driver: of one process, or of all."""

    model_config = ConfigDict(extra="forbid")

    error: str = ""
    """Why no load was sent, in one sentence; empty after a load."""

    started_at: str = ""
    """UTC time of the first counted request."""

    duration_s: float = 0.0
    """From the start of the counted load to the end of its last request."""

    ramp_s: float = 0.0
    """Time from that start in which the users of the closed loop began; 0 where they began at once."""

    planned: int = 0
    """Counted requests of the blueprint."""

    warm_up_sent: int = 0
    warm_up_failed: int = 0

    engine_dialect: bool = False
    """Whether the server accepts the engines' own parameters: exact answer lengths, and a usage with each event."""

    kernel_times: bool = False
    """Whether the time of each chunk is the kernel's, not that of the driver's read."""

    shared_prompts: float | None = None
    """Share of the counted prompts' text that an earlier prompt began with; None without prompts."""

    shared_prompt_count: int = 0
    """Number of prompts compared."""

    picture_tokens: int | None = None
    """Tokens of a picture of the load by the server's usage, the most of any model; None without pictures."""

    processes: list[ProcessWatch] = []
    metrics_before: dict[str, str] = {}
    """The engine's metrics by replica just before the counted load, without replicas that did not respond."""

    metrics_after: dict[str, str] = {}

    versions: dict[str, str] = {}


def read_result(folder: Path, index: int) -> DriverResult | None:
    """Return what a process found, or None before it ended."""
    file = folder / name_part(RESULT_FILE, index)
    return DriverResult.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else None
