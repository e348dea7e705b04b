package stream;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.metrics.Counter;

/** Counts dead letters, and those of missed deadlines, for alarms. */
final class Counts extends RichMapFunction<Outcome, Outcome> {
    private transient Counter deadLetters;
    private transient Counter missedDeadlines;

    /** Adds a counter that Managed Service for Apache Flink reports to CloudWatch: it does for this group alone. */
    static Counter add(RuntimeContext context, String name) {
        return context.getMetricGroup().addGroup("kinesisanalytics").counter(name);
    }

    @Override
    public void open(OpenContext context) {
        deadLetters = add(getRuntimeContext(), "streamDeadLetters");
        missedDeadlines = add(getRuntimeContext(), "streamMissedDeadlines");
    }

    @Override
    public Outcome map(Outcome outcome) {
        deadLetters.inc();
        if (outcome.reason.equals("deadline")) {
            missedDeadlines.inc();
        }
        return outcome;
    }
}
