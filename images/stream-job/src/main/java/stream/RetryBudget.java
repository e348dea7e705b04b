package stream;

/** Allows one retry for every ten first attempts, so that an endpoint in trouble gets no more than 1.1 times the load. */
final class RetryBudget {
    private static final int ATTEMPTS_PER_RETRY = 10;
    private static final int MOST_SAVED = 10 * ATTEMPTS_PER_RETRY;

    private int saved;

    synchronized void countAttempt() {
        saved = Math.min(MOST_SAVED, saved + 1);
    }

    synchronized boolean takeRetry() {
        if (saved < ATTEMPTS_PER_RETRY) {
            return false;
        }
        saved -= ATTEMPTS_PER_RETRY;
        return true;
    }
}
