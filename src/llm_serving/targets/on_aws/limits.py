"""Time limits that the targets on AWS share."""

from __future__ import annotations

MACHINE_START_S = 900
"""Longest time until a new instance runs a container: it boots, joins its cluster and pulls an image of several GB."""
