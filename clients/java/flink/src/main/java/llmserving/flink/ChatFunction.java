package llmserving.flink;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeoutException;
import llmserving.client.ChatRequest;
import llmserving.client.ChatResponse;
import llmserving.client.LlmClient;
import org.apache.flink.api.common.functions.OpenContext;
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
public abstract class ChatFunction<I, O> extends RichAsyncFunction<I, O> {
    private static final long serialVersionUID = 1L;

    private final Duration deadline;
    private transient LlmClient client;

    /** Call a model with each element, and end each call by a deadline. */
    protected ChatFunction(Duration deadline) {
        this.deadline = deadline;
    }

    /** Open a client on a task manager. */
    protected abstract LlmClient openClient();

    /** Build the request of an element. */
    protected abstract ChatRequest buildRequest(I element);

    /** Build the result of an element that was answered, on the client's thread: it must not block. */
    protected abstract CompletionStage<O> handleAnswer(I element, ChatResponse answer);

    /** Build the result of an element that has no answer, or none that was handled, such as one for a dead-letter topic. */
    protected abstract O handleFailure(I element, Throwable failure);

    /** Call the model with an element. To cancel the future ends the call, and {@code handleFailure} gets that. */
    protected CompletableFuture<ChatResponse> call(I element) {
        return client.chatAsync(buildRequest(element), deadline);
    }

    @Override
    public void open(OpenContext context) {
        client = openClient();
    }

    @Override
    public void asyncInvoke(I element, ResultFuture<O> result) {
        CompletableFuture<ChatResponse> answer;
        try {
            answer = call(element);
        } catch (RuntimeException failure) { // of call
            answer = CompletableFuture.failedFuture(failure);
        }
        answer.thenCompose(response -> handleAnswer(element, response))
                .exceptionally(failure -> handleFailure(
                        element, failure instanceof CompletionException ? failure.getCause() : failure))
                .whenComplete((value, failure) -> {
                    if (failure == null) {
                        result.complete(List.of(value));
                    } else {
                        result.completeExceptionally(failure);
                    }
                });
    }

    @Override
    public void timeout(I element, ResultFuture<O> result) {
        result.complete(List.of(handleFailure(element, new TimeoutException("no result before Flink's timeout"))));
    }

    @Override
    public void close() {
        if (client != null) {
            client.close();
        }
    }
}
