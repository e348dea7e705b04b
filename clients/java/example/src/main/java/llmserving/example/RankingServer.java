package llmserving.example;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import llmserving.client.ChatRequest;
import llmserving.client.LlmClient;
import llmserving.client.Message;

/** A server that a page asks: {@code GET /rank?shopper=ID} answers 200 within a deadline, and says where from. */
public final class RankingServer implements AutoCloseable {
    private static final String USAGE = "Usage: --endpoint URL --model NAME --cache redis://HOST:PORT"
            + " --prefixes shop:stream,mine:ads [--deadline-ms 300] [--default TEXT] [--system TEXT] [--port 8080]";

    private final ObjectMapper json = new ObjectMapper();
    private final ExecutorService writers = Executors.newFixedThreadPool(2);
    private final Ranker ranker;
    private final String model;
    private final String system;
    private final HttpServer http;

    RankingServer(Ranker ranker, String model, String system, InetSocketAddress address) throws IOException {
        this.ranker = ranker;
        this.model = model;
        this.system = system;
        http = HttpServer.create(address, 0);
        http.createContext("/rank", this::rank);
        http.start();
    }

    /** Serve until the process is stopped. */
    public static void main(String[] arguments) throws IOException {
        Map<String, String> options = parse(arguments);
        Duration deadline = Duration.ofMillis(Long.parseLong(options.getOrDefault("deadline-ms", "300")));
        LlmClient client = LlmClient.builder(options.get("endpoint")).hedging(0.95, 0.05).build();
        List<String> prefixes = Arrays.asList(options.get("prefixes").split(","));
        AnswerCache cache = new AnswerCache(options.get("cache"), prefixes, deadline);
        Ranker ranker = new Ranker(client, cache, options.getOrDefault("default", ""), deadline);
        String model = options.get("model");
        String system = options.getOrDefault("system", "");
        // The first call loads classes and connects, which takes longer than a page waits.
        ranker.rank("", buildRequest(model, system, "")).join();
        int port = Integer.parseInt(options.getOrDefault("port", "8080"));
        new RankingServer(ranker, model, system, new InetSocketAddress(port));
    }

    private static Map<String, String> parse(String[] arguments) {
        Map<String, String> options = new HashMap<>();
        for (int index = 0; index + 1 < arguments.length; index += 2) {
            options.put(arguments[index].replaceFirst("^--", ""), arguments[index + 1]);
        }
        if (!options.keySet().containsAll(List.of("endpoint", "model", "cache", "prefixes"))) {
            System.err.println(USAGE);
            System.exit(2);
        }
        return options;
    }

    int port() {
        return http.getAddress().getPort();
    }

    private void rank(HttpExchange exchange) {
        Optional<String> shopper = findShopper(exchange);
        if (shopper.isEmpty()) {
            writers.execute(() -> answer(exchange, 400, Map.of("error", "shopper: missing. Fix: add ?shopper=ID.")));
            return;
        }
        ranker.rank(shopper.get(), buildRequest(model, system, shopper.get()))
                .thenAcceptAsync(
                        ranking -> answer(
                                exchange,
                                200,
                                Map.of(
                                        "answer", ranking.answer(),
                                        "from", ranking.source().name().toLowerCase())),
                        writers);
    }

    /** Build a request whose beginning is the same in all, so that engines have it in their caches. */
    private static ChatRequest buildRequest(String model, String system, String shopper) {
        return ChatRequest.of(model, Message.system(system), Message.user("Rank for shopper " + shopper + "."))
                .with("max_tokens", 16);
    }

    private static Optional<String> findShopper(HttpExchange exchange) {
        String query = Optional.ofNullable(exchange.getRequestURI().getRawQuery()).orElse("");
        return Arrays.stream(query.split("&"))
                .filter(field -> field.startsWith("shopper=") && field.length() > "shopper=".length())
                .map(field -> URLDecoder.decode(field.substring("shopper=".length()), StandardCharsets.UTF_8))
                .findFirst();
    }

    private void answer(HttpExchange exchange, int status, Map<String, String> body) {
        try (exchange) {
            byte[] bytes = json.writeValueAsBytes(body);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(status, bytes.length);
            exchange.getResponseBody().write(bytes);
        } catch (IOException error) {
            // The page is gone.
        }
    }

    @Override
    public void close() {
        http.stop(0);
        writers.shutdownNow();
    }
}
