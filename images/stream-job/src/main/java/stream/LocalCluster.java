package stream;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint;

/**
 * The JobManager of this machine: runs the job from its latest checkpoint, where there is one.
 *
 * <p>Without ZooKeeper or Kubernetes a JobManager that starts again knows of no checkpoint by itself. The first argument
 * is the folder of checkpoints; the rest are the entry point's own.
 */
public final class LocalCluster {
    private LocalCluster() {}

    public static void main(String[] arguments) throws IOException {
        List<String> flinkArguments = new ArrayList<>(List.of(arguments).subList(1, arguments.length));
        findLatest(Path.of(arguments[0]))
                .ifPresent(checkpoint -> flinkArguments.addAll(
                        // Answers that no longer go to files have state there.
                        List.of("--fromSavepoint", checkpoint.toString(), "--allowNonRestoredState")));
        StandaloneApplicationClusterEntryPoint.main(flinkArguments.toArray(new String[0]));
    }

    private static Optional<Path> findLatest(Path folder) throws IOException {
        if (!Files.isDirectory(folder)) {
            return Optional.empty();
        }
        try (Stream<Path> paths = Files.walk(folder, 3)) {
            return paths.filter(path -> path.endsWith("_metadata"))
                    .max(Comparator.comparingLong(path -> path.toFile().lastModified()))
                    .map(Path::getParent);
        }
    }
}
