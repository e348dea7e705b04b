package llmserving.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import llmserving.client.ChatRequest;
import llmserving.client.ChatResponse;
import llmserving.client.LlmClient;
import llmserving.client.Message;
import okhttp3.mockwebserver.MockResponse;
import okhttp3.mockwebserver.MockWebServer;
import org.apache.flink.api.common.functions.DefaultOpenContext;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.util.InstantiationUtil;
import org.junit.jupiter.api.Test;

class ChatFunctionTest {
    @Test
    void aFunctionThatWasSentToATaskManagerAnswersAndTurnsFailuresIntoElements() throws Exception {
        try (MockWebServer server = new MockWebServer()) {
            server.enqueue(new MockResponse().setBody("{\"choices\": [{\"message\": {\"content\": \"hi\"}}]}"));
            server.enqueue(new MockResponse().setResponseCode(400).setBody("too long"));
            server.enqueue(new MockResponse().setBody("{\"choices\": []}")); // on which the function throws
            server.start(InetAddress.getLoopbackAddress(), 0);
            String url = "http://127.0.0.1:" + server.getPort();
            ChatFunction<String, String> function = InstantiationUtil.clone(new Texts(url));
            function.open(DefaultOpenContext.INSTANCE);
            assertEquals(List.of("one: hi"), invoke(function, "one"));
            assertEquals(List.of("two failed, 400: too long"), invoke(function, "two"));
            assertTrue(invoke(function, "three").iterator().next().startsWith("three failed, Index 0"));
            function.close();
        }
    }

    @Test
    void anElementWithoutResultAtFlinksTimeoutBecomesAnElementToo() throws Exception {
        ChatFunction<String, String> function = new Texts("http://127.0.0.1:1");
        assertEquals(
                List.of("one failed, no result before Flink's timeout"),
                collect(result -> function.timeout("one", result)));
    }

    @Test
    void aCallThatItsFunctionCancelsBecomesAnElement() throws Exception {
        ChatFunction<String, String> function = new Texts("http://127.0.0.1:1") {
            private static final long serialVersionUID = 1L;

            @Override
            protected CompletableFuture<ChatResponse> call(String prompt) {
                CompletableFuture<ChatResponse> answer = new CompletableFuture<>();
                answer.cancel(true);
                return answer;
            }
        };
        assertEquals(List.of("one failed, null"), invoke(function, "one"));
    }

    /** Turns prompts into texts. */
    private static class Texts extends ChatFunction<String, String> {
        private static final long serialVersionUID = 1L;

        private final String url;

        Texts(String url) {
            super(Duration.ofSeconds(30));
            this.url = url;
        }

        @Override
        protected LlmClient openClient() {
            return LlmClient.builder(url).build();
        }

        @Override
        protected ChatRequest buildRequest(String prompt) {
            return ChatRequest.of("m", Message.user(prompt));
        }

        @Override
        protected CompletionStage<String> handleAnswer(String prompt, ChatResponse answer) {
            String text = answer.text();
            return CompletableFuture.supplyAsync(() -> prompt + ": " + text);
        }

        @Override
        protected String handleFailure(String prompt, Throwable failure) {
            return prompt + " failed, " + failure.getMessage();
        }
    }

    private static Collection<String> invoke(ChatFunction<String, String> function, String element) throws Exception {
        return collect(result -> function.asyncInvoke(element, result));
    }

    private static Collection<String> collect(Consumer<ResultFuture<String>> call) throws Exception {
        CompletableFuture<Collection<String>> results = new CompletableFuture<>();
        call.accept(new ResultFuture<>() {
            @Override
            public void complete(Collection<String> values) {
                results.complete(values);
            }

            @Override
            public void completeExceptionally(Throwable error) {
                results.completeExceptionally(error);
            }
        });
        return results.get(60, TimeUnit.SECONDS);
    }
}
