import java.time.Duration;
import llmserving.client.ChatRequest;
import llmserving.client.LlmClient;
import llmserving.client.LlmException;
import llmserving.client.Message;

/** Asks an endpoint for more than it can answer by the deadline. Arguments: URL TOKENS DEADLINE_S. */
class PassDeadline {
    public static void main(String[] arguments) {
        Duration deadline = Duration.ofSeconds(Long.parseLong(arguments[2]));
        try (LlmClient client = LlmClient.builder(arguments[0]).retries(0, 0).build()) {
            ChatRequest request = ChatRequest.of("tiny", Message.user("hello"))
                    .with("max_tokens", Integer.parseInt(arguments[1]))
                    .with("ignore_eos", true);
            System.out.println("answered " + client.chat(request, deadline).text().length());
        } catch (LlmException failure) {
            System.out.println(failure.getClass().getSimpleName());
        }
        System.exit(0);
    }
}
