package stream;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.ServiceLoader;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;
import llmserving.client.ChatRequest;
import llmserving.client.ChatResponse;
import llmserving.client.LlmClient;
import llmserving.client.LlmException;
import llmserving.client.Message;
import llmserving.client.Metrics;
import llmserving.flink.ChatFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Asks the endpoint, and writes the answer to the cache before it goes to the topic of results. */
final class CallEndpoint extends ChatFunction<Request, Outcome> {
    /** With those that a client may make at once, a hundred events of a task or more make at most a tenth of retries. */
    private static final double RETRY_SHARE = 0.05;

    /** Kafka takes records of 1 MiB with all that belongs to them; a longer one fails the job again and again. */
    private static final int MAX_RECORD_BYTES = 1_000_000;

    private static final Duration WARM_UP = Duration.ofSeconds(5);

    private static final Logger LOG = LoggerFactory.getLogger(CallEndpoint.class);

    private final Settings settings;
    private transient AnswerCache cache;

    /** The call of each shopper's newest event; empty where none overtakes. */
    private transient Map<String, Call> newest;

    /** A call that was sent, and when its event happened. */
    private record Call(long at, CompletableFuture<ChatResponse> answer) {}

    /** An event that is not asked for. */
    private static final class NotAsked extends RuntimeException {
        private static final long serialVersionUID = 1L;

        private final String reason;

        NotAsked(String reason, String message) {
            super(message);
            this.reason = reason;
        }

        static NotAsked overtaken() {
            return new NotAsked("overtaken", "the shopper has a newer event");
        }
    }

    /** Id of the event whose call is next: the client asks for it on this function's thread. */
    private transient String eventId;

    CallEndpoint(Settings settings) {
        super(Duration.ofMillis(settings.endpoint().deadlineMs()));
        this.settings = settings;
    }

    /** Connects to the cache and the endpoint before the first event, whose deadline would pay for it. */
    @Override
    public void open(OpenContext context) {
        newest = new ConcurrentHashMap<>();
        cache = new AnswerCache(settings.cache());
        cache.connect().handle((connection, error) -> null).toCompletableFuture().join();
        super.open(context);
    }

    @Override
    public void close() {
        super.close();
        if (cache != null) {
            cache.close();
        }
    }

    @Override
    protected LlmClient openClient() {
        Settings.Endpoint endpoint = settings.endpoint();
        LlmClient.Builder builder = LlmClient.builder(endpoint.url())
                // Many calls at once, as after a restart, take a busy task longer to connect than the default of a second.
                .connectTimeout(Duration.ofMillis(endpoint.deadlineMs()))
                .retries(endpoint.attempts() - 1, RETRY_SHARE)
                .circuit(Integer.MAX_VALUE, Duration.ZERO) // each event is asked for: Kafka keeps what has to wait
                .requestIds(() -> eventId)
                .metrics(settings.logsRequests() ? new RequestLog() : Metrics.NONE);
        String key = readKey(endpoint.apiKey());
        LlmClient client = (key == null || key.isEmpty() ? builder : builder.apiKey(key)).build();
        client.chatAsync(buildRequest("ready?"), WARM_UP).handle((answer, error) -> null).join();
        return client;
    }

    static String readKey(Settings.ApiKey named) {
        if (named == null) {
            return System.getenv("BLUEPRINT_API_KEY");
        }
        SecretReader reader = ServiceLoader.load(SecretReader.class, SecretReader.class.getClassLoader())
                .findFirst()
                .orElseThrow();
        String text = reader.read(named.secret(), named.region()).strip();
        try {
            return named.field().isEmpty() ? text : Settings.mapper().readTree(text).required(named.field()).asText();
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("the secret " + named.secret() + " is not JSON"); // whose text is secret
        }
    }

