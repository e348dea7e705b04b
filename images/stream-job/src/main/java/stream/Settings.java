package stream;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.Map;

/**
 * What the job is told, as one JSON document in the variable STREAM_SETTINGS. Times are in milliseconds, files in base64.
 */
public record Settings(
        String name,
        Kafka kafka,
        Endpoint endpoint,
        Session session,
        Limits limits,
        Cache cache,
        byte[] prompt,
        byte[] eventSchema,
        long checkpointMs)
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
    public record Endpoint(String url, String model, int outputTokens, long deadlineMs, int inFlight, int attempts)
            implements Serializable {}

    public record Session(long timeoutMs, int events) implements Serializable {}

    public record Limits(int eventBytes, long lateMs, long futureMs) implements Serializable {}

    public record Cache(String url, long ttlS) implements Serializable {}

    /** Reads the settings of this process. */
    public static Settings read() {
        try {
            String text = System.getenv(VARIABLE);
            if (text == null) {
                throw new IllegalStateException(VARIABLE + " is not set");
            }
            return MAPPER.readValue(text, Settings.class);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(VARIABLE + ": " + error.getOriginalMessage(), error);
        }
    }

    /** Reads a JSON document. */
    static JsonNode parse(byte[] text) throws java.io.IOException {
        return MAPPER.readTree(text);
    }

    static ObjectMapper mapper() {
        return MAPPER;
    }
}
