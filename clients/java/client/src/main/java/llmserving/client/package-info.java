/** Calls servers with the API of OpenAI within a deadline. Start with {@link llmserving.client.LlmClient}. */
package llmserving.client;
