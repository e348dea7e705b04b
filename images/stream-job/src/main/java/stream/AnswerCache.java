package stream;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;

/** Valkey or Redis, with each shopper's latest answer. A write that comes twice, or after a newer one, changes nothing. */
final class AnswerCache implements AutoCloseable {
    private static final Duration TIMEOUT = Duration.ofSeconds(2);
    private static final String SET_UNLESS_OLDER = """
            local earlier = redis.call('GET', KEYS[1])
            if earlier and cjson.decode(earlier).at > tonumber(ARGV[2]) then return 0 end
            redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
            return 1
            """;

    private final Settings.Cache settings;
    private final RedisClient client;
    private final RedisURI uri;
    private CompletableFuture<StatefulRedisConnection<String, String>> connection;

    AnswerCache(Settings.Cache settings) {
        this.settings = settings;
        uri = RedisURI.create(settings.url());
        uri.setTimeout(TIMEOUT);
        this.client = RedisClient.create(uri);
    }

    /** Writes an answer of an event at {@code at}, seconds since 1970; the stage ends once the cache has it. */
    CompletionStage<Long> write(String key, String value, double at) {
        String[] keys = {key};
        return connect().thenCompose(connected -> connected
                .async()
                .eval(
                        SET_UNLESS_OLDER,
                        ScriptOutputType.INTEGER,
                        keys,
                        value,
                        Double.toString(at),
                        Long.toString(settings.ttlS())));
    }

    /** Returns the connection, which is made once, and tried again where that failed. */
    synchronized CompletionStage<StatefulRedisConnection<String, String>> connect() {
        if (connection == null || connection.isCompletedExceptionally()) {
            connection = client.connectAsync(StringCodec.UTF8, uri).toCompletableFuture();
        }
        return connection;
    }

    @Override
    public void close() {
        client.shutdown(Duration.ZERO, TIMEOUT);
    }
}
