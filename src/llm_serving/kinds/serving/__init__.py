"""The kind `serving`: engines behind a router, or before prefill and decode, that answer an inference API."""

from llm_serving.options.command import BLUEPRINTS, MODELS, CommandEntry

COMMANDS = (
    CommandEntry(
        BLUEPRINTS,
        "shift",
        f"{__name__}.commands.shift:shift",
        "Split a route's requests between deployments on EKS.",
    ),
    CommandEntry(
        BLUEPRINTS,
        "alerts",
        f"{__name__}.commands.alerts:print_alerts",
        "Print a deployment's alerts on EKS as a rule file of Prometheus.",
    ),
    CommandEntry(
        BLUEPRINTS,
        "dashboards",
        f"{__name__}.commands.dashboards:show_dashboards",
        "Write a deployment's dashboards as Grafana JSON, or show them.",
    ),
    CommandEntry(MODELS, "adapter", f"{__name__}.commands.adapter:app", "Load and unload LoRA adapters at run time."),
)
