package stream;

import com.fasterxml.jackson.databind.JsonNode;
import com.networknt.schema.JsonSchema;
import com.networknt.schema.JsonSchemaFactory;
import com.networknt.schema.SpecVersion;
import com.networknt.schema.ValidationMessage;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.metrics.Counter;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.util.Collector;

/** Lets events in that the schema allows; the rest are dead letters. */
final class Door extends ProcessFunction<Incoming, Event> {
    private final Settings.Kafka kafka;
    private final String schemaText;
    private final Settings.Limits limits;
    private transient JsonSchema schema;
    private transient Counter events;

    Door(Settings settings) {
        this.kafka = settings.kafka();
        this.schemaText = new String(settings.eventSchema(), StandardCharsets.UTF_8);
        this.limits = settings.limits();
    }

    @Override
    public void open(OpenContext context) throws Exception {
        Topics.create(kafka); // one that was deleted failed the job, which starts again here
        events = Counts.add(getRuntimeContext(), "streamEvents");
        schema = JsonSchemaFactory.getInstance(SpecVersion.VersionFlag.V202012).getSchema(schemaText);
    }

    @Override
    public void processElement(Incoming incoming, Context context, Collector<Event> out) {
        events.inc();
        byte[] record = incoming.value;
        if (record.length > limits.eventBytes()) {
            String message = record.length + " bytes; at most " + limits.eventBytes();
            context.output(DeadLetter.TAG, DeadLetter.of(incoming, "oversized", message));
            return;
        }
        JsonNode node;
        try {
            node = Settings.parse(record);
        } catch (IOException | StackOverflowError error) {
            context.output(DeadLetter.TAG, DeadLetter.of(incoming, "not_json", "it is not JSON"));
            return;
        }
        String id = node.path("id").asText("");
        String mistake = findMistake(node);
        if (mistake != null) {
            context.output(DeadLetter.TAG, DeadLetter.ofRefused(incoming, id, mistake, node));
            return;
        }
        Event event = build(node, incoming);
        long ahead = event.at - incoming.receivedAt;
        if (ahead > limits.futureMs()) {
            String message = "it happened " + ahead + " ms after Kafka received it";
            context.output(DeadLetter.TAG, DeadLetter.of(event, "clock_skew", message));
            return;
        }
        out.collect(event);
    }

    /** Returns what the schema refuses; null for nothing. */
    private String findMistake(JsonNode node) {
        try {
            Set<ValidationMessage> mistakes = schema.validate(node);
            return mistakes.isEmpty() ? null : mistakes.iterator().next().getMessage();
        } catch (RuntimeException | StackOverflowError error) { // as of 1e999, and of some patterns on long texts
            return "it cannot be checked: " + error;
        }
    }

    private static Event build(JsonNode node, Incoming incoming) {
        Event event = new Event();
        event.id = node.path("id").asText();
        event.shopper = node.path("shopper").asText();
        event.type = node.path("type").asText();
        event.at = node.path("at").asLong();
        event.receivedAt = incoming.receivedAt;
        event.body = node.toString();
        return event;
    }
}
