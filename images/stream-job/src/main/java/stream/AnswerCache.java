package stream;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.Delay;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Valkey or Redis, with each shopper's latest answer. A write that comes twice, or after a newer one, changes nothing. */
final class AnswerCache implements AutoCloseable {
    /** Longest that a write takes, where the cache is away or hangs. */
    static final Duration TIMEOUT = Duration.ofSeconds(2);

    private static final Duration RECONNECT_AFTER = Duration.ofSeconds(1);

    /** How soon a write that met a replica, a primary until it failed over, looks for the new primary. */
    private static final Executor SOON = CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS);

    private static final String READ_ONLY = "READONLY";
    private static final String SET_UNLESS_OLDER = """
            local earlier = redis.call('GET', KEYS[1])
            if earlier and cjson.decode(earlier).at > tonumber(ARGV[2]) then return 0 end
            redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
            return 1
            """;

    private final Settings.Cache settings;
    private final RedisURI uri;
    private final ClientResources resources;
    private final RedisClient client;
    private CompletableFuture<StatefulRedisConnection<String, String>> connection;

    AnswerCache(Settings.Cache settings) {
        this.settings = settings;
        uri = RedisURI.create(settings.url());
        uri.setTimeout(TIMEOUT);
        resources = ClientResources.builder()
                .reconnectDelay(Delay.constant(RECONNECT_AFTER)) // the default grows to 30 s
                .build();
        client = RedisClient.create(resources);
        client.setOptions(ClientOptions.builder()
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS) // the default collects them
                .build());
    }

    /** Writes an answer of an event at {@code at}, seconds since 1970; the future ends once the cache has it. */
    CompletableFuture<Long> write(String key, String value, double at) {
        String[] keys = {key};
        String[] values = {value, Double.toString(at), Long.toString(settings.ttlS())};
        CompletableFuture<Long> written = new CompletableFuture<Long>();
        write(keys, values, written);
        return written.orTimeout(TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
    }

    private void write(String[] keys, String[] values, CompletableFuture<Long> written) {
        if (written.isDone()) {
            return;
        }
        CompletableFuture<StatefulRedisConnection<String, String>> used = connect();
        used.thenCompose(open -> open.async().<Long>eval(SET_UNLESS_OLDER, ScriptOutputType.INTEGER, keys, values))
                .orTimeout(TIMEOUT.toMillis(), TimeUnit.MILLISECONDS)
                .whenComplete((answer, error) -> {
                    if (error == null) {
                        written.complete(answer);
                    } else if (isReadOnly(error)) {
                        disconnect(used);
                        SOON.execute(() -> write(keys, values, written));
                    } else {
                        if (error instanceof TimeoutException) {
                            disconnect(used); // a host that is lost closes nothing: TCP itself gives up after 15 minutes
                        }
                        written.completeExceptionally(error);
                    }
                });
    }

    /** Returns whether the error is a replica's; servers before Redis 7 put its name behind that of the script. */
    private static boolean isReadOnly(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        return String.valueOf(cause.getMessage()).contains(READ_ONLY);
    }

    /** Closes a connection, so that the next one goes to where the name of the cache leads then. */
    private synchronized void disconnect(CompletableFuture<StatefulRedisConnection<String, String>> used) {
        if (connection == used) {
            connection = null;
            used.thenAccept(StatefulRedisConnection::closeAsync);
        }
    }

    /** Returns the connection, which is made once; one that failed is tried again. Holds no thread. */
    synchronized CompletableFuture<StatefulRedisConnection<String, String>> connect() {
        if (connection == null || connection.isCompletedExceptionally()) {
            connection = client.connectAsync(StringCodec.UTF8, uri).toCompletableFuture();
        }
        return connection;
    }

    @Override
    public void close() {
        client.shutdown(Duration.ZERO, TIMEOUT);
        resources.shutdown(0, TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
    }
}
