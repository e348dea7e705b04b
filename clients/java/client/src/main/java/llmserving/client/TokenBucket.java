package llmserving.client;

/** Permits further requests as a share of calls, and a few at once. */
final class TokenBucket {
    /** With a share of 0.05, no hundred calls or more make more than a tenth of further requests. */
    private static final double CAPACITY = 5;

    private final double share;
    private double tokens = CAPACITY;

    TokenBucket(double share) {
        this.share = share;
    }

    synchronized void countCall() {
        tokens = Math.min(CAPACITY, tokens + share);
    }

    synchronized boolean take() {
        if (tokens < 1) {
            return false;
        }
        tokens--;
        return true;
    }
}
