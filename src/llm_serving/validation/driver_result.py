"""The driver's result besides the samples, and the names of its files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PLAN_FILE = "plan.json"
RESULT_FILE = "outcome.json"
SAMPLES_FILE = "requests.jsonl"
PROGRESS_FILE = "progress.json"
CSV_PREFIX = "locust"
"""Prefix of Locust's own CSV files."""
LOG_FILE = "locust.log"


class Progress(BaseModel):
    """Progress of the load; the driver rewrites it twice a second."""

    phase: str
    total: int = 0
    sent: int = 0
    answered: int = 0
    failed: int = 0
    ttft_p95_ms: float | None = None
    remaining_s: float | None = None


class DriverResult(BaseModel):
    """Result of the driver."""

    model_config = ConfigDict(extra="forbid")

    error: str = ""
    """Why no load was sent, in one sentence; empty after a load."""

    started_at: str = ""
    """UTC time of the first counted request."""

    duration_s: float = 0.0
    """From the start of the counted load to the end of its last request."""

    planned: int = 0
    """Counted requests of the blueprint."""

    warm_up_sent: int = 0
    warm_up_failed: int = 0

    vllm_dialect: bool = False
    """Whether the server accepts vLLM's own parameters: exact answer lengths, and a usage with each event."""

    kernel_times: bool = False
    """Whether the time of each chunk is the kernel's, not that of the driver's read."""

    shared_prompts: float | None = None
    """Share of the counted prompts' text that an earlier prompt began with; None without prompts."""

    shared_prompt_count: int = 0
    """Number of prompts compared."""

    cpu_share: float = 0.0
    """CPU time of the driver during the counted load, as a share of one core."""

    metrics_before: dict[str, str] = {}
    """The engine's metrics by replica just before the counted load, without replicas that did not respond."""

    metrics_after: dict[str, str] = {}

    versions: dict[str, str] = {}
