package llmserving.client;

import java.util.Set;
import java.util.stream.Stream;

/** An answer, or a part of one, that says why it ends. */
interface Ending {
    /**
     * Reasons of an answer that an engine ended early, with status 200: {@code abort} of vLLM and SGLang, as where they
     * stop (github.com/vllm-project/vllm/issues/57082, read 2026-11-29), the last two of TensorRT-LLM.
     */
    Set<String> GIVEN_UP = Set.of("abort", "error", "cancelled", "timeout");

    /** Return the reasons of all choices that have one. */
    Stream<String> finishReasons();

    /** Refuse an answer that its engine gave up: the text that there is looks like a whole one. */
    static void check(Object answer) {
        if (answer instanceof Ending ending) {
            ending.finishReasons().filter(GIVEN_UP::contains).findAny().ifPresent(reason -> {
                throw new LlmException.ServerFailed(200, "the engine gave the answer up: finish_reason " + reason);
            });
        }
    }
}
