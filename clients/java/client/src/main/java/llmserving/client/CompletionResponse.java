package llmserving.client;

import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.annotation.JsonSetter;
import com.fasterxml.jackson.annotation.Nulls;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * An answer, or a part of a streamed one, of {@code /v1/completions}.
 *
 * @param model name of the model
 * @param choices the answers; one unless the request has {@code n}, none in a part that has only the usage
 * @param usage tokens of the call, or null
 */
public record CompletionResponse(
        String model,
        @JsonProperty(required = true) @JsonSetter(nulls = Nulls.FAIL, contentNulls = Nulls.FAIL)
                List<Choice> choices,
        Usage usage)
        implements Ending {
    /**
     * One answer.
     *
     * @param text the answer
     * @param finishReason why it ends, such as {@code stop} or {@code length}; null in a part before the last
     */
    public record Choice(
            @JsonProperty(required = true) String text, @JsonProperty("finish_reason") String finishReason) {}

    /** Return the text of the first answer; empty if there is none. */
    public String text() {
        return choices.isEmpty() ? "" : choices.get(0).text();
    }

    @Override
    public Stream<String> finishReasons() {
        return choices.stream().map(Choice::finishReason).filter(Objects::nonNull);
    }
}
