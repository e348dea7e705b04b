package stream;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.util.List;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.api.connector.sink2.SupportsCommitter;

/** Commits a transaction of which Kafka knows nothing, as the job's sinks do, and prints what Flink is told. */
class CommitForgotten {
    @SuppressWarnings("unchecked")
    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.read();
        Object built = StreamJob.buildSink(settings, settings.kafka().results());
        SupportsCommitter<Object> sink = (SupportsCommitter<Object>) built;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream committable = new DataOutputStream(bytes)) { // as KafkaCommittableSerializer reads it
            committable.writeShort(0);
            committable.writeLong(4711);
            committable.writeUTF(settings.kafka().results() + "-0-1000000");
        }
        Object committable = sink.getCommittableSerializer().deserialize(1, bytes.toByteArray());
        try (Committer<Object> committer = sink.createCommitter(null)) {
            committer.commit(List.of(new Request(committable)));
        }
        System.exit(0);
    }

    private record Request(Object committable) implements Committer.CommitRequest<Object> {
        @Override
        public Object getCommittable() {
            return committable;
        }

        @Override
        public int getNumberOfRetries() {
            return 0;
        }

        @Override
        public void signalFailedWithKnownReason(Throwable error) {
            System.out.println("known: " + error);
        }

        @Override
        public void signalFailedWithUnknownReason(Throwable error) {
            System.out.println("unknown: " + error);
        }

        @Override
        public void retryLater() {
            System.out.println("later");
        }

        @Override
        public void updateAndRetryLater(Object other) {
            System.out.println("later");
        }

        @Override
        public void signalAlreadyCommitted() {
            System.out.println("committed");
        }
    }
}
