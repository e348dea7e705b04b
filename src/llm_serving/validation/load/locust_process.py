"""One process of the load: Locust as a library, with its share of the plan.

    python -m llm_serving.validation.load.locust_process --plan PLAN --shard 0 --user FILE

Locust's own command line would also read locust.conf, ~/.locust.conf, pyproject.toml and LOCUST_* variables, and any of
them could change the load; its library reads none of these.
"""

# ruff: noqa: E402 - what Locust imports is changed first

from __future__ import annotations

import argparse
import gc
import sys
import types
from pathlib import Path

import gevent.events

# A start takes 0.6 CPU-seconds, not 0.9: gevent looks for plugins through all installed packages 25 times, and Locust
# imports a web server that nothing starts here. What is imported stays, so that Python finds no garbage among it.
gc.set_threshold(100_000)
gevent.events.notify_and_call_entry_points = gevent.events.notify
web = sys.modules["locust.web"] = types.ModuleType("locust.web")
vars(web)["WebUI"] = None

import locust  # first: it patches the standard library for gevent
from locust import stats
from locust.env import Environment
from locust.log import setup_logging
from locust.util.load_locustfile import load_locustfile

del sys.modules["locust.web"]  # for a user's own file that asks for it

from llm_serving import processes
from llm_serving.validation.load import driver, driver_result, load_plan
from llm_serving.validation.load.load import Load
from llm_serving.validation.load.load_plan import LoadPlan, Shard
from llm_serving.validation.user import OpenAIUser


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plan", type=Path, required=True, help="plan.json, written by `blueprint validate`")
    parser.add_argument("--shard", type=int, default=0, help="number of this process, from 0")
    parser.add_argument("--user", type=Path, required=True, help="Python file with the Locust user")
    args = parser.parse_args()
    setup_logging("INFO")
    processes.allow_many_files()  # each stream is one
    plan = LoadPlan.model_validate_json(args.plan.read_text(encoding="utf-8"))
    run(plan, Shard(args.shard, plan.processes), args.user)


def run(plan: LoadPlan, shard: Shard, user_file: Path) -> None:
    user_classes, _ = load_locustfile(str(user_file.resolve()))
    if not user_classes or not all(issubclass(user_class, OpenAIUser) for user_class in user_classes.values()):
        raise SystemExit(
            f"{user_file}: no Locust user, or another one. Fix: define a subclass of "
            "llm_serving.validation.user.OpenAIUser, and no other."
        )
    environment = Environment(user_classes=list(user_classes.values()), events=locust.events)
    environment.load = Load(plan, shard)
    runner = environment.create_local_runner()
    locust.events.init.fire(environment=environment, runner=runner, web_ui=None)
    csv_prefix = plan.locate(driver_result.CSV_PREFIX, shard.index)
    writer = stats.StatsCSVFileWriter(environment, stats.PERCENTILES_TO_REPORT, str(csv_prefix))
    gevent.spawn(stats.stats_history, runner)
    gevent.spawn(writer.stats_writer)
    user_count = load_plan.count_users(plan.traffic, plan.trace, shard)
    runner.start(user_count, spawn_rate=user_count)
    driver.drive(environment)
    runner.quit()
    writer.close_files()
    stats.print_stats(runner.stats, current=False)


if __name__ == "__main__":
    main()
