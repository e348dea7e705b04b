package llmserving.example;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import llmserving.client.ChatRequest;
import llmserving.client.LlmClient;

/** Answers within a deadline, whatever fails: the model now, else what was computed before, else the default. */
final class Ranker {
    private final LlmClient client;
    private final AnswerCache cache;
    private final String defaultAnswer;
    private final Duration deadline;

    Ranker(LlmClient client, AnswerCache cache, String defaultAnswer, Duration deadline) {
        this.client = client;
        this.cache = cache;
        this.defaultAnswer = defaultAnswer;
        this.deadline = deadline;
    }

    /** Where an answer is from. */
    enum Source {
        LIVE,
        CACHE,
        DEFAULT
    }

    /** An answer. */
    record Ranking(String answer, Source source) {}

    /**
     * Rank for a shopper; the future never fails.
     *
     * <p>The cache is read beside the call, so that an answer of it is there when the call fails at its deadline.
     */
    CompletableFuture<Ranking> rank(String shopper, ChatRequest request) {
        CompletableFuture<Optional<String>> cached = cache.read(shopper)
                .exceptionally(failure -> Optional.empty())
                .completeOnTimeout(Optional.empty(), deadline.toNanos(), TimeUnit.NANOSECONDS);
        return client.chatAsync(request, deadline)
                .thenApply(answer -> new Ranking(Objects.requireNonNull(answer.text()), Source.LIVE))
                .exceptionallyCompose(failure -> cached.thenApply(answer -> answer.map(
                                text -> new Ranking(text, Source.CACHE))
                        .orElse(new Ranking(defaultAnswer, Source.DEFAULT))));
    }
}
