package stream;

import java.io.IOException;
import java.util.Collection;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.api.connector.sink2.Committer.CommitRequest;
import org.apache.flink.api.connector.sink2.CommitterInitContext;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.StatefulSinkWriter;
import org.apache.flink.api.connector.sink2.SupportsCommitter;
import org.apache.flink.api.connector.sink2.SupportsWriterState;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.kafka.common.errors.InvalidPidMappingException;

/**
 * A sink of Kafka whose job starts again however long it was stopped.
 *
 * <p>A job that starts commits the transactions of its checkpoint again. After transactional.id.expiration.ms Kafka has
 * forgotten them: by then each was committed, or aborted at its timeout. The connector takes that for an unknown failure,
 * which fails the job, again and again (KafkaCommitter of flink-connector-kafka 3.4.0).
 */
final class RestartableSink<I, C, S> implements Sink<I>, SupportsCommitter<C>, SupportsWriterState<I, S> {
    private static final long serialVersionUID = 1L;

    private final Sink<I> sink;
    private final SupportsCommitter<C> committing;
    private final SupportsWriterState<I, S> stateful;

    private RestartableSink(Sink<I> sink, SupportsCommitter<C> committing, SupportsWriterState<I, S> stateful) {
        this.sink = sink;
        this.committing = committing;
        this.stateful = stateful;
    }

    static <I, C, S, T extends Sink<I> & SupportsCommitter<C> & SupportsWriterState<I, S>> Sink<I> wrap(T sink) {
        return new RestartableSink<>(sink, sink, sink);
    }

    @Override
    @SuppressWarnings("deprecation") // of Sink
    public SinkWriter<I> createWriter(InitContext context) throws IOException {
        return sink.createWriter(context);
    }

    @Override
    public StatefulSinkWriter<I, S> restoreWriter(WriterInitContext context, Collection<S> state) throws IOException {
        return stateful.restoreWriter(context, state);
    }

    @Override
    public SimpleVersionedSerializer<S> getWriterStateSerializer() {
        return stateful.getWriterStateSerializer();
    }

    @Override
    public SimpleVersionedSerializer<C> getCommittableSerializer() {
        return committing.getCommittableSerializer();
    }

    @Override
    public Committer<C> createCommitter(CommitterInitContext context) throws IOException {
        Committer<C> committer = committing.createCommitter(context);
        return new Committer<>() {
            @Override
            public void commit(Collection<CommitRequest<C>> requests) throws IOException, InterruptedException {
                committer.commit(requests.stream().<CommitRequest<C>>map(Request::new).toList());
            }

            @Override
            public void close() throws Exception {
                committer.close();
            }
        };
    }

    /** A transaction to commit; one that Kafka has forgotten is over. */
    private record Request<C>(CommitRequest<C> request) implements CommitRequest<C> {
        @Override
        public void signalFailedWithUnknownReason(Throwable error) {
            if (error instanceof InvalidPidMappingException) {
                request.signalFailedWithKnownReason(error);
            } else {
                request.signalFailedWithUnknownReason(error);
            }
        }

        @Override
        public C getCommittable() {
            return request.getCommittable();
        }

        @Override
        public int getNumberOfRetries() {
            return request.getNumberOfRetries();
        }

        @Override
        public void signalFailedWithKnownReason(Throwable error) {
            request.signalFailedWithKnownReason(error);
        }

        @Override
        public void retryLater() {
            request.retryLater();
        }

        @Override
        public void updateAndRetryLater(C committable) {
            request.updateAndRetryLater(committable);
        }

        @Override
        public void signalAlreadyCommitted() {
            request.signalAlreadyCommitted();
        }
    }
}
