"""Puts a load on a deployment of Ray Serve that only waits, and prints how many replicas it has before, in and after it.

    python ray_scaling.py FOLDER AUTOSCALING

FOLDER is for Ray's own files, AUTOSCALING what Serve takes as `autoscaling_config`, as JSON; its delays are left out. The
load is two and a half times the requests under way that one replica is to have. Ray's own environment runs this.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

LIMIT_S, STILL_S = 240, 6
"""Longest wait for a count; how long it must stay: longer than what Serve looks back on, and then waits, by FAST."""

OBJECT_STORE_BYTES = 80_000_000
"""About the least that Ray takes."""

FAST = {"upscale_delay_s": 1, "downscale_delay_s": 1, "look_back_period_s": 3, "metrics_interval_s": 1}


class Waiter:
    """Answers after some seconds."""

    async def __call__(self, seconds: float) -> None:
        """Wait that long."""
        await importlib.import_module("asyncio").sleep(seconds)


def main(folder: str, autoscaling: dict[str, Any]) -> None:
    """Deploy, load and remove it, on a node that ends with this process."""
    ray, serve = importlib.import_module("ray"), importlib.import_module("ray.serve")
    ray.init(
        num_cpus=1,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    serve.start(proxy_location="Disabled")  # its port may be another's
    target = autoscaling["target_ongoing_requests"]
    options = {"autoscaling_config": {**autoscaling, **FAST}, "ray_actor_options": {"num_cpus": 0}}
    application = serve.deployment(Waiter).options(name="waiter", max_ongoing_requests=2 * target, **options).bind()
    handle = serve.run(application, name="scaling", route_prefix=None)

    # What `serve.status()` reads, which would import the classes that other applications name: the engine too.
    client = importlib.import_module("ray.serve.context")._get_global_client()

    def count() -> int:
        deployment = client.get_serve_details()["applications"]["scaling"]["deployments"]["waiter"]
        states = [replica["state"] for replica in deployment["replicas"]]
        return states.count("RUNNING") if deployment["status"] == "HEALTHY" else 0

    counts = {"idle": settle(count)}
    answers = [handle.remote(3600) for _ in range(target * 5 // 2)]
    counts["loaded"] = settle(count, other_than=counts["idle"])
    for answer in answers:
        answer.cancel()
    counts["idle again"] = settle(count, other_than=counts["loaded"])
    serve.delete("scaling")
    print(json.dumps(counts))


def settle(count: Any, other_than: int = 0) -> int:
    """Return a count that stayed for a while, 0 while Serve starts or stops some; the last where none did in time."""
    seen, since, deadline = 0, time.monotonic(), time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        now = count()
        if now != seen:
            seen, since = now, time.monotonic()
        if seen and seen != other_than and time.monotonic() - since > STILL_S:
            break
        time.sleep(2)  # each look takes the driver and Serve's controller a tenth of a CPU-second
    return seen


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
