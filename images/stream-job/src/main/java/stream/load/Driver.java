package stream.load;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Sends events open loop, and waits until each has an answer or a dead letter.
 *
 * <p>Writes sent.jsonl ({@code id}, {@code bad}, {@code due_at}) and outcomes.jsonl ({@code id}, {@code kind} and times)
 * into its folder. It reads as {@code read_committed}.
 */
public final class Driver {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final long HOUR_MS = Duration.ofHours(1).toMillis();

    /** Number of kinds of events that must become dead letters, and which of them is of the future. */
    private static final int BAD_KINDS = 5, FUTURE = 3;

    private final JsonNode plan;
    private final String prefix = UUID.randomUUID().toString().substring(0, 8) + "-";
    private final Set<String> expected = new HashSet<>();
    private int sentCount; // guarded by expected
    private volatile boolean allSent;
    private volatile Exception refused;

    Driver(JsonNode plan) {
        this.plan = plan;
    }

    /** Takes the plan as JSON; see the blueprint's validation. */
    public static void main(String[] arguments) throws Exception {
        new Driver(MAPPER.readTree(arguments[0])).run();
    }

    int countPlanned() {
        return plan.get("count").asInt() + plan.get("bad").asInt();
    }

    int countSent() {
        synchronized (expected) {
            return sentCount;
        }
    }

    /** Returns how many of the events that were sent have an outcome. */
    int countArrived() {
        synchronized (expected) {
            return sentCount - expected.size();
        }
    }

    void run() throws Exception {
        try (KafkaConsumer<String, String> consumer = openConsumer()) {
            Thread sender = new Thread(this::send, "sender");
            sender.start();
            receive(consumer);
            sender.join();
            if (refused != null) {
                throw new IllegalStateException("an event did not reach Kafka", refused);
            }
        }
    }

    private void send() {
        int count = plan.get("count").asInt();
        int bad = plan.get("bad").asInt();
        EventMaker maker = new EventMaker(prefix.hashCode(), plan.get("shoppers").asInt());
        try (KafkaProducer<String, String> producer = Generator.openProducer(buildProperties());
                BufferedWriter sent = open("sent.jsonl")) {
            String topic = plan.get("events").asText();
            producer.partitionsFor(topic);
            String shopper = prefix;
            int bads = 0;
            double due = System.currentTimeMillis() / 1000.0;
            for (int index = 0; index < count + bad; index++) {
                due += maker.pickGap(plan.get("rate").asDouble());
                Thread.sleep(Math.max(0, (long) (1000 * due) - System.currentTimeMillis()));
                boolean isBad = bad * (index + 1) / (count + bad) > bad * index / (count + bad); // spread evenly
                String id = prefix + index;
                long at = (long) (1000 * due);
                if (!isBad) {
                    shopper = prefix + maker.pickShopper();
                }
                // A producer whose clock is ahead says so in its record, too.
                Long recordAt = isBad && bads % BAD_KINDS == FUTURE ? Long.valueOf(at + computeAhead()) : null;
                String event = isBad ? makeBad(bads++, maker, id, shopper, at) : maker.make(id, shopper, at);
                synchronized (expected) {
                    expected.add(id);
                    sentCount++;
                }
                String key = isBad && !isReadable(event) ? id : shopper;
                producer.send(new ProducerRecord<>(topic, null, recordAt, key, event), this::keepError);
                sent.write(MAPPER.createObjectNode().put("id", id).put("bad", isBad).put("due_at", due).toString());
                sent.newLine();
            }
            producer.flush();
        } catch (Exception error) { // a login that Kafka refuses among them
            refused = error;
        } finally {
            allSent = true;
        }
    }

    private void keepError(RecordMetadata place, Exception error) {
        if (error != null) {
            refused = error;
        }
    }

    /** Makes what must become a dead letter, of each kind in turn. */
    private String makeBad(int number, EventMaker maker, String id, String shopper, long at) {
        return switch (number % BAD_KINDS) {
            // The validator itself fails on all but the first.
            case 0 -> "{\"version\":" + (number == 0 ? "99" : "1e999") + ",\"id\":\"" + id + "\"}";
            case 1 -> "{\"id\": \"" + id;
            case 2 -> "x".repeat(plan.get("event_bytes").asInt() + 1);
            case FUTURE -> maker.make(id, shopper, at + computeAhead());
            default -> maker.make(id, shopper, at - plan.get("late_ms").asLong() - HOUR_MS);
        };
    }

    private long computeAhead() {
        return plan.get("future_ms").asLong() + HOUR_MS;
    }

    /** Returns whether a dead letter of it has its id; that of any other has its key. */
    private static boolean isReadable(String event) {
        return event.startsWith("{") && event.endsWith("}");
    }

    private void receive(KafkaConsumer<String, String> consumer) throws IOException {
        String results = plan.get("results").asText();
        long end = Long.MAX_VALUE;
        boolean draining = false;
        boolean complete = false;
        try (BufferedWriter outcomes = open("outcomes.jsonl")) {
            while (refused == null && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> message : consumer.poll(POLL)) {
                    record(message, message.topic().equals(results), outcomes);
                }
                if (allSent && !draining) {
                    draining = true;
                    end = System.currentTimeMillis() + 1000 * plan.get("drain_s").asLong();
                }
                if (draining && !complete && isComplete()) {
                    complete = true; // what comes twice comes soon after
                    end = System.currentTimeMillis() + 1000 * plan.get("tail_s").asLong();
                }
            }
        }
    }

    private void record(ConsumerRecord<String, String> message, boolean isAnswer, BufferedWriter out)
            throws IOException {
        JsonNode outcome = MAPPER.readTree(message.value());
        String id = outcome.path("id").asText();
        id = id.isEmpty() ? outcome.path("key").asText() : id;
        if (!id.startsWith(prefix)) {
            return; // of the generator
        }
        synchronized (expected) {
            expected.remove(id);
        }
        String kind = isAnswer ? "answer" : outcome.path("reason").asText();
        ObjectNode line = MAPPER.createObjectNode().put("id", id).put("kind", kind);
        line.put("committed_at", System.currentTimeMillis());
        for (String field : List.of("shopper", "at", "received_at", "asked_at", "answered_at", "cached_at")) {
            line.set(field, outcome.get(field));
        }
        out.write(line.toString());
        out.newLine();
    }

    private boolean isComplete() {
        synchronized (expected) {
            return expected.isEmpty();
        }
    }

    private BufferedWriter open(String name) throws IOException {
        return Files.newBufferedWriter(Path.of(plan.get("folder").asText(), name));
    }

    /** Builds the address of Kafka, and how its clients log in. */
    private Properties buildProperties() {
        Properties properties = new Properties();
        plan.get("properties").properties().forEach(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        properties.put("bootstrap.servers", plan.get("brokers").asText());
        return properties;
    }

    private KafkaConsumer<String, String> openConsumer() {
        Properties properties = buildProperties();
        properties.put("isolation.level", "read_committed");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties);
        List<TopicPartition> partitions = new ArrayList<>();
        for (String topic : List.of(plan.get("results").asText(), plan.get("dead_letters").asText())) {
            consumer.partitionsFor(topic).forEach(info -> partitions.add(new TopicPartition(topic, info.partition())));
        }
        consumer.assign(partitions);
        consumer.seekToEnd(partitions);
        partitions.forEach(consumer::position); // before anything is sent
        return consumer;
    }
}
