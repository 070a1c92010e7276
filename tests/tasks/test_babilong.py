"""BABILong: facts in their order, contexts of exactly the length asked for, in constant memory."""

import tracemalloc

import numpy as np
import pytest
from babi_solver import solve

from atlas_memory.tasks import babilong
from atlas_memory.tasks.background import Background, in_rows, sentences, without_markup
from atlas_memory.tasks.words import Words

WORDS = babilong.vocabulary(buckets=8)
BOOK = Background.from_texts(
    [
        "It was a dark night, and it rained. Nobody came. " * 30,
        "The wind blew from the hills. " * 9,
    ],
    WORDS.encode,
    fewest=6,
)


def facts_of(ids: np.ndarray) -> list[str]:
    """The facts of a context, read back from its tokens; the background has none of these verbs."""
    verbs = ["went to", "journeyed to", "travelled to", "moved to", "went back to"]
    text = WORDS.decode(ids).replace(" .", ".\n")
    told = [line.strip() for line in text.split("\n")]
    found = [line for line in told if any(f" {verb} the " in line for verb in verbs)]
    return [" ".join(f.split()[-(6 if " back " in f else 5) :]).capitalize() for f in found]


def test_the_docstring_is_what_is_drawn() -> None:
    book = Background.from_texts(["It was a dark night. " * 9], WORDS.encode, fewest=6)
    drawn = babilong.sample("qa1", 40, book, WORDS.encode, np.random.default_rng(0))
    shown = WORDS.decode(drawn.context.ids())
    assert babilong.__doc__ is not None
    assert shown in " ".join(babilong.__doc__.split())


@pytest.mark.parametrize("tokens", [100, 1_000, 20_001])
def test_a_context_has_its_length_and_all_facts_in_their_order(tokens: int) -> None:
    random = np.random.default_rng(tokens)
    for _ in range(5):
        drawn = babilong.sample("qa1", tokens, BOOK, WORDS.encode, random)
        ids = drawn.context.ids()
        assert len(ids) == len(drawn.context) == tokens
        assert facts_of(ids) == list(drawn.problem.facts)
        assert solve(facts_of(ids), drawn.problem.question) == drawn.problem.answer


def test_length_0_is_the_facts_alone() -> None:
    drawn = babilong.sample("qa2", 0, BOOK, WORDS.encode, np.random.default_rng(0))
    assert WORDS.decode(drawn.context.ids()) == WORDS.decode(
        [i for fact in drawn.problem.facts for i in WORDS.encode(fact)]
    )


@pytest.mark.parametrize("task", babilong.TASKS)
def test_problems_with_more_than_a_fact_in_eight_tokens_are_drawn_again(task: str) -> None:
    random = np.random.default_rng(0)
    drawn = [babilong.sample(task, 200, BOOK, WORDS.encode, random) for _ in range(20)]
    assert max(len(d.problem.facts) for d in drawn) <= 25


