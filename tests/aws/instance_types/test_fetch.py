from __future__ import annotations

import datetime
import json
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from llm_serving.aws import session as clients
from llm_serving.aws.instance_types import fetch
from llm_serving.catalog import instances
from llm_serving.settings.errors import Unavailable

TODAY = datetime.date(2026, 11, 21)


def _format_product(name: str, usd: str, *, unit: str = "Hrs") -> str:
    """An entry of AWS's price list, reduced to the fields that are read."""
    terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.RATE": {"unit": unit, "pricePerUnit": {"USD": usd}}}}}}
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": terms})


class _StubbedAws(fetch.InstanceTypeApi):
    """AWS with its two services answered from here; a call that was not expected is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.stubs: dict[str, Stubber] = {}
        self._clients: dict[str, Any] = {}
        for service in ("ec2", "pricing"):
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            self._clients[service] = boto3.Session().client(service, region_name="us-east-1", **keys)
            self.stubs[service] = Stubber(self._clients[service])
            self.stubs[service].activate()

    def _create_client(self, service: str, region: str) -> Any:  # noqa: ARG002 - the signature is the one it stands in for
        return self._clients[service]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> _StubbedAws:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return _StubbedAws()


def _expect_ec2(aws: _StubbedAws) -> None:
    types = {"InstanceTypes": [{"InstanceType": "g6e.xlarge"}]}
    aws.stubs["ec2"].add_response("describe_instance_types", types, {"Filters": ANY})
    offerings = {"InstanceTypeOfferings": [{"InstanceType": "g6e.xlarge", "Location": "us-west-2b"}]}
    filters = [{"Name": "instance-type", "Values": ["g6e.xlarge"]}]
    expected = {"LocationType": "availability-zone", "Filters": filters}
    aws.stubs["ec2"].add_response("describe_instance_type_offerings", offerings, expected)


def test_one_region_says_types_zones_and_prices(aws: _StubbedAws) -> None:
    _expect_ec2(aws)
    aws.stubs["pricing"].add_response(
        "get_products",
        {"PriceList": [_format_product("g6e.xlarge", "1.8610000000"), _format_product("p5e.48xlarge", "0.0000000000")]},
        {"ServiceCode": "AmazonEC2", "Filters": ANY},
    )
    region_facts = aws.fetch_region("us-west-2", TODAY)
    assert region_facts == {
        "source": "AWS EC2",
        "date": "2026-11-21",
        "types": [{"InstanceType": "g6e.xlarge"}],
        "zones": {"g6e.xlarge": "b"},
        "prices": {"g6e.xlarge": 1.861},
    }
    assert aws.price_refusal == ""


def test_a_role_that_may_not_read_prices_still_gets_the_rest(aws: _StubbedAws) -> None:
    _expect_ec2(aws)
    aws.stubs["pricing"].add_client_error(
        "get_products", "AccessDeniedException", "not authorized to pricing:GetProducts"
    )
    region_facts = aws.fetch_region("us-west-2", TODAY)
    assert region_facts["prices"] is None
    assert region_facts["zones"] == {"g6e.xlarge": "b"}
    assert aws.price_refusal == "AccessDeniedException: not authorized to pricing:GetProducts"


def test_prices_of_all_types_are_asked_for_in_values_that_the_price_list_takes(aws: _StubbedAws) -> None:
    limit = aws._clients["pricing"].meta.service_model.shape_for("Filter").members["Value"].metadata["max"]
    asked: list[str] = []
    aws._clients["pricing"].meta.events.register(
        "provide-client-params.pricing.GetProducts",
        lambda params, **_: asked.append(params["Filters"][-1]["Value"]),
    )
    for _ in range(3):
        aws.stubs["pricing"].add_response("get_products", {"PriceList": []}, {"ServiceCode": ANY, "Filters": ANY})
    names = sorted(instances.load())
    assert aws.fetch_prices("us-west-2", names) == {}
    assert ",".join(asked).split(",") == names
    assert max(map(len, asked)) <= limit < len(",".join(names))


def test_prices_are_asked_for_linux_on_shared_hosts_on_demand(aws: _StubbedAws) -> None:
    fixed_fields = {
        "regionCode": "eu-west-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fixed_fields.items()]
    filters.append({"Type": "ANY_OF", "Field": "instanceType", "Value": "g6.xlarge,g6e.xlarge"})
    expected = {"ServiceCode": "AmazonEC2", "Filters": filters}
    aws.stubs["pricing"].add_response("get_products", {"PriceList": []}, expected)
    assert aws.fetch_prices("eu-west-1", ["g6.xlarge", "g6e.xlarge"]) == {}
    aws.stubs["pricing"].assert_no_pending_responses()


def test_a_price_that_is_not_by_the_hour_is_none() -> None:
    assert fetch.read_usd_per_hour(json.loads(_format_product("p5.48xlarge", "393.0", unit="Quantity"))) == 0
    assert fetch.read_usd_per_hour({"terms": {}}) == 0


def test_an_endpoint_from_the_environment_is_not_called_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert fetch.InstanceTypeApi().describe_source() == "the server at http://127.0.0.1:9"


def test_a_refusal_of_aws_is_one_line(aws: _StubbedAws) -> None:
    aws.stubs["ec2"].add_client_error("describe_regions", "UnauthorizedOperation", "You are not authorized")
    with pytest.raises(Unavailable) as error, clients.translate_errors():
        aws.list_regions()
    assert str(error.value) == "AWS refused DescribeRegions: UnauthorizedOperation: You are not authorized"
