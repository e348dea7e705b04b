package llmserving.client;

import java.util.Arrays;
import java.util.OptionalLong;

/** Learns a percentile of the latest latencies. */
final class LatencyPercentile {
    private static final int WINDOW = 1024;
    private static final int REFRESH = 64;
    private static final int ENOUGH = 128;

    private final double percentile;
    private final long[] window = new long[WINDOW];
    private long count;
    private long learnt;

    LatencyPercentile(double percentile) {
        this.percentile = percentile;
    }

    synchronized void record(long nanos) {
        window[(int) (count++ % WINDOW)] = nanos;
        if (count >= ENOUGH && count % REFRESH == 0) {
            long[] sorted = Arrays.copyOf(window, (int) Math.min(count, WINDOW));
            Arrays.sort(sorted);
            learnt = sorted[(int) (percentile * (sorted.length - 1))];
        }
    }

    /** Return the percentile in nanoseconds; empty until enough latencies are known. */
    synchronized OptionalLong get() {
        return count >= ENOUGH ? OptionalLong.of(learnt) : OptionalLong.empty();
    }
}
