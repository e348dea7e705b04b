package stream.load;

import java.util.Locale;
import java.util.Random;

/** Makes events of shoppers, of whom few have most. */
final class EventMaker {
    private static final String[] TYPES = {"view", "view", "view", "click", "click", "cart", "purchase"};
    private static final double SKEW = 3;
    private static final int ITEMS = 5000;

    private final Random random;
    private final int shoppers;

    EventMaker(long seed, int shoppers) {
        this.random = new Random(seed);
        this.shoppers = shoppers;
    }

    /** Returns a shopper; the first hundredth of them has a fifth of the events. */
    String pickShopper() {
        return "shopper-" + (int) (shoppers * Math.pow(random.nextDouble(), SKEW));
    }

    String make(String id, String shopper, long at) {
        return String.format(
                Locale.ROOT,
                "{\"version\":1,\"id\":\"%s\",\"shopper\":\"%s\",\"type\":\"%s\",\"item\":\"item-%d\",\"at\":%d}",
                id,
                shopper,
                TYPES[random.nextInt(TYPES.length)],
                random.nextInt(ITEMS),
                at);
    }

    /** Returns seconds until the next of events that come by themselves, {@code rate} a second. */
    double pickGap(double rate) {
        return -Math.log(1 - random.nextDouble()) / rate;
    }
}
