"""What teams cost: the fleet's price by the engines' counters, without a line too many or too few."""

from __future__ import annotations

import http.client
import threading
from typing import Any

import pytest

from llm_serving.kinds.gateway import commands, meter, usage
from llm_serving.kinds.gateway.deployment import Backend
from llm_serving.kinds.gateway.usage import DIRECT, IDLE, Records


def count(team: str, backend: str, input_tokens: int, output_tokens: int, list_usd: float = 9.0) -> dict[str, Any]:
    model = backend.partition("/")[0]
    tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return {"team": team, "model": model, "backend": backend, "requests": 1, "list_usd": list_usd, **tokens}


def read_meter(*tokens: float) -> list[dict[str, Any]]:
    """Return the meter's rows with so many tokens, at 36 USD an hour: 1 USD a step."""
    row = {"deployment": "big", "usd_h": 36.0}
    return [{**row, "at": 100.0 * number, "tokens": {"all": count}} for number, count in enumerate(tokens)]


def test_busy_hours_are_shared_by_tokens_and_the_sum_is_the_fleet_s_price() -> None:
    # 3 USD of busy time for 1,000 tokens, of which teams' requests explain 800; 2 USD of idle time.
    meter = read_meter(0, 0, 500, 600, 1000, 1000)
    requests = [
        count("ads", "chat/big", 100, 100),
        count("search", "chat/big", 100, 300),
        count("search", "small/big#2", 100, 100),
    ]
    rows = usage.build_rows(Records(requests, meter), ("team", "model"))
    assert [(row["team"], row["model"], row["usd"], row["usd_per_million_tokens"]) for row in rows] == [
        ("ads", "chat", 0.6, 3000.0),
        ("search", "chat", 1.2, 3000.0),
        ("search", "small", 0.6, 3000.0),
        (DIRECT, DIRECT, 0.6, None),
        (IDLE, IDLE, 2.0, None),
    ]
    assert sum(row["usd"] for row in rows) == pytest.approx(5.0)
    assert list(rows[0]) == [
        "team", "model", "requests", "input_tokens", "output_tokens", "usd", "usd_per_million_tokens",
        "cached_requests", "similar_requests", "saved_tokens", "masked", "blocked", "hit_rate",
    ]  # fmt: skip


def test_rows_are_grouped_by_what_is_asked() -> None:
    requests = [count("ads", "chat/big", 100, 100), count("search", "small/big#2", 150, 50)]
    rows = usage.build_rows(Records(requests, read_meter(0, 400)), ("deployment",))
    assert [(row["deployment"], row["requests"], row["input_tokens"], row["usd"]) for row in rows] == [
        ("big", 2, 250, 1.0)
    ]


def test_records_that_exceed_the_counters_cost_no_more_than_the_fleet() -> None:
    rows = usage.build_rows(Records([count("ads", "chat/big", 300, 0)], read_meter(0, 200)), ("team",))
    assert [(row["team"], row["usd"]) for row in rows] == [("ads", 1.0), (DIRECT, 0.0), (IDLE, 0.0)]


def test_teams_that_call_the_deployment_s_own_routers_pay_for_their_tokens_too() -> None:
    used = {"requests": 3.0, "input_tokens": 250.0, "output_tokens": 50.0}
    door = [{"deployment": "big", "team": "ranking", "model": "tiny", **used}]
    rows = usage.build_rows(Records([count("ads", "chat/big", 100, 100)], read_meter(0, 1000), door), ("team", "model"))
    assert [(row["team"], row["model"], row["requests"], row["usd"]) for row in rows] == [
        ("ads", "chat", 1, 0.2), ("ranking", "tiny", 3, 0.3), (DIRECT, DIRECT, 0, 0.5), (IDLE, IDLE, 0, 0.0),
    ]  # fmt: skip


def test_the_page_of_a_deployment_s_own_keys_is_read_by_team_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (
        'team_answers_total{team="ads",model="tiny"} 2\nteam_answers_total{team="search",model="a/b"} 1\n'
        'team_input_tokens_total{team="ads",model="tiny"} 30\nteam_output_tokens_total{team="search",model="a/b"} 4\n'
        'team_refused_requests_total{team="",status="401"} 9\n'
    )
    urls = [f"http://127.0.0.{host}:1/metrics" for host in (1, 2, 3, 4)]

    def read_page(url: str) -> str:
        if url in urls[2:]:
            raise OSError if url == urls[2] else http.client.IncompleteRead(b"")
        return page if url == urls[0] else 'team_answers_total{team="ads",model="tiny"} 7\n'

    monkeypatch.setattr(meter, "list_pages", lambda _: urls)
    monkeypatch.setattr(meter, "_read_page", read_page)
    backend = Backend(id="", route="", name="big", usage_url="http://big-router.serving:9092/metrics")
    assert meter.read_use(backend) == {
        (urls[0], "ads", "tiny"): [2.0, 30.0, 0.0],
        (urls[0], "search", "a/b"): [1.0, 0.0, 4.0],
        (urls[1], "ads", "tiny"): [7.0, 0.0, 0.0],
    }, "each router counts by itself, and one that does not answer takes nothing from the others"
    assert meter.read_use(backend.model_copy(update={"usage_url": ""})) is None


