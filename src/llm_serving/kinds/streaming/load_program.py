"""What sends the events of a validation on AWS, where Kafka is reached from the fleet's network alone.

It is images/stream-job's own driver. On EKS it runs in the image of the job; on ECS in one of Java, with the jar that
the stack uploaded for Managed Service for Apache Flink.
"""

from __future__ import annotations

from llm_serving.catalog import images
from llm_serving.fleet import image_cache
from llm_serving.kinds.streaming import operators
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.stack import DRIVER_ROLE, format_clients_group
from llm_serving.services.load_program import ARCHIVE_FILE, LoadProgram, MountedSecret

_JOB_FILE = "/opt/flink/usrlib/stream-job.jar"
"""Where the image of the job has it, as charts/streaming says."""

_HEAP_MB = 1024


def build(deployment: StreamingDeployment) -> LoadProgram | None:
    name, stack, environment = deployment.name, deployment.stack, deployment.environment
    if operator_stream := deployment.operators:
        return LoadProgram(
            image=operator_stream.image,
            command=_build_command(_JOB_FILE),
            secrets={
                operators.CERTIFICATE_FILE: MountedSecret(f"{name}-cluster-ca-cert", "ca.crt"),
                operators.LOGIN_FILE: MountedSecret(f"{name}-{operators.DRIVER}", operators.LOGIN_KEY),
            },
        )
    if stack:
        return LoadProgram(
            image=image_cache.rewrite(images.pin(images.JAVA, environment.image_digests), environment.image_prefixes),
            command=_build_command(ARCHIVE_FILE),
            archive=f"s3://{stack.bucket}/{stack.archive_key}",
            role=DRIVER_ROLE,
            security_groups=(format_clients_group(stack),),
        )
    return None


def _build_command(archive: str) -> tuple[str, ...]:
    return ("java", f"-Xmx{_HEAP_MB}m", "-cp", archive, "stream.load.RemoteDriver")
