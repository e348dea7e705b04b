package llmserving.client;

import com.fasterxml.jackson.annotation.JsonProperty;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * A part of a streamed answer of {@code /v1/chat/completions}.
 *
 * @param choices what each answer goes on with; none in a part that has only the usage
 * @param usage tokens of the call, or null
 */
public record ChatChunk(@JsonProperty(required = true) List<Choice> choices, Usage usage)
        implements Ending {
    /**
     * What one answer goes on with.
     *
     * @param delta the next piece; its content may be null
     * @param finishReason why the answer ends; null before the last part
     */
    public record Choice(
            @JsonProperty(required = true) Message delta, @JsonProperty("finish_reason") String finishReason) {}

    /** Return the next piece of the first answer's text; empty if there is none. */
    public String text() {
        return choices.isEmpty() || choices.get(0).delta().content() == null
                ? ""
                : choices.get(0).delta().content();
    }

    @Override
    public Stream<String> finishReasons() {
        return choices.stream().map(Choice::finishReason).filter(Objects::nonNull);
    }
}
