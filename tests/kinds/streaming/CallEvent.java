package stream;

import org.apache.flink.api.common.functions.OpenContext;

/** Asks the endpoint about an event, and prints what it answers. */
class CallEvent {
    public static void main(String[] arguments) throws Exception {
        CallEndpoint endpoint = new CallEndpoint(Settings.read());
        endpoint.open((OpenContext) null);
        System.out.println("open");
        Request request = new Request();
        request.event = new Event();
        request.event.id = "1";
        request.prompt = "hello";
        System.out.println(endpoint.call(request).handle((answer, error) -> error == null ? answer.text() : "" + error).join());
        System.exit(0);
    }
}
