import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;

/** Deletes a topic. Arguments: BROKERS TOPIC. */
class DeleteTopic {
    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            admin.deleteTopics(List.of(arguments[1])).all().get();
        }
    }
}
