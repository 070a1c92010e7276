"""Long texts are read in constant memory, and models are asked by the published prompts."""

from pathlib import Path

import numpy as np
import pytest
import torch

import atlas_memory as am
from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.evaluation import babilong, needle
from atlas_memory.evaluation.long_reading import Prompt, answer, answers, read_through
from atlas_memory.tasks.babilong_prompt import PROMPTS, around, correct
from atlas_memory.tasks.background import Background, Hidden


def quiet(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def model() -> am.AtlasForCausalLM:
    torch.manual_seed(0)
    config = am.AtlasConfig.from_variant(
        "atlas_mac", size="tiny", vocab_size=256, hidden_size=16, num_hidden_layers=1
    )
    return am.AtlasForCausalLM(config).eval()


def blocks(rows: int, tokens: int, size: int) -> list[np.ndarray]:
    ids = np.random.default_rng(0).integers(256, size=(rows, tokens), dtype=np.int32)
    return [ids[:, start : start + size] for start in range(0, tokens, size)]


def test_answers_after_reading_are_those_to_the_whole_text(model: am.AtlasForCausalLM) -> None:
    text = blocks(2, 100, 33)
    cache = read_through(model, text, 100, quiet)
    asked = [(1, [7, 8, 9]), (0, [7]), (1, [200, 3, 4])]
    said = answer(model, cache, asked, new_tokens=4)
    for (row, question), ids in zip(asked, said, strict=True):
        whole = np.concatenate([*(block[row] for block in text), question])
        prompt = torch.from_numpy(whole).long()[None]
        expected = model.generate(prompt, max_new_tokens=4, do_sample=False, eos_token_id=None)
        assert ids == expected[0, len(whole) :].tolist()


def test_an_interrupted_reading_goes_on_where_it_was(
    model: am.AtlasForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_memory.evaluation.long_reading.SECONDS_BETWEEN_SAVES", 0.0)
    text, keep = blocks(2, 100, 20), tmp_path / "reading.safetensors"
    expected = answer(model, read_through(model, text, 100, quiet), [(0, [1]), (1, [2])], 3)

    def stopped():
        yield from text[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_through(model, stopped(), 100, quiet, keep)
    assert keep.is_file()
    cache = read_through(model, text, 100, quiet, keep)
    assert cache.seen == 100
    assert answer(model, cache, [(0, [1]), (1, [2])], 3) == expected
    assert not keep.exists()


def test_prompts_of_different_lengths_get_their_own_answers(model: am.AtlasForCausalLM) -> None:
    tokenizer = load_tokenizer("bytes")
    book = Background.noise(range(97, 123), np.random.default_rng(0))
    contexts = [Hidden(book.prefix(n), ()) for n in (30, 50, 30)]
    prompts = [Prompt(c, list(q)) for c, q in zip(contexts, (b"a?", b"b?", b"cc?"), strict=True)]
    plan = {"batch": 2, "new_tokens": 3}
    together = answers(model, tokenizer, prompts, plan, quiet)
    alone = [answers(model, tokenizer, [prompt], plan, quiet)[0] for prompt in prompts]
    assert together == alone


def test_niah_and_babilong_run_on_any_tokenizer(model: am.AtlasForCausalLM, tmp_path: Path) -> None:
    sentence = "It was a bright cold day in April, and the clocks were striking. "
    for name in ("train.txt", "validation.txt"):
        (tmp_path / name).write_text(sentence * 40)
    tokenizer = load_tokenizer("bytes")
    shared = {"samples": 2, "corpus": str(tmp_path), "new_tokens": 2}
    found = needle.evaluate(
        model, tokenizer, {**shared, "kinds": ["pk", "w"], "lengths": [800, 900]}, quiet
    )
    assert set(found) >= {"accuracy", "pk_800", "pk_900", "w_800", "w_900", "items", "deviations"}
    settings = {**shared, "tasks": ["qa1", "qa4"], "lengths": [0, 1_000]}
    asked = babilong.evaluate(model, tokenizer, settings, quiet)
    assert set(asked) >= {"accuracy", "qa1_0", "qa1_1000", "qa4_0", "qa4_1000"}
    assert 0 <= asked["accuracy"] <= 1


@pytest.mark.parametrize("task", [needle, babilong])
def test_an_unknown_setting_is_named(task, model: am.AtlasForCausalLM) -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'sample'; did you mean 'samples'"):
        task.evaluate(model, load_tokenizer("bytes"), {"sample": 3}, quiet)


def test_the_prompt_has_instruction_examples_form_context_and_question() -> None:
    for task in PROMPTS:
        before, after = around(task, "Where is Mary?")
        assert before.count("<example>") == before.count("</example>") == len(PROMPTS[task][1])
        assert before.endswith("\n<context>\n")
        assert after == "\n</context>\nQuestion: Where is Mary?\nAnswer:"


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (" The most recent location of Mary is OFFICE. Then the garden.", True),
        (" office or garden", False),
        (" the garden", False),
        ("", False),
    ],
)
def test_the_answer_must_be_the_only_place_in_the_first_sentence(said: str, right: bool) -> None:
    assert correct("qa1", "Where is Mary?", "office", said) is right


def test_words_of_the_question_do_not_count_as_answers() -> None:
    question = "Where was the milk before the office?"
    assert correct("qa3", question, "garden", "Before the office it was in the garden")
