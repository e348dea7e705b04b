package stream;

import java.util.Objects;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** A record of the events' topic, whatever is in it. */
public class Incoming {
    public byte[] value;

    /** The beginning of its key in Kafka; empty without one. */
    public String key;

    public long receivedAt;

    /** Takes records as they are: what cannot be read is the door's matter. */
    static class Reader implements KafkaRecordDeserializationSchema<Incoming> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> message, Collector<Incoming> out) {
            Incoming incoming = new Incoming();
            incoming.value = Objects.requireNonNullElse(message.value(), new byte[0]);
            incoming.key = message.key() == null ? "" : DeadLetter.cut(message.key());
            incoming.receivedAt = message.timestamp();
            out.collect(incoming);
        }

        @Override
        public TypeInformation<Incoming> getProducedType() {
            return TypeInformation.of(Incoming.class);
        }
    }
}
