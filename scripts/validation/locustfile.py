"""The user that `blueprint validate` plays when no other is given."""

from scripts.validation.user import OpenAIUser


class DefaultUser(OpenAIUser):
    """Sends the blueprint's traffic as it is."""
