package llmserving.client;

/** Opens after failures in a row; then lets one request through in each period, until one succeeds. */
final class CircuitBreaker {
    private final int threshold;
    private final long periodNanos;
    private int failures;
    private long nextProbe;

    CircuitBreaker(int threshold, long periodNanos) {
        this.threshold = threshold;
        this.periodNanos = periodNanos;
    }

    synchronized boolean isPassable(long now) {
        return failures < threshold || now - nextProbe >= 0;
    }

    /** Let a request through, if the breaker does; it counts as the probe of an open circuit. */
    synchronized boolean pass(long now) {
        if (!isPassable(now)) {
            return false;
        }
        if (failures >= threshold) {
            nextProbe = now + periodNanos;
        }
        return true;
    }

    synchronized void recordSuccess() {
        failures = 0;
    }

    /** Record a failure; return whether it opened the circuit. */
    synchronized boolean recordFailure(long now) {
        failures++;
        if (failures >= threshold) {
            nextProbe = now + periodNanos;
        }
        return failures == threshold;
    }
}
