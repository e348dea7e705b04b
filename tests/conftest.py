"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A busy machine is no failure. Where CI is set, Hypothesis' own profile says the same, and draws the same each time.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):
    settings.load_profile("busy")
