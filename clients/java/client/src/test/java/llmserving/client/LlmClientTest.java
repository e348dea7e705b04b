package llmserving.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import okhttp3.Protocol;
import okhttp3.mockwebserver.Dispatcher;
import okhttp3.mockwebserver.MockResponse;
import okhttp3.mockwebserver.MockWebServer;
import okhttp3.mockwebserver.RecordedRequest;
import okhttp3.mockwebserver.SocketPolicy;
import okhttp3.tls.HandshakeCertificates;
import okhttp3.tls.HeldCertificate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class LlmClientTest {
    private static final Duration LONG = Duration.ofSeconds(30);
    private static final Duration SHORT = Duration.ofMillis(200);
    /** To connect and to send a request on a busy machine. */
    private static final Duration ENOUGH = Duration.ofSeconds(10);
    private static final ChatRequest HELLO = ChatRequest.of("m", Message.user("hello")).with("max_tokens", 4);
    private static final String ANSWER =
            """
            {"id": "1", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"},
             "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
            """;

    private MockWebServer server;

    @BeforeEach
    void start() throws IOException {
        server = new MockWebServer();
        server.start(InetAddress.getLoopbackAddress(), 0);
    }

    @AfterEach
    void stop() throws IOException {
        server.shutdown();
    }

    @Test
    void aChatIsAnsweredAndTheServerLearnsTheDeadline() throws Exception {
        server.enqueue(answer());
        try (LlmClient client = builder().apiKey("key").build()) {
            ChatResponse response = client.chat(HELLO, Duration.ofSeconds(20));
            assertEquals("hi", response.text());
            assertEquals(new Usage(3, 1), response.usage());
        }
        RecordedRequest request = server.takeRequest();
        assertEquals("/v1/chat/completions", request.getPath());
        assertEquals("Bearer key", request.getHeader("Authorization"));
        assertNotNull(request.getHeader("Host"));
        assertNull(request.getHeader("Upgrade"));
        long millis = Long.parseLong(request.getHeader("X-Request-Timeout-Ms"));
        assertTrue(millis > 0 && millis <= 20_000, millis + " ms");
        assertEquals(
                "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":4}",
                request.getBody().readUtf8());
    }

    @Test
    void anIdLeadsFromTheCallerThroughEachRequestToTheMetrics() throws Exception {
        server.enqueue(new MockResponse().setResponseCode(503));
        server.enqueue(answer());
        server.enqueue(answer());
        List<String> reported = new ArrayList<>();
        Metrics metrics = new Metrics() {
            @Override
            public void recordCall(String requestId, String operation, String outcome, Duration latency) {
                reported.add(requestId + " " + outcome);
            }
        };
        String[] ids = {"cart 7\n", ""};
        int[] calls = {0};
        LlmClient.Builder builder = builder().retries(2, 1).metrics(metrics);
        try (LlmClient client = builder.requestIds(() -> ids[calls[0]++]).build()) {
            client.chat(HELLO, LONG);
            client.chat(HELLO, LONG);
        }
        assertEquals("cart_7_", server.takeRequest().getHeader("X-Request-Id"));
        assertEquals("cart_7_", server.takeRequest().getHeader("X-Request-Id"));
        String random = server.takeRequest().getHeader("X-Request-Id");
        assertEquals(36, random.length());
        assertEquals(List.of("cart_7_ ok", random + " ok"), reported);
    }

    @Test
    void completionsAndEmbeddingsAreAnswered() throws Exception {
        server.enqueue(json("{\"model\": \"m\", \"choices\": [{\"text\": \" world\", \"finish_reason\": \"stop\"}]}"));
        server.enqueue(json("{\"model\": \"m\", \"data\": [{\"index\": 0, \"embedding\": [0.5, -1]}]}"));
        try (LlmClient client = builder().build()) {
            assertEquals(" world", client.complete(CompletionRequest.of("m", "hello"), LONG).text());
            float[] vector = client.embed(EmbeddingRequest.of("m", "a"), LONG).data().get(0).embedding();
            assertEquals(List.of(0.5f, -1f), List.of(vector[0], vector[1]));
        }
        assertEquals("/v1/completions", server.takeRequest().getPath());
        assertEquals("{\"model\":\"m\",\"input\":[\"a\"]}", server.takeRequest().getBody().readUtf8());
    }

    @Test
    void aStreamPassesItsPartsOnAsTheyCome() {
        server.enqueue(stream(part("a"), part("b"), "[DONE]"));
        List<String> parts = new ArrayList<>();
        try (LlmClient client = builder().build()) {
            client.chatStream(HELLO, LONG, part -> parts.add(part.text())).join();
        }
        assertEquals(List.of("a", "b"), parts);
    }

    @Test
    void aStreamWithoutItsEndFailsAndIsNotRetriedOnceAPartWasPassedOn() {
        server.enqueue(stream(part("a")));
        List<String> parts = new ArrayList<>();
        try (LlmClient client = builder().build()) {
            LlmException error = fail(client.chatStream(HELLO, LONG, part -> parts.add(part.text())));
            assertEquals(LlmException.ConnectionFailed.class, error.getClass());
            assertEquals("the stream ended before [DONE]", error.getMessage());
        }
        assertEquals(List.of("a"), parts);
        assertEquals(1, server.getRequestCount());
    }

    @Test
    void aStreamThatBreaksBeforeItsFirstPartIsRetried() {
        server.enqueue(stream());
        server.enqueue(stream(part("a"), "[DONE]"));
        List<String> parts = new ArrayList<>();
        try (LlmClient client = builder().build()) {
            client.chatStream(HELLO, LONG, part -> parts.add(part.text())).join();
        }
        assertEquals(List.of("a"), parts);
    }

    @Test
    void anErrorWithinAStreamIsTheServersFailure() {
        server.enqueue(stream(part("a"), "{\"error\": {\"message\": \"engine died\"}}"));
        try (LlmClient client = builder().build()) {
            LlmException error = fail(client.chatStream(HELLO, LONG, part -> {}));
            assertEquals(LlmException.ServerFailed.class, error.getClass());
            assertEquals("{\"message\":\"engine died\"}", error.getMessage());
        }
    }

    @Test
    void anAnswerThatTheEngineGaveUpIsTheServersFailure() {
        String part = "{\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"Hel\"}, \"finish_reason\": \"abort\"}]}";
        server.enqueue(stream(part("a"), part, "[DONE]"));
        server.enqueue(json("{\"choices\": [{\"text\": \" wor\", \"finish_reason\": \"abort\"}]}"));
        server.enqueue(json("{\"choices\": [{\"text\": \" world\", \"finish_reason\": \"length\"}]}"));
        List<String> parts = new ArrayList<>();
        try (LlmClient client = builder().build()) {
            LlmException error = fail(client.chatStream(HELLO, LONG, next -> parts.add(next.text())));
            assertEquals(LlmException.ServerFailed.class, error.getClass());
            assertEquals(" world", client.complete(CompletionRequest.of("m", "hello"), LONG).text());
        }
        assertEquals(List.of("a"), parts);
        assertEquals(3, server.getRequestCount());
    }

    @Test
    void anEventThatIsNoAnswerEndsTheStream() {
        server.enqueue(stream("{not json"));
        try (LlmClient client = builder().build()) {
            assertEquals(
                    LlmException.MalformedAnswer.class,
                    fail(client.chatStream(HELLO, LONG, part -> {})).getClass());
        }
    }

    @Test
    void whatTheUsersCodeThrowsEndsTheStream() {
        server.enqueue(stream(part("a"), part("b"), "[DONE]"));
        RuntimeException own = new IllegalStateException("own");
        Consumer<ChatChunk> throwing = part -> {
            throw own;
        };
        try (LlmClient client = builder().build()) {
            CompletableFuture<Void> future = client.chatStream(HELLO, LONG, throwing);
            assertSame(own, assertThrows(CompletionException.class, future::join).getCause());
        }
    }

    @Test
    void whatTheUsersMetricsThrowEndsTheCall() {
        server.enqueue(answer());
        Metrics broken = new Metrics() {
            @Override
            public void recordCall(String operation, String outcome, Duration latency) {
                throw new IllegalStateException("a meter of other tags");
            }
        };
        try (LlmClient client = builder().metrics(broken).build()) {
            assertThrows(IllegalStateException.class, () -> client.chat(HELLO, LONG));
        }
    }

    @Test
    void aPercentileThatIsNoShareIsRefused() {
        Exception error = assertThrows(IllegalArgumentException.class, () -> builder().hedging(95, 0.05));
        assertEquals("percentile: 95.0: it is no share. Fix: write 0 to 1, such as 0.95.", error.getMessage());
    }

    @Test
    void aServerThatSendsNoHeadersMeetsTheDeadline() {
        server.enqueue(new MockResponse().setSocketPolicy(SocketPolicy.NO_RESPONSE));
        assertMissesDeadline();
    }

    @Test
    void aBodyThatComesTooSlowlyMeetsTheDeadline() {
        server.enqueue(answer().throttleBody(1, 200, TimeUnit.MILLISECONDS));
        assertMissesDeadline();
    }

    @Test
    void aDnsThatDoesNotAnswerMeetsTheDeadline(@TempDir Path folder) throws Exception {
        Path names = folder.resolve("names"); // whose reader waits for a writer
        assertEquals(0, new ProcessBuilder("mkfifo", names.toString()).start().waitFor());
        Process program = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-Djdk.net.hosts.file=" + names,
                        "-cp",
                        System.getProperty("java.class.path"),
                        UnknownName.class.getName())
                .redirectErrorStream(true)
                .start();
        try {
            assertTrue(program.waitFor(30, TimeUnit.SECONDS), "the program waits for the name");
            String printed = new String(program.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertEquals("no answer within 200 ms", printed.strip());
        } finally {
            program.destroyForcibly();
        }
    }

    private void assertMissesDeadline() {
        try (LlmClient client = builder().build()) {
            LlmException error = assertThrows(LlmException.class, () -> client.chat(HELLO, SHORT));
            assertEquals(LlmException.DeadlineExceeded.class, error.getClass());
            assertEquals("no answer within 200 ms", error.getMessage());
        }
    }

    @Test
    void aPassedDeadlineClosesTheConnection() throws Exception {
        assertClosesConnection(
                "", (client, requested) -> assertThrows(LlmException.class, () -> client.chat(HELLO, ENOUGH)));
    }

    @Test
    void aCanceledCallClosesTheConnection() throws Exception {
        assertClosesConnection("", (client, requested) -> {
            CompletableFuture<ChatResponse> future = client.chatAsync(HELLO, LONG);
            requested.join();
            assertTrue(future.cancel(true));
        });
    }

    @Test
    void aClosedClientCancelsItsCallsAndClosesTheirConnections() throws Exception {
        assertClosesConnection("", (client, requested) -> {
            CompletableFuture<ChatResponse> future = client.chatAsync(HELLO, LONG);
            requested.join();
            client.close();
            assertThrows(CancellationException.class, future::join);
        });
    }

    @Test
    void aCanceledStreamClosesTheConnectionAmidItsBody() throws Exception {
        CompletableFuture<Void> started = new CompletableFuture<>();
        String head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + part("a") + "\n\n";
        assertClosesConnection(head, (client, requested) -> {
            CompletableFuture<Void> stream = client.chatStream(HELLO, LONG, part -> started.complete(null));
            started.join();
            assertTrue(stream.cancel(true));
        });
    }

    /** The server reads a request, sends this much, and must then read the end of the connection. */
    private static void assertClosesConnection(String sent, BiConsumer<LlmClient, CompletableFuture<Void>> use)
            throws Exception {
        try (ServerSocket plain = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                LlmClient client = builder("http://127.0.0.1:" + plain.getLocalPort()).build()) {
            CompletableFuture<Void> requested = new CompletableFuture<>();
            CompletableFuture<Void> using = CompletableFuture.runAsync(() -> use.accept(client, requested));
            plain.setSoTimeout(30_000);
            try (Socket socket = plain.accept()) {
                socket.setSoTimeout(30_000);
                InputStream in = socket.getInputStream();
                in.read();
                socket.getOutputStream().write(sent.getBytes(StandardCharsets.UTF_8));
                requested.complete(null);
                readToEnd(in);
            }
            using.get(30, TimeUnit.SECONDS);
        }
    }

    private static void readToEnd(InputStream in) throws IOException {
        try {
            in.transferTo(OutputStream.nullOutputStream());
        } catch (SocketException reset) {
            return; // an end as well
        }
    }

    @Test
    void aResetConnectionIsRetried() {
        server.enqueue(new MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AFTER_REQUEST));
        server.enqueue(answer());
        assertAnswersAfter(2);
    }

    @Test
    void aHalfBodyIsRetried() {
        server.enqueue(answer().setSocketPolicy(SocketPolicy.DISCONNECT_DURING_RESPONSE_BODY));
        server.enqueue(answer());
        assertAnswersAfter(2);
    }

    @Test
    void aServerThatFailsIsRetried() {
        server.enqueue(new MockResponse().setResponseCode(503));
        server.enqueue(answer());
        assertAnswersAfter(2);
    }

    private void assertAnswersAfter(int requests) {
        try (LlmClient client = builder().build()) {
            assertEquals("hi", client.chat(HELLO, LONG).text());
        }
        assertEquals(requests, server.getRequestCount());
    }

    @Test
    void aBusyServerIsAskedAgainAfterTheTimeThatItNames() {
        server.enqueue(new MockResponse().setResponseCode(429).setHeader("Retry-After", "0.3"));
        server.enqueue(answer());
        long before = System.nanoTime();
        assertAnswersAfter(2);
        assertTrue(System.nanoTime() - before >= 300_000_000L);
    }

    @Test
    void aServerWhoseTimeIsPastTheDeadlineFailsTheCallAtOnce() {
        List<Integer> statuses = List.of(429, 503);
        for (int status : statuses) {
            long seconds = status == 429 ? 3600 : 1_796_000_000_000L; // the second is a time in milliseconds
            server.enqueue(new MockResponse()
                    .setResponseCode(status)
                    .setHeader("Retry-After", seconds)
                    .setBody("queue is full"));
            try (LlmClient client = builder().build()) {
                LlmException error = assertThrows(LlmException.class, () -> client.chat(HELLO, LONG));
                assertEquals(status + ": queue is full", error.getMessage());
                assertEquals(Duration.ofSeconds(seconds), error.retryAfter().orElseThrow());
            }
        }
        assertEquals(statuses.size(), server.getRequestCount());
    }

    @Test
    void aBusyServersCallGoesToAnotherEndpointAtOnce() throws IOException {
        try (MockWebServer other = new MockWebServer()) {
            MockResponse busy = new MockResponse().setResponseCode(429).setHeader("Retry-After", "3600");
            server.enqueue(busy);
            other.enqueue(busy);
            server.enqueue(answer());
            other.enqueue(answer());
            other.start(InetAddress.getLoopbackAddress(), 0);
            try (LlmClient client = builder(url(server), url(other)).build()) {
                LlmException error = assertThrows(LlmException.class, () -> client.chat(HELLO, LONG));
                assertEquals(LlmException.Overloaded.class, error.getClass());
            }
            assertEquals(1, server.getRequestCount());
            assertEquals(1, other.getRequestCount());
        }
    }

    @Test
    void aRefusedRequestIsNotRetried() {
        server.enqueue(new MockResponse().setResponseCode(400).setBody("max_tokens is too large"));
        try (LlmClient client = builder().build()) {
            LlmException.InvalidRequest error =
                    assertThrows(LlmException.InvalidRequest.class, () -> client.chat(HELLO, LONG));
            assertEquals(400, error.status());
            assertEquals("400: max_tokens is too large", error.getMessage());
        }
        assertEquals(1, server.getRequestCount());
    }

    @Test
    void wrongJsonIsMalformedAndNotRetried() {
        List<String> bodies = List.of(
                "<html>",
                "{}",
                "{\"choices\": 3}",
                "null",
                "{\"choices\": null}",
                "{\"choices\": [null]}",
                "{\"choices\": [{\"message\": null}]}");
        for (String body : bodies) {
            server.enqueue(json(body));
            try (LlmClient client = builder().build()) {
                assertThrows(LlmException.MalformedAnswer.class, () -> client.chat(HELLO, LONG), body);
            }
        }
        assertEquals(bodies.size(), server.getRequestCount());
    }

    @Test
    void aServerThatIsNotThereFailsTheConnection() throws IOException {
        server.shutdown();
        try (LlmClient client = builder().build()) {
            assertThrows(LlmException.ConnectionFailed.class, () -> client.chat(HELLO, LONG));
        }
    }

    @Test
    void whatDependsOnAFutureRunsOnTheClientsThread() {
        try (LlmClient client = builder().build()) {
            for (int i = 0; i < 3; i++) {
                CompletableFuture<String> thread =
                        client.chatAsync(HELLO, LONG).thenApply(answer -> Thread.currentThread().getName());
                server.enqueue(answer()); // after the step above, which a finished future would run on this thread
                assertEquals("llm-client", thread.join());
            }
        }
    }

    @Test
    void retriesOfAStormStayWithinTheirShare() {
        for (int i = 0; i < 400; i++) {
            server.enqueue(new MockResponse().setResponseCode(503));
        }
        try (LlmClient client = builder().circuit(1_000_000, LONG).build()) {
            for (int i = 0; i < 200; i++) {
                assertThrows(LlmException.ServerFailed.class, () -> client.chat(HELLO, LONG));
                int calls = i + 1;
                assertTrue(calls < 100 || server.getRequestCount() <= 1.1 * calls, "requests of " + calls + " calls");
            }
        }
        assertTrue(server.getRequestCount() > 200, "some are retried");
    }

    @Test
    void anOpenCircuitRefusesAtOnceAndClosesOnceItsProbeSucceeds() throws Exception {
        for (int i = 0; i < 3; i++) {
            server.enqueue(new MockResponse().setResponseCode(500));
        }
        server.enqueue(answer());
        try (LlmClient client = builder().retries(0, 0).circuit(3, SHORT).build()) {
            for (int i = 0; i < 3; i++) {
                assertThrows(LlmException.ServerFailed.class, () -> client.chat(HELLO, LONG));
            }
            Thread.sleep(SHORT.toMillis());
            assertEquals("hi", client.chat(HELLO, LONG).text());
        }
        try (LlmClient client = builder().retries(0, 0).circuit(1, LONG).build()) {
            server.enqueue(new MockResponse().setResponseCode(500));
            assertThrows(LlmException.ServerFailed.class, () -> client.chat(HELLO, LONG));
            assertThrows(LlmException.CircuitOpen.class, () -> client.chat(HELLO, LONG));
        }
        assertEquals(5, server.getRequestCount());
    }

    @Test
    void aStragglerIsHedgedOnceThePercentileIsLearnt() {
        for (int i = 0; i < 128; i++) {
            server.enqueue(answer());
        }
        server.enqueue(new MockResponse().setSocketPolicy(SocketPolicy.NO_RESPONSE));
        server.enqueue(answer());
        List<String> reasons = new ArrayList<>();
        Metrics metrics = new Metrics() {
            @Override
            public synchronized void recordRequest(String endpoint, String reason) {
                reasons.add(reason);
            }
        };
        // The highest latency, so that none of those that teach it is hedged.
        try (LlmClient client = builder().hedging(1, 0.05).metrics(metrics).build()) {
            for (int i = 0; i < 129; i++) {
                assertEquals("hi", client.chat(HELLO, LONG).text());
            }
        }
        assertEquals("hedge", reasons.get(129));
        assertFalse(reasons.subList(0, 129).contains("hedge"));
    }

    @Test
    void tlsRefusesAnUnknownCertificateAndGivesEachCallAConnectionThoughTheServerHasHttp2() throws Exception {
        HeldCertificate certificate =
                new HeldCertificate.Builder().addSubjectAlternativeName("127.0.0.1").build();
        HandshakeCertificates serving =
                new HandshakeCertificates.Builder().heldCertificate(certificate).build();
        HandshakeCertificates trusting = new HandshakeCertificates.Builder()
                .addTrustedCertificate(certificate.certificate())
                .build();
        try (MockWebServer secure = new MockWebServer()) {
            secure.useHttps(serving.sslSocketFactory(), false);
            secure.setProtocols(List.of(Protocol.HTTP_2, Protocol.HTTP_1_1));
            CountDownLatch both = new CountDownLatch(2);
            secure.setDispatcher(new Dispatcher() {
                @Override
                public MockResponse dispatch(RecordedRequest request) throws InterruptedException {
                    both.countDown();
                    both.await();
                    return answer();
                }
            });
            secure.start(InetAddress.getLoopbackAddress(), 0);
            String url = "https://127.0.0.1:" + secure.getPort();
            try (LlmClient client = builder(url).build()) {
                assertThrows(LlmException.TlsFailed.class, () -> client.chat(HELLO, LONG));
            }
            try (LlmClient client = builder(url).sslContext(trusting.sslContext()).build()) {
                CompletableFuture<ChatResponse> other = client.chatAsync(HELLO, LONG);
                assertEquals("hi", client.chat(HELLO, LONG).text());
                assertEquals("hi", other.join().text());
            }
            // Each is the first of its connection.
            assertEquals(0, secure.takeRequest().getSequenceNumber());
            assertEquals(0, secure.takeRequest().getSequenceNumber());
            assertEquals(2, secure.getRequestCount());
        }
    }

    private LlmClient.Builder builder() {
        return builder(url(server));
    }

    /** A client that waits for a connection as long as a busy machine takes, which is not what is tested. */
    private static LlmClient.Builder builder(String... urls) {
        return LlmClient.builder(urls).connectTimeout(LONG);
    }

    private static String url(MockWebServer server) {
        return "http://127.0.0.1:" + server.getPort();
    }

    private static LlmException fail(CompletableFuture<?> future) {
        return (LlmException) assertThrows(CompletionException.class, future::join).getCause();
    }

    private static MockResponse answer() {
        return json(ANSWER);
    }

    private static MockResponse json(String body) {
        return new MockResponse().setHeader("Content-Type", "application/json").setBody(body);
    }

    private static MockResponse stream(String... events) {
        StringBuilder body = new StringBuilder(": comment\n\n");
        for (String event : events) {
            body.append("data: ").append(event).append("\n\n");
        }
        return new MockResponse().setHeader("Content-Type", "text/event-stream").setBody(body.toString());
    }

    private static String part(String text) {
        return "{\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"" + text + "\"}, \"finish_reason\": null}]}";
    }
}
