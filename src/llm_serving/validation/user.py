"""The Locust user of an OpenAI-compatible server, and the base class of your own.

Pass a file with a subclass to `blueprint validate DIR --user FILE.py`. It decides what is sent and what counts as
answered; timing stays the same:

    import json
    from llm_serving.validation.user import OpenAIUser

    class AsksForJson(OpenAIUser):
        "Count an answer that is not JSON as failed, as `not_json`."

        def body(self, prompt):
            return {**super().body(prompt), "response_format": {"type": "json_object"}}

        def check(self, prompt, answer):
            try:
                json.loads(answer.text)
            except ValueError:
                return "not_json"

Locust's own features work: `weight` of several classes, `wait_time` between a user's requests in the closed loop,
`on_start`, listeners of `locust.events`. Locust's statistics have three entries for each answered request: POST (end to
end), TTFT, and ITL (mean).
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import gevent
from locust import User, constant, task

from llm_serving.validation.load import answer as answers
from llm_serving.validation.load import api_key, load_plan, pooled_answer
from llm_serving.validation.load.answer import Answer, Sample
from llm_serving.validation.load.load import SHOWN_ANSWERS, Item, Load
from llm_serving.validation.load.load_plan import LoadPlan
from llm_serving.validation.load.prompt import Prompt
from llm_serving.validation.load.stream import Connection, HttpError


class OpenAIUser(User):  # type: ignore[misc]
    """One client: sends the load's next request and times the answer."""

    abstract = True
    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.load: Load = environment.load
        self.plan: LoadPlan = self.load.plan
        self.connection = Connection(self.plan.url, self.headers())

    def headers(self) -> dict[str, str]:
        """Return the headers of every request, with the API key from BLUEPRINT_API_KEY."""
        return api_key.build_headers(self.plan.url)

    def path(self) -> str:
        return self.plan.path

    def body(self, prompt: Prompt) -> dict[str, Any]:
        model = prompt.model or self.plan.models[0]
        pooled = self.plan.pooled
        if pooled:
            drawn = self.plan.traffic.draw.build_fields() if self.plan.traffic.draw else {}
            return {"model": model, **pooled.build(prompt.texts), **drawn, **prompt.fields}
        return prompt.build_body(model, self.plan.traffic.api, engine_dialect=self.load.engine_dialect)

    def check(self, prompt: Prompt, answer: Answer) -> str | None:  # noqa: ARG002
        """Return None for a good answer, or a name of its error; the report counts failures by this name."""
        return None

    @task  # type: ignore[untyped-decorator]
    def play_item(self) -> None:
        """Send one item of the load, and the other turns of its session."""
        idle_since = time.perf_counter()
        next_item = self.load.take()
        try:
            # Before the first request too: users who all came at once would measure that one moment.
            is_due = not next_item.counted or self.plan.traffic.is_open_loop or self.load.pause()
            item = next_item if is_due else None
            while item:
                item = self._play_turn(item, idle_since)
                idle_since = time.perf_counter()
        finally:
            self.load.release()

    def _play_turn(self, item: Item, idle_since: float) -> Item | None:
        model = item.prompt.model or self.plan.models[0]
        sample, text = Sample(item.number, 0.0, turn=item.turn, model=model), ""
        try:
            text = self._play(item, sample, idle_since)
        except Exception as error:  # noqa: BLE001  without an error, it would count as answered
            sample.error, sample.detail = answers.CLIENT, f"{type(error).__name__}: {error}"
        finally:
            self.load.finish(item, sample)
        if item.counted:
            self._report_to_locust(sample)
        return self.load.continue_session(item, sample, text)

    def _play(self, item: Item, sample: Sample, idle_since: float) -> str:
        """Send an item, and describe what came in its sample; return the answer's text."""
        sent_at = time.perf_counter()
        start = sent_at if item.due is None else item.due
        ready_at = max(start, idle_since)
        sample.start_s = start - self.load.start_time
        sample.waited_ms, sample.late_ms = (ready_at - start) * 1000, (sent_at - ready_at) * 1000
        sample.asked_input = item.prompt.asked_input
        sample.asked_output = item.prompt.max_tokens if item.prompt.exact else None
        chunks: list[tuple[float, bytes]] = []
        self._send(item, sample, start, chunks)
        pooled = self.plan.pooled
        sample.inputs = load_plan.count_inputs(self.plan.traffic, self.plan.task, len(item.prompt.texts))
        answer = pooled_answer.parse(chunks, pooled, sample.inputs) if pooled else answers.parse_stream(chunks)
        sample.unread_ms = self.connection.unread_s * 1000
        sample.input_tokens = answer.input_tokens
        sample.output_tokens = None if pooled else answer.output_tokens or sum(answer.counts)
        sample.gaps = answer.compute_gaps()
        if answer.times:
            sample.ttft_ms = (answer.times[0] - start) * 1000
        if answer.output_time is not None:
            sample.ttfo_ms = (answer.output_time - start) * 1000
        if sample.error == answers.TRUNCATED and (answer.done or answer.failure):
            sample.error, sample.detail = None, ""  # the connection broke after the answer was complete
        if sample.error is None:
            answers.set_error(sample, answer, has_tokens=pooled is None)
        if sample.error is None:
            sample.e2e_ms = (chunks[-1][0] - start) * 1000
            self._run_check(item, sample, answer)
        if sample.e2e_ms is None:
            sample.failed_ms = (time.perf_counter() - start) * 1000
        if item.prompt.expected is not None or item.number < SHOWN_ANSWERS or sample.error:
            sample.prompt, sample.text, sample.expected = item.prompt.text, answer.text, item.prompt.expected
        if item.number < SHOWN_ANSWERS:
            sample.picture = answer.picture
        return answer.text

    def _send(self, item: Item, sample: Sample, start: float, chunks: list[tuple[float, bytes]]) -> None:
        deadline = self.plan.traffic.deadline
        step = answers.CLIENT
        try:
            with gevent.Timeout(max(0.001, start + deadline - time.perf_counter())):
                fields = self.body(item.prompt)
                sample.model = str(fields.get("model", sample.model))
                body = json.dumps(fields).encode()
                step = answers.CONNECT
                self.connection.connect()
                step = answers.TRUNCATED
                for chunk in self.connection.post(self.path(), body):
                    chunks.append(chunk)
        except gevent.Timeout:
            sample.error, sample.detail = answers.DEADLINE, f"incomplete after {deadline:g} s"
        except HttpError as error:
            sample.error, sample.detail = f"http_{error.status}", str(error)
        except (OSError, http.client.HTTPException) as error:
            sample.error, sample.detail = step, f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  a user's class may raise anything
            sample.error, sample.detail = answers.CLIENT, f"{type(error).__name__}: {error}"
        if sample.error:
            # Disconnect, so that the server stops generating.
            self.connection.close()

    def _run_check(self, item: Item, sample: Sample, answer: Answer) -> None:
        try:
            error = self.check(item.prompt, answer) or None
            if not isinstance(error, str | None):
                raise TypeError(f"check returned {error!r}, not the name of an error")
            sample.error = error
        except Exception as error:  # noqa: BLE001  a user's class may raise anything
            sample.error, sample.detail = answers.CLIENT, f"{type(error).__name__}: {error}"

    def _report_to_locust(self, sample: Sample) -> None:
        fire = self.environment.events.request.fire
        entry = {"name": self.path(), "context": {}, "response_length": len(sample.text)}
        if sample.error:
            elapsed_ms = (time.perf_counter() - self.load.start_time - sample.start_s) * 1000
            fire(request_type="POST", response_time=elapsed_ms, exception=RuntimeError(sample.error), **entry)
            return
        fire(request_type="POST", response_time=sample.e2e_ms, exception=None, **entry)
        if sample.ttft_ms is not None:
            fire(request_type="TTFT", response_time=sample.ttft_ms, exception=None, **entry)
        if (mean := sample.compute_mean_gap_ms()) is not None:
            fire(request_type="ITL", response_time=mean, exception=None, **entry)
