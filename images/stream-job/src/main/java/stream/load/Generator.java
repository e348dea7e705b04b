package stream.load;

import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends events until it is stopped: a daily curve, and a burst each minute. Arguments: BROKERS TOPIC RATE SHOPPERS. */
public final class Generator {
    private static final double DAY_S = 86_400;
    private static final double LOWEST = 0.3;
    private static final double BURST_EVERY_S = 60;
    private static final double BURST_S = 2;
    private static final double BURST = 3;

    private Generator() {}

    public static void main(String[] arguments) throws InterruptedException {
        String topic = arguments[1];
        double rate = Double.parseDouble(arguments[2]);
        EventMaker maker = new EventMaker(System.nanoTime(), Integer.parseInt(arguments[3]));
        String prefix = UUID.randomUUID().toString().substring(0, 8);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        try (KafkaProducer<String, String> producer = openProducer(properties)) {
            for (long count = 0; ; count++) {
                double now = System.currentTimeMillis() / 1000.0;
                Thread.sleep((long) (1000 * maker.pickGap(rate * computeShare(now))));
                String shopper = maker.pickShopper();
                String event = maker.make(prefix + "-" + count, shopper, System.currentTimeMillis());
                producer.send(new ProducerRecord<>(topic, shopper, event));
            }
        }
    }

    /** Computes the share of the rate at a time of the day, UTC: highest in the evening, with bursts. */
    static double computeShare(double seconds) {
        double day = 2 * Math.PI * (seconds % DAY_S / DAY_S - 20.0 / 24);
        double share = LOWEST + (1 - LOWEST) * (1 + Math.cos(day)) / 2;
        return seconds % BURST_EVERY_S < BURST_S ? share * BURST : share;
    }

    static KafkaProducer<String, String> openProducer(Properties properties) {
        properties.put("enable.idempotence", "true");
        properties.put("linger.ms", "2");
        properties.put("delivery.timeout.ms", "900000"); // events wait for brokers; the default drops them after 120 s
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        return new KafkaProducer<>(properties);
    }
}
