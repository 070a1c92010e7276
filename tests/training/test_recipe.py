"""Recipes: TOML and back, typed overrides, and a sentence for every mistake."""

import pytest

from atlas_memory.family import SIZES, VARIANTS
from atlas_memory.names import size_names, variant_names
from atlas_memory.training.recipe import (
    RECIPES,
    Recipe,
    find_recipe,
    load_recipe,
    recipe_names,
)


def write(tmp_path, text):
    path = tmp_path / "my.toml"
    path.write_text(text)
    return path


def test_a_recipe_survives_its_dictionary(tmp_path):
    text = """
    compare = "transformer_plus"
    [model]
    variant = "omeganet"
    hidden_size = 32
    [model.memory]
    window = 8
    features = { name = "elementwise", degree = 3 }
    [train]
    learning_rate = 3e-4
    report_to = ["tensorboard"]
    """
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.name == "my"
    assert recipe.train.learning_rate == 3e-4
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    memory = recipe.model.config().memory
    assert memory["window"] == 8
    assert memory["features"] == {"name": "elementwise", "degree": 3}


def test_assignments_are_typed():
    recipe = Recipe().set(["train.steps=7", "train.learning_rate=1", "train.stream=true"])
    recipe = recipe.set(["data.source=a b.txt", "data.most_tokens=1e3", "train.report_to=wandb"])
    recipe = recipe.set(["model.memory.window=4", "name=x"])
    assert recipe.train.steps == 7
    assert type(recipe.train.learning_rate) is float
    assert recipe.train.stream is True
    assert recipe.data.source == "a b.txt"
    assert recipe.model.config().memory["window"] == 4
    assert recipe.data.most_tokens == 1000
    assert recipe.train.report_to == ("wandb",)
    assert recipe.set(["data.most_tokens=none"]).data.most_tokens is None


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.stepz=1", "did you mean 'steps'"),
        ("trian.steps=1", "did you mean 'train'"),
        ("train.steps=many", "must be a whole number"),
        ("train.steps=1.5", "must be a whole number"),
        ("train.steps=0", "at least 1"),
        ("train.stream=1", "must be true or false"),
        ("train.learning_rate=fast", "must be a number"),
        ("train", "write it as a.b=c"),
        ("train=3", "is a table"),
        ("model.variant=atlass", "did you mean 'atlas'"),
        ("model.size=huge", "choose from: tiny"),
        ("train.precision=float16", "choose from: float32"),
        ("data.length=1", "at least 2"),
        ("data.validation_share=1.0", "must be in"),
        ("compare=nothing", "is unknown"),
        ("data.reread=1.5", r"must be in \[0, 1\]"),
        ("train.prime=1000", "must be in"),
    ],
)
def test_mistakes_are_one_sentence(assignment, message):
    with pytest.raises(ValueError, match=message) as caught:
        Recipe().set([assignment])
    assert "\n" not in str(caught.value)


def test_pairs_are_no_text_that_could_repeat():
    with pytest.raises(ValueError, match="are for text"):
        Recipe().set(["data.source=mqar", "data.reread=0.5"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.memory.windw=4", "did you mean 'window'"),
        ("model.hiden_size=4", "did you mean 'hidden_size'"),
    ],
)
def test_mistakes_in_the_model_are_told_by_it(assignment, message):
    with pytest.raises(ValueError, match=message):
        Recipe().set([assignment]).model.config()


def test_files_that_are_no_recipe(tmp_path):
    with pytest.raises(ValueError, match="no recipe"):
        load_recipe(tmp_path / "missing.toml")
    with pytest.raises(ValueError, match="is not TOML"):
        load_recipe(write(tmp_path, "[train\n"))
    with pytest.raises(ValueError, match=r"my\.toml: unknown key 'train\.lr'"):
        load_recipe(write(tmp_path, "[train]\nlr = 1\n"))


def test_recipes_are_found_by_name_and_by_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == RECIPES / "quickstart.toml"
    own = write(tmp_path, "[train]\nsteps = 3\n")
    assert load_recipe(find_recipe("my.toml")) == load_recipe(own)
    with pytest.raises(ValueError, match=r"did you mean 'quickstart'.*enwik8-small.*mqar"):
        find_recipe("quikstart")
    with pytest.raises(ValueError, match="did you mean 'quickstart'"):
        find_recipe("recipes/quickstart.toml")
    with pytest.raises(ValueError, match=r"is a folder, no recipe; .* add --resume"):
        find_recipe(str(tmp_path))


def test_names_are_those_of_the_tables():
    """They are read from the source, so that a wrong one is told before torch is imported."""
    assert variant_names() == list(VARIANTS)
    assert size_names() == list(SIZES)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_how_to_run_it_and_what_to_expect(name):
    path = find_recipe(name)
    recipe = load_recipe(path)
    recipe.model.config()
    head = path.read_text().split("\n\n")[0]
    assert f"atlas train {name}" in head
    assert "expect" in head.lower()
