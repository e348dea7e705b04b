package llmserving.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.net.InetAddress;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import llmserving.client.ChatRequest;
import llmserving.client.LlmClient;
import llmserving.client.Message;
import okhttp3.mockwebserver.MockResponse;
import okhttp3.mockwebserver.MockWebServer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.util.InstantiationUtil;
import org.junit.jupiter.api.Test;

class ChatFunctionTest {
    @Test
    void aFunctionThatWasSentToATaskManagerAnswersAndTurnsFailuresIntoElements() throws Exception {
        try (MockWebServer server = new MockWebServer()) {
            server.enqueue(new MockResponse().setBody("{\"choices\": [{\"message\": {\"content\": \"hi\"}}]}"));
            server.enqueue(new MockResponse().setResponseCode(400).setBody("too long"));
            server.start(InetAddress.getLoopbackAddress(), 0);
            String url = "http://127.0.0.1:" + server.getPort();
            ChatFunction<String, String> function = InstantiationUtil.clone(new ChatFunction<>(
                    () -> LlmClient.builder(url).build(),
                    prompt -> ChatRequest.of("m", Message.user(prompt)),
                    (prompt, response) -> prompt + ": " + response.text(),
                    (prompt, failure) -> prompt + " failed, " + failure.getMessage(),
                    Duration.ofSeconds(30)));
            function.open(new Configuration());
            assertEquals(List.of("one: hi"), invoke(function, "one"));
            assertEquals(List.of("two failed, 400: too long"), invoke(function, "two"));
            function.close();
        }
    }

    private static Collection<String> invoke(ChatFunction<String, String> function, String element) throws Exception {
        CompletableFuture<Collection<String>> results = new CompletableFuture<>();
        function.asyncInvoke(element, new ResultFuture<>() {
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
