package llmserving.client;

import com.fasterxml.jackson.annotation.JsonAnyGetter;
import java.util.List;
import java.util.Map;

/**
 * A request of {@code /v1/chat/completions}.
 *
 * @param model name of the model
 * @param messages the chat so far
 * @param options every other field of the body, such as {@code temperature}
 */
public record ChatRequest(String model, List<Message> messages, @JsonAnyGetter Map<String, Object> options) {
    /** Return a request without options. */
    public static ChatRequest of(String model, Message... messages) {
        return new ChatRequest(model, List.of(messages), Map.of());
    }

    /** Return a copy with one more field in its body. */
    public ChatRequest with(String name, Object value) {
        return new ChatRequest(model, messages, Options.add(options, name, value));
    }
}
