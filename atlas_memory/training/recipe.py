"""A recipe: everything a run depends on, as frozen data that TOML and `--set` can write."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from atlas_memory.names import size_names, suggest, variant_names
from atlas_memory.training.retrofit import TRAINED, Retrofit

if TYPE_CHECKING:
    from atlas_memory.config import AtlasConfig

RECIPES = Path(__file__).parents[1] / "recipes"  # those that come with the package
PRECISIONS = ("float32", "bfloat16")
PARALLEL = ("ddp", "fsdp")
TRACKERS = ("tensorboard", "wandb", "trackio")
SCHEDULES = ("cosine", "linear", "constant_with_warmup", "cosine_with_min_lr")


@dataclass(frozen=True)
class Model:
    """A variant at a size; `changes` are fields of AtlasConfig, `memory.window` reaches inside."""

    variant: str = "atlas"
    size: str = "tiny"
    changes: dict[str, Any] = field(default_factory=dict)

    def config(self, **more: Any) -> AtlasConfig:
        from atlas_memory.config import AtlasConfig

        return AtlasConfig.from_variant(self.variant, self.size, **{**more, **self.changes})


@dataclass(frozen=True)
class Data:
    """source: what `--data` takes. validation: another source, or nothing.

    validation_share: of the text, kept from its end where there is no validation text.
    most_tokens: of the text to use. validation_tokens: read at every validation, 0 for all.
    reread: share of the windows in which a stretch stands twice.
    """

    source: str = "enwik8"
    field: str = "text"
    tokenizer: str = "bytes"
    length: int = 256
    validation: str | None = None
    validation_share: float = 0.05
    validation_tokens: int = 0
    most_tokens: int | None = None
    reread: float = 0.0
    pairs: int = 8  # of keys and values, for source = "mqar"


@dataclass(frozen=True)
class Train:
    """batch: sequences of a step, over all processes. micro_batch: sequences a process computes at
    once, 0 for its whole share; the rest is accumulated. prime: so many of the steps come first
    and read short rows of random tokens that repeat, instead of text.
    """

    steps: int = 1000
    prime: int = 0
    batch: int = 16
    micro_batch: int = 0
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    warmup: int = 0
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    precision: str = "float32"
    checkpoint_layers: bool = False
    compile: bool = False
    stream: bool = False
    parallel: str = "ddp"
    seed: int = 0
    log_every: int = 10
    validate_every: int = 0  # 0: at the end only
    save_every: int = 0  # 0: at the end and when stopped
    keep: int = 2
    report_to: tuple[str, ...] = ()
    threads: int = 0  # 0: as many as torch takes
    sample: int = 256  # tokens to generate at the end


@dataclass(frozen=True)
class Recipe:
    """One run. `compare` names a variant that is trained after it, of equal parameters."""

    name: str = "run"
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    retrofit: Retrofit = field(default_factory=Retrofit)
    compare: str | None = None

    @property
    def origin(self) -> str:
        """The size of the model, or the pretrained one that it starts from."""
        return self.retrofit.base or self.model.size

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        model = plain["model"]
        plain["model"] = {**model.pop("changes"), **model}
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Recipe:
        recipe = cls()
        for path, value in _leaves(plain):
            recipe = _changed(recipe, path, value)
        return _checked(recipe)

    def set(self, assignments: list[str]) -> Recipe:
        """The recipe with `a.b=c` applied; c is written as in TOML, quotes may be left out."""
        recipe = self
        for assignment in assignments:
            path, equals, text = assignment.partition("=")
            if not equals or not path:
                raise ValueError(f"--set {assignment}: write it as a.b=c")
            recipe = _changed(recipe, path.strip(), _parsed(text.strip()))
        return _checked(recipe)


def recipe_names() -> list[str]:
    """The recipes that come with the package, the first run in front."""
    names = (path.stem for path in RECIPES.glob("*.toml"))
    return sorted(names, key=lambda name: (name != "quickstart", name))


def find_recipe(name: str) -> Path:
    """A path that exists, or the recipe of that name in the package."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder, no recipe; to go on with a run add --resume")
    if path.is_file():
        return path
    if name not in recipe_names():
        known = suggest(path.stem, recipe_names())
        raise ValueError(f"there is no recipe {name!r}; {known}; or give the path of a .toml file")
    return RECIPES / f"{name}.toml"


def require_data(recipe: Recipe) -> None:
    """Find out that a text or a tokenizer is missing before anything heavy is imported."""
    from atlas_memory.data.corpus import require_source
    from atlas_memory.data.tokenizer import require_tokenizer

    if recipe.data.source == "mqar":
        return
    for source in (recipe.data.source, recipe.data.validation):
        if source is not None:
            require_source(source)
    require_tokenizer(recipe.data.tokenizer)


