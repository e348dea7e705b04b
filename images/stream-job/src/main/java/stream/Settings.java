package stream;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * What the job is told, as one JSON document. Times are in milliseconds, files in base64; {@code answerFiles} is the
 * folder of Parquet, empty for none.
 *
 * <p>It is in the variable STREAM_SETTINGS; or, on Managed Service for Apache Flink, in parts in the group of properties
 * {@code settings}, with the addresses of Kafka and of the cache in the group {@code place}.
 */
public record Settings(
        String name,
        Kafka kafka,
        Endpoint endpoint,
        Session session,
        Limits limits,
        Shed shed,
        Cache cache,
        byte[] prompt,
        byte[] eventSchema,
        String answerFiles,
        long checkpointMs,
        boolean logsRequests)
        implements Serializable {

    public static final String VARIABLE = "STREAM_SETTINGS";

    private static final ObjectMapper MAPPER = new ObjectMapper();

    /** Topics are created where they are missing; {@code properties} are those of every client. */
    public record Kafka(
            String brokers,
            String events,
            String results,
            String deadLetters,
            int partitions,
            int replicas,
            Map<String, String> properties)
            implements Serializable {}

    /** {@code url} is without /v1; {@code inFlight} is of each parallel instance. */
    public record Endpoint(
            String url,
            String model,
            int outputTokens,
            long deadlineMs,
            int inFlight,
            int attempts,
            boolean overtake,
            ApiKey apiKey)
            implements Serializable {}

    /** Events that waited for longer are not asked for, but those of the types {@code keep}; null for none. */
    public record Shed(long afterMs, List<String> keep) implements Serializable {}

    /** {@code secret} has the key in a field of its JSON, or is the key where {@code field} is empty. */
    public record ApiKey(String secret, String field, String region) implements Serializable {}

    public record Session(long timeoutMs, int events) implements Serializable {}

    public record Limits(int eventBytes, long lateMs, long futureMs) implements Serializable {}

    public record Cache(String url, long ttlS) implements Serializable {}

    /** Where Managed Service for Apache Flink writes its properties; as aws-kinesisanalytics-runtime 1.2.0 reads them. */
    private static final Path PROPERTIES = Path.of("/etc/flink/application_properties.json");

    /** Reads the settings of this process. */
    public static Settings read() throws IOException {
        String text = System.getenv(VARIABLE);
        return text == null ? read(PROPERTIES) : MAPPER.readValue(text, Settings.class);
    }

    static Settings read(Path properties) throws IOException {
        StringBuilder text = new StringBuilder();
        JsonNode place = MAPPER.createObjectNode();
        for (JsonNode group : MAPPER.readTree(properties.toFile())) {
            JsonNode values = group.path("PropertyMap");
            if (group.path("PropertyGroupId").asText().equals("place")) {
                place = values;
            } else if (group.path("PropertyGroupId").asText().equals("settings")) {
                List<String> names = new ArrayList<>();
                values.fieldNames().forEachRemaining(names::add);
                names.stream().sorted().forEach(name -> text.append(values.get(name).asText()));
            }
        }
        ObjectNode settings = (ObjectNode) MAPPER.readTree(text.toString());
        ((ObjectNode) settings.get("kafka")).put("brokers", place.path("brokers").asText());
        ((ObjectNode) settings.get("cache")).put("url", place.path("cache").asText());
        return MAPPER.treeToValue(settings, Settings.class);
    }

    /** Reads a JSON document. */
    static JsonNode parse(byte[] text) throws IOException {
        return MAPPER.readTree(text);
    }

    static ObjectMapper mapper() {
        return MAPPER;
    }
}
