"""Validation: Locust sends traffic to a running service, and a gate compares the result with the SLO.

A kind says by a `LoadTarget` what the load is sent to; `run` sends it. Locust runs in separate processes, since its
event loop replaces the standard library's sockets:

    plan ----> load.locust_process, one or several [user, load.driver, load.stream] ----> samples, engine metrics
    samples -> statistics.gate -> reports.report -> report.json, report.html (pages), beside Locust's own CSV
"""
