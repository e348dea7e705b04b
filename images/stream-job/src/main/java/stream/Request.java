package stream;

/** A prompt about an event. */
public class Request {
    public Event event;
    public String prompt;

    /** When the endpoint was asked. */
    public long askedAt;
}
