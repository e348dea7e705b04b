"""What the driver leaves behind besides the samples, and the names of its files."""

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
    """How far the load is; the driver rewrites it twice a second."""

    phase: str
    total: int = 0
    sent: int = 0
    answered: int = 0
    failed: int = 0
    ttft_p95_ms: float | None = None
    remaining_s: float | None = None


class DriverResult(BaseModel):
    """How the driver got on."""

    model_config = ConfigDict(extra="forbid")

    error: str = ""
    """Why no load was played, in one sentence; empty where it was."""

    started_at: str = ""
    """UTC time of the first counted request."""

    duration_s: float = 0.0
    """From the start of the counted load to the end of its last request."""

    planned: int = 0
    """Counted requests that the blueprint asks for."""

    warm_up_sent: int = 0
    warm_up_failed: int = 0

    vllm_dialect: bool = False
    """Whether the server took vLLM's own parameters: exact answer lengths, and a usage with each event."""

    kernel_times: bool = False
    """Whether the time of each piece is the kernel's, not that of the driver's read."""

    shared_prompts: float | None = None
    """Share of the counted prompts' text that earlier ones began with; None where none was sent."""

    shared_prompt_count: int = 0
    """How many prompts that is of."""

    cpu_share: float = 0.0
    """Processor time of the driver over the counted load, as a share of one core."""

    metrics_before: dict[str, str] = {}
    """The engine's metrics by replica, just before the counted load; a replica that did not answer is left out."""

    metrics_after: dict[str, str] = {}

    versions: dict[str, str] = {}
