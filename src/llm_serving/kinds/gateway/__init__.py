"""The kind `gateway`: one endpoint for many teams, with keys, budgets, limits and what each team costs."""

from llm_serving.options.command import BLUEPRINTS, CommandEntry

COMMANDS = (
    CommandEntry(
        BLUEPRINTS, "gateway", f"{__name__}.commands:app", "Manage keys of a gateway, and see what teams cost."
    ),
)
