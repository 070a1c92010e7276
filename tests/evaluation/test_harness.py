"""lm-eval through `evaluate` is lm-eval by hand: same items, same prompts, same numbers."""

import math
import re

import pytest
import torch
from evaluation.benchmark_items import plain_and_native, write
from saved import byte_model, save_model

from atlas_memory.data.tokenizer import load_tokenizer, train_tokenizer
from atlas_memory.evaluation.harness import TASKS, Options, deviations, evaluate
from atlas_memory.evaluation.local_data import pages, read_rows


def quiet(_):
    pass


MEAN = {"aggregation": "mean", "higher_is_better": True}
# The tasks as one would write them down for lm-eval: from its documentation, not from our files.
BY_HAND = {
    "lambada_openai": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
        "metric_list": [
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            {"metric": "acc", **MEAN},
        ],
    },
    "piqa": {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{goal}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": "{{[sol1, sol2]}}",
        "metric_list": [{"metric": "acc", **MEAN}, {"metric": "acc_norm", **MEAN}],
    },
    "arc_easy": {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices.label.index(answerKey)}}",
        "doc_to_choice": "{{choices.text}}",
        "metric_list": [{"metric": "acc", **MEAN}, {"metric": "acc_norm", **MEAN}],
    },
}


def by_hand(model_folder, data, cache, limit):
    """lm-eval alone: it loads the model from its folder and the items from its own columns."""
    from lm_eval.evaluator import evaluate as run
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm = HFLM(pretrained=str(model_folder), batch_size=8, device="cpu", max_length=2048)
    specs = [
        {
            **config,
            "task": task,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(data / f"{task}.jsonl")},
                "cache_dir": str(cache),
            },
            "test_split": "test",
            "num_fewshot": 0,
        }
        for task, config in BY_HAND.items()
    ]
    tasks = TaskManager(include_defaults=False).load(specs)
    return run(lm, tasks, limit=limit, bootstrap_iters=0)["results"]


@pytest.fixture(scope="module")
def words():
    """A small BPE with an end of text, as a language model has one."""
    return train_tokenizer([[b"the memory reads a word and keeps what it can of text"]], 300)


def test_local_items_give_the_numbers_of_lm_eval_by_hand(tmp_path, words):
    for task in BY_HAND:
        items = plain_and_native(task)
        write(tmp_path / "plain", task, [plain for plain, _ in items])
        write(tmp_path / "native", task, [native for _, native in items])
    model = byte_model(vocab_size=words.vocab_size)
    model.save_pretrained(tmp_path / "model")
    words.fast.save_pretrained(tmp_path / "model")
    limit = 10
    wanted = by_hand(tmp_path / "model", tmp_path / "native", tmp_path / "cache", limit)
    ours = evaluate(
        model, words, list(BY_HAND), Options(limit=limit, data=tmp_path / "plain"), quiet
    )
    for task, figures in ours.items():
        assert figures["items"] == limit
        for metric in BY_HAND[task]["metric_list"]:
            name = metric["metric"]
            assert figures[name] == wanted[task][f"{name},none"], (task, name)
    assert 0 < ours["piqa"]["acc"] < 1


def log_probability(model, context, continuation):
    """Sum of log p, by hand and one text at a time; ids are bytes."""
    ids = torch.tensor([[*context, *continuation]])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].log_softmax(-1)
    first = len(context) - 1
    return sum(logits[first + i, byte].item() for i, byte in enumerate(continuation))


