"""The stack of diaries: a queue of each, after storage."""

from infra.bindings import aws
from infra.stacks import base

NAME = "diary"
NEEDS = ("storage",)


def is_enabled(fleet):
    """Every fleet has it."""
    return True


def add(app, document):
    """Add the stack to the app."""
    stack = base.create_stack(app, NAME, document)
    aws.sqs_queue.SqsQueue(stack, "queue", name=f"{document.value.name}-diary", sqs_managed_sse_enabled=True)
