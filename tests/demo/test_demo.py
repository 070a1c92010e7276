"""The shipped model remembers, the sliding window does not, and the same from Python."""

import json
import re
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch

from atlas_memory import demo
from atlas_memory.demo import models, problems, reading, text
from atlas_memory.tasks import babilong

WORDS = 2_000


@pytest.fixture(scope="module")
def result():
    return demo.run(words=WORDS, repeat=12, seed=3)


def test_the_memory_knows_and_the_window_does_not(result):
    assert result.asked == 12
    assert result.right >= 11
    assert result.window_right <= 6
    assert result.state_bytes < 100_000
    assert result.cache_bytes == 2 * 2 * 32 * 4 * WORDS
    assert result.words_per_second > 0


def test_the_facts_stand_where_it_says(result):
    lexicon = text.Lexicon(babilong.vocabulary(512))
    background = text.background(None, lexicon)
    problem = problems.drawn(1, 3)[0]
    hidden = text.hide(problem, WORDS, background, lexicon, np.random.default_rng([3, 0, WORDS]))
    words = [lexicon.words[i] for i in hidden.ids()]
    assert len(words) == WORDS
    for fact in result.answers[0].facts:
        told = fact.text.removesuffix(".").split()
        assert words[fact.position : fact.position + len(told)] == told


def test_the_gates_are_open_on_the_facts_and_shut_elsewhere(result):
    first = result.answers[0]
    assert len(result.picture.facts) == len(first.facts)
    for passage, fact in zip(result.picture.facts, first.facts, strict=True):
        inside = dict(zip(passage.words, passage.gates, strict=True))
        place = fact.text.rstrip(".").split()[-1]
        assert inside[place] > 0.5
    assert len(first.facts) <= result.admitted < WORDS / 50
    assert max(result.picture.parts) <= 1


def test_a_problem_is_the_same_alone_and_beside_others(result):
    alone = demo.run(words=WORDS, seed=3)
    assert alone.answers[0] == result.answers[0]
    assert alone.admitted == result.admitted


def test_the_last_block_is_all_that_a_window_sees():
    """What `ask_behind` leaves out cannot change the answer."""
    words = 3 * reading.BLOCK
    both = models.load()
    lexicon = text.Lexicon(babilong.vocabulary(512))
    background = text.background(None, lexicon)
    problem = problems.drawn(1, 0)[0]
    hidden = text.hide(problem, words, background, lexicon, np.random.default_rng(0))
    reader = reading._Reader(lexicon, lambda done, total: None, words)
    window = both[models.WINDOW]
    whole = reader._read(window, [hidden])
    assert reader._answers(window, whole, [problem]) == [reader.ask_behind(window, problem, hidden)]


def test_own_facts_in_an_own_text():
    heard, threads = [], torch.get_num_threads()
    book = "It was the best of times, it was the worst of times, and nobody knew why. " * 5
    result = demo.run(
        WORDS,
        text=book,
        facts="mary went to the kitchen. John moved to the garden. Mary went back to the OFFICE",
        ask="where is Mary?",
        watch=lambda done, total: heard.append((done, total)),
    )
    (answer,) = result.answers
    assert answer.question == "Where is Mary?"
    assert answer.truth == answer.answer == "office"
    assert answer.facts[2].text == "Mary went back to the office."
    assert heard[0] == (0, WORDS)
    assert heard[-1] == (WORDS, WORDS)
    assert torch.get_num_threads() == threads


def test_without_a_question_the_last_who_moved_is_asked_for():
    problem = problems.own("Mary went to the kitchen. John moved to the garden.", None)
    assert (problem.question, problem.answer) == ("Where is John?", "garden")


@pytest.mark.parametrize(
    ("facts", "ask", "sentence"),
    [
        ("Bob went to the kitchen.", None, "'Bob went to the kitchen.'; a fact is 'Mary went"),
        ("Mary went to the moon.", None, "bedroom, kitchen, garden, hallway, bathroom, office"),
        ("Mary sleeps.", None, "went, journeyed, travelled, moved, went back"),
        ("", None, "has no sentence"),
        ("Mary went to the kitchen.", "Where is Bob?", "John, Mary, Sandra, Daniel"),
        ("Mary went to the kitchen.", "Who is Mary?", "ask 'Where is NAME?'"),
        ("Mary went to the kitchen.", "Where is John?", "no fact says where John is"),
        (None, "Where is John?", "without facts"),
        ("Mary went to the kitchen. " * 200, None, "200 facts are more than 125"),
    ],
)
def test_words_that_the_model_does_not_know(facts, ask, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        demo.run(WORDS, facts=facts, ask=ask)


@pytest.mark.parametrize("changes", [{"words": 999}, {"words": 10_000_001}, {"repeat": 0}])
def test_numbers_out_of_range(changes):
    with pytest.raises(ValueError, match="is not"):
        demo.run(**changes)


def test_a_page_escapes_the_text():
    markup = "He said <script>alert(1)</script> and went on to say so again and again, at last. "
    result = demo.run(1_000, text=markup * 3, facts="Mary went to the kitchen.")
    made = demo.page(result)
    assert "<script" not in made
    assert "&lt;" in made
    assert ">kitchen <small>right</small>" in made


def test_the_shipped_files_are_small_and_say_how_they_were_made():
    here = files("atlas_memory.demo")
    sizes = [len(here.joinpath(name).read_bytes()) for name in (models.WEIGHTS, models.ABOUT)]
    assert sum(sizes) < 1_000_000
    about = json.loads(here.joinpath(models.ABOUT).read_text())
    assert set(about) == {"atlas", "swa"}
    assert about["atlas"]["settings"] == about["swa"]["settings"]


def test_models_are_written_as_they_are_read(tmp_path):
    both = models.load()
    about = json.loads(files("atlas_memory.demo").joinpath(models.ABOUT).read_text())
    models.save(both, {name: about[name] for name in both}, tmp_path)
    for name in (models.WEIGHTS, models.ABOUT):
        assert (tmp_path / name).read_bytes() == files("atlas_memory.demo").joinpath(
            name
        ).read_bytes()


def test_the_module_itself_is_light():
    code = "import atlas_memory, sys; atlas_memory.demo.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
