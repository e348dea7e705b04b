package stream;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.metrics.Counter;

/** Counts events without an answer, for alarms: those of missed deadlines and those shed by themselves too. */
final class Counts extends RichMapFunction<Outcome, Outcome> {
    private transient Counter deadLetters;
    private transient Counter missedDeadlines;
    private transient Counter shed;
    private transient Counter overtaken;

    /** Adds a counter that Managed Service for Apache Flink reports to CloudWatch: it does for this group only. */
    static Counter add(RuntimeContext context, String name) {
        return context.getMetricGroup().addGroup("kinesisanalytics").counter(name);
    }

    @Override
    public void open(OpenContext context) {
        deadLetters = add(getRuntimeContext(), "streamDeadLetters");
        missedDeadlines = add(getRuntimeContext(), "streamMissedDeadlines");
        shed = add(getRuntimeContext(), "streamShed");
        overtaken = add(getRuntimeContext(), "streamOvertaken");
    }

    @Override
    public Outcome map(Outcome outcome) {
        if (outcome.reason.equals("overtaken")) {
            overtaken.inc(); // as the blueprint wants it: the shopper gets the answer to the newer event
            return outcome;
        }
        deadLetters.inc();
        if (outcome.reason.equals("deadline")) {
            missedDeadlines.inc();
        } else if (outcome.reason.equals("shed")) {
            shed.inc();
        }
        return outcome;
    }
}
