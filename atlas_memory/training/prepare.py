"""From a recipe to a model and examples, with every mistake found before anything is written."""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from atlas_memory.config import AtlasConfig
from atlas_memory.data.corpus import Corpus, find_source, load_corpus, require_length
from atlas_memory.data.repeats import Primed, Reread
from atlas_memory.data.token_cache import Tokens
from atlas_memory.data.tokenizer import Tokenizer, load_tokenizer
from atlas_memory.data.windows import InOrder, Lanes, Shuffled, describe
from atlas_memory.retrofitting.calibrate import calibrate
from atlas_memory.retrofitting.config import RetrofitConfig
from atlas_memory.tasks.recall import Recall
from atlas_memory.training.recipe import Recipe, Train
from atlas_memory.training.retrofit import load_start
from atlas_memory.training.run_folder import processes

Say = Callable[[str], None]
VALIDATION_SEED = 1 << 40
RECALL_VALIDATION = 256  # examples


def micro_batches(train: Train, processes: int) -> tuple[int, int]:
    """Sequences a process computes at once, and how often it does so in a step."""
    share, rest = divmod(train.batch, processes)
    if rest:
        raise ValueError(f"train.batch={train.batch} cannot be shared by {processes} processes")
    micro = train.micro_batch or share
    if share % micro:
        raise ValueError(
            f"train.micro_batch={micro} does not divide the {share} sequences of a process"
        )
    return micro, share // micro


@dataclass(frozen=True)
class Prepared:
    """What a run is made of. data: everything that the order of the examples depends on.

    start: the pretrained model that it begins with; None: one with random weights.
    """

    recipe: Recipe
    config: AtlasConfig | RetrofitConfig
    tokenizer: Tokenizer | None
    train: Any
    validation: Any
    bytes_per_token: float | None
    data: dict[str, Any]
    start: Any = None


def prepare(recipe: Recipe, say: Say) -> Prepared:
    micro_batches(recipe.train, processes()[1])
    for tracker in recipe.train.report_to:
        if find_spec(tracker) is None:
            raise ValueError(f"train.report_to={tracker!r} is not installed: pip install {tracker}")
    if recipe.data.source == "mqar":
        return _prepare_recall(recipe)
    data, train = recipe.data, recipe.train
    start = None if recipe.retrofit.base is None else load_start(recipe)
    tokenizer = load_tokenizer(data.tokenizer) if start is None else start.tokenizer
    config: Any = model_config(recipe, tokenizer) if start is None else start.model.config
    require_window(config, data.length)
    corpus = corpus_of(recipe, tokenizer, say)
    require_length(corpus.train, data.length, "training")
    require_length(corpus.validation, data.length, "validation")
    if train.stream:
        require_length(corpus.train, data.length * train.batch, "training")
    if start is not None and recipe.retrofit.calibrate:
        say(f"calibrating the memories on {recipe.retrofit.calibrate:,} tokens")
        calibrate(start.model, _calibration(recipe, corpus.train))
    most = data.validation_tokens // data.length or None
    order: dict[str, Any] = {"length": data.length, "batch": train.batch, "seed": train.seed}
    order |= {k: v for k, v in {"reread": data.reread, "prime": train.prime}.items() if v}
    return Prepared(
        recipe,
        config,
        tokenizer,
        _examples(recipe, corpus.train, tokenizer.vocab_size),
        InOrder(corpus.validation, data.length, most),
        corpus.validation.bytes_per_token,
        {**order, "stream": train.stream, **describe(corpus.train)},
        None if start is None else start.model,
    )


def _calibration(recipe: Recipe, tokens: Tokens) -> list[Tensor]:
    """Windows of the training text, from all over it."""
    length, train = recipe.data.length, recipe.train
    count = -(-recipe.retrofit.calibrate // length)
    windows = Shuffled(tokens, length, train.seed, count)
    return [windows[n]["input_ids"] for n in range(count)]


def _examples(recipe: Recipe, tokens: Tokens, vocab_size: int) -> Any:
    """What the run reads, example after example."""
    data, train = recipe.data, recipe.train
    count = (train.steps - train.prime) * train.batch
    examples: Any = Shuffled(tokens, data.length, train.seed, count)
    if train.stream:
        examples = Lanes(tokens, data.length, train.batch, count)
    if data.reread:
        examples = Reread(examples, data.reread, train.seed)
    if train.prime:
        primers = train.prime * train.batch
        examples = Primed(examples, primers, data.length, vocab_size, train.seed)
    return examples


def model_config(recipe: Recipe, tokenizer: Tokenizer) -> AtlasConfig:
    """The model of a recipe, with room for every id of the tokenizer."""
    size = tokenizer.vocab_size
    config = recipe.model.config(vocab_size=size, eos_token_id=tokenizer.end)
    if config.vocab_size < size:
        raise ValueError(
            f"model.vocab_size={config.vocab_size} is less than the {size} ids of tokenizer "
            f"{tokenizer.name!r}; leave it out or give at least {size}"
        )
    return config


def require_window(config: AtlasConfig | RetrofitConfig, length: int) -> None:
    memory = config.memory_spec
    if memory is not None and length < memory.window:
        raise ValueError(
            f"data.length={length} is shorter than the memory's window of {memory.window}; give at "
            f"least {memory.window}, or lower model.memory.window"
        )


def corpus_of(recipe: Recipe, tokenizer: Tokenizer, say: Say) -> Corpus:
    """Both splits of the text of a recipe."""
    data = recipe.data
    train, own = find_source(data.source, data.field, say)
    if data.validation is not None:
        first, second = find_source(data.validation, data.field, say)
        own = second or first
    return load_corpus(
        (train, own),
        tokenizer,
        most_tokens=data.most_tokens,
        validation_share=data.validation_share,
    )


def _prepare_recall(recipe: Recipe) -> Prepared:
    data, train = recipe.data, recipe.train
    config = recipe.model.config()
    require_window(config, data.length)
    shape = (data.length, data.pairs, config.vocab_size)
    examples = Recall(*shape, train.seed, train.steps * train.batch)
    validation = Recall(*shape, train.seed + VALIDATION_SEED, RECALL_VALIDATION)
    order = {"source": "mqar", "length": data.length, "pairs": data.pairs, "batch": train.batch}
    order |= {"seed": train.seed}
    return Prepared(recipe, config, None, examples, validation, None, order)


def comparison(recipe: Recipe) -> Recipe:
    """The recipe with the model to compare with, of as many parameters as the first."""
    assert recipe.compare is not None
    own = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    changes = {name: value for name, value in recipe.model.changes.items() if name in own}
    other = replace(recipe.model, variant=recipe.compare, changes=changes)
    target = parameters_of(recipe.model.config())
    width = equal_width(other.config(), target)
    other = replace(other, changes={**changes, "intermediate_size": width})
    return replace(recipe, model=other, compare=None)


def equal_width(config: AtlasConfig, target: int) -> int:
    """The feed-forward width with which a model has about `target` parameters."""
    per_unit = 3 * config.hidden_size * config.num_hidden_layers
    missing = target - parameters_of(config)
    return max(1, config.intermediate_size + round(missing / per_unit))


def parameters_of(config: AtlasConfig | RetrofitConfig) -> int:
    """Of the model that the config describes, which is not built for it."""
    import torch
    from transformers import AutoModelForCausalLM

    from atlas_memory.layers.shapes_only import num_parameters

    with torch.device("meta"):
        return num_parameters(AutoModelForCausalLM.from_config(config))