def test_facts_stand_between_sentences_anywhere_in_the_text() -> None:
    random = np.random.default_rng(0)
    places = []
    for _ in range(100):
        context = babilong.sample("qa1", 2_000, BOOK, WORDS.encode, random).context
        borders = {context.text.offset(gap) for gap in range(context.text.sentences + 1)}
        assert all(offset in borders for offset, _ in context.insertions)
        places += [offset / context.text.tokens for offset, _ in context.insertions]
    assert np.allclose(np.quantile(places, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.08)


@pytest.mark.parametrize("size", [1, 7, 64, 5_000])
def test_blocks_are_the_context(size: int) -> None:
    context = babilong.sample("qa1", 1_234, BOOK, WORDS.encode, np.random.default_rng(3)).context
    blocks = list(context.blocks(size))
    assert {len(block) for block in blocks[:-1]} <= {size}
    assert np.array_equal(np.concatenate(blocks), context.ids())


def test_ten_million_tokens_take_no_more_memory_than_a_hundred_thousand() -> None:
    random = np.random.default_rng(0)
    book, peaks = Background.noise(list(WORDS.others), random, count=20_000), []
    for tokens in (100_000, 10_000_000):
        tracemalloc.start()
        drawn = babilong.sample("qa1", tokens, book, WORDS.encode, random)
        assert sum(len(block) for block in drawn.context.blocks(50_000)) == tokens
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000  # two numbers for every book that is begun


def test_rows_must_be_equally_long() -> None:
    random = np.random.default_rng(0)
    rows = [babilong.sample("qa1", n, BOOK, WORDS.encode, random).context for n in (100, 100, 101)]
    assert [block.shape for block in in_rows(rows[:2], 64)] == [(2, 64), (2, 36)]
    with pytest.raises(ValueError, match=r"\[100, 101\]"):
        next(in_rows(rows, 64))


def test_qa1_may_ask_for_everybody_who_has_moved() -> None:
    drawn = babilong.sample("qa1", 0, BOOK, WORDS.encode, np.random.default_rng(0)).problem
    asked = babilong.questions(drawn)
    assert (drawn.question, drawn.answer) in asked
    assert all(solve(drawn.facts, question) == answer for question, answer in asked)
    gift = babilong.sample("qa5", 0, BOOK, WORDS.encode, np.random.default_rng(0)).problem
    assert babilong.questions(gift) == [(gift.question, gift.answer)]


@pytest.mark.parametrize("task", ["qa1", "qa2"])
def test_a_lesson_asks_only_what_was_told_before(task: str) -> None:
    ids, labels = babilong.lesson(task, 900, 5, BOOK, WORDS, np.random.default_rng(0))
    (asked,) = np.nonzero(labels != -100)
    assert len(ids) == 900
    assert len(asked) == 5
    assert [ids[place] for place in asked] == [WORDS.encode("<gen>")[0]] * 5
    assert np.array_equal(ids[asked + 1], labels[asked])
    if task == "qa1":
        for place in asked:
            words = WORDS.decode(ids[: place + 1]).split()
            question = f"Where is {words[-3].capitalize()}?"
            assert solve(facts_of(ids[:place]), question) == WORDS.decode([labels[place]])


def test_a_short_lesson_asks_fewer_questions() -> None:
    """Two moves and a question of qa1 are 18 to 20 words."""
    for seed in range(20):
        _, labels = babilong.lesson("qa1", 40, 5, BOOK, WORDS, np.random.default_rng(seed))
        assert (labels != -100).sum() == 2
        for task in ("qa2", "qa3"):
            ids, labels = babilong.lesson(task, 100, 5, BOOK, WORDS, np.random.default_rng(seed))
            assert len(ids) == 100
            assert 1 <= (labels != -100).sum() <= 5


def test_a_lesson_that_no_question_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="no question of qa1 fits 12 tokens; give more"):
        babilong.lesson("qa1", 12, 5, BOOK, WORDS, np.random.default_rng(0))


def test_words_of_the_task_have_ids_of_their_own() -> None:
    words = Words(("<gen>", "john", "."), buckets=4)
    assert words.encode("John slept.") == [1, 4, 2]
    assert words.decode([1, 4, 2]) == "john #1 ."
    assert len(words) == 7
    assert set(WORDS.encode("Where was the milk before the office? <gen>")).isdisjoint(WORDS.others)


def test_text_is_cut_into_sentences_and_loses_its_markup() -> None:
    assert sentences('One. Two!  "Three?" Four 4.5 five.') == [
        "One.",
        "Two!",
        '"Three?',
        "Four 4.5 five.",
    ]
    wiki = "'''Icon''' is a [[computer|machine]] {{stub}}&lt;ref&gt; for [[art]].\n* [http://a.b c]"
    assert " ".join(without_markup(wiki).split()) == "Icon is a machine for art."


def test_a_background_without_sentences_is_refused() -> None:
    with pytest.raises(ValueError, match="no sentence of 10 tokens"):
        Background.from_texts(["Too short."], WORDS.encode)
