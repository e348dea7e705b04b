"""EKS's add-ons of one fleet's cluster: version and configuration of each, as EKS takes them.

The stack creates them, and a preflight holds them against what EKS offers: both read this list.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from llm_serving.catalog import eks
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml


@dataclass(frozen=True)
class EksAddOn:
    """One add-on, every value decided."""

    name: str
    version: str

    configuration: str | None
    """JSON; None leaves the add-on's defaults."""

    before_nodes: bool
    """Whether nodes need it to join."""

    service_account: str | None
    """The one of its service accounts, in kube-system, that calls AWS."""


def list_eks_add_ons(fleet: Fleet) -> list[EksAddOn]:
    """Return the add-ons of the fleet's cluster, in the order to make them in."""
    values = {"tags": names.build_tags(fleet)}
    return [
        EksAddOn(
            name=row.name,
            version=row.versions[fleet.eks.version],
            configuration=json.dumps(own_yaml.fill_values(row.configuration, values)) if row.configuration else None,
            before_nodes=row.before_nodes,
            service_account=row.service_account,
        )
        for row in eks.ADD_ONS
        if row.csi_driver is None or row.csi_driver in fleet.eks.csi_drivers
    ]
