package llmserving.example;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.api.StatefulRedisConnection;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import llmserving.client.LlmClient;
import okhttp3.mockwebserver.MockResponse;
import okhttp3.mockwebserver.MockWebServer;
import okhttp3.mockwebserver.SocketPolicy;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.io.TempDir;

/**
 * Answers in their order, before a real Redis: {@code -Dredis.server=FILE} names its program, and {@code -Dredis.port=PORT}
 * a port that no other program takes while it is away.
 */
@Timeout(60)
@EnabledIfSystemProperty(named = "redis.server", matches = ".+")
class RankingServerTest {
    private static final Path BATCH_ANSWER = Path.of("src/test/resources/batch-answer.json");
    private static final Duration SHORT = Duration.ofMillis(300);
    /** To read the cache on a busy machine. */
    private static final Duration ENOUGH = Duration.ofSeconds(10);
    private static final Duration LONG = Duration.ofSeconds(20);

    @TempDir
    Path folder;

    private final HttpClient page = HttpClient.newHttpClient();
    private final int redisPort = Integer.getInteger("redis.port");
    private MockWebServer endpoint;
    private Process redis;

    @BeforeEach
    void start() throws Exception {
        endpoint = new MockWebServer();
        endpoint.start(InetAddress.getLoopbackAddress(), 0);
        startRedis();
    }

    @AfterEach
    void stop() throws Exception {
        redis.destroyForcibly().waitFor();
        endpoint.shutdown();
    }

    private void startRedis() throws Exception {
        redis = new ProcessBuilder(
                        System.getProperty("redis.server"), "--port", "" + redisPort, "--bind", "127.0.0.1",
                        "--save", "", "--dir", folder.toString())
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        for (boolean answers = false; !answers; ) {
            try {
                set("started", "");
                answers = true;
            } catch (RedisConnectionException notYet) {
                TimeUnit.MILLISECONDS.sleep(20);
            }
        }
    }

    private void set(String key, String value) {
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + redisPort);
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            connection.sync().set(key, value);
        } finally {
            client.shutdown(Duration.ZERO, Duration.ofSeconds(2));
        }
    }

    /** Ask a server with this deadline. */
    private String ask(Duration deadline, String shopper) throws Exception {
        List<String> prefixes = List.of("shop:stream", "mine:ads");
        try (LlmClient client = LlmClient.builder("http://127.0.0.1:" + endpoint.getPort()).build();
                AnswerCache cache = new AnswerCache("redis://127.0.0.1:" + redisPort, prefixes, LONG);
                RankingServer server = serve(new Ranker(client, cache, "bestsellers", deadline))) {
            return get(server, "?shopper=" + shopper).body();
        }
    }

    private static RankingServer serve(Ranker ranker) throws IOException {
        return new RankingServer(ranker, "m", "You rank.", new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
    }

    private HttpResponse<String> get(RankingServer server, String query) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + server.port() + "/rank" + query);
        return page.send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
    }

    private static void assertRanking(String answer, String source, String body) throws IOException {
        assertEquals(Map.of("answer", answer, "from", source), new ObjectMapper().readValue(body, Map.class));
    }

    private void hang() {
        endpoint.enqueue(new MockResponse().setSocketPolicy(SocketPolicy.NO_RESPONSE));
    }

    @Test
    void aLiveAnswerComesFirst() throws Exception {
        set("shop:stream:s-1", "{\"answer\": \"earlier\", \"at\": 1.0}");
        endpoint.enqueue(new MockResponse()
                .setBody("{\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", \"content\": \"now\"}}]}"));
        assertRanking("now", "live", ask(LONG, "s-1"));
        assertEquals(1, endpoint.getRequestCount());
    }

    @Test
    void aHangingEndpointFallsBackToWhatABatchLeft() throws Exception {
        set("mine:ads:s-1", Files.readString(BATCH_ANSWER));
        hang();
        assertRanking("sku-7, sku-2", "cache", ask(ENOUGH, "s-1"));
    }

    @Test
    void aStoppedEndpointFallsBackToWhatAStreamLeftBeforeABatch() throws Exception {
        set("mine:ads:s-1", Files.readString(BATCH_ANSWER));
        set("shop:stream:s-1", "{\"answer\": \"sku-3\", \"at\": 1.0}");
        endpoint.shutdown();
        assertRanking("sku-3", "cache", ask(LONG, "s-1"));
    }

    @Test
    void aFullEndpointFallsBackAtOnceWhereItsWaitIsPastTheDeadline() throws Exception {
        set("shop:stream:s-1", "{\"answer\": \"sku-3\", \"at\": 1.0}");
        endpoint.enqueue(new MockResponse().setResponseCode(429).setHeader("Retry-After", "3600"));
        assertRanking("sku-3", "cache", ask(LONG, "s-1"));
        assertEquals(1, endpoint.getRequestCount());
    }

    @Test
    void withoutAnAnswerInTheCacheTheDefaultIsAnswered() throws Exception {
        set("shop:stream:s-2", "no JSON");
        set("mine:ads:s-2", "{\"answer\": [[0.5]], \"at\": 1.0}");
        for (String shopper : List.of("s-1", "s-2")) {
            hang();
            assertRanking("bestsellers", "default", ask(SHORT, shopper));
        }
    }

    @Test
    void anAnswerWithoutATextFallsBack() throws Exception {
        endpoint.enqueue(new MockResponse().setBody("{\"choices\": [{\"message\": {\"role\": \"assistant\", \"content\": null}}]}"));
        assertRanking("bestsellers", "default", ask(ENOUGH, "s-1"));
    }

    @Test
    void withEndpointAndCacheAwayTheDefaultIsAnsweredAndTheCacheIsUsedAgainOnceItIsBack() throws Exception {
        endpoint.shutdown();
        set("shop:stream:s-1", "{\"answer\": \"sku-3\", \"at\": 1.0}");
        List<String> prefixes = List.of("shop:stream");
        try (LlmClient client = LlmClient.builder("http://127.0.0.1:" + endpoint.getPort()).build();
                AnswerCache cache = new AnswerCache("redis://127.0.0.1:" + redisPort, prefixes, LONG);
                RankingServer server = serve(new Ranker(client, cache, "bestsellers", LONG))) {
            assertRanking("sku-3", "cache", get(server, "?shopper=s-1").body());
            redis.destroyForcibly().waitFor();
            assertRanking("bestsellers", "default", get(server, "?shopper=s-1").body());
            startRedis();
            set("shop:stream:s-1", "{\"answer\": \"sku-4\", \"at\": 2.0}");
            while (!get(server, "?shopper=s-1").body().contains("sku-4")) {
                TimeUnit.MILLISECONDS.sleep(20); // until the client has connected again
            }
        }
    }

    @Test
    void aRequestWithoutAShopperIsRefused() throws Exception {
        try (AnswerCache cache = new AnswerCache("redis://127.0.0.1:" + redisPort, List.of("a:b"), LONG);
                LlmClient client = LlmClient.builder("http://127.0.0.1:1").build();
                RankingServer server = serve(new Ranker(client, cache, "", LONG))) {
            HttpResponse<String> response = get(server, "");
            assertEquals(400, response.statusCode());
            assertEquals("{\"error\":\"shopper: missing. Fix: add ?shopper=ID.\"}", response.body());
        }
    }
}
