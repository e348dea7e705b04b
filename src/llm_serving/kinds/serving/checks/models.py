"""Whether the engine runs a role's model, and whether the model is the one that the blueprint means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.catalog import command_parts, engine_options, engines, models, records
from llm_serving.catalog.architecture import ModelError, UnknownMemoryError
from llm_serving.catalog.models import Model
from llm_serving.engines.memory import describe_other_vocabulary
from llm_serving.kinds.serving import patterns
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.roles import EngineRole
from llm_serving.services.tasks import GENERATE
from llm_serving.settings.document import Conflict


def find_model(
    settings: Blueprint, role_path: tuple[str, ...], role: EngineRole
) -> tuple[Model | None, list[Conflict]]:
    """Return the model of the role at `role_path`, None if it is not known, and why the role cannot have it."""
    model_settings = settings.select_model_settings(role)
    name, key_path = model_settings.model or "", settings.find_model_key_path(role_path, role, "model")
    try:
        model = models.find(name, unchecked=model_settings.memory == "unchecked")
        models.check_folder(name)
    except UnknownMemoryError as error:
        fix = f"set memory: unchecked, which counts its weights only, or {error.fix}"
        problem = _describe_architecture(settings.engine, error.architectures) or (error.reason, fix)
        return None, [Conflict(key_path, *problem, name)]
    except ModelError as error:
        return None, [Conflict(key_path, error.reason, error.fix, name)]
    model = _adapt_vision(settings, role, model)
    return model, [
        *_check_model(settings, key_path, name, model, model_settings.context),
        *_check_quantization(settings, model),
        *_check_adapters(settings, role_path, role, model),
        *_check_revision(settings, role_path, role, model),
    ]


def _adapt_vision(settings: Blueprint, role: EngineRole, model: Model) -> Model:
    """Return the model with what reads pictures as the engine's own options have it."""
    if settings.reads_text_only(role):
        return model.model_copy(update={"vision": None})
    arguments = settings.merge_arguments(role)
    is_whole = any(arguments.get(option) == value for option, value in settings.engine_row.whole_encoder.items())
    return model.model_copy(update={"vision": model.vision.copy_whole()}) if model.vision and is_whole else model


def check_draft(settings: Blueprint) -> Iterator[Conflict]:
    """Yield a draft model that generates no tokens."""
    draft = settings.tuning.find_draft()
    if draft and draft.task != GENERATE:
        reason = f"it is made to {draft.task}, and a draft generates tokens"
        yield Conflict(("tuning", "speculative", "model"), reason, "use a small model that generates", draft.name)


def _check_model(
    settings: Blueprint, key_path: tuple[str, ...], name: str, model: Model, context: int
) -> Iterator[Conflict]:
    problem = _describe_architecture(settings.engine, model.architectures)
    if problem is None and engines.load_engines()[settings.engine].weights_format not in model.formats:
        problem = _describe_format(settings.engine, model)
    if problem is None and model.is_known and model.task != settings.task:
        problem = _describe_task(settings, model)
    if problem:
        yield Conflict(key_path, *problem, name)
    elif context > model.max_context:
        reason = f"{name} takes up to {model.max_context} tokens a request"
        fix = f"set context: {model.max_context} or less, or use a copy whose config.json says more (docs/models.md)"
        yield Conflict((*key_path[:-1], "context"), reason, fix, context)
    elif settings.tuning.predicts_itself and model.is_known and not model.predicts:
        reason, fix = f"{name} has no layers that predict tokens", "set method: ngram, or draft_model and a model"
        yield Conflict(("tuning", "speculative", "method"), reason, fix, "mtp")
    else:
        yield from _check_vocabulary(settings, model)


def _check_vocabulary(settings: Blueprint, model: Model) -> Iterator[Conflict]:
    """Yield a draft model that counts other tokens than the model."""
    speculative, draft = settings.tuning.speculative, settings.tuning.find_draft()
    if speculative is None or speculative.method != "draft_model" or draft is None:
        return
    if reason := describe_other_vocabulary(model, draft):
        fix = "use a smaller model whose config.json has the same vocab_size, or set method: ngram"
        yield Conflict(("tuning", "speculative", "model"), reason, fix, draft.name)


def _check_quantization(settings: Blueprint, model: Model) -> Iterator[Conflict]:
    """Yield weights that are to be made smaller and are small already.

    Source: vLLM 0.32.0, config/model.py, _verify_quantization, which ends the engine for most of them, and takes the
    checkpoint's own for the rest; SGLang's of the same name is alike.
    """
    quantization = settings.tuning.quantization
    if quantization and model.is_known and model.quantization != "none":
        reason = f"the weights of {model.name} are {model.quantization} already, and the engine makes none smaller"
        yield Conflict(("tuning", "quantization"), reason, "remove quantization", quantization)