def test_engines_that_are_silent_do_not_hold_up_the_meter_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each it waits 10 s; a minute has a row, and warnings of budgets come after it."""
    urls, is_full = [f"http://127.0.0.{host}:1/metrics" for host in range(1, 9)], threading.Barrier(8)

    def time_out(_: str) -> str:
        is_full.wait(5)
        raise TimeoutError

    monkeypatch.setattr(meter, "list_pages", lambda _: urls)
    monkeypatch.setattr(meter, "_read_page", time_out)
    backend = Backend(id="", route="", name="big", metrics_urls=("http://big-engines.serving:8000/metrics",))
    assert meter.read_counters(backend) == {}
    assert not is_full.broken


def test_an_engine_s_counters_are_read_without_the_rest_of_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = 'vllm:in_total{model="a"} 5\nvllm:in_total{model="b"} 6\nvllm:in_total_created{model="a"} 1e9\nother{ 1\n'
    texts = (engine, "<html>in_total 7</html>", "# TYPE other gauge\nother 1\n")
    pages = {f"http://127.0.0.{host}:1/metrics": text for host, text in enumerate(texts, 1)}
    monkeypatch.setattr(meter, "list_pages", lambda url: [url])
    monkeypatch.setattr(meter, "_read_page", pages.__getitem__)
    backend = Backend(
        id="",
        route="",
        name="big",
        metrics_urls=tuple(pages),
        prompt_tokens="vllm:in_total",
        output_tokens="vllm:out_total",
    )
    assert meter.read_counters(backend) == {
        "http://127.0.0.1:1/metrics": (11.0, 0.0),
        "http://127.0.0.3:1/metrics": (0.0, 0.0),
    }, "an engine without requests counts from 0, and what is no engine does not count"


def test_what_has_no_price_an_hour_costs_its_list_price() -> None:
    rows = usage.build_rows(Records([count("ads", "far/llm.example.com", 1000, 1000, 0.004)], []), ("team", "model"))
    assert [(row["model"], row["usd"], row["usd_per_million_tokens"]) for row in rows] == [("far", 0.004, 2.0)]


def test_the_page_has_each_team_and_model_and_its_sum_is_the_bill() -> None:
    requests = [
        count("ads", "chat/big", 100, 100),
        count("search", "chat/big", 100, 300),
        count("search", "small/big#2", 100, 100),
        count("search", "far/llm.example.com", 500, 500, 0.25),
        count("<b>", "chat/big", 0, 0),
    ]
    records = Records(requests, read_meter(0, 0, 500, 600, 1000, 1000))
    assert usage.compute_bill(records) == (5.0, 0.25)
    page = commands.render_page("edge", "last 7d", records)
    for text in (
        "<span>search, chat</span><span>3,000.000</span>", "<span>search, far</span><span>250.000</span>",
        "<span>idle hours</span><span>2.0000</span>", "<span>requests around the gateway</span><span>0.6000</span>",
        "the fleet's price of its deployments 5.0000 USD · list price of what the fleet does not run 0.2500 USD",
        "sum of the rows 5.2500 USD", '<i style="width: 100.0%"></i>', '<i style="width: 8.3%"></i>', "&lt;b&gt;",
    ):  # fmt: skip
        assert text in page, text
    assert "No tokens." in commands.render_page("edge", "last 7d", Records([], read_meter(0, 0)))


def test_requests_that_the_gateway_answers_itself_cost_nothing_and_are_counted() -> None:
    own = {"team": "ads", "user": "anna", "list_usd": 0.0, "input_tokens": 0, "output_tokens": 0}
    requests = [
        count("ads", "chat/big", 100, 100),
        {**own, "model": "chat", "backend": usage.CACHE, "requests": 3, "cached_requests": 3, "similar_requests": 2, "saved_tokens": 36, "masked": 1},
        {**own, "model": usage.REFUSED, "backend": usage.REFUSED, "requests": 0, "blocked": 2},
    ]  # fmt: skip
    records = Records(requests, read_meter(0, 200))
    [refused, answered, _, _] = usage.build_rows(records, ("team", "model"))
    names = ("requests", "usd", "usd_per_million_tokens", *usage.POLICY_NUMBERS, usage.HIT_RATE)
    assert [answered[name] for name in names] == [4, 1.0, 5000.0, 3, 2, 36, 1, 0, 0.75]
    assert refused[usage.HIT_RATE] is None
    page = commands.render_page("edge", "last 7d", records)
    assert "<span>ads</span><span>75% of 4, 36 tokens saved, 2 by similar questions</span>" in page
    uncached = commands.render_page("edge", "last 7d", Records(requests[:1], read_meter(0, 200)))
    assert "Requests that the cache answered" in page and "Requests that the cache answered" not in uncached
    assert (refused["model"], refused["requests"], refused["blocked"], refused["usd"]) == ("(refused)", 0, 2, 0.0)
    assert usage.compute_bill(records) == (1.0, 0.0)
    assert [row["user"] for row in usage.build_rows(records, ("user",))] == ["", "anna", DIRECT, IDLE]
