package llmserving.client;

import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import javax.net.ssl.SSLException;

/** One call: its first request, retries, hedge and deadline. */
final class Call<T> {
    static final String DEADLINE_HEADER = "X-Request-Timeout-Ms";
    static final String ID_HEADER = "X-Request-Id";
    private static final long FIRST_BACKOFF_NANOS = TimeUnit.MILLISECONDS.toNanos(20);
    private static final int MAX_MESSAGE = 500;

    /** What all calls of a client share. */
    record Shared(
            HttpClient http,
            Executor executor,
            ScheduledExecutorService timers,
            Endpoints endpoints,
            Map<String, String> headers,
            int maxRetries,
            TokenBucket retries,
            TokenBucket hedges,
            Metrics metrics,
            Set<CompletableFuture<?>> open) {}

    private final Shared shared;
    private final String id;
    private final String path;
    private final byte[] body;
    private final Duration deadline;
    private final Supplier<Answers<T>> answers;
    private final LatencyPercentile percentile;
    private final long startedAt = System.nanoTime();
    private final CompletableFuture<T> result = new CompletableFuture<>();
    private final Set<Endpoint> tried = new HashSet<>();
    private final Map<CompletableFuture<?>, Endpoint> inFlight = new HashMap<>();
    private final Set<ScheduledFuture<?>> timers = new HashSet<>();
    private int retriesMade;
    private boolean ended;

    /** Make a call; without a percentile, it is not hedged. */
    Call(
            Shared shared,
            String id,
            String path,
            byte[] body,
            Duration deadline,
            Supplier<Answers<T>> answers,
            LatencyPercentile percentile) {
        this.shared = shared;
        this.id = id;
        this.path = path;
        this.body = body;
        this.deadline = deadline;
        this.answers = answers;
        this.percentile = percentile;
    }

    CompletableFuture<T> start() {
        shared.retries().countCall();
        shared.hedges().countCall();
        shared.open().add(result);
        result.whenComplete((answer, error) -> end(error)); // the user may cancel it
        schedule(this::passDeadline, deadline.toNanos());
        send("first");
        if (percentile != null) {
            percentile.get().ifPresent(nanos -> schedule(this::hedge, nanos));
        }
        return result;
    }

    private synchronized void schedule(Runnable task, long nanos) {
        if (!ended) {
            timers.add(shared.timers().schedule(task, nanos, TimeUnit.NANOSECONDS));
        }
    }

    private synchronized void hedge() {
        if (!ended && inFlight.size() == 1 && shared.hedges().take()) {
            send("hedge");
        }
    }

    private synchronized void passDeadline() {
        inFlight.values().forEach(this::recordFailure);
        conclude(null, new LlmException.DeadlineExceeded(deadline));
    }

    private synchronized void send(String reason) {
        long left = deadline.toNanos() - (System.nanoTime() - startedAt);
        if (ended || left <= 0) {
            return; // the deadline's timer ends the call
        }
        Endpoint endpoint = shared.endpoints().choose(tried);
        if (endpoint == null) {
            if (inFlight.isEmpty()) {
                conclude(null, new LlmException.CircuitOpen());
            }
            return;
        }
        tried.add(endpoint);
        endpoint.inFlight.incrementAndGet();
        shared.metrics().recordRequest(endpoint.url, reason);
        Answers<T> answer = answers.get();
        CompletableFuture<HttpResponse<byte[]>> future =
                shared.http().sendAsync(buildRequest(endpoint, left), answer);
        inFlight.put(future, endpoint);
        // On the client's thread: java.net.http ends a request on a thread that is not its executor's.
        future.whenCompleteAsync(
                (response, error) -> receive(future, endpoint, answer, response, error), shared.executor());
    }

    private HttpRequest buildRequest(Endpoint endpoint, long leftNanos) {
        HttpRequest.Builder request = HttpRequest.newBuilder(endpoint.resolve(path))
                .header("Content-Type", "application/json")
                .header(ID_HEADER, id)
                .header(DEADLINE_HEADER, Long.toString(Math.max(1, TimeUnit.NANOSECONDS.toMillis(leftNanos))));
        shared.headers().forEach(request::header);
        return request.POST(HttpRequest.BodyPublishers.ofByteArray(body)).build();
    }

