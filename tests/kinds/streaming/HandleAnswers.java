package stream;

import java.util.List;
import llmserving.client.ChatResponse;
import llmserving.client.Message;
import org.apache.flink.api.common.functions.OpenContext;

/** Handles an answer of each length, with cache and endpoint away, and prints what becomes of it. Arguments: LENGTH... */
class HandleAnswers {
    public static void main(String[] lengths) throws Exception {
        CallEndpoint endpoint = new CallEndpoint(Settings.read());
        endpoint.open((OpenContext) null);
        Request request = new Request();
        request.event = new Event();
        request.event.id = "1";
        request.event.shopper = "mia";
        for (String length : lengths) {
            Message answer = new Message("assistant", "é".repeat(Integer.parseInt(length)));
            ChatResponse response = new ChatResponse("m", List.of(new ChatResponse.Choice(answer, "stop")), null);
            Outcome outcome = endpoint.handleAnswer(request, response).toCompletableFuture().join();
            System.out.println(outcome.isAnswer() ? "answer" : Settings.parse(outcome.json.getBytes()).get("message").asText());
        }
        System.exit(0);
    }
}
