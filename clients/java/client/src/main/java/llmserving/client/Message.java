package llmserving.client;

/**
 * A message of a chat.
 *
 * @param role {@code system}, {@code user} or {@code assistant}
 * @param content its text
 */
public record Message(String role, String content) {
    /** Return a message of the user. */
    public static Message user(String content) {
        return new Message("user", content);
    }

    /** Return a message of the system. */
    public static Message system(String content) {
        return new Message("system", content);
    }
}
