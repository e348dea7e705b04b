"""The user that `blueprint validate` plays when no other is given."""

from llm_serving.validation.user import OpenAIUser


class DefaultUser(OpenAIUser):
    """Sends the blueprint's traffic as it is."""
