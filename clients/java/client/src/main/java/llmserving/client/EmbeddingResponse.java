package llmserving.client;

import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.annotation.JsonSetter;
import com.fasterxml.jackson.annotation.Nulls;
import java.util.List;

/**
 * An answer of {@code /v1/embeddings}.
 *
 * @param model name of the model
 * @param data one vector for each text, in the order of the request
 * @param usage tokens of the call, or null
 */
public record EmbeddingResponse(
        String model,
        @JsonProperty(required = true) @JsonSetter(nulls = Nulls.FAIL, contentNulls = Nulls.FAIL)
                List<Item> data,
        Usage usage) {
    /**
     * The vector of one text.
     *
     * @param index place of the text in the request
     * @param embedding the vector
     */
    public record Item(int index, @JsonProperty(required = true) float[] embedding) {}
}