    @Override
    protected CompletableFuture<ChatResponse> call(Request request) {
        Event event = request.event;
        Settings.Shed shed = settings.shed();
        long waited = System.currentTimeMillis() - event.receivedAt;
        if (shed != null && waited > shed.afterMs() && !shed.keep().contains(event.type)) {
            throw new NotAsked("shed", "it waited " + waited + " ms; at most " + shed.afterMs());
        }
        return settings.endpoint().overtake() ? overtake(event, request) : super.call(request);
    }

    /** Ends the call of the shopper's older event; an event that comes late is the older one itself. */
    private CompletableFuture<ChatResponse> overtake(Event event, Request request) {
        Call other = newest.get(event.shopper);
        if (other != null && other.at > event.at) {
            throw NotAsked.overtaken();
        }
        Call call = new Call(event.at, super.call(request));
        newest.put(event.shopper, call);
        if (other != null) {
            other.answer.completeExceptionally(NotAsked.overtaken()); // which ends the call as to cancel it does
        }
        call.answer.whenComplete((answer, failure) -> newest.remove(event.shopper, call));
        return call.answer;
    }

    @Override
    protected ChatRequest buildRequest(Request request) {
        request.askedAt = System.currentTimeMillis();
        eventId = request.event.id;
        return buildRequest(request.prompt);
    }

    private ChatRequest buildRequest(String prompt) {
        Settings.Endpoint endpoint = settings.endpoint();
        return ChatRequest.of(endpoint.model(), Message.user(prompt)).with("max_tokens", endpoint.outputTokens());
    }

    @Override
    protected CompletionStage<Outcome> handleAnswer(Request request, ChatResponse response) {
        String answer = response.choices().isEmpty() ? null : response.text();
        return answer == null
                ? CompletableFuture.completedStage(
                        DeadLetter.of(request.event, "bad_answer", "the endpoint's answer has no text"))
                : store(request, answer);
    }

    @Override
    protected Outcome handleFailure(Request request, Throwable failure) {
        String reason = "endpoint";
        if (failure instanceof NotAsked notAsked) {
            reason = notAsked.reason;
        } else if (failure instanceof LlmException.DeadlineExceeded || failure instanceof TimeoutException) {
            reason = "deadline";
        } else if (failure instanceof LlmException.MalformedAnswer) {
            reason = "bad_answer";
        }
        return DeadLetter.of(request.event, reason, failure.getMessage());
    }

    /** Logs each call, without its prompt and its answer. */
    private static final class RequestLog implements Metrics {
        @Override
        public void recordCall(String requestId, String operation, String outcome, Duration latency) {
            LOG.info("request {} {} {} in {} ms", requestId, operation, outcome, latency.toMillis());
        }
    }

    private CompletionStage<Outcome> store(Request request, String answer) {
        Event event = request.event;
        ObjectNode result = Settings.mapper().createObjectNode();
        result.put("id", event.id).put("shopper", event.shopper).put("answer", answer);
        result.put("model", settings.endpoint().model()).put("at", event.at).put("received_at", event.receivedAt);
        result.put("asked_at", request.askedAt).put("answered_at", System.currentTimeMillis());
        if ((event.shopper + result).getBytes(StandardCharsets.UTF_8).length > MAX_RECORD_BYTES) {
            String message = "the answer's record has more than " + MAX_RECORD_BYTES + " bytes";
            return CompletableFuture.completedStage(DeadLetter.of(event, "bad_answer", message));
        }
        return write(event, answer).handle((written, error) -> {
            // The topic has the answer too, so that a cache that is away loses none.
            result.put("cached_at", error == null ? System.currentTimeMillis() : null);
            Outcome outcome = new Outcome();
            outcome.key = event.shopper;
            outcome.json = result.toString();
            return outcome;
        });
    }

    private CompletionStage<Long> write(Event event, String answer) {
        double at = event.at / 1000.0;
        ObjectNode value = Settings.mapper().createObjectNode();
        value.put("answer", answer).put("model", settings.endpoint().model());
        value.put("prompt_version", "").put("batch", "").put("at", at);
        return cache.write(settings.name() + ":stream:" + event.shopper, value.toString(), at);
    }
}
