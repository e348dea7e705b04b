import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends a record whose transaction is aborted, an event of an unknown version, and a record with as long a key as Kafka
 * takes, and prints the dead letters that come until the last one's.
 */
class SendPoison {
    private static final String LONG_KEY = "\u0001".repeat(1_000_000), ITEM = "x".repeat(3_000);

    public static void main(String[] arguments) {
        String topic = arguments[1];
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("isolation.level", "read_committed");
        var text = new StringDeserializer();
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(properties, text, text)) {
            int partitions = reader.partitionsFor(topic).size();
            System.out.println(partitions + " partitions");
            List<TopicPartition> letters = IntStream.range(0, partitions)
                    .mapToObj(number -> new TopicPartition(arguments[2], number))
                    .toList();
            reader.assign(letters);
            reader.seekToEnd(letters);
            letters.forEach(reader::position);
            send(properties, topic);
            while (true) {
                for (ConsumerRecord<String, String> letter : reader.poll(Duration.ofSeconds(1))) {
                    String json = letter.value();
                    boolean isLast = json.contains("\"event\":\"long key\"");
                    boolean isWhole = json.contains(ITEM + "\\\"}");
                    System.out.println(isLast ? "long key" : isWhole ? "whole event" : json);
                    if (isLast) {
                        System.exit(0);
                    }
                }
            }
        }
    }

    private static void send(Properties properties, String topic) {
        properties.put("transactional.id", "poison");
        var text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "key", "aborted"));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, LONG_KEY, "{\"version\": 2, \"item\": \"" + ITEM + "\"}"));
            producer.send(new ProducerRecord<>(topic, 0, LONG_KEY, "long key"));
            producer.commitTransaction();
        }
    }
}
