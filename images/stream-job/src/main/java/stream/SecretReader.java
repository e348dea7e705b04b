package stream;

/** Reads secrets; the jar for Managed Service for Apache Flink has one. */
public interface SecretReader {
    String read(String name, String region);
}
