package llmserving.client;

import java.time.Duration;
import java.util.Optional;

/** Why a call has no answer. */
public abstract sealed class LlmException extends RuntimeException {
    private final Duration retryAfter;

    private LlmException(String message, Throwable cause) {
        this(message, cause, null);
    }

    private LlmException(String message, Throwable cause, Duration retryAfter) {
        super(message, cause);
        this.retryAfter = retryAfter;
    }

    /** Return how long the server asks to wait, by {@code Retry-After} of a 429 or a 5xx. */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /** Return whether another attempt may succeed. */
    boolean isRetryable() {
        return false;
    }

    /** Return whether the endpoint, not the request, is at fault. */
    boolean isEndpointAtFault() {
        return false;
    }

    /** The deadline passed. */
    public static final class DeadlineExceeded extends LlmException {
        DeadlineExceeded(Duration deadline) {
            super("no answer within " + deadline.toMillis() + " ms", null);
        }

        @Override
        boolean isEndpointAtFault() {
            return true;
        }
    }

    /** The server refused the call because it is busy (429). */
    public static final class Overloaded extends LlmException {
        Overloaded(String message, Duration retryAfter) {
            super(message, null, retryAfter);
        }

        @Override
        boolean isRetryable() {
            return true;
        }
    }

    /** The server refused the request (400 to 499, except 429). */
    public static final class InvalidRequest extends LlmException {
        private final int status;

        InvalidRequest(int status, String message) {
            super(message, null);
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
            super(message, null, retryAfter);
            this.status = status;
        }

        /** Return the HTTP status. */
        public int status() {
            return status;
        }

        @Override
        boolean isRetryable() {
            return true;
        }

        @Override
        boolean isEndpointAtFault() {
            return true;
        }
    }

    /** The connection failed: no address, refused, reset, or ended before the answer did. */
    public static final class ConnectionFailed extends LlmException {
        ConnectionFailed(String message, Throwable cause) {
            super(message, cause);
        }

        @Override
        boolean isRetryable() {
            return true;
        }

        @Override
        boolean isEndpointAtFault() {
            return true;
        }
    }

    /** TLS failed: the server's certificate is not trusted, expired, or of another host. */
    public static final class TlsFailed extends LlmException {
        TlsFailed(String message, Throwable cause) {
            super(message, cause);
        }

        @Override
        boolean isEndpointAtFault() {
            return true;
        }
    }

    /** The server answered 200 with a body that is no answer. */
    public static final class MalformedAnswer extends LlmException {
        MalformedAnswer(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The circuit of every endpoint is open; nothing was sent. */
    public static final class CircuitOpen extends LlmException {
        CircuitOpen() {
            super("the circuit of every endpoint is open", null);
        }
    }
}
