"""Validation: Locust plays a blueprint's traffic against a running deployment and says whether its SLO holds.

`run` is the way in. Locust runs in a process of its own (its event loop replaces the standard library's sockets):

    plan ----> locust [locustfile or the user's file: user, conductor, load, stream] ----> samples, engine metrics
    samples -> summary -> gate -> report.json, report.html (page, charts), beside Locust's own CSV
"""
