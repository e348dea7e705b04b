"""Validation: Locust sends a blueprint's traffic to a running deployment, and a gate compares the result with the SLO.

`run` is the entry point of the kind `serving` (`Kind.VALIDATOR`). Locust runs in a separate process, since its
event loop replaces the standard library's sockets:

    plan ----> locust_process, one or several [user, driver, load, stream] ----> samples, engine metrics
    samples -> statistics -> gate -> report.json, report.html (html_report, charts), beside Locust's own CSV
"""
