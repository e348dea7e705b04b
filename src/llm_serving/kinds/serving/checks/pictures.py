"""`traffic.images`: whether the models see, and whether a request with its pictures fits the context."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.catalog import models
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.models import Model
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.services.traffic import Images
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import format_bytes

MARK_TOKENS = 4
"""Most tokens that say where a picture begins and ends: two of Qwen's, four of Gemma's with its line feeds."""

_KEY_PATH = ("traffic", "images")


def check(context: Context) -> Iterator[Conflict]:
    """Yield pictures that a model cannot take; of a model whose memory is unchecked nothing is known."""
    settings, images = context.blueprint, context.blueprint.traffic.images
    limits_name = settings.engine_row.media_limits
    # Several roles serve one model, and each mistake is one.
    by_model = {placed.model.name: placed for placed in context.placed_roles if placed.model.is_known}
    for name, placed in by_model.items():
        for path, limits in placed.list_arguments():
            is_text = placed.model.vision is None and not settings.reads_text_only(placed.role)
            if path[-1] == limits_name and is_text and limits is not None:
                reason = f"{name} reads text only"
                yield Conflict(path, reason, f"remove {limits_name}, or use a model that sees", limits)
    for name, placed in by_model.items() if images else ():
        assert images
        size_text = f"{images.width} x {images.height}"
        if placed.model.vision is None:
            reason = f"{name} reads only text as {settings.engine} runs it"
            fix = "remove images, or use a model that sees, such as tiny-vision or Qwen/Qwen2.5-VL-7B-Instruct"
            if settings.reads_text_only(placed.role):
                fix = f"remove images, or {settings.engine_row.text_only}"
            yield Conflict(_KEY_PATH, reason, fix, size_text)
            continue
        yield from _check_context(placed, images)
        limit, count = settings.find_media_limit(placed.role, "image"), settings.traffic.max_images
        if limit is not None and count > limit:
            reason = f"a request of this traffic has up to {count} pictures, and {limits_name} allows {limit}"
            fix = f"set {limits_name}: {{image: {count}}} in engine_arguments, or use fewer pictures"
            yield Conflict((*_KEY_PATH, "count"), reason, fix, str(images.count))


def _check_context(placed: PlacedRole, images: Images) -> Iterator[Conflict]:
    traffic, context = placed.settings.traffic, placed.model_settings.context
    picture_tokens = count_tokens(placed.model, images)
    needed_tokens = traffic.max_request_tokens + traffic.max_images * picture_tokens
    if needed_tokens > context:
        count = traffic.max_images
        pictures = f"{count} pictures of up to {picture_tokens} each" if count > 1 else f"{picture_tokens} of a picture"
        reason = (
            f"a request of this traffic takes up to {needed_tokens} tokens with {placed.model.name}, {pictures} among "
            f"them, and the context is {context}"
        )
        fix = f"set context: {needed_tokens} or more, or use smaller or fewer pictures"
        yield Conflict(_KEY_PATH, reason, fix, f"{images.width} x {images.height}")


def count_tokens(model: Model, images: Images) -> int:
    """Return most tokens of one of the pictures, with those that mark it; 0 for a model that is not known to see."""
    return model.vision.count_tokens(images.width, images.height) + MARK_TOKENS if model.vision else 0


def reads_pictures(settings: Blueprint) -> bool:
    """Return whether one of the roles' models takes pictures, as far as is known."""
    names = {settings.select_model_settings(role).model for role in settings.roles.engine_roles.values()}
    for name in filter(None, names):
        try:
            if models.find(name, unchecked=True).vision:
                return True
        except ModelError:  # whoever needs the model reports it
            continue
    return False


def describe(placed: PlacedRole) -> Iterator[str]:
    """Yield how much of the context a picture takes, and of the memory a video, in sentences."""
    model, images, option = placed.model, placed.settings.traffic.images, placed.settings.engine_row.media_limits
    context = placed.model_settings.context
    assert model.vision
    if images:
        size = f"{images.width} x {images.height}"
        yield f"A picture of {size} takes up to {count_tokens(model, images)} of {context} tokens with {model.name}."
    else:
        limit = f"; engine_arguments: {{{option}: {{image: 1}}}} limits how many a request may have" if option else ""
        tokens = model.vision.image_tokens
        yield f"A picture takes up to {tokens} of a request's {context} tokens with {model.name}{limit}."
    if placed.fit and placed.fit.video_bytes:
        yield (
            f"{format_bytes(placed.fit.video_bytes)} of each accelerator are kept for a video of up to "
            f"{model.vision.count_video_tokens(context)} tokens, which {model.name} reads too; engine_arguments: "
            f"{{{option}: {{video: 0}}}} refuses videos and gives this memory to the KV cache."
        )
