package llmserving.example;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

/**
 * Answers that streams and batches left in Valkey or Redis: the format of {@code
 * images/batch-worker/batch/cache_reader.py}.
 *
 * <p>No read blocks. While the cache is away each read fails at once, and starts to connect again.
 */
final class AnswerCache implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final RedisClient client;
    private final RedisURI uri;
    private final List<String> prefixes;
    private CompletableFuture<StatefulRedisConnection<String, String>> connection;

    /**
     * Open a cache; connects later.
     *
     * @param url {@code redis://HOST:PORT}, or with TLS {@code rediss://HOST:PORT}
     * @param prefixes keys before their last part, best answers first, such as {@code shop:stream} and {@code mine:ads}
     */
    AnswerCache(String url, List<String> prefixes, Duration connectTimeout) {
        uri = RedisURI.create(url);
        uri.setTimeout(connectTimeout);
        this.prefixes = List.copyOf(prefixes);
        client = RedisClient.create();
        client.setOptions(ClientOptions.builder()
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .build());
    }

    /** Read the first answer that there is; the future fails if the cache is away. */
    CompletableFuture<Optional<String>> read(String id) {
        String[] keys = prefixes.stream().map(prefix -> prefix + ":" + id).toArray(String[]::new);
        return connect()
                .thenCompose(open -> open.async().mget(keys))
                .thenApply(values -> values.stream()
                        .filter(KeyValue::hasValue)
                        .flatMap(value -> parse(value.getValue()))
                        .findFirst());
    }

    private synchronized CompletableFuture<StatefulRedisConnection<String, String>> connect() {
        if (connection == null || connection.isCompletedExceptionally()) {
            connection = client.connectAsync(StringCodec.UTF8, uri).toCompletableFuture();
        }
        return connection;
    }

    /** Return the text of an answer; none if the value is no answer, or that of an embedding. */
    private static Stream<String> parse(String value) {
        try {
            JsonNode answer = JSON.readTree(value).path("answer");
            return answer.isTextual() ? Stream.of(answer.textValue()) : Stream.empty();
        } catch (JsonProcessingException error) {
            return Stream.empty();
        }
    }

    @Override
    public void close() {
        client.shutdown(Duration.ZERO, Duration.ofSeconds(2));
    }
}
