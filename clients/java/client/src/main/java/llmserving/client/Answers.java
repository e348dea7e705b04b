package llmserving.client;

import java.net.http.HttpResponse;

/** Reads the responses of one request. */
interface Answers<T> extends HttpResponse.BodyHandler<byte[]> {
    /** Read the answer of a response with status 200. */
    T read(byte[] body);

    /** Return whether a part of the answer has been passed on already. */
    default boolean hasStarted() {
        return false;
    }
}
