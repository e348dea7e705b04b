package llmserving.client;

import com.fasterxml.jackson.annotation.JsonAnyGetter;
import java.util.List;
import java.util.Map;

/**
 * A request of {@code /v1/embeddings}.
 *
 * @param model name of the model
 * @param input the texts
 * @param options every other field of the body, such as {@code temperature}
 */
public record EmbeddingRequest(String model, List<String> input, @JsonAnyGetter Map<String, Object> options) {
    /** Return a request without options. */
    public static EmbeddingRequest of(String model, String... input) {
        return new EmbeddingRequest(model, List.of(input), Map.of());
    }

    /** Return a copy with one more field in its body. */
    public EmbeddingRequest with(String name, Object value) {
        return new EmbeddingRequest(model, input, Options.add(options, name, value));
    }
}
