"""A stream on EKS without managed services: Kafka by Strimzi's operator, the job by Flink's, in charts/streaming."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from llm_serving.fleet.model import Fleet
from llm_serving.kinds.streaming import cloud
from llm_serving.kinds.streaming.blueprint import Blueprint
from llm_serving.kinds.streaming.deployment import OperatorStream, StreamingDeployment
from llm_serving.services import addresses, orchestrators
from llm_serving.services.environment import Environment
from llm_serving.settings.document import Conflict

DRIVER = "load-driver"
"""What the driver's KafkaUser is called, behind the release."""

LOGIN_KEY = "sasl.jaas.config"
"""Key of a user's login in the Secret that Strimzi makes. Source: Strimzi 1.2.0, as below."""

LOGIN_FILE, CERTIFICATE_FILE = f"/opt/kafka-login/{LOGIN_KEY}", "/opt/kafka-ca/ca.crt"
"""Where containers of the job and of the driver have a user's login, and the certificate of Kafka's authority."""

KAFKA_PROPERTIES: Mapping[str, str] = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": f"${{directory:/opt/kafka-login:{LOGIN_KEY}}}",
    "config.providers": "directory",
    "config.providers.directory.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": CERTIFICATE_FILE,
}
"""What a client of Kafka needs to log in with the secrets that Strimzi makes, which charts/streaming mounts. Sources:
Kafka 3.4, producer configuration; Strimzi 1.2.0, secrets NAME and NAME-cluster-ca-cert."""

_LEAST_STALL_S, _STALLED_CHECKPOINTS = 600, 5
"""How long no checkpoint may succeed: so long, or the time of so many of them."""

_REQUIRED = {
    "image": "an image of Flink with the job runs there",
    "cache": "no cache is made there",
    "state_class": "checkpoints need a volume that several nodes write to",
}


def check(settings: Blueprint, fleet: Fleet, environment: Environment) -> Iterator[Conflict]:
    """Yield what cannot run on EKS, or is missing for it."""
    yield from orchestrators.check(fleet, environment.conventions, ("kind",), settings.kind)
    yield from cloud.check_job(settings, environment.conventions.title)
    for field, reason in _REQUIRED.items():
        if not getattr(settings.eks, field):
            yield Conflict(("eks", field), reason, f"set eks.{field}")
    if settings.parquet:
        yield Conflict(("parquet",), "on EKS no role lets the job write to S3", "set parquet: false, or use ECS", True)
    if settings.endpoint.api_key:
        reason = "on EKS no role lets the job read secrets"
        fix = "call an endpoint without a key, or use ECS"
        yield Conflict(("endpoint", "api_key"), reason, fix, settings.endpoint.api_key.secret)


def resolve(settings: Blueprint, fleet: Fleet, deployment: StreamingDeployment, job: str) -> OperatorStream:
    """Resolve the values of the chart, which has the job's settings as JSON."""
    return OperatorStream(
        image=str(settings.eks.image),
        state_class=str(settings.eks.state_class),
        broker_class=settings.eks.broker_class,
        brokers=settings.aws.brokers,
        broker_gib=math.ceil(settings.aws.broker_storage / 2**30),
        parallelism=settings.aws.parallelism,
        endpoint_port=addresses.find_port(deployment.endpoint_url),
        cache_port=urlsplit(deployment.cache_url).port or 6379,
        logs=settings.logs,
        is_monitored=fleet.add_ons.observability,
        lag_alarm_s=math.ceil(settings.aws.lag_alarm),
        dead_alarm=cloud.get_dead_alarm(settings),
        stall_alarm_s=math.ceil(max(_LEAST_STALL_S, _STALLED_CHECKPOINTS * settings.checkpoint)),
        settings=job,
    )
