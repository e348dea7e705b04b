"""A stack of a fleet: its constructs learn from it what the fleet is, and in which account it is applied."""

from __future__ import annotations

from functools import cached_property

from infra.bindings.cdktf import App, TerraformStack
from infra.constructs.account import Account, read_account
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet


class FleetStack(TerraformStack):
    """One of the fleet's stacks."""

    def __init__(self, app: App, name: str, fleet: Fleet) -> None:
        super().__init__(app, name)
        self.fleet = fleet
        self.cluster_name = names.format_cluster_name(fleet)

    @cached_property
    def account(self) -> Account:
        """Account and region; its first use adds the data sources that tell them."""
        return read_account(self, self.fleet.region)
