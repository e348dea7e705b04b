package llmserving.client;

import java.time.Duration;

/** Receives what the client measures. Methods run on the client's thread and must not block. */
public interface Metrics {
    /** Receives nothing. */
    Metrics NONE = new Metrics() {};

    /**
     * A call ended.
     *
     * @param operation path of the call
     * @param outcome {@code ok}, {@code canceled}, or the simple name of the {@link LlmException}
     * @param latency time of the whole call, with its retries
     */
    default void recordCall(String operation, String outcome, Duration latency) {}

    /**
     * A call ended, as above; implement this one to log it.
     *
     * @param requestId by which the logs of all parts tell of the call; its requests have the same
     */
    default void recordCall(String requestId, String operation, String outcome, Duration latency) {
        recordCall(operation, outcome, latency);
    }

    /**
     * A request was sent.
     *
     * @param endpoint base URL of the endpoint
     * @param reason {@code first}, {@code retry} or {@code hedge}
     */
    default void recordRequest(String endpoint, String reason) {}

    /** The circuit of an endpoint opened. */
    default void recordOpenCircuit(String endpoint) {}
}
