package stream;

import java.time.Instant;
import java.util.concurrent.CompletableFuture;

/** What answers prompts. */
interface Endpoint {
    /** Asks for an answer by a deadline; fails with a {@link Failure}. */
    CompletableFuture<String> ask(String prompt, Instant deadline);

    /** Why there is no answer. */
    final class Failure extends RuntimeException {
        final String reason;
        final boolean mayRetry;

        Failure(String reason, String message, boolean mayRetry) {
            super(message);
            this.reason = reason;
            this.mayRetry = mayRetry;
        }
    }
}
