package llmserving.client;

import java.time.Duration;
import java.util.Optional;
import java.util.Set;

/** Why a call has no answer. */
public abstract sealed class LlmException extends RuntimeException {
    /** What an exception says of its cause. */
    private enum Trait {
        /** Another attempt may succeed. */
        RETRYABLE,
        /** The endpoint, not the request, is at fault. */
        ENDPOINT_AT_FAULT
    }

    private final Duration retryAfter;
    private final Set<Trait> traits;

    private LlmException(String message, Throwable cause, Duration retryAfter, Trait... traits) {
        super(message, cause);
        this.retryAfter = retryAfter;
        this.traits = Set.of(traits);
    }

    /** Return how long the server asks to wait, by {@code Retry-After} of a 429 or a 5xx. */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    boolean isRetryable() {
        return traits.contains(Trait.RETRYABLE);
    }

    boolean isEndpointAtFault() {
        return traits.contains(Trait.ENDPOINT_AT_FAULT);
    }

    /** The deadline passed. */
    public static final class DeadlineExceeded extends LlmException {
        DeadlineExceeded(Duration deadline) {
            super("no answer within " + deadline.toMillis() + " ms", null, null, Trait.ENDPOINT_AT_FAULT);
        }
    }

    /** The server refused the call because it is busy (429). */
    public static final class Overloaded extends LlmException {
        Overloaded(String message, Duration retryAfter) {
            super(message, null, retryAfter, Trait.RETRYABLE);
        }
    }

    /** The server refused the request (400 to 499, except 429). */
    public static final class InvalidRequest extends LlmException {
        private final int status;

        InvalidRequest(int status, String message) {
            super(message, null, null);
            this.status = status;
        }

        /** Return the HTTP status. */
        public int status() {
            return status;
        }
    }

    /** The server failed (500 to 599), reported an error within a stream, or gave an answer up. */
    public static final class ServerFailed extends LlmException {
        private final int status;

        ServerFailed(int status, String message) {
            this(status, message, null);
        }

        ServerFailed(int status, String message, Duration retryAfter) {
            super(message, null, retryAfter, Trait.RETRYABLE, Trait.ENDPOINT_AT_FAULT);
            this.status = status;
        }

        /** Return the HTTP status. */
        public int status() {
            return status;
        }
    }

    /** The connection failed: no address, refused, reset, or ended before the answer did. */
    public static final class ConnectionFailed extends LlmException {
        ConnectionFailed(String message, Throwable cause) {
            super(message, cause, null, Trait.RETRYABLE, Trait.ENDPOINT_AT_FAULT);
        }
    }

    /** TLS failed: the server's certificate is not trusted, expired, or of another host. */
    public static final class TlsFailed extends LlmException {
        TlsFailed(String message, Throwable cause) {
            super(message, cause, null, Trait.ENDPOINT_AT_FAULT);
        }
    }

    /** The server answered 200 with a body that is no answer. */
    public static final class MalformedAnswer extends LlmException {
        MalformedAnswer(String message, Throwable cause) {
            super(message, cause, null);
        }
    }

    /** The circuit of every endpoint is open; nothing was sent. */
    public static final class CircuitOpen extends LlmException {
        CircuitOpen() {
            super("the circuit of every endpoint is open", null, null);
        }
    }
}
