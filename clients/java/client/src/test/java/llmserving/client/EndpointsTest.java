package llmserving.client;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class EndpointsTest {
    private static final long PERIOD = 1000;

    private final Endpoint busy = new Endpoint("http://busy", new CircuitBreaker(1, Long.MAX_VALUE / 2));
    private final Endpoint idle = new Endpoint("http://idle", new CircuitBreaker(1, Long.MAX_VALUE / 2));
    private final Endpoints endpoints = new Endpoints(List.of(busy, idle));

    @Test
    void ofTwoEndpointsThatWithFewerRequestsInFlightIsChosen() {
        busy.inFlight.set(2);
        for (int i = 0; i < 20; i++) {
            assertSame(idle, endpoints.choose(Set.of()));
        }
    }

    @Test
    void anEndpointThatWasTriedIsChosenOnlyIfNoneIsLeft() {
        busy.inFlight.set(2);
        assertSame(busy, endpoints.choose(Set.of(idle)));
        assertSame(idle, endpoints.choose(Set.of(idle, busy)));
    }

    @Test
    void anEndpointWhoseCircuitIsOpenIsNotChosen() {
        idle.breaker.recordFailure(System.nanoTime());
        assertSame(busy, endpoints.choose(Set.of()));
        busy.breaker.recordFailure(System.nanoTime());
        assertNull(endpoints.choose(Set.of()));
    }

    @Test
    void anOpenCircuitLetsOneRequestThroughInAPeriod() {
        CircuitBreaker breaker = new CircuitBreaker(2, PERIOD);
        assertFalse(breaker.recordFailure(0));
        assertTrue(breaker.recordFailure(0));
        assertFalse(breaker.pass(PERIOD - 1));
        assertTrue(breaker.pass(PERIOD));
        assertFalse(breaker.pass(PERIOD));
        assertTrue(breaker.pass(2 * PERIOD));
        breaker.recordSuccess();
        assertTrue(breaker.pass(2 * PERIOD));
        assertTrue(breaker.pass(2 * PERIOD));
    }
}
