package llmserving.client;

import java.util.LinkedHashMap;
import java.util.Map;

/** Adds a field to those of a request. */
final class Options {
    private Options() {}

    static Map<String, Object> add(Map<String, Object> options, String name, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(options);
        more.put(name, value);
        return more;
    }
}
