"""Events that the fleet's topic hears of. EventBridge publishes only if the topic's policy lets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack


def add_topic_rule(
    stack: FleetStack,
    purpose: str,
    description: str,
    pattern: Mapping[str, Any],
    *,
    detail: str,
    fields: Mapping[str, str],
) -> None:
    """Add a rule that tells the topic of matching events in a sentence, where the fleet has one.

    Args:
        detail: what the sentence goes on with, with <names> of fields.
        fields: JSON paths within the event, by their names.
    """
    if not stack.fleet.alarms_to:
        return
    rule = aws.cloudwatch_event_rule.CloudwatchEventRule(
        stack, purpose, name=f"{stack.fleet.name}-{purpose}", description=description, event_pattern=json.dumps(pattern)
    )
    t = aws.cloudwatch_event_target
    t.CloudwatchEventTarget(
        stack,
        f"{purpose}-target",
        rule=rule.name,
        arn=stack.fleet.alarms_to,
        target_id="topic",
        # Text is in quotes. Source: EventBridge user guide, "Amazon EventBridge input transformation", 2026-11.
        input_transformer=t.CloudwatchEventTargetInputTransformer(
            input_paths=dict(fields), input_template=json.dumps(f"{stack.fleet.name}: {description}: {detail}")
        ),
    )