def _check_adapters(
    settings: Blueprint, role_path: tuple[str, ...], role: EngineRole, model: Model
) -> Iterator[Conflict]:
    """Yield LoRA adapters of a model that the engine runs without any."""
    recorded_options = engine_options.load(settings.engine)
    without_adapters = recorded_options.architectures_without_adapters if recorded_options else ()
    if role.adapters and recorded_options and not {*model.architectures}.isdisjoint(without_adapters):
        reason = f"{recorded_options.source.partition(',')[0]} runs {model.name} without adapters"
        fix = "remove adapters, or use another model"
        yield Conflict((*role_path, "adapters"), reason, fix, ", ".join(role.adapters))
    modules = settings.engine_row.list_adapter_modules(settings.merge_arguments(role))
    adapts_experts = model.experts > 0 and (not modules or "experts" in modules)
    if role.adapters and adapts_experts and role.expert and role.data > 1 and role.tensor > 1:
        # vLLM 0.32.0, lora/layers/fused_moe.py, _ep_check; config/parallel.py, use_sequence_parallel_moe.
        reason = (
            f"layers of {model.name} are split {role.tensor} ways in each of {role.data} copies, and whole experts "
            "over all of them then take no adapters: the engine ends"
        )
        fix = f"set expert: off, or data: {role.data * role.tensor}"
        yield Conflict((*role_path, "adapters"), reason, fix, ", ".join(role.adapters))


def _check_revision(
    settings: Blueprint, role_path: tuple[str, ...], role: EngineRole, model: Model
) -> Iterator[Conflict]:
    """Yield a revision that cannot be: the model is on no hub, or what was copied or read is another one."""
    model_settings = settings.select_model_settings(role)
    record = records.find(model_settings.model or "")
    revision, path = model_settings.revision, settings.find_model_key_path(role_path, role, "revision")
    if revision is None:
        return
    if model.hub is None:
        yield Conflict(path, f"{model_settings.model} is not from a hub", "remove revision", revision)
    elif record and not record.is_revision(revision):
        commit = (record.commit or "")[:12]
        reason = f"what is known here is {record.source} at {record.revision}, commit {commit}"
        fix = f"set revision: {commit}, or `blueprint model copy {record.source} --revision {revision}`"
        yield Conflict(path, reason, fix, revision)


def _describe_architecture(engine: str, architectures: Sequence[str]) -> tuple[str, str] | None:
    """Return why the engine's version does not run the model, and the fix; None where that is not known."""
    recorded_options = engine_options.load(engine)
    if recorded_options is None:
        return None
    subject = recorded_options.source.partition(",")[0]
    for architecture in architectures:
        if version := recorded_options.dropped_architectures.get(architecture):
            return f"{subject} has no {architecture}: {version} was the last that ran it", "use another model"
        if recorded_options.architectures and architecture not in recorded_options.architectures:
            default = command_parts.get_default(engines.load_engines())
            return f"{subject} has no {architecture}", f"set engine: {default}, or use another model"
    return None


def _describe_task(settings: Blueprint, model: Model) -> tuple[str, str]:
    offered = settings.pattern_row.tasks
    others = [row.name for row in patterns.load_patterns().values() if model.task in row.tasks]
    pattern = "" if model.task in offered or not others else f"pattern: {others[0]} with "
    same_task = [row for row in models.load().values() if row.task == settings.task]
    example = next((row for row in same_task if row.hub), same_task[0])
    is_folder = model.hub is None and model.name not in models.load()
    mark = f"; {models.MODULES_FILE} in its folder would say that it embeds" if is_folder else ""
    reason = f"the model is made to {model.task}, and the task here is {settings.task}{mark}"
    return reason, f"set {pattern}task: {model.task}, or use a model such as {example.name}"


def _describe_format(engine: str, model: Model) -> tuple[str, str]:
    form = engines.load_engines()[engine].weights_format
    read, own = models.FORMATS[form].title, models.FORMATS[model.formats[0]].title
    reason = f"the engine {engine} reads {read}, and this model is {own}"
    others = [name for name, row in engines.load_engines().items() if row.weights_format in model.formats]
    copies = models.list_copies(model, form)
    return reason, "set " + " or ".join(
        [*(f"model: {name}" for name in copies[:1]), *(f"engine: {name}" for name in others)]
    )
