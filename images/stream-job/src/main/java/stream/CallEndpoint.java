package stream;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;

/** Asks the endpoint, and writes the answer to the cache before it goes to the topic of results. */
final class CallEndpoint extends RichAsyncFunction<Request, Outcome> {
    private static final long BACK_OFF_MS = 50;
    private static final long WARM_UP_MS = 5000;

    private final Settings settings;
    private transient Endpoint endpoint;
    private transient AnswerCache cache;
    private transient RetryBudget budget;

    CallEndpoint(Settings settings) {
        this.settings = settings;
    }

    @Override
    public void open(OpenContext context) {
        endpoint = new HttpEndpoint(settings.endpoint());
        cache = new AnswerCache(settings.cache());
        budget = new RetryBudget();
        warmUp();
    }

    /** Connects to both before the first event, whose deadline would pay for it; one that is away is tried again. */
    private void warmUp() {
        Instant deadline = Instant.now().plusMillis(WARM_UP_MS);
        endpoint.ask("ready?", deadline).handle((answer, error) -> null).join();
        try {
            cache.connect();
        } catch (RuntimeException error) {
            // the first write says so
        }
    }

    @Override
    public void close() {
        if (cache != null) {
            cache.close();
        }
    }

    @Override
    public void asyncInvoke(Request request, ResultFuture<Outcome> future) {
        Instant asked = Instant.now();
        budget.countAttempt();
        ask(request.prompt, asked.plusMillis(settings.endpoint().deadlineMs()), 1)
                .thenCompose(answer -> store(request.event, asked, answer))
                .exceptionally(error -> bury(request.event, error))
                .thenAccept(outcome -> future.complete(List.of(outcome)));
    }

    @Override
    public void timeout(Request request, ResultFuture<Outcome> future) {
        future.complete(List.of(DeadLetter.of(request.event, "deadline", "no answer before the deadline")));
    }

    private CompletableFuture<String> ask(String prompt, Instant deadline, int attempt) {
        return endpoint.ask(prompt, deadline).exceptionallyCompose(error -> {
            Endpoint.Failure failure = findFailure(error);
            boolean mayRetry = failure.mayRetry && attempt < settings.endpoint().attempts();
            if (!mayRetry || !budget.takeRetry()) {
                return CompletableFuture.failedFuture(failure);
            }
            long wait = (long) (BACK_OFF_MS * (1 << (attempt - 1)) * (0.5 + ThreadLocalRandom.current().nextDouble()));
            return CompletableFuture.supplyAsync(
                            () -> null, CompletableFuture.delayedExecutor(wait, TimeUnit.MILLISECONDS))
                    .thenCompose(ignored -> ask(prompt, deadline, attempt + 1));
        });
    }

    private CompletableFuture<Outcome> store(Event event, Instant asked, String answer) {
        long answeredAt = System.currentTimeMillis();
        ObjectNode result = Settings.mapper().createObjectNode();
        result.put("id", event.id).put("shopper", event.shopper).put("answer", answer);
        result.put("model", settings.endpoint().model()).put("at", event.at).put("received_at", event.receivedAt);
        result.put("asked_at", asked.toEpochMilli()).put("answered_at", answeredAt);
        return write(event, answer).handle((written, error) -> {
            // The topic has the answer too, so that a cache that is away loses none.
            result.put("cached_at", error == null ? System.currentTimeMillis() : null);
            Outcome outcome = new Outcome();
            outcome.key = event.shopper;
            outcome.json = result.toString();
            return outcome;
        });
    }

    private CompletableFuture<Long> write(Event event, String answer) {
        double at = event.at / 1000.0;
        ObjectNode value = Settings.mapper().createObjectNode();
        value.put("answer", answer).put("model", settings.endpoint().model());
        value.put("prompt_version", "").put("batch", "").put("at", at);
        try {
            String key = settings.name() + ":stream:" + event.shopper;
            return cache.write(key, value.toString(), at).toCompletableFuture();
        } catch (RuntimeException error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    private static Outcome bury(Event event, Throwable error) {
        Endpoint.Failure failure = findFailure(error);
        return DeadLetter.of(event, failure.reason, failure.getMessage());
    }

    private static Endpoint.Failure findFailure(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        return cause instanceof Endpoint.Failure failure
                ? failure
                : new Endpoint.Failure("endpoint", String.valueOf(cause), false);
    }
}
