"""The default user of `blueprint validate`."""

from llm_serving.validation.user import OpenAIUser


class DefaultUser(OpenAIUser):
    """Sends the blueprint's traffic unchanged."""
