package stream;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.TopicExistsException;

/** The topics of the job. */
final class Topics {
    /** A record has the time at which Kafka got it; by default that of its producer, whose clock may be wrong. */
    private static final Map<String, String> BY_OWN_CLOCK = Map.of("message.timestamp.type", "LogAppendTime");

    private Topics() {}

    static Properties buildProperties(Settings.Kafka kafka) {
        Properties properties = new Properties();
        properties.putAll(kafka.properties());
        return properties;
    }

    /** Creates those that are missing. */
    static void create(Settings.Kafka kafka) throws ExecutionException, InterruptedException {
        Properties properties = buildProperties(kafka);
        properties.put("bootstrap.servers", kafka.brokers());
        Optional<Short> replicas = Optional.of((short) kafka.replicas());
        try (Admin admin = Admin.create(properties)) {
            var topics = List.of(kafka.events(), kafka.results(), kafka.deadLetters()).stream()
                    .map(topic -> new NewTopic(topic, Optional.of(kafka.partitions()), replicas).configs(BY_OWN_CLOCK))
                    .toList();
            for (KafkaFuture<Void> created : admin.createTopics(topics).values().values()) {
                awaitUnlessPresent(created);
            }
        }
    }

    private static void awaitUnlessPresent(KafkaFuture<Void> created) throws ExecutionException, InterruptedException {
        try {
            created.get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
    }
}
