package llmserving.client;

import com.fasterxml.jackson.annotation.JsonAnyGetter;
import java.util.Map;

/**
 * A request of {@code /v1/completions}.
 *
 * @param model name of the model
 * @param prompt the text to go on with
 * @param options every other field of the body, such as {@code temperature}
 */
public record CompletionRequest(String model, String prompt, @JsonAnyGetter Map<String, Object> options) {
    /** Return a request without options. */
    public static CompletionRequest of(String model, String prompt) {
        return new CompletionRequest(model, prompt, Map.of());
    }

    /** Return a copy with one more field in its body. */
    public CompletionRequest with(String name, Object value) {
        return new CompletionRequest(model, prompt, Options.add(options, name, value));
    }
}
