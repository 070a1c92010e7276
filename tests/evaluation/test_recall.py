"""In-context recall: the published prompts, the cut around the answer, and `contains`."""

import json

import pytest
import torch
from saved import byte_model

from atlas_memory.data.tokenizer import load_tokenizer, train_tokenizer
from atlas_memory.evaluation import recall
from atlas_memory.evaluation.recall import TASKS, Item, answer, contains, cut, evaluate, items

BYTES = load_tokenizer("bytes")


def prompt(task, row):
    (item,) = items(TASKS[task], [row], BYTES)
    return item


@pytest.mark.parametrize(
    ("task", "row", "expected"),
    [
        (
            "swde",
            {
                "text": "\nA page. Year: 1984. \n Summary of information above...\nyear:",
                "key": "year",
                "value": "1984",
            },
            Item("A page. Year: 1984. Year:", ("1984",)),
        ),
        (
            "swde",
            {"text": "Year 1984.. year:YEAR:", "key": "year", "value": "1984"},
            Item("Year 1984. Year:", ("1984",)),
        ),
        (
            "fda",
            {
                "text": "A device.\nType: pump\nproprietary name:",
                "key": "proprietary name",
                "value": "x2",
            },
            Item("A device.\nType: pump. Proprietary name:", ("x2",)),
        ),
        (
            "squad",
            {"text": " The river is long. The river is called ", "value": "Rhine"},
            Item("The river is long. The river is called", ("Rhine",)),
        ),
        (
            "nq",
            {
                "context": "It was in 1902. The year was",
                "question": "The year was ",
                "answers": ["1902", "'02"],
            },
            Item("It was in 1902. The year was", ("1902", "'02")),
        ),
        (
            "drop",
            {"context": " Ten men. The men were", "question": "the men were", "answers": ["ten"]},
            Item("Ten men. the men were", ("ten",)),
        ),
        (
            "triviaqa",
            {
                "context": "[DOC] [TLE] Rome[PAR] is old..",
                "question": "Old is",
                "answers": ["Rome"],
            },
            Item("Rome is old. Old is", ("Rome",)),
        ),
    ],
)
def test_prompts(task, row, expected):
    assert prompt(task, row) == expected


def test_items_with_one_character_are_skipped():
    rows = [{"text": "a b", "key": "a", "value": "long"}, {"text": "b", "key": "ab", "value": ""}]
    assert list(items(TASKS["swde"], rows, BYTES)) == []


@pytest.mark.parametrize("place", [0, 3, 974, 975, 976, 3000, 5500, 5990])
def test_the_cut_is_around_the_first_occurrence(place, monkeypatch):
    """With one token per character it can be written down."""
    text = list("." * 6000)
    text[place : place + 5] = "ANSWE"
    text[5995:] = "answe"
    text = "".join(text)
    start = max(0, place - 975)
    assert cut(text, ["answe"], BYTES) == text[start : start + 1950]


def test_a_document_without_the_answer_is_cut_at_its_end():
    text = "ab" * 3000
    assert cut(text, ["zz", "xx"], BYTES) == text[-975:]
    assert cut("short", ["zz"], BYTES) == "short"


def test_contains_ignores_case_and_takes_any_reference():
    assert contains("It is in Paris.", ["london", "pARIS"])
    assert contains("a+b", ["A+B"])
    assert not contains("It is in Par is.", ["paris", "rome"])


def test_answers_are_greedy_and_do_not_depend_on_the_batch():
    model = byte_model("deltanet", dtype=torch.float64)
    prompts = ["one", "a much longer prompt than the others", "x"]
    together = answer(model, BYTES, prompts)
    for text, said in zip(prompts, together, strict=True):
        ids = torch.tensor([list(text.encode())])
        for _ in range(recall.NEW_TOKENS):
            with torch.no_grad():
                following = model(ids).logits[0, -1].argmax()
            if following == 10:
                break
            ids = torch.cat([ids, following.reshape(1, 1)], dim=1)
        alone = BYTES.fast.decode(ids[0, len(text.encode()) :])
        assert said == alone


def test_a_long_prompt_loses_its_beginning():
    model = byte_model("deltanet")
    text = "abcdefg" * 400
    assert answer(model, BYTES, [text]) == answer(model, BYTES, [text[-2000:]])


def test_evaluate_counts_what_contains():
    model = byte_model("deltanet")
    said = answer(model, BYTES, ["one", "two"])
    asked = [Item("one", ("never said", said[0][:3])), Item("two", ("never said",))]
    lines = []
    found = evaluate(model, BYTES, asked, 1, lines.append)
    assert (found["contains"], found["items"], found["answers"]) == (0.5, 2, said)
    assert lines == ["1 of 2 answered", "2 of 2 answered"]
    with pytest.raises(ValueError, match="no item to ask"):
        evaluate(model, BYTES, [], 1, lines.append)


def test_rows_from_a_file(tmp_path):
    row = {"text": "Year: 1984.", "key": "year", "value": "1984", "more": 1}
    (tmp_path / "swde.jsonl").write_text(json.dumps(row) + "\n")
    rows, source = recall.load_rows("swde", tmp_path)
    assert list(rows) == [row]
    assert source.endswith("swde.jsonl")
    (tmp_path / "drop.jsonl").write_text(json.dumps(row) + "\n")
    rows, _ = recall.load_rows("drop", tmp_path)
    with pytest.raises(ValueError, match="line 1 has no context, question, answers"):
        list(rows)


def test_the_cut_survives_any_tokenizer():
    words = train_tokenizer([[b"year of the river was long ago and far away"]], 300)
    text = "the river was long " * 700 + "ago " + "and far away " * 700
    short = cut(text, ["ago"], words)
    assert "ago" in short
    assert 1940 <= len(words.fast.encode(short)) <= 1952
