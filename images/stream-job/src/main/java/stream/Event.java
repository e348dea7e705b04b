package stream;

/** An event that passed the door. */
public class Event {
    public String id;
    public String shopper;
    public String type;

    /** When it happened, by its producer. */
    public long at;

    /** When Kafka received it. */
    public long receivedAt;

    /** The event as it came, in JSON. */
    public String body;
}
