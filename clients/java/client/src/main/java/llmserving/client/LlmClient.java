package llmserving.client;

import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;

/**
 * Calls servers with the API of OpenAI, each call within a deadline.
 *
 * <p>One client serves all threads. It has three threads of its own, however many calls are in flight; what depends on a
 * future runs on them unless it is added with an {@code Async} method. Canceling a future cancels the call.
 */
public final class LlmClient implements AutoCloseable {
    private static final String CHAT = "/v1/chat/completions";
    private static final String COMPLETIONS = "/v1/completions";
    private static final String EMBEDDINGS = "/v1/embeddings";

    /** What the fleet's routers keep of an id; they give a request with any other a new one. */
    private static final Pattern NOT_IN_ID = Pattern.compile("[^A-Za-z0-9._:/+=-]");

    private static final int MAX_ID = 128;

    private final ObjectMapper json = new ObjectMapper()
            .setSerializationInclusion(JsonInclude.Include.NON_NULL)
            .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);
    private final Map<String, LatencyPercentile> percentiles = new ConcurrentHashMap<>();
    private final Duration deadline;
    private final double hedgePercentile;
    private final Supplier<String> requestIds;
    private final ExecutorService executor;
    private final Call.Shared shared;

    private LlmClient(Builder builder) {
        deadline = builder.deadline;
        hedgePercentile = builder.hedgePercentile;
        requestIds = builder.requestIds;
        executor = Executors.newSingleThreadExecutor(startThreads("llm-client"));
        // Not that thread: java.net.http looks names up on it, and a DNS that does not answer must hold no deadline up.
        ScheduledThreadPoolExecutor timers = new ScheduledThreadPoolExecutor(1, startThreads("llm-client-timer"));
        timers.setRemoveOnCancelPolicy(true);
        HttpClient.Builder http = HttpClient.newBuilder()
                // All calls would share one connection of HTTP/2: java.net.http fails those beyond what the server takes
                // on it, 128 at an ALB, and keeps it for all further calls where it has silently broken.
                .version(HttpClient.Version.HTTP_1_1)
                .executor(executor)
                .connectTimeout(builder.connectTimeout);
        if (builder.sslContext != null) {
            http.sslContext(builder.sslContext);
        }
        List<Endpoint> endpoints = builder.urls.stream()
                .map(url -> new Endpoint(
                        url, new CircuitBreaker(builder.circuitFailures, builder.circuitPeriod.toNanos())))
                .toList();
        shared = new Call.Shared(
                http.build(),
                executor,
                timers,
                new Endpoints(endpoints),
                Map.copyOf(builder.headers),
                builder.maxRetries,
                new TokenBucket(builder.retryShare),
                new TokenBucket(builder.hedgeShare),
                builder.metrics,
                ConcurrentHashMap.newKeySet());
    }

    /** Return a builder of a client for these base URLs, such as {@code http://ranker.internal:8000}. */
    public static Builder builder(String... urls) {
        return new Builder(List.of(urls));
    }

    /** Answer a chat; see {@link #chatAsync}. */
    public ChatResponse chat(ChatRequest request, Duration deadline) {
        return await(chatAsync(request, deadline));
    }

    /** Answer a chat within the client's deadline. */
    public ChatResponse chat(ChatRequest request) {
        return chat(request, deadline);
    }

    /** Answer a chat; the future fails with an {@link LlmException}. */
    public CompletableFuture<ChatResponse> chatAsync(ChatRequest request, Duration deadline) {
        return call(CHAT, request, ChatResponse.class, deadline);
    }

    /**
     * Stream the answer of a chat. A failed stream is retried until its first part arrives, and never hedged.
     *
     * @param onPart takes each part, on the client's thread: it must not block
     */
    public CompletableFuture<Void> chatStream(ChatRequest request, Duration deadline, Consumer<ChatChunk> onPart) {
        return stream(CHAT, request.with("stream", true), ChatChunk.class, deadline, onPart);
    }

    /** Complete a text; see {@link #completeAsync}. */
    public CompletionResponse complete(CompletionRequest request, Duration deadline) {
        return await(completeAsync(request, deadline));
    }

    /** Complete a text; the future fails with an {@link LlmException}. */
    public CompletableFuture<CompletionResponse> completeAsync(CompletionRequest request, Duration deadline) {
        return call(COMPLETIONS, request, CompletionResponse.class, deadline);
    }

    /** Stream the completion of a text, as {@link #chatStream} does. */
    public CompletableFuture<Void> completeStream(
            CompletionRequest request, Duration deadline, Consumer<CompletionResponse> onPart) {
        return stream(COMPLETIONS, request.with("stream", true), CompletionResponse.class, deadline, onPart);
    }

    /** Embed texts; see {@link #embedAsync}. */
    public EmbeddingResponse embed(EmbeddingRequest request, Duration deadline) {
        return await(embedAsync(request, deadline));
    }

    /** Embed texts; the future fails with an {@link LlmException}. */
    public CompletableFuture<EmbeddingResponse> embedAsync(EmbeddingRequest request, Duration deadline) {
        return call(EMBEDDINGS, request, EmbeddingResponse.class, deadline);
    }

    /** Cancel the calls in flight, and stop the client's thread. */
    @Override
    public void close() {
        List.copyOf(shared.open()).forEach(call -> call.cancel(true));
        shared.timers().shutdown();
        executor.shutdown();
    }

    private static ThreadFactory startThreads(String name) {
        return task -> {
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    private <T> CompletableFuture<T> call(String path, Object request, Class<T> type, Duration deadline) {
        LatencyPercentile percentile =
                percentiles.computeIfAbsent(path, key -> new LatencyPercentile(hedgePercentile));
        Supplier<Answers<T>> answers = () -> new Whole<>(json, type);
        return new Call<>(shared, buildId(), path, write(request), deadline, answers, percentile).start();
    }

    private <T> CompletableFuture<Void> stream(
            String path, Object request, Class<T> type, Duration deadline, Consumer<T> onPart) {
        Supplier<Answers<Void>> answers = () -> new Parts<>(new EventStream<>(json, type, onPart));
        return new Call<>(shared, buildId(), path, write(request), deadline, answers, null).start();
    }

    private String buildId() {
        String id = requestIds.get();
        if (id == null || id.isEmpty()) {
            return UUID.randomUUID().toString();
        }
        return NOT_IN_ID.matcher(id.substring(0, Math.min(MAX_ID, id.length()))).replaceAll("_");
    }

    private byte[] write(Object request) {
        try {
            return json.writeValueAsBytes(request);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("the request is no JSON: " + error.getOriginalMessage(), error);
        }
    }

    private static <T> T await(CompletableFuture<T> future) {
        try {
            return future.get();
        } catch (InterruptedException error) {
            future.cancel(true);
            Thread.currentThread().interrupt();
            throw new CancellationException("interrupted");
        } catch (ExecutionException error) {
            if (error.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw new IllegalStateException(error.getCause());
        }
    }

    private record Whole<T>(ObjectMapper json, Class<T> type) implements Answers<T> {
        @Override
        public HttpResponse.BodySubscriber<byte[]> apply(HttpResponse.ResponseInfo info) {
            return HttpResponse.BodySubscribers.ofByteArray();
        }

        @Override
        public T read(byte[] body) {
            try {
                T answer = json.readValue(body, type);
                if (answer == null) {
                    throw new LlmException.MalformedAnswer("the body is no answer: null", null);
                }
                Ending.check(answer);
                return answer;
            } catch (IOException error) {
                throw new LlmException.MalformedAnswer("the body is no answer: " + error.getMessage(), error);
            }
        }
    }

    private record Parts<T>(EventStream<T> events) implements Answers<Void> {
        @Override
        public HttpResponse.BodySubscriber<byte[]> apply(HttpResponse.ResponseInfo info) {
            return info.statusCode() == 200 ? events.subscribe() : HttpResponse.BodySubscribers.ofByteArray();
        }

        @Override
        public Void read(byte[] body) {
            events.check();
            return null;
        }

        @Override
        public boolean hasStarted() {
            return events.hasStarted();
        }
    }

    /** Sets up a client. */
    public static final class Builder {
        private final List<String> urls;
        private final Map<String, String> headers = new LinkedHashMap<>();
        private Duration deadline = Duration.ofSeconds(30);
        private Duration connectTimeout = Duration.ofSeconds(1);
        private Duration circuitPeriod = Duration.ofSeconds(1);
        private int circuitFailures = 5;
        private int maxRetries = 2;
        private double retryShare = 0.05;
        private double hedgeShare = 0;
        private double hedgePercentile = 0.95;
        private Metrics metrics = Metrics.NONE;
        private Supplier<String> requestIds = () -> null;
        private SSLContext sslContext;

        private Builder(List<String> urls) {
            if (urls.isEmpty()) {
                throw new IllegalArgumentException("urls: there is none. Fix: add the base URL of an endpoint.");
            }
            this.urls = urls;
        }

        /** Send an API key. */
        public Builder apiKey(String key) {
            headers.put("Authorization", "Bearer " + key);
            return this;
        }

        /** Set the deadline of calls without one of their own; 30 seconds by default. */
        public Builder deadline(Duration deadline) {
            this.deadline = deadline;
            return this;
        }

        /** Set how long a connection may take to open; a second by default. */
        public Builder connectTimeout(Duration timeout) {
            connectTimeout = timeout;
            return this;
        }

        /** Retry a call this often, and all calls together at most this share; 2 and 0.05 by default. */
        public Builder retries(int maxRetries, double share) {
            this.maxRetries = maxRetries;
            retryShare = share;
            return this;
        }

        /**
         * Send a second request once a call takes longer than most; off by default.
         *
         * @param percentile of the latest latencies, such as 0.95
         * @param share of calls that may have a second request, such as 0.05
         */
        public Builder hedging(double percentile, double share) {
            if (!(percentile >= 0 && percentile <= 1)) {
                throw new IllegalArgumentException(
                        "percentile: " + percentile + ": it is no share. Fix: write 0 to 1, such as 0.95.");
            }
            hedgePercentile = percentile;
            hedgeShare = share;
            return this;
        }

        /** Open a circuit after failures in a row, and try again once in a period; 5 and a second by default. */
        public Builder circuit(int failures, Duration period) {
            circuitFailures = failures;
            circuitPeriod = period;
            return this;
        }

        /** Report what is measured. */
        public Builder metrics(Metrics metrics) {
            this.metrics = metrics;
            return this;
        }

        /**
         * Name each call, on the thread that makes it, such as by {@code () -> MDC.get("request_id")}. The name is the
         * header {@code X-Request-Id}, by which logs of routers and engines tell of the call; characters that would not
         * do there become {@code _}. A call has a random one by default, and where the name is null or empty.
         */
        public Builder requestIds(Supplier<String> ids) {
            requestIds = ids;
            return this;
        }

        /** Trust other certificates than Java does. */
        public Builder sslContext(SSLContext context) {
            sslContext = context;
            return this;
        }

        /** Return the client. */
        public LlmClient build() {
            return new LlmClient(this);
        }
    }
}
