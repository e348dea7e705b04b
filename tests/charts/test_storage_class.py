"""The default storage class of a fleet's cluster."""

from __future__ import annotations

import yaml

from llm_serving.catalog import eks
from llm_serving.fleet import add_ons
from llm_serving.fleet.model import Fleet
from tests.charts import objects

FILE = add_ons.FILE.parent / "storage-class.yaml"


def test_claims_without_a_class_get_an_encrypted_gp3_volume_in_their_pods_zone() -> None:
    storage_class = yaml.safe_load(FILE.read_text())
    assert storage_class["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert storage_class["parameters"] == {"type": "gp3", "encrypted": "true"}
    assert storage_class["volumeBindingMode"] == "WaitForFirstConsumer"
    assert storage_class["provisioner"] == "ebs.csi.aws.com"


def test_kubernetes_knows_every_field_of_the_class(schema_location: str) -> None:
    assert objects.validate(FILE.read_text(), schema_location) == []
    assert objects.validate(FILE.read_text().replace("parameters:", "parameter:"), schema_location) != []


def test_every_cluster_has_the_class_first_and_the_driver_that_serves_it() -> None:
    pools = {"general": {"types": "m8g.large", "size": "0..2"}}
    fleet = Fleet(name="demo", region="us-west-2", zones=("us-west-2a", "us-west-2b"), pools=pools)
    assert add_ons.select_add_ons(fleet)[0].add_on.manifest == FILE.name
    assert [row.csi_driver for row in eks.ADD_ONS if row.name == "aws-ebs-csi-driver"] == [None]
