package llmserving.client;

import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/** Chooses between endpoints: of two random ones, that with fewer requests in flight. */
final class Endpoints {
    private final List<Endpoint> all;

    Endpoints(List<Endpoint> all) {
        this.all = all;
    }

    /** Choose an endpoint whose circuit lets a request through, if possible a new one; null if there is none. */
    Endpoint choose(Set<Endpoint> tried) {
        long now = System.nanoTime();
        List<Endpoint> passable =
                all.stream().filter(endpoint -> endpoint.breaker.isPassable(now)).toList();
        List<Endpoint> fresh =
                passable.stream().filter(endpoint -> !tried.contains(endpoint)).toList();
        Endpoint chosen = pickLessBusy(fresh.isEmpty() ? passable : fresh);
        return chosen != null && chosen.breaker.pass(now) ? chosen : null;
    }

    /** Return whether an endpoint is left that was not tried. */
    boolean hasFresh(Set<Endpoint> tried) {
        long now = System.nanoTime();
        return all.stream().anyMatch(endpoint -> !tried.contains(endpoint) && endpoint.breaker.isPassable(now));
    }

    private static Endpoint pickLessBusy(List<Endpoint> endpoints) {
        int size = endpoints.size();
        if (size < 2) {
            return size == 0 ? null : endpoints.get(0);
        }
        int one = ThreadLocalRandom.current().nextInt(size);
        int other = (one + 1 + ThreadLocalRandom.current().nextInt(size - 1)) % size;
        Endpoint first = endpoints.get(one);
        Endpoint second = endpoints.get(other);
        return first.inFlight.get() <= second.inFlight.get() ? first : second;
    }
}
