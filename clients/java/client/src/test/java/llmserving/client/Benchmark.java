package llmserving.client;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongSupplier;

/** Measures the client's overhead, its hedging and its threads; not a test. The README says how to run it. */
final class Benchmark {
    private static final Duration DEADLINE = Duration.ofSeconds(60);
    private static final ChatRequest HELLO = ChatRequest.of("m", Message.user("hello")).with("max_tokens", 4);
    private static final String BODY =
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":4}";

    private Benchmark() {}

    public static void main(String[] arguments) throws Exception {
        measureOverhead();
        measureHedging(false);
        measureHedging(true);
        measureThreads();
        measureStorm();
        System.exit(0);
    }

    private static void measureOverhead() throws Exception {
        DelayServer server = new DelayServer(() -> 0);
        HttpClient bare =
                HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(server.url() + "/v1/chat/completions"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(BODY))
                .build();
        try (LlmClient client = LlmClient.builder(server.url()).build()) {
            List<Double> bareTimes = new ArrayList<>();
            List<Double> clientTimes = new ArrayList<>();
            for (int i = 0; i < 20_000; i++) { // in turn, so that both see the same neighbors
                bareTimes.add(time(() -> bare.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()).join()));
                clientTimes.add(time(() -> client.chat(HELLO, DEADLINE)));
            }
            print("bare java.net.http", bareTimes.subList(5_000, 20_000));
            print("client", clientTimes.subList(5_000, 20_000));
        }
    }

    private static void measureHedging(boolean hedged) throws Exception {
        Random random = new Random(1);
        AtomicInteger requests = new AtomicInteger();
        DelayServer server = new DelayServer(() -> {
            requests.incrementAndGet();
            return (random.nextInt(100) == 0 ? 20 : 1) * 20_000_000L;
        });
        LlmClient.Builder builder = LlmClient.builder(server.url());
        int calls = 10_000;
        try (LlmClient client = (hedged ? builder.hedging(0.95, 0.05) : builder).build()) {
            List<Double> times = new ArrayList<>();
            for (int sent = 0; sent < calls; sent += 20) {
                List<CompletableFuture<Double>> batch = new ArrayList<>();
                for (int i = 0; i < 20; i++) {
                    long start = System.nanoTime();
                    batch.add(client.chatAsync(HELLO, DEADLINE)
                            .thenApply(answer -> (System.nanoTime() - start) / 1e6));
                }
                batch.forEach(time -> times.add(time.join()));
            }
            print(hedged ? "1% stragglers, hedged" : "1% stragglers", times);
            System.out.printf("  requests per call %.4f%n", requests.get() / (double) calls);
        }
    }

    private static void measureThreads() throws Exception {
        DelayServer server = new DelayServer(() -> 3_000_000_000L);
        int before = Thread.activeCount();
        try (LlmClient client = LlmClient.builder(server.url())
                .connectTimeout(DEADLINE)
                .build()) {
            List<CompletableFuture<ChatResponse>> calls = new ArrayList<>();
            for (int i = 0; i < 5_000; i++) {
                calls.add(client.chatAsync(HELLO, DEADLINE));
            }
            int mostThreads = 0;
            while (server.held() < 5_000 && calls.stream().noneMatch(CompletableFuture::isDone)) {
                mostThreads = Math.max(mostThreads, Thread.activeCount());
                Thread.sleep(10);
            }
            mostThreads = Math.max(mostThreads, Thread.activeCount());
            System.out.printf("in flight at the server at once %d, threads of the client %d%n", server.held(), mostThreads - before);
            calls.forEach(CompletableFuture::join);
        }
    }

    /** An endpoint that refuses everything, by an answer at which no circuit opens. */
    private static void measureStorm() throws Exception {
        AtomicInteger requests = new AtomicInteger();
        DelayServer server = new DelayServer(
                () -> {
                    requests.incrementAndGet();
                    return 0;
                },
                "429 Too Many Requests");
        int calls = 10_000;
        try (LlmClient client = LlmClient.builder(server.url()).build()) {
            for (int sent = 0; sent < calls; sent += 20) {
                List<CompletableFuture<Boolean>> batch = new ArrayList<>();
                for (int i = 0; i < 20; i++) {
                    batch.add(client.chatAsync(HELLO, DEADLINE).handle((answer, failure) -> failure != null));
                }
                batch.forEach(CompletableFuture::join);
            }
        }
        System.out.printf("retry storm: requests per call %.4f%n", requests.get() / (double) calls);
    }

    private static double time(Runnable call) {
        long start = System.nanoTime();
        call.run();
        return (System.nanoTime() - start) / 1e6;
    }

    private static void print(String name, List<Double> times) {
        double[] sorted = times.stream().mapToDouble(Double::doubleValue).toArray();
        Arrays.sort(sorted);
        System.out.printf(
                "%s: p50 %.3f ms, p99 %.3f ms, p99.5 %.3f ms%n",
                name, sorted[sorted.length / 2], sorted[sorted.length * 99 / 100], sorted[sorted.length * 995 / 1000]);
    }

    /** Answers each request after a delay, on one thread. */
    private static final class DelayServer {
        private final byte[] bytes;
        private final Selector selector = Selector.open();
        private final ServerSocketChannel listener = ServerSocketChannel.open();
        private final PriorityQueue<Due> held = new PriorityQueue<>((a, b) -> Long.compare(a.at, b.at));
        private final LongSupplier delayNanos;
        private volatile int heldCount;

        private record Due(long at, SocketChannel channel) {}

        DelayServer(LongSupplier delayNanos) throws IOException {
            this(delayNanos, "200 OK");
        }

        DelayServer(LongSupplier delayNanos, String status) throws IOException {
            this.delayNanos = delayNanos;
            bytes = build(status);
            listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 8192);
            listener.configureBlocking(false);
            listener.register(selector, SelectionKey.OP_ACCEPT);
            Thread thread = new Thread(this::serve, "server");
            thread.setDaemon(true);
            thread.start();
        }

        String url() throws IOException {
            return "http://127.0.0.1:" + ((InetSocketAddress) listener.getLocalAddress()).getPort();
        }

        int held() {
            return heldCount;
        }

        private void serve() {
            try {
                while (true) {
                    long wait = held.isEmpty() ? 1000 : (held.peek().at - System.nanoTime()) / 1_000_000;
                    if (wait > 0) {
                        selector.select(wait);
                    } else {
                        selector.selectNow();
                    }
                    for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); keys.remove()) {
                        handle(keys.next());
                    }
                    while (!held.isEmpty() && held.peek().at <= System.nanoTime()) {
                        answer(held.poll().channel);
                    }
                    heldCount = held.size();
                }
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        private void handle(SelectionKey key) throws IOException {
            if (key.isAcceptable()) {
                SocketChannel channel = listener.accept();
                channel.configureBlocking(false);
                channel.setOption(java.net.StandardSocketOptions.TCP_NODELAY, true);
                channel.register(selector, SelectionKey.OP_READ, new StringBuilder());
                return;
            }
            SocketChannel channel = (SocketChannel) key.channel();
            ByteBuffer buffer = ByteBuffer.allocate(4096);
            try {
                if (channel.read(buffer) < 0) {
                    channel.close();
                    return;
                }
            } catch (IOException reset) {
                channel.close();
                return;
            }
            StringBuilder text = (StringBuilder) key.attachment();
            text.append(new String(buffer.array(), 0, buffer.position(), StandardCharsets.ISO_8859_1));
            if (text.indexOf("\r\n\r\n") >= 0 && text.charAt(text.length() - 1) == '}') {
                text.setLength(0);
                held.add(new Due(System.nanoTime() + delayNanos.getAsLong(), channel));
            }
        }

        private void answer(SocketChannel channel) throws IOException {
            try {
                channel.write(ByteBuffer.wrap(bytes));
            } catch (IOException closed) {
                channel.close();
            }
        }

        private static byte[] build(String status) {
            String body = "{\"model\":\"m\",\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"hi\"}}]}";
            return ("HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nContent-Length: " + body.length() + "\r\n\r\n"
                            + body)
                    .getBytes(StandardCharsets.ISO_8859_1);
        }
    }
}
