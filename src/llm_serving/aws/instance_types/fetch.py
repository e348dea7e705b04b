"""What the catalog holds, asked of AWS: instance types, the zones that offer them, and their prices."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_serving.aws import session
from llm_serving.aws.instance_types import rows

PRICE_REGION = "us-east-1"
"""Region of the price list's own API; its answers cover all regions."""

_PRICED_TYPES = 40
"""Types that the price list is asked for at a time: a filter's value has up to 1,024 characters.

Source: Price List API reference, Filter, Value, 2026-11.
"""


class InstanceTypeApi:
    """The EC2 API at AWS, or at another endpoint that speaks it."""

    def __init__(self, endpoint: str | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        """Prepare clients.

        Args:
            endpoint: URL of an embedded AWS, with its keys in `environ`; None is AWS with the user's credentials.
        """
        from botocore.config import Config

        self.price_refusal = ""
        """Why the price list was not read, where AWS refused it."""
        self._endpoint = endpoint
        self._config = Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 3, "mode": "standard"})
        self._session = session.create_session(environ)

    def _create_client(self, service: str, region: str) -> Any:
        return self._session.client(service, region_name=region, endpoint_url=self._endpoint, config=self._config)

    def describe_source(self) -> str:
        url = self._create_client("ec2", PRICE_REGION).meta.endpoint_url
        if self._endpoint:
            return f"the copy of EC2's answers that moto {importlib.metadata.version('moto')} carries"
        return "AWS EC2" if session.is_aws(url) else f"the server at {url}"

    def list_regions(self) -> list[str]:
        """Return regions that the account may use."""
        response = self._create_client("ec2", PRICE_REGION).describe_regions()
        return sorted(region["RegionName"] for region in response["Regions"])

    def fetch_region(self, name: str, date: datetime.date) -> dict[str, Any]:
        """Return all that one region says, as `shape.merge` takes it."""
        ec2 = self._create_client("ec2", name)
        filters = [
            {"Name": "instance-type", "Values": rows.list_patterns()},
            # Bare metal runs no replica: the engine needs no instance that boots for ten minutes.
            {"Name": "bare-metal", "Values": ["false"]},
        ]
        types = session.list_all(ec2, "describe_instance_types", "InstanceTypes", Filters=filters)
        # This filter takes exact names where the other takes patterns, and at most 200 of them.
        names = sorted(entry["InstanceType"] for entry in types)
        query = {"LocationType": "availability-zone", "Filters": [{"Name": "instance-type", "Values": names[:200]}]}
        operation, key = "describe_instance_type_offerings", "InstanceTypeOfferings"
        offerings = session.list_all(ec2, operation, key, **query) if names else []
        return {
            "source": self.describe_source(),
            "date": date.isoformat(),
            "types": types,
            "zones": rows.collect_zone_letters(offerings, name),
            "prices": None if self._endpoint else self._try_fetch_prices(name, names),
        }

    def _try_fetch_prices(self, region: str, names: Sequence[str]) -> dict[str, float] | None:
        """Return the error, or none: a role may be allowed to read EC2 and not the price list."""
        from botocore import exceptions

        try:
            return self.fetch_prices(region, names)
        except exceptions.ClientError as error:
            self.price_refusal = session.format_error(error)
            return None

    def fetch_prices(self, region: str, names: Sequence[str]) -> dict[str, float]:
        """Return US dollars an hour on demand (Linux, shared tenancy) from AWS's price list."""
        fields = {
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
        pricing, usd_by_type = self._create_client("pricing", PRICE_REGION), dict[str, float]()
        for batch in session.split(names, _PRICED_TYPES):
            of_types = {"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(batch)}
            query = {"ServiceCode": "AmazonEC2", "Filters": [*filters, of_types]}
            for product in map(json.loads, session.list_all(pricing, "get_products", "PriceList", **query)):
                usd_by_type[product["product"]["attributes"]["instanceType"]] = read_usd_per_hour(product)
        return {name: usd for name, usd in sorted(usd_by_type.items()) if usd}


def read_usd_per_hour(product: Mapping[str, Any]) -> float:
    """Return the on-demand price of an entry of the price list; 0 if it has none, as types sold by Capacity Block."""
    terms = product["terms"].get("OnDemand", {}).values()
    dimensions = [
        dimension for term in terms for dimension in term["priceDimensions"].values() if dimension["unit"] == "Hrs"
    ]
    return max((float(dimension["pricePerUnit"].get("USD", 0)) for dimension in dimensions), default=0.0)
