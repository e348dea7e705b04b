"""What the target `local` does in its own way: supervised processes that share this machine."""

from __future__ import annotations

from llm_serving.services.environment import LOOPBACK, Conventions

CONVENTIONS = Conventions(
    title="this machine",
    shared_host=True,
    containers=False,
    real_accelerators=False,
    scales=False,
    drains=False,
    starts_groups=False,
    bind_host=LOOPBACK,
    own_address=LOOPBACK,
    # The loopback address in IPv6's notation: by its colons an engine knows to listen and not to connect.
    zmq_bind_host=f"[::ffff:{LOOPBACK}]",
    discovery="addresses",
    workflows=True,
    url=f"http://{LOOPBACK}:{{port}}",
    kv_transfer="loopback",
)