    private void receive(
            CompletableFuture<?> future,
            Endpoint endpoint,
            Answers<T> answer,
            HttpResponse<byte[]> response,
            Throwable error) {
        endpoint.inFlight.decrementAndGet();
        synchronized (this) {
            inFlight.remove(future);
            if (ended) {
                return;
            }
        }
        T value;
        try {
            value = read(answer, response, error);
        } catch (LlmException failure) {
            fail(endpoint, answer, failure);
            return;
        } catch (RuntimeException failure) { // of the user's own code, or of a request that cannot be sent
            conclude(null, failure);
            return;
        }
        endpoint.breaker.recordSuccess();
        conclude(value, null);
    }

    private T read(Answers<T> answer, HttpResponse<byte[]> response, Throwable error) {
        if (error != null) {
            throw explain(error instanceof CompletionException ? error.getCause() : error);
        }
        int status = response.statusCode();
        if (status == 200) {
            return answer.read(response.body());
        }
        String text = new String(response.body(), StandardCharsets.UTF_8);
        String message = status + ": " + text.substring(0, Math.min(MAX_MESSAGE, text.length()));
        if (status == 429) {
            throw new LlmException.Overloaded(message, parseRetryAfter(response));
        }
        if (status >= 500) {
            throw new LlmException.ServerFailed(status, message, parseRetryAfter(response));
        }
        throw new LlmException.InvalidRequest(status, message);
    }

    private static RuntimeException explain(Throwable error) {
        if (error instanceof SSLException) {
            return new LlmException.TlsFailed(String.valueOf(error.getMessage()), error);
        }
        if (error instanceof java.io.IOException) {
            return new LlmException.ConnectionFailed(error.getClass().getSimpleName() + ": " + error.getMessage(), error);
        }
        return error instanceof RuntimeException unchecked ? unchecked : new IllegalStateException(error);
    }

    private static Duration parseRetryAfter(HttpResponse<?> response) {
        try {
            return response.headers()
                    .firstValue("Retry-After")
                    .map(seconds -> Duration.ofMillis((long) (1000 * Double.parseDouble(seconds))))
                    .orElse(null);
        } catch (NumberFormatException error) {
            return null; // a date: servers of models send seconds
        }
    }

    private synchronized void fail(Endpoint endpoint, Answers<T> answer, LlmException failure) {
        if (failure.isEndpointAtFault()) {
            recordFailure(endpoint);
        } else {
            endpoint.breaker.recordSuccess(); // it answered
        }
        if (!failure.isRetryable() || answer.hasStarted()) {
            conclude(null, failure);
        } else if (inFlight.isEmpty()) { // else the other request may still succeed
            retry(failure);
        }
    }

    private void retry(LlmException failure) {
        long wait = computeWait(failure);
        long left = deadline.toNanos() - (System.nanoTime() - startedAt);
        if (retriesMade >= shared.maxRetries() || wait >= left || !shared.retries().take()) {
            conclude(null, failure);
            return;
        }
        retriesMade++;
        schedule(() -> send("retry"), wait);
    }

    private long computeWait(LlmException failure) {
        if (failure.retryAfter().isPresent() && !shared.endpoints().hasFresh(tried)) {
            return TimeUnit.NANOSECONDS.convert(failure.retryAfter().get()); // any time, as Duration.toNanos does not
        }
        long backoff = FIRST_BACKOFF_NANOS << Math.min(retriesMade, 10);
        return ThreadLocalRandom.current().nextLong(backoff / 2, backoff);
    }

    private void recordFailure(Endpoint endpoint) {
        if (endpoint.breaker.recordFailure(System.nanoTime())) {
            shared.metrics().recordOpenCircuit(endpoint.url);
        }
    }

    private void conclude(T answer, Throwable error) {
        try {
            if (!end(error)) {
                return;
            }
        } catch (RuntimeException failure) { // of the user's metrics
            result.completeExceptionally(failure);
        }
        if (error == null) {
            result.complete(answer);
        } else {
            result.completeExceptionally(error);
        }
    }

    /** Stop what is left of the call and report it; return false if that was done before. */
    private boolean end(Throwable error) {
        long latency = System.nanoTime() - startedAt;
        Set<CompletableFuture<?>> left;
        synchronized (this) {
            if (ended) {
                return false;
            }
            ended = true;
            shared.open().remove(result);
            timers.forEach(timer -> timer.cancel(false));
            left = Set.copyOf(inFlight.keySet());
        }
        left.forEach(future -> future.cancel(true));
        if (error == null && percentile != null) {
            percentile.record(latency);
        }
        shared.metrics().recordCall(id, path, nameOutcome(error), Duration.ofNanos(latency));
        return true;
    }

    private static String nameOutcome(Throwable error) {
        if (error == null) {
            return "ok";
        }
        return error instanceof LlmException ? error.getClass().getSimpleName() : "canceled";
    }
}
