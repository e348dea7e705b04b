package stream;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The blueprint's prompt: text with {{ shopper }}, {{ session }} and {{ event.PROPERTY }}, checked before a deploy. */
final class PromptTemplate {
    private static final Pattern FIELD = Pattern.compile("\\{\\{\\s*(.*?)\\s*}}");
    private static final String EVENT = "event.";

    private final String template;

    PromptTemplate(String template) {
        this.template = template;
    }

    String render(Event event, List<Event> session) throws JsonProcessingException {
        JsonNode body = Settings.mapper().readTree(event.body);
        Matcher matcher = FIELD.matcher(template);
        StringBuilder text = new StringBuilder();
        while (matcher.find()) {
            matcher.appendReplacement(text, Matcher.quoteReplacement(find(matcher.group(1), event, body, session)));
        }
        return matcher.appendTail(text).toString();
    }

    private static String find(String field, Event event, JsonNode body, List<Event> session) {
        if (field.equals("shopper")) {
            return event.shopper;
        }
        if (field.equals("session")) {
            return session.stream().map(other -> other.body).collect(Collectors.joining("\n"));
        }
        JsonNode value = body.path(field.substring(EVENT.length()));
        return value.isContainerNode() ? value.toString() : value.asText("");
    }
}
