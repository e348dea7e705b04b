package stream;

/** Writes an answer to a cache for each line of its input, and prints what came of it. Argument: URL. */
class WriteAnswers {
    public static void main(String[] arguments) throws Exception {
        try (AnswerCache cache = new AnswerCache(new Settings.Cache(arguments[0], 60));
                java.util.Scanner lines = new java.util.Scanner(System.in)) {
            while (lines.hasNextLine()) {
                String answer = lines.nextLine();
                System.out.println(cache.write("mia", answer, 1).handle((done, error) -> error == null ? "ok" : "" + error).join());
            }
        }
    }
}
