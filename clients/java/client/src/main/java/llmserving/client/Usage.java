package llmserving.client;

import com.fasterxml.jackson.annotation.JsonProperty;

/**
 * Tokens of a call.
 *
 * @param promptTokens tokens of the prompt
 * @param completionTokens tokens of the answer
 */
public record Usage(
        @JsonProperty("prompt_tokens") int promptTokens, @JsonProperty("completion_tokens") int completionTokens) {}
