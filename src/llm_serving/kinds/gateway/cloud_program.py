"""Runs a program of a gateway in a container on AWS: gateway PORT, meter, usage START END NAME or audit SECONDS.

The stack writes where everything is into a parameter of Systems Manager. The password of the database's owner is RDS'
own, which rotates. All other keys come from a secret that the first gateway to start creates: Terraform's state has
none of them.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from llm_serving.kinds.gateway import audit, database, gateway_program, meter, meter_program, usage
from llm_serving.kinds.gateway.database import Login
from llm_serving.kinds.gateway.stack import DATABASE_PORT, OWNER
from llm_serving.services.service import LOOPBACK
from llm_serving.validation.load import api_key

PLACE_VARIABLE = "GATEWAY_PLACE"
"""Name of the parameter."""

CACHE_VARIABLE = "GATEWAY_CACHE_HOST"
"""From which LiteLLM's settings take the cache's host."""

API_KEY_VARIABLE = "GATEWAY_API_KEY_SECRET"
"""Name of the secret with the key of URLs and of deployments that ask for one; without it they get none."""

AUTHORITIES = Path("/opt/gateway/rds-ca")
"""Certificates of the authorities of RDS, REGION.pem."""

LITELLM = Path("/usr/local/bin/litellm")

DATABASE_PURPOSE = "database"

USAGE, AUDIT, ROWS_BEGIN = "usage", "audit", "rows: "
"""Programs that read the database, and how their line of JSON begins."""

_FIRST_VERSION = "00000000-0000-0000-0000-000000000001"
"""Of two gateways that start at once, one creates the secret's first version: a version's id is unique."""


class Place(NamedTuple):
    """Where everything is, as the stack writes it."""

    database: str
    cache: str
    owner: str
    """ARN of the secret with the password of the database's owner."""

    secret: str
    """ARN of the gateway's own secret."""


def main(program: str, *arguments: str) -> None:
    place = read_place(_connect("ssm"), os.environ[PLACE_VARIABLE])
    if program == "gateway":
        run_gateway(place, *arguments)
    login = build_login(place, read_secret(_connect("secretsmanager"), place.secret))
    if program == "meter":
        meter_program.run(lambda: login)
    print(f"{ROWS_BEGIN}{json.dumps(read_rows(login, program, *arguments))}")


def run_gateway(place: Place, port: str) -> NoReturn:
    """Prepare the database, then become LiteLLM. Of gateways that start at once, one prepares it first."""
    secret = create_secret(place.secret)
    login, owner = build_login(place, secret), read_owner(place)
    with database.lock(owner):
        database.create_user(owner, login.password)
        gateway_program.prepare(login, LITELLM)
    os.environ[CACHE_VARIABLE] = place.cache
    if name := os.environ.get(API_KEY_VARIABLE):
        os.environ[api_key.VARIABLE] = read_secret(_connect("secretsmanager"), name).strip()
    folder = Path(tempfile.gettempdir()) / "gateway"
    gateway_program.start(login, secret, folder, (LOOPBACK, port), LITELLM)


def read_rows(login: Login, program: str, *arguments: str) -> Any:
    """Read what `blueprint gateway` shows."""
    if program == AUDIT:
        return audit.read(login, usage.build_last(*map(float, arguments)), audit.MAX_ENTRIES + 1)
    *period, name = arguments
    meter.record(login, [])  # creates its tables
    return usage.read(login, usage.Period(*map(float, period)), name)._asdict()


def read_place(ssm: Any, name: str) -> Place:
    """Read the parameter.

    Args:
        ssm: client of Systems Manager.
    """
    parameter = ssm.get_parameter(Name=name)
    return Place(**json.loads(parameter["Parameter"]["Value"]))


def build_login(place: Place, secret: str) -> Login:
    """Build the login of the gateway's own user."""
    password = database.derive_key(secret, DATABASE_PURPOSE)
    return Login(password, DATABASE_PORT, place.database, authority=_locate_authority())


def read_owner(place: Place) -> Login:
    """Read the login of the database's owner, whose password RDS changes every week."""
    password = json.loads(read_secret(_connect("secretsmanager"), place.owner))["password"]
    return Login(password, DATABASE_PORT, place.database, OWNER, _locate_authority())


def read_secret(client: Any, arn: str) -> str:
    """Read a secret's value."""
    return str(client.get_secret_value(SecretId=arn)["SecretString"])


def create_secret(arn: str) -> str:
    """Return a secret's value, which is a random one from the first call on."""
    client = _connect("secretsmanager")
    try:
        return read_secret(client, arn)
    except client.exceptions.ResourceNotFoundException:
        pass
    value = secrets.token_hex(32)
    try:
        client.put_secret_value(SecretId=arn, ClientRequestToken=_FIRST_VERSION, SecretString=value)
    except client.exceptions.ResourceExistsException:
        return read_secret(client, arn)  # another gateway was first
    return value


def _locate_authority() -> str:
    return str(AUTHORITIES / f"{os.environ['AWS_REGION']}.pem")


@functools.cache
def _connect(service: str) -> Any:
    import boto3

    return boto3.client(service)


if __name__ == "__main__":
    main(*sys.argv[1:])
