"""The kind `batch`: files of requests through an endpoint, each row answered once."""

from llm_serving.options.command import BLUEPRINTS, CommandEntry

COMMANDS = (
    CommandEntry(BLUEPRINTS, "batch", f"{__name__}.commands:app", "Submit files of rows to a batch deployment."),
)
