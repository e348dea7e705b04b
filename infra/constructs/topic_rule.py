"""Events that the fleet's topic hears of. EventBridge publishes only if the topic's policy lets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack


def add_topic_rule(stack: FleetStack, purpose: str, description: str, pattern: Mapping[str, Any]) -> None:
    """Add a rule that sends matching events to the topic, where the fleet has one."""
    if not stack.fleet.alarms_to:
        return
    rule = aws.cloudwatch_event_rule.CloudwatchEventRule(
        stack, purpose, name=f"{stack.fleet.name}-{purpose}", description=description, event_pattern=json.dumps(pattern)
    )
    aws.cloudwatch_event_target.CloudwatchEventTarget(
        stack, f"{purpose}-target", rule=rule.name, arn=stack.fleet.alarms_to, target_id="topic"
    )
