package llmserving.client;

import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.annotation.JsonSetter;
import com.fasterxml.jackson.annotation.Nulls;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * An answer of {@code /v1/chat/completions}.
 *
 * @param model name of the model
 * @param choices the answers; one unless the request has {@code n}
 * @param usage tokens of the call, or null
 */
public record ChatResponse(
        String model,
        @JsonProperty(required = true) @JsonSetter(nulls = Nulls.FAIL, contentNulls = Nulls.FAIL)
                List<Choice> choices,
        Usage usage)
        implements Ending {
    /**
     * One answer.
     *
     * @param message the answer
     * @param finishReason why it ends, such as {@code stop} or {@code length}
     */
    public record Choice(
            @JsonProperty(required = true) @JsonSetter(nulls = Nulls.FAIL) Message message,
            @JsonProperty("finish_reason") String finishReason) {}

    /** Return the text of the first answer; null if it has none, as where all its tokens were reasoning. */
    public String text() {
        return choices.get(0).message().content();
    }

    @Override
    public Stream<String> finishReasons() {
        return choices.stream().map(Choice::finishReason).filter(Objects::nonNull);
    }
}
