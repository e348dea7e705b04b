package llmserving.flink;

import java.io.Serializable;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.Supplier;
import llmserving.client.ChatRequest;
import llmserving.client.ChatResponse;
import llmserving.client.LlmClient;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;

/**
 * Calls a model for each element of a stream, with a client for each parallel instance. Use it with
 * {@code AsyncDataStream.unorderedWait}, and a timeout longer than the deadline: the client ends calls and retries
 * them, and a call that fails becomes an element, so that the job goes on.
 *
 * @param <I> elements of the stream
 * @param <O> results
 */
public final class ChatFunction<I, O> extends RichAsyncFunction<I, O> {
    private static final long serialVersionUID = 1L;

    private final Open open;
    private final ToRequest<I> toRequest;
    private final ToResult<I, ChatResponse, O> onAnswer;
    private final ToResult<I, Throwable, O> onFailure;
    private final Duration deadline;
    private transient LlmClient client;

    /** Opens a client on a task manager. */
    public interface Open extends Supplier<LlmClient>, Serializable {}

    /** Builds the request of an element. */
    public interface ToRequest<I> extends Function<I, ChatRequest>, Serializable {}

    /** Builds the result of an element. */
    public interface ToResult<I, A, O> extends BiFunction<I, A, O>, Serializable {}

    /**
     * Call a model with each element.
     *
     * @param open opens the client
     * @param toRequest builds the request of an element
     * @param onAnswer builds the result of an element that was answered
     * @param onFailure builds the result of an element that was not, for a dead-letter topic
     * @param deadline of each call
     */
    public ChatFunction(
            Open open,
            ToRequest<I> toRequest,
            ToResult<I, ChatResponse, O> onAnswer,
            ToResult<I, Throwable, O> onFailure,
            Duration deadline) {
        this.open = open;
        this.toRequest = toRequest;
        this.onAnswer = onAnswer;
        this.onFailure = onFailure;
        this.deadline = deadline;
    }

    @Override
    public void open(Configuration parameters) {
        client = open.get();
    }

    @Override
    public void asyncInvoke(I element, ResultFuture<O> result) {
        CompletableFuture<ChatResponse> answer;
        try {
            answer = client.chatAsync(toRequest.apply(element), deadline);
        } catch (RuntimeException failure) { // of toRequest
            answer = CompletableFuture.failedFuture(failure);
        }
        answer.handle((response, failure) ->
                        failure == null ? onAnswer.apply(element, response) : onFailure.apply(element, failure))
                .whenComplete((value, failure) -> {
                    if (failure == null) {
                        result.complete(List.of(value));
                    } else {
                        result.completeExceptionally(failure);
                    }
                });
    }

    @Override
    public void close() {
        if (client != null) {
            client.close();
        }
    }
}
