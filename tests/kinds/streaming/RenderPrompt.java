package stream;

import java.util.List;

/** Prints the prompt about an event. Arguments: TEMPLATE EVENT. */
class RenderPrompt {
    public static void main(String[] arguments) throws Exception {
        Event event = new Event();
        event.shopper = "mia";
        event.body = arguments[1];
        System.out.println(new PromptTemplate(arguments[0]).render(event, List.of(event)));
    }
}
