package stream.load;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** Answers as an OpenAI-compatible endpoint does, with fixed text after a time. Arguments: HOST PORT LATENCY_MS. */
public final class MockEndpoint {
    private static final String ANSWER = "{\"object\":\"chat.completion\",\"model\":\"mock\",\"choices\":[{\"index\":0,"
            + "\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"mock answer\"}}],"
            + "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}";

    private MockEndpoint() {}

    public static void main(String[] arguments) throws IOException {
        long latencyMs = Long.parseLong(arguments[2]);
        ScheduledExecutorService timer = Executors.newScheduledThreadPool(2);
        InetSocketAddress address = new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1]));
        HttpServer server = HttpServer.create(address, 1024);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            exchange.getRequestBody().readAllBytes();
            long wait = (long) (latencyMs * (0.8 + 0.4 * ThreadLocalRandom.current().nextDouble()));
            timer.schedule(() -> answer(exchange), wait, TimeUnit.MILLISECONDS);
        });
        server.start();
    }

    private static void answer(HttpExchange exchange) {
        byte[] body = ANSWER.getBytes(StandardCharsets.UTF_8);
        try (exchange; OutputStream out = exchange.getResponseBody()) {
            exchange.getResponseHeaders().add("content-type", "application/json");
            exchange.sendResponseHeaders(200, body.length);
            out.write(body);
        } catch (IOException error) {
            // the caller is gone
        }
    }
}
