package stream;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** An OpenAI-compatible endpoint; holds no thread for a request in flight. */
final class HttpEndpoint implements Endpoint {
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(2);

    private final Settings.Endpoint settings;
    private final HttpClient client = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(CONNECT_TIMEOUT)
            .build();

    HttpEndpoint(Settings.Endpoint settings) {
        this.settings = settings;
    }

    @Override
    public CompletableFuture<String> ask(String prompt, Instant deadline) {
        Duration left = Duration.between(Instant.now(), deadline);
        if (left.isNegative() || left.isZero()) {
            return CompletableFuture.failedFuture(missDeadline());
        }
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(settings.url() + "/v1/chat/completions"))
                .timeout(left)
                .header("content-type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(buildBody(prompt)));
        String key = System.getenv("BLUEPRINT_API_KEY");
        if (key != null && !key.isEmpty()) {
            request.header("authorization", "Bearer " + key);
        }
        return client.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString())
                .handle((response, error) -> error == null ? readAnswer(response) : raise(error));
    }

    private String buildBody(String prompt) {
        ObjectNode body = Settings.mapper().createObjectNode();
        body.put("model", settings.model()).put("max_tokens", settings.outputTokens());
        body.putArray("messages").addObject().put("role", "user").put("content", prompt);
        return body.toString();
    }

    private static String readAnswer(HttpResponse<String> response) {
        int status = response.statusCode();
        if (status != 200) {
            boolean mayRetry = status == 429 || status >= 500;
            throw new Failure("endpoint", "the endpoint answers " + status, mayRetry);
        }
        try {
            JsonNode content = Settings.mapper().readTree(response.body()).at("/choices/0/message/content");
            if (content.isTextual()) {
                return content.asText();
            }
        } catch (JsonProcessingException error) {
            // said below
        }
        throw new Failure("bad_answer", "the endpoint's answer has no choices[0].message.content", true);
    }

    private static String raise(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        if (cause instanceof HttpTimeoutException && !(cause instanceof java.net.http.HttpConnectTimeoutException)) {
            throw missDeadline();
        }
        throw new Failure("endpoint", "the endpoint is not reached: " + cause, true);
    }

    private static Failure missDeadline() {
        return new Failure("deadline", "no answer before the deadline", false);
    }
}
