package stream;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import org.apache.flink.util.OutputTag;

/** Why an event has no answer, for the topic of dead letters. */
final class DeadLetter {
    static final OutputTag<Outcome> TAG = new OutputTag<>("dead-letters") {};

    private static final int SHOWN_BYTES = 2000;

    private DeadLetter() {}

    /** Builds the letter of an event that was read. */
    static Outcome of(Event event, String reason, String message) {
        return build(event.shopper, event.id, reason, message, event.body);
    }

    /** Builds the letter of a record that is no event. */
    static Outcome of(Incoming incoming, String reason, String message) {
        return build(incoming.key, "", reason, message, cut(incoming.value));
    }

    /** Builds the letter of what the schema refuses: with all of it, which the next version of the schema may allow. */
    static Outcome ofRefused(Incoming incoming, String id, String message, JsonNode body) {
        return build(incoming.key, id, "schema", message, body.toString());
    }

    /** Reads the beginning of a record's key or value: Kafka takes no letter that has all of a long one. */
    static String cut(byte[] text) {
        return new String(text, 0, Math.min(text.length, SHOWN_BYTES), StandardCharsets.UTF_8);
    }

    private static Outcome build(String key, String id, String reason, String message, String event) {
        ObjectNode letter = Settings.mapper().createObjectNode();
        letter.put("key", key).put("id", id).put("reason", reason).put("message", message);
        letter.put("event", event).put("dead_at", System.currentTimeMillis());
        Outcome outcome = new Outcome();
        outcome.key = key;
        outcome.reason = reason;
        outcome.json = letter.toString();
        return outcome;
    }
}
