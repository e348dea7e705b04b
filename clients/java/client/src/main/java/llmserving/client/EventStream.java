package llmserving.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.function.Consumer;

/** Reads server-sent events up to {@code [DONE]}. */
final class EventStream<T> implements Flow.Subscriber<String> {
    private final ObjectMapper json;
    private final Class<T> type;
    private final Consumer<T> onPart;
    private final CompletableFuture<byte[]> ended = new CompletableFuture<>();
    private Flow.Subscription subscription;
    private volatile RuntimeException failure;
    private volatile boolean started;
    private volatile boolean done;

    EventStream(ObjectMapper json, Class<T> type, Consumer<T> onPart) {
        this.json = json;
        this.type = type;
        this.onPart = onPart;
    }

    /** Return what takes a body; unlike the JDK's subscriber of lines, it also ends when a line is refused. */
    HttpResponse.BodySubscriber<byte[]> subscribe() {
        HttpResponse.BodySubscriber<Void> lines = HttpResponse.BodySubscribers.fromLineSubscriber(
                this, subscriber -> null, StandardCharsets.UTF_8, null);
        return new HttpResponse.BodySubscriber<>() {
            @Override
            public CompletionStage<byte[]> getBody() {
                return ended;
            }

            @Override
            public void onSubscribe(Flow.Subscription subscription) {
                lines.onSubscribe(subscription);
            }

            @Override
            public void onNext(List<ByteBuffer> item) {
                lines.onNext(item);
            }

            @Override
            public void onError(Throwable error) {
                lines.onError(error);
            }

            @Override
            public void onComplete() {
                lines.onComplete();
            }
        };
    }

    boolean hasStarted() {
        return started;
    }

    /** Throw what went wrong, if anything did. */
    void check() {
        if (failure != null) {
            throw failure;
        }
        if (!done) {
            throw new LlmException.ConnectionFailed("the stream ended before [DONE]", null);
        }
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
        this.subscription = subscription;
        subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(String line) {
        if (failure != null || done || !line.startsWith("data:")) {
            return;
        }
        String data = line.substring("data:".length()).strip();
        if (data.equals("[DONE]")) {
            done = true;
            return;
        }
        try {
            pass(data);
        } catch (RuntimeException error) {
            failure = error;
            subscription.cancel();
            ended.complete(new byte[0]);
        }
    }

    private void pass(String data) {
        try {
            JsonNode node = json.readTree(data);
            if (node.has("error")) {
                throw new LlmException.ServerFailed(200, node.get("error").toString());
            }
            T part = json.treeToValue(node, type);
            Ending.check(part);
            started = true;
            onPart.accept(part);
        } catch (IOException error) {
            throw new LlmException.MalformedAnswer("the stream has an event that is no answer: " + data, error);
        }
    }

    @Override
    public void onError(Throwable error) {
        ended.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        ended.complete(new byte[0]);
    }
}
