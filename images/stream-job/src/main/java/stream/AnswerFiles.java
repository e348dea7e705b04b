package stream;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.time.ZoneOffset;
import java.util.Map;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetWriterFactory;
import org.apache.flink.streaming.api.functions.sink.filesystem.OutputFileConfig;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.DateTimeBucketAssigner;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.io.api.RecordConsumer;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;
import org.apache.parquet.schema.Types;

/** Answers as Parquet: at each checkpoint a file of each task, which readers see once the checkpoint is complete. */
final class AnswerFiles {
    /** The columns, which the table in the Glue Data Catalog has too. */
    private static final String COLUMNS = "/answer_columns.json";

    /** Bytes of a group of rows, which a task holds in memory; a checkpoint writes a smaller one. */
    private static final long ROW_GROUP_BYTES = 8L << 20;

    private AnswerFiles() {}

    static FileSink<Outcome> buildSink(String folder) {
        return FileSink.forBulkFormat(
                        new Path(folder), new ParquetWriterFactory<Outcome>(file -> new Builder(file).build()))
                .withBucketAssigner(new DateTimeBucketAssigner<>("'date='yyyy-MM-dd", ZoneOffset.UTC))
                .withOutputFileConfig(
                        OutputFileConfig.builder().withPartSuffix(".parquet").build())
                .build();
    }

    private static final class Builder extends ParquetWriter.Builder<Outcome, Builder> {
        Builder(OutputFile file) {
            super(file);
            withCompressionCodec(CompressionCodecName.SNAPPY);
            withRowGroupSize(ROW_GROUP_BYTES);
        }

        @Override
        protected Builder self() {
            return this;
        }

        @Override
        protected WriteSupport<Outcome> getWriteSupport(Configuration configuration) {
            return new Rows();
        }
    }

    /** Writes an answer as a row. */
    private static final class Rows extends WriteSupport<Outcome> {
        private final MessageType schema = readSchema();
        private RecordConsumer row;

        @Override
        public WriteContext init(Configuration configuration) {
            return new WriteContext(schema, Map.of());
        }

        @Override
        public void prepareForWrite(RecordConsumer consumer) {
            row = consumer;
        }

        @Override
        public void write(Outcome outcome) {
            JsonNode answer = parse(outcome);
            row.startMessage();
            for (int index = 0; index < schema.getFieldCount(); index++) {
                String name = schema.getFieldName(index);
                JsonNode value = answer.path(name);
                if (!value.isMissingNode() && !value.isNull()) {
                    row.startField(name, index);
                    addValue(schema.getType(index).asPrimitiveType().getPrimitiveTypeName(), value);
                    row.endField(name, index);
                }
            }
            row.endMessage();
        }

        private void addValue(PrimitiveTypeName type, JsonNode value) {
            if (type == PrimitiveTypeName.INT64) {
                row.addLong(value.asLong());
            } else {
                row.addBinary(Binary.fromString(value.asText()));
            }
        }

        private static JsonNode parse(Outcome outcome) {
            try {
                return Settings.mapper().readTree(outcome.json);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private static MessageType readSchema() {
            Types.MessageTypeBuilder schema = Types.buildMessage();
            try (InputStream file = AnswerFiles.class.getResourceAsStream(COLUMNS)) {
                for (JsonNode column : Settings.mapper().readTree(file)) {
                    String name = column.get("name").asText();
                    if (column.get("type").asText().equals("bigint")) {
                        schema.optional(PrimitiveTypeName.INT64).named(name);
                    } else {
                        schema.optional(PrimitiveTypeName.BINARY)
                                .as(LogicalTypeAnnotation.stringType())
                                .named(name);
                    }
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return schema.named("answer");
        }
    }
}