def test_accuracies_and_word_perplexity_from_the_losses(tmp_path):
    """No lm-eval in what is compared with: the definitions, written out."""
    model, count = byte_model(), 6
    native = {
        task: [n for _, n in plain_and_native(task, count)]
        for task in ("wikitext", "winogrande", "boolq", "arc_challenge")
    }
    for task, rows in native.items():
        write(tmp_path, task, rows)
    found = evaluate(
        model, load_tokenizer("bytes"), list(native), Options(data=tmp_path, batch=4), quiet
    )

    total = words = 0
    for row in native["wikitext"]:
        text = row["page"]
        for spaced, tight in ((" , ", ", "), (" . ", ". "), (" \n", "\n"), ("\n ", "\n")):
            text = text.replace(spaced, tight)
        total += log_probability(model, b"\n", text.encode())
        words += len(re.split(r"\s+", row["page"]))
    assert found["wikitext"]["word_perplexity"] == pytest.approx(math.exp(-total / words), rel=1e-4)

    right = 0
    for row in native["winogrande"]:
        before, after = row["sentence"].split("_")
        scores = [
            log_probability(model, (before + option).encode(), after.encode())
            for option in (row["option1"], row["option2"])
        ]
        right += scores[int(row["answer"]) - 1] == max(scores)
    assert found["winogrande"]["acc"] == right / count

    right = 0
    for row in native["boolq"]:
        prompt = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:".encode()
        scores = [log_probability(model, prompt, answer) for answer in (b" no", b" yes")]
        right += scores[row["label"]] == max(scores)
    assert found["boolq"]["acc"] == right / count

    right = 0
    for row in native["arc_challenge"]:
        prompt = f"Question: {row['question']}\nAnswer:".encode()
        choices = row["choices"]["text"]
        scores = [
            log_probability(model, prompt, f" {choice}".encode()) / len(choice)
            for choice in choices
        ]
        right += scores["ABC".index(row["answerKey"])] == max(scores)
    assert found["arc_challenge"]["acc_norm"] == right / count


@pytest.mark.parametrize("task", TASKS)
def test_the_plain_form_makes_the_prompt_of_the_hub(task, tmp_path):
    """Both forms through the whole harness: nine tasks, the same figures."""
    items = plain_and_native(task, 5)
    model, bytes_ = byte_model(), load_tokenizer("bytes")
    figures = []
    for n, name in enumerate(("plain", "native")):
        write(tmp_path / name, task, [item[n] for item in items])
        options = Options(data=tmp_path / name)
        figures.append(evaluate(model, bytes_, [task], options, quiet)[task])
        del figures[-1]["source"]
    assert figures[0] == figures[1]
    assert figures[0]["items"] == 5


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("piqa", "{", "line 1 is not JSON"),
        ("piqa", "[1]", "line 1 is no JSON object"),
        ("piqa", '{"query": "a", "choices": ["b"], "gold": 0}', "1 choices; this task has 2"),
        ("piqa", '{"query": "a", "choices": ["b", "c"], "gold": 2}', "gold=2 is none of the 2"),
        ("piqa", '{"text": "a"}', "has the keys text; give goal, sol1, sol2, label or query"),
        ("piqa", '{"query": 1, "choices": ["b", "c"], "gold": 0}', "line 1"),
        ("lambada_openai", '{"context": "a", "continuation": "b c"}', "more than one word"),
        ("boolq", '{"query": "a", "choices": ["yes", "no"], "gold": 0}', "has 'no', 'yes'"),
        ("social_iqa", '{"query": "a", "choices": ["b", "c"], "gold": 0}', "this task has 3"),
        ("wikitext", '{"text": "a"}', "give page"),
    ],
)
def test_a_wrong_item_is_told_by_its_line(task, line, message, tmp_path):
    file = tmp_path / f"{task}.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        list(read_rows(file, task))


def test_articles_of_wikitext():
    text = " = One = \n\n a b \n = = Part = = \n\n c \n = Two = \n\n d \n"
    assert pages(text) == [text[: text.index(" = Two")], text[text.index(" = Two") :]]
    with pytest.raises(ValueError, match="no article begins"):
        pages("a b c")


def test_deviations_are_named(tmp_path, words):
    (tmp_path / "wikitext.txt").write_text(" = One = \n\n a <unk> b \n")
    found = deviations(load_tokenizer("bytes"), ["wikitext"], Options(3, tmp_path))
    assert len(found) == 3
    assert deviations(words, ["piqa"], Options()) == []


def test_without_items_and_network_a_sentence(monkeypatch, tmp_path):
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="piqa cannot be had"):
        evaluate(byte_model(), load_tokenizer("bytes"), ["piqa"], Options(), quiet)


def test_the_tokenizer_and_the_model_stay_as_they_are(tmp_path):
    folder = save_model(tmp_path / "model")
    bytes_ = load_tokenizer(str(folder))
    padding = bytes_.fast.pad_token
    model = byte_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    write(tmp_path, "piqa", [plain for plain, _ in plain_and_native("piqa", 2)])
    evaluate(model, bytes_, ["piqa"], Options(data=tmp_path), quiet)
    assert len(bytes_.fast) == 256
    assert bytes_.fast.pad_token == padding
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
