import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.StringSerializer;

/** Opens a producer with properties, as NAME=VALUE arguments, and prints the login that it read. */
class OpenProducer {
    public static void main(String[] arguments) {
        Map<String, Object> properties = new TreeMap<>();
        properties.put("bootstrap.servers", "127.0.0.1:1");
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        for (String argument : arguments) {
            properties.put(argument.split("=", 2)[0], argument.split("=", 2)[1]);
        }
        new KafkaProducer<String, String>(properties).close(Duration.ZERO);
        System.out.println(new ProducerConfig(properties).getPassword("sasl.jaas.config").value());
    }
}
