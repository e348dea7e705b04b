"""What the cluster has of pools that an earlier fleet file had: applying the file that there is now ends nothing.

A NodePool is named after the types, zones and way to buy of its nodes, so a change of these makes another one. For the
old one Karpenter would go on to start nodes, of types that the file has no more, and beside the pool's `size`.
"""

from __future__ import annotations

from collections.abc import Iterable

from llm_serving import console
from llm_serving.fleet import add_ons
from llm_serving.operations.kube_api import Kind, KubeApi, Manifest
from llm_serving.settings.units import format_count

_NODE_POOL, _NODE_CLAIM = Kind("karpenter.sh/v1", "NodePool"), Kind("karpenter.sh/v1", "NodeClaim")
_NODE_CLASS, _OVERLAY = Kind("karpenter.k8s.aws/v1", "EC2NodeClass"), Kind("karpenter.sh/v1alpha1", "NodeOverlay")
_DEPLOYMENT = Kind("apps/v1", "Deployment")

_OWN_LABEL = "fleet/pool"
"""On the nodes of every pool of a fleet, and of no NodePool of the user's own."""


def retire_node_pools(api: KubeApi, manifests: Iterable[Manifest]) -> None:
    """Have NodePools that are not among the manifests start no node; delete those that have none.

    Nodes that run stay until they are empty: deleting their NodePool would end all at once.
    """
    current_pools = _list_names(manifests, _NODE_POOL)
    for pool in api.list_objects(_NODE_POOL):
        name, spec = pool["metadata"]["name"], pool["spec"]
        if name in current_pools or _OWN_LABEL not in spec["template"]["metadata"].get("labels", {}):
            continue
        nodes = api.list_objects(_NODE_CLAIM, labels=f"karpenter.sh/nodepool={name}")
        if not nodes:
            for kind in (_OVERLAY, _NODE_POOL, _NODE_CLASS):
                api.delete(kind, name)
            continue
        retired = {"apiVersion": pool["apiVersion"], "kind": pool["kind"], "metadata": {"name": name}}
        api.apply([{**retired, "spec": {**spec, "limits": {"nodes": "0"}}}], force=True)
        console.err.print(
            f"  {name}: not of a pool in the fleet file any more. It starts no node, and its "
            f"{format_count(len(nodes), 'node')} ends when it is empty; to drain now: kubectl delete nodepool {name}",
            markup=False,
        )


def delete_spare(api: KubeApi, manifests: Iterable[Manifest]) -> None:
    """Delete the spare nodes' pods of pools that are not among the manifests: they would hold nodes for ever."""
    current_names = _list_names(manifests, _DEPLOYMENT)
    for deployment in api.list_objects(_DEPLOYMENT, add_ons.SPARE):
        if deployment["metadata"]["name"] not in current_names:
            api.delete(_DEPLOYMENT, deployment["metadata"]["name"], add_ons.SPARE)


def _list_names(manifests: Iterable[Manifest], kind: Kind) -> set[str]:
    return {item["metadata"]["name"] for item in manifests if item["kind"] == kind.kind}
