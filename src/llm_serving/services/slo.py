"""What the SLO of every kind has in common."""

from __future__ import annotations

from llm_serving.settings.document import Settings

MIN_ERROR_SHARE = 0.01
"""Error rate below which alarms and alerts stay silent."""


class BaseSlo(Settings):
    """Objectives that `validate` checks; each kind has limits of its own."""

    @property
    def limits_load(self) -> bool:
        """Whether it has a limit that a higher load can miss."""
        return False
