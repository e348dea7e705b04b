package llmserving.client;

import java.net.URI;
import java.util.concurrent.atomic.AtomicInteger;

/** One base URL, with its requests in flight and its circuit. */
final class Endpoint {
    final String url;
    final AtomicInteger inFlight = new AtomicInteger();
    final CircuitBreaker breaker;

    Endpoint(String url, CircuitBreaker breaker) {
        this.url = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
        this.breaker = breaker;
    }

    URI resolve(String path) {
        return URI.create(url + path);
    }
}
