package stream;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Keeps each shopper's latest events, and turns each new one into a prompt.
 *
 * <p>An event is late by its own shopper's clock, not by a watermark: one producer with a wrong clock, or a partition
 * that is read faster after an outage, makes no event of another shopper late.
 */
final class SessionContext extends KeyedProcessFunction<String, Event, Request> {
    private final Settings.Session session;
    private final long lateMs;
    private final String template;
    private transient ListState<Event> latest;
    private transient PromptTemplate prompt;

    SessionContext(Settings settings) {
        this.session = settings.session();
        this.lateMs = settings.limits().lateMs();
        this.template = new String(settings.prompt(), StandardCharsets.UTF_8);
    }

    @Override
    public void open(OpenContext context) {
        ListStateDescriptor<Event> descriptor = new ListStateDescriptor<>("latest-events", Event.class);
        descriptor.enableTimeToLive(
                StateTtlConfig.newBuilder(Duration.ofMillis(session.timeoutMs())).cleanupFullSnapshot().build());
        latest = getRuntimeContext().getListState(descriptor);
        prompt = new PromptTemplate(template);
    }

    @Override
    public void processElement(Event event, Context context, Collector<Request> out) throws Exception {
        List<Event> events = readLatest();
        if (events.stream().anyMatch(other -> other.id.equals(event.id))) {
            return; // its producer sent it twice
        }
        long newest = events.stream().mapToLong(other -> other.at).max().orElse(event.at);
        if (event.at < newest - lateMs) {
            String message = (newest - event.at) + " ms older than the shopper's newest";
            context.output(DeadLetter.TAG, DeadLetter.of(event, "late", message));
            return;
        }
        events.add(event);
        keepLatest(events, Math.max(newest, event.at));
        latest.update(events);
        Request request = new Request();
        request.event = event;
        request.prompt = prompt.render(event, events);
        out.collect(request);
    }

    private List<Event> readLatest() throws Exception {
        List<Event> events = new ArrayList<>();
        Iterable<Event> found = latest.get();
        if (found != null) {
            found.forEach(events::add);
        }
        return events;
    }

    private void keepLatest(List<Event> events, long newest) {
        events.sort(Comparator.comparingLong(other -> other.at));
        events.removeIf(other -> other.at < newest - session.timeoutMs());
        while (events.size() > session.events()) {
            events.remove(0);
        }
    }
}
