"""EKS's add-ons of one fleet's cluster: version and configuration of each, as EKS takes them.

The stack creates them, and a preflight holds them against what EKS offers: both read this list.
"""

from __future__ import annotations

from llm_serving.catalog import eks
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml


def list_eks_add_ons(fleet: Fleet) -> list[eks.AddOn]:
    """Return the add-ons of the fleet's cluster with its tags in their values, in the order to make them in."""
    values = {"tags": names.build_tags(fleet)}
    return [
        row.model_copy(update={"configuration": own_yaml.fill_values(row.configuration, values)})
        for row in eks.ADD_ONS
        if row.csi_driver is None or row.csi_driver in fleet.eks.csi_drivers
    ]
