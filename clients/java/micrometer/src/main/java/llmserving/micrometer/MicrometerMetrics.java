package llmserving.micrometer;

import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Timer;
import java.time.Duration;
import llmserving.client.Metrics;

/**
 * Writes what the client measures into a registry: the timer {@code llm.client.calls} and the counters
 * {@code llm.client.requests} and {@code llm.client.circuit.opened}.
 */
public final class MicrometerMetrics implements Metrics {
    private final MeterRegistry registry;

    /** Write into this registry. */
    public MicrometerMetrics(MeterRegistry registry) {
        this.registry = registry;
    }

    @Override
    public void recordCall(String operation, String outcome, Duration latency) {
        Timer.builder("llm.client.calls")
                .tags("operation", operation, "outcome", outcome)
                .publishPercentileHistogram()
                .register(registry)
                .record(latency);
    }

    @Override
    public void recordRequest(String endpoint, String reason) {
        registry.counter("llm.client.requests", "endpoint", endpoint, "reason", reason)
                .increment();
    }

    @Override
    public void recordOpenCircuit(String endpoint) {
        registry.counter("llm.client.circuit.opened", "endpoint", endpoint).increment();
    }
}
