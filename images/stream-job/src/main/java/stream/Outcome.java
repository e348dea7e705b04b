package stream;

/** What became of an event: an answer or a dead letter, in JSON. */
public class Outcome {
    public String key;

    /** Why there is no answer; empty where there is one. */
    public String reason = "";

    public String json;

    boolean isAnswer() {
        return reason.isEmpty();
    }
}
