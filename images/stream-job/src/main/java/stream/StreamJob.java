package stream;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.streaming.api.datastream.AsyncDataStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;

/** Events of shoppers -> context of each session -> prompt -> answer -> Kafka and the cache. */
public final class StreamJob {
    /**
     * How long a job that stopped right after a checkpoint may take to start again: then Kafka aborts what that checkpoint
     * wrote, and its answers are lost. Brokers must allow it: transaction.max.timeout.ms.
     */
    private static final Duration TRANSACTION_TIMEOUT = Duration.ofHours(1);

    /** How soon a topic of events that was deleted fails the job, instead of reading nothing; the default is 5 minutes. */
    private static final Duration LOOK_FOR_TOPIC = Duration.ofSeconds(10);

    /** How long that check waits for brokers that are away, which are no deleted topic; the default is a minute. */
    private static final Duration BROKERS_AWAY = Duration.ofMinutes(5);

    /** Longest that a record waits for others on its way to the next task; Flink's default adds up to 100 ms. */
    private static final long BUFFER_TIMEOUT_MS = 5;

    private StreamJob() {}

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.read();
        Topics.create(settings.kafka());
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setBufferTimeout(BUFFER_TIMEOUT_MS);
        environment.enableCheckpointing(settings.checkpointMs(), CheckpointingMode.EXACTLY_ONCE);
        build(environment, settings);
        environment.execute(settings.name());
    }

    static void build(StreamExecutionEnvironment environment, Settings settings) {
        SingleOutputStreamOperator<Event> events = environment
                .fromSource(buildSource(settings), WatermarkStrategy.noWatermarks(), "events")
                .uid("events")
                .process(new Door(settings))
                .uid("door")
                .name("door");
        SingleOutputStreamOperator<Request> requests = events.keyBy(event -> event.shopper)
                .process(new SessionContext(settings))
                .uid("session-context")
                .name("session context");
        Settings.Endpoint endpoint = settings.endpoint();
        SingleOutputStreamOperator<Outcome> outcomes = AsyncDataStream.unorderedWait(
                        requests,
                        new CallEndpoint(settings),
                        endpoint.deadlineMs() + AnswerCache.TIMEOUT.toMillis() + settings.checkpointMs(),
                        TimeUnit.MILLISECONDS,
                        endpoint.inFlight())
                .uid("endpoint")
                .name("endpoint");
        DataStream<Outcome> answers = outcomes.filter(Outcome::isAnswer).uid("answers").name("answers");
        DataStream<Outcome> deadLetters = events.getSideOutput(DeadLetter.TAG)
                .union(requests.getSideOutput(DeadLetter.TAG))
                .union(outcomes.filter(outcome -> !outcome.isAnswer()).uid("unanswered").name("unanswered"))
                .map(new Counts())
                .uid("counts")
                .name("counts");
        answers.sinkTo(buildSink(settings, settings.kafka().results())).uid("results").name("results");
        if (!settings.answerFiles().isEmpty()) {
            answers.sinkTo(AnswerFiles.buildSink(settings.answerFiles())).uid("files").name("files");
        }
        deadLetters.sinkTo(buildSink(settings, settings.kafka().deadLetters())).uid("dead").name("dead letters");
    }

    private static KafkaSource<Incoming> buildSource(Settings settings) {
        return KafkaSource.<Incoming>builder()
                .setBootstrapServers(settings.kafka().brokers())
                .setTopics(settings.kafka().events())
                .setGroupId(settings.name())
                .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
                .setDeserializer(new Incoming.Reader())
                .setProperties(Topics.buildProperties(settings.kafka()))
                .setProperty("isolation.level", "read_committed") // what a producer takes back is no event
                .setProperty("partition.discovery.interval.ms", Long.toString(LOOK_FOR_TOPIC.toMillis()))
                .setProperty("default.api.timeout.ms", Long.toString(BROKERS_AWAY.toMillis()))
                .build();
    }

    static Sink<Outcome> buildSink(Settings settings, String topic) {
        return RestartableSink.wrap(KafkaSink.<Outcome>builder()
                .setBootstrapServers(settings.kafka().brokers())
                .setKafkaProducerConfig(Topics.buildProperties(settings.kafka()))
                .setProperty("transaction.timeout.ms", Long.toString(TRANSACTION_TIMEOUT.toMillis()))
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(topic)
                .setRecordSerializer(KafkaRecordSerializationSchema.<Outcome>builder()
                        .setTopic(topic)
                        .setKeySerializationSchema((Outcome outcome) -> outcome.key.getBytes(StandardCharsets.UTF_8))
                        .setValueSerializationSchema(
                                (Outcome outcome) -> outcome.json.getBytes(StandardCharsets.UTF_8))
                        .build())
                .build());
    }
}
