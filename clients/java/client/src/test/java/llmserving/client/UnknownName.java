package llmserving.client;

import java.time.Duration;

/** Calls an endpoint by a name, and prints the failure. The program of a test, whose own JVM has read its names already. */
final class UnknownName {
    private UnknownName() {}

    public static void main(String[] arguments) {
        try (LlmClient client = LlmClient.builder("http://ranker.internal:8000").build()) {
            client.chat(ChatRequest.of("m", Message.user("hello")), Duration.ofMillis(200));
        } catch (LlmException failure) {
            System.out.println(failure.getMessage());
        }
    }
}
