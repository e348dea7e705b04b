package llmserving.micrometer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import llmserving.client.ChatRequest;
import llmserving.client.LlmClient;
import llmserving.client.LlmException;
import llmserving.client.Message;
import org.junit.jupiter.api.Test;

class MicrometerMetricsTest {
    @Test
    void callsRequestsAndOpenCircuitsAreCounted() {
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        String url = "http://127.0.0.1:1"; // nothing listens on it
        try (LlmClient client = LlmClient.builder(url)
                .retries(1, 1)
                .circuit(2, Duration.ofMinutes(1))
                .metrics(new MicrometerMetrics(registry))
                .build()) {
            ChatRequest hello = ChatRequest.of("m", Message.user("hello"));
            assertThrows(
                    LlmException.ConnectionFailed.class, () -> client.chat(hello, Duration.ofSeconds(30)));
        }
        assertEquals(
                1,
                registry.get("llm.client.calls")
                        .tags("operation", "/v1/chat/completions", "outcome", "ConnectionFailed")
                        .timer()
                        .count());
        for (String reason : new String[] {"first", "retry"}) {
            assertEquals(
                    1,
                    registry.get("llm.client.requests")
                            .tags("endpoint", url, "reason", reason)
                            .counter()
                            .count());
        }
        assertEquals(1, registry.get("llm.client.circuit.opened").counter().count());
    }
}