def load_recipe(path: Path) -> Recipe:
    """Read a TOML file; its name is the run's unless it gives one."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"no recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    try:
        return Recipe.from_dict({"name": path.stem, **plain})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _leaves(plain: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Tables become dots, except those that name a choice (`features = {name = ..}`)."""
    leaves: list[tuple[str, Any]] = []
    for key, value in plain.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and "name" not in value:
            leaves += _leaves(value, f"{path}.")
        else:
            leaves.append((path, value))
    return leaves


def _changed(recipe: Recipe, path: str, value: Any) -> Recipe:
    section, _, name = path.partition(".")
    own = [f.name for f in fields(Recipe)]
    if section not in own:
        raise ValueError(f"unknown key {path!r}; {suggest(section, own)}")
    if section in ("name", "compare"):
        return replace(recipe, **{section: _typed(path, value, _types(Recipe)[section])})
    table = getattr(recipe, section)
    if not name:
        raise ValueError(f"{path}={value!r}: {path} is a table; set {path}.{fields(table)[0].name}")
    if section == "model" and name not in ("variant", "size"):
        changes = {**table.changes, name: value}
        return replace(recipe, model=replace(table, changes=changes))
    names = [f.name for f in fields(table) if f.name != "changes"]
    if name not in names:
        raise ValueError(f"unknown key {path!r}; {suggest(name, names)}")
    typed = _typed(path, value, _types(type(table))[name])
    return replace(recipe, **{section: replace(table, **{name: typed})})


def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _parsed(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _typed(path: str, value: Any, kind: Any) -> Any:
    """`value` as the field's type, or a sentence."""
    if isinstance(kind, UnionType):
        if value in (None, "none", ""):
            return None
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is tuple:
        return tuple(value) if isinstance(value, list) else (value,)
    if kind is str and not isinstance(value, dict | list):
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not kind:
        raise ValueError(f"{path}={value!r}: it must be {_WORDS[kind]}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _checked(recipe: Recipe) -> Recipe:
    """Refuse what cannot run, before anything is read or written."""
    data, train = recipe.data, recipe.train
    _one_of("model.variant", recipe.model.variant, variant_names())
    _one_of("model.size", recipe.model.size, size_names())
    _one_of("train.precision", train.precision, list(PRECISIONS))
    _one_of("train.parallel", train.parallel, list(PARALLEL))
    _one_of("train.schedule", train.schedule, list(SCHEDULES))
    for tracker in train.report_to:
        _one_of("train.report_to", tracker, list(TRACKERS))
    _one_of("retrofit.train", recipe.retrofit.train, list(TRAINED))
    if recipe.retrofit.base is not None:
        _check_retrofit(recipe)
    if recipe.compare is not None:
        _one_of("compare", recipe.compare, variant_names())
    counts = {"steps": train.steps, "batch": train.batch, "log_every": train.log_every}
    for name, value in {**counts, "keep": train.keep}.items():
        if value < 1:
            raise ValueError(f"train.{name}={value}: it must be at least 1")
    if data.length < 2:
        raise ValueError(f"data.length={data.length}: a sequence has at least 2 tokens")
    if not 0 < data.validation_share < 1:
        raise ValueError(f"data.validation_share={data.validation_share}: it must be in (0, 1)")
    if not 0 <= data.reread <= 1:
        raise ValueError(f"data.reread={data.reread}: it must be in [0, 1]")
    if not 0 <= train.prime < train.steps:
        raise ValueError(f"train.prime={train.prime}: it must be in [0, train.steps={train.steps})")
    if data.source == "mqar" and (data.reread or train.prime):
        raise ValueError("data.reread and train.prime are for text, and data.source is mqar")
    return recipe


def _check_retrofit(recipe: Recipe) -> None:
    chosen = recipe.retrofit
    if recipe.data.source == "mqar":
        raise ValueError("retrofit.base needs a text, got data.source='mqar'")
    if recipe.compare is not None:
        raise ValueError(f"compare={recipe.compare!r}: a pretrained model is compared with itself")
    if chosen.distil and recipe.train.parallel == "fsdp":
        raise ValueError("retrofit.distil needs the whole base in each process; train.parallel=ddp")
    if any(type(layer) is not int for layer in chosen.layers):
        raise ValueError(f"retrofit.layers={list(chosen.layers)}: they must be whole numbers")


def _one_of(path: str, value: str, choices: list[str]) -> None:
    if value not in choices:
        raise ValueError(f"{path}={value!r} is unknown; {suggest(value, choices)}")
