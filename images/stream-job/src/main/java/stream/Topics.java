package stream;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.InvalidPartitionsException;
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

    /** Creates those that are missing, and adds partitions to those that have fewer. */
    static void create(Settings.Kafka kafka) throws ExecutionException, InterruptedException {
        Properties properties = buildProperties(kafka);
        properties.put("bootstrap.servers", kafka.brokers());
        Optional<Short> replicas = Optional.of((short) kafka.replicas());
        try (Admin admin = Admin.create(properties)) {
            var topics = List.of(kafka.events(), kafka.results(), kafka.deadLetters()).stream()
                    .map(topic -> new NewTopic(topic, Optional.of(kafka.partitions()), replicas).configs(BY_OWN_CLOCK))
                    .toList();
            List<String> present = new ArrayList<>();
            for (var created : admin.createTopics(topics).values().entrySet()) {
                if (!await(created.getValue(), TopicExistsException.class)) {
                    present.add(created.getKey());
                }
            }
            for (TopicDescription topic :
                    admin.describeTopics(present).allTopicNames().get().values()) {
                if (topic.partitions().size() < kafka.partitions()) {
                    var more = Map.of(topic.name(), NewPartitions.increaseTo(kafka.partitions()));
                    await(admin.createPartitions(more).all(), InvalidPartitionsException.class);
                }
            }
        }
    }

    /** Waits; returns whether it was done, and not by another task before. */
    private static boolean await(KafkaFuture<Void> done, Class<? extends Exception> wasDone)
            throws ExecutionException, InterruptedException {
        try {
            done.get();
            return true;
        } catch (ExecutionException error) {
            if (!wasDone.isInstance(error.getCause())) {
                throw error;
            }
            return false;
        }
    }
}
