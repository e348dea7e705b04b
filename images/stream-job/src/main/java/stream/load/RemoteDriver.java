package stream.load;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Runs the driver in a container beside the deployment, whose network alone reaches Kafka.
 *
 * <p>Takes a file with the presigned URL of its input, {@code ProgramInput} of the blueprint's validation: the driver's
 * plan, and presigned URLs for what it writes. Those are renewed there before they expire; an input that is gone means
 * that nobody waits for the load, which then ends. Needs no SDK and no rights on S3.
 */
public final class RemoteDriver {
    private static final int ATTEMPTS = 5;
    private static final int LAST_CHARACTERS = 4000;
    private static final Duration TIMEOUT = Duration.ofMinutes(5); // of one request, a million outcomes among them
    private static final Duration REPORT_EVERY = Duration.ofSeconds(1);
    private static final Duration RENEW_EVERY = Duration.ofMinutes(1);
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private final HttpClient client = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(20))
            .build();
    private volatile JsonNode input;
    private String reported = "";

    private RemoteDriver(String url) throws IOException, InterruptedException {
        input = fetchInput(url);
    }

    public static void main(String[] arguments) throws Exception {
        String url = Files.readString(Path.of(arguments[0])).strip();
        System.exit(new RemoteDriver(url).run());
    }

    private int run() throws Exception {
        Path folder = Files.createTempDirectory("load-");
        ObjectNode plan = input.get("plan").deepCopy();
        plan.put("folder", folder.toString());
        Driver driver = new Driver(plan);
        ScheduledExecutorService reporter = Executors.newSingleThreadScheduledExecutor();
        reporter.scheduleWithFixedDelay(
                () -> report(driver), 0, REPORT_EVERY.toMillis(), TimeUnit.MILLISECONDS);
        reporter.scheduleWithFixedDelay(
                this::renew, RENEW_EVERY.toMillis(), RENEW_EVERY.toMillis(), TimeUnit.MILLISECONDS);
        try {
            driver.run();
            for (var result : input.get("result_urls").properties()) {
                put(result.getValue().asText(), BodyPublishers.ofFile(folder.resolve(result.getKey())));
            }
            stop(reporter);
            putState(describe(driver).put("exit_code", 0));
            return 0;
        } catch (Exception error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            System.err.println(trace);
            stop(reporter);
            String log = trace.toString();
            log = log.substring(0, Math.min(log.length(), LAST_CHARACTERS));
            putState(describe(driver).put("exit_code", 1).put("log", log));
            return 1;
        }
    }

    /** Waits for a report that is on its way: the last one must not be overtaken. */
    private static void stop(ScheduledExecutorService reporter) throws InterruptedException {
        reporter.shutdown();
        reporter.awaitTermination(TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
    }

    private ObjectNode describe(Driver driver) {
        ObjectNode state = MAPPER.createObjectNode();
        state.putObject("progress")
                .put("phase", "load")
                .put("total", driver.countPlanned())
                .put("sent", driver.countSent())
                .put("answered", driver.countArrived());
        return state;
    }

    /** Tells how far the driver is. What fails is told the next time: the load goes on. */
    private void report(Driver driver) {
        try {
            ObjectNode state = describe(driver);
            if (!state.toString().equals(reported)) {
                putState(state);
                reported = state.toString();
            }
        } catch (IOException | InterruptedException error) {
            System.err.println("the progress was not sent: " + error);
        }
    }

    private void renew() {
        try {
            input = fetchInput(input.get("input_url").asText());
        } catch (IOException | InterruptedException error) {
            System.err.println("the URLs were not renewed: " + error);
        }
    }

    private JsonNode fetchInput(String url) throws IOException, InterruptedException {
        HttpResponse<byte[]> answer = send(HttpRequest.newBuilder(URI.create(url)).GET());
        int status = answer.statusCode();
        if (status == 403 || status == 404) { // S3 answers 403 to who may not list
            System.err.println("the load's input is gone: the load was cancelled, or its URL expired before this began");
            System.exit(1);
        }
        return MAPPER.readTree(requireSuccess(answer).body());
    }

    private void putState(ObjectNode state) throws IOException, InterruptedException {
        put(input.get("state_url").asText(), BodyPublishers.ofString(state.toString()));
    }

    private void put(String url, BodyPublisher body) throws IOException, InterruptedException {
        requireSuccess(send(HttpRequest.newBuilder(URI.create(url)).PUT(body)));
    }

    /** Sends a request again that the network, or S3 for a moment, refuses. */
    private HttpResponse<byte[]> send(HttpRequest.Builder request) throws IOException, InterruptedException {
        for (int attempt = 1; ; attempt++) {
            try {
                HttpResponse<byte[]> answer =
                        client.send(request.timeout(TIMEOUT).build(), BodyHandlers.ofByteArray());
                if (answer.statusCode() < 500 || attempt == ATTEMPTS) {
                    return answer;
                }
            } catch (IOException error) {
                if (attempt == ATTEMPTS) {
                    throw error;
                }
            }
            Thread.sleep(Duration.ofSeconds(attempt).toMillis());
        }
    }

    private static HttpResponse<byte[]> requireSuccess(HttpResponse<byte[]> answer) throws IOException {
        if (answer.statusCode() / 100 != 2) {
            String body = new String(answer.body(), StandardCharsets.UTF_8);
            throw new IOException("S3 answers " + answer.statusCode() + ": " + body);
        }
        return answer;
    }
}
