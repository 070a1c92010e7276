"""bAbI's five stories: drawn as described, told as in the released data, answered from the text."""

from collections import Counter

import numpy as np
import pytest
from babi_solver import solve

from atlas_memory.tasks import babi


def problems(task: str, stories: int, seed: int = 1) -> list[babi.Problem]:
    random = np.random.default_rng(seed)
    return [problem for _ in range(stories) for problem in babi.story(task, random)]


def test_the_docstring_is_what_is_drawn() -> None:
    assert babi.problem("qa1", np.random.default_rng(6)) == babi.Problem(
        facts=("Mary travelled to the bathroom.", "Daniel journeyed to the bathroom."),
        question="Where is Daniel?",
        answer="bathroom",
        support=(1,),
    )


@pytest.mark.parametrize("task", babi.STORIES)
def test_every_problem_is_solved_from_its_text(task: str) -> None:
    for problem in problems(task, 60):
        assert solve(problem.facts, problem.question) == problem.answer
        # ... and the supporting facts alone are enough
        assert (
            solve([problem.facts[i] for i in problem.support], problem.question) == problem.answer
        )


@pytest.mark.parametrize(
    ("task", "support"), [("qa1", 1), ("qa2", 2), ("qa3", 3), ("qa4", 1), ("qa5", 1)]
)
def test_the_answer_follows_from_as_many_facts_as_the_task_says(task: str, support: int) -> None:
    assert {len(problem.support) for problem in problems(task, 50)} == {support}


def test_qa1_has_2_to_10_facts_and_near_uniform_answers() -> None:
    drawn = problems("qa1", 1_000)
    assert Counter(len(p.facts) for p in drawn) == {n: 1_000 for n in (2, 4, 6, 8, 10)}
    counts = Counter(problem.answer for problem in drawn)
    assert set(counts) == set(babi.LOCATIONS)
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_qa4_has_two_facts_and_asks_both_ways_equally_often() -> None:
    drawn = problems("qa4", 2_000)
    assert {len(p.facts) for p in drawn} == {2}
    things = sum(p.question.endswith(" of?") for p in drawn)
    assert 0.45 < things / len(drawn) < 0.55


def test_qa5_asks_about_gifts_in_the_mix_of_the_release() -> None:
    drawn = problems("qa5", 200)
    heads = Counter(p.question.split()[0] + p.question.split()[1] for p in drawn)
    assert abs(heads["Whatdid"] / len(drawn) - 0.329) < 0.05
    assert abs(heads["Whoreceived"] / len(drawn) - 0.153) < 0.05
    assert {p.answer for p in drawn} == {*babi.GIVERS, *babi.OBJECTS}


def test_nobody_takes_what_is_elsewhere_and_nobody_gives_what_he_has_not() -> None:
    world = babi.World(babi.ACTORS)
    assert not world.allows(babi.Action("get", "Mary", "apple"))  # she is in the bedroom
    assert world.allows(babi.Action("get", "John", "apple"))
    world.act(babi.Action("get", "John", "apple"), np.random.default_rng(0))
    assert not world.allows(babi.Action("drop", "Mary", "apple"))
    assert not world.allows(babi.Action("give", "John", "apple", "Mary"))
    assert not world.allows(babi.Action("give", "John", "apple", "John"))
    assert not world.allows(babi.Action("move", "John", "kitchen"))


def test_where_a_thing_was_dropped_is_unknown_while_its_holder_never_moved() -> None:
    world, random = babi.World(babi.ACTORS), np.random.default_rng(0)
    world.act(babi.Action("get", "John", "milk"), random)
    world.act(babi.Action("drop", "John", "milk"), random)
    assert world.find("milk") is None
    world.act(babi.Action("get", "John", "milk"), random)
    world.act(babi.Action("move", "John", "office"), random)
    assert world.find("milk") == ("office", frozenset({2, 3}))


def test_an_unknown_task_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown task 'qa6'.*qa1"):
        babi.problem("qa6", np.random.default_rng(0))


@pytest.mark.parametrize("question", ["Where is Mary?", "Is Mary in the office?"])
def test_the_solver_refuses_what_it_cannot_answer(question: str) -> None:
    with pytest.raises(ValueError, match="Mary"):
        solve(["John went to the office."], question)
