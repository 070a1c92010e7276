"""Small items of every task, in the plain form and in the columns of the hub."""

import json

import numpy as np

WORDS = ["the", "memory", "reads", "a", "word", "and", "keeps", "what", "it", "can", "of", "text"]


def _phrases(random, count, length):
    return [" ".join(random.choice(WORDS, length)) for _ in range(count)]


def plain_and_native(task, count=12, seed=0):
    """The same items twice: as `--data` may have them, and as the hub has them."""
    random = np.random.default_rng(seed)
    return [_item(task, random) for _ in range(count)]


def _item(task, random):
    text, first, second, third, fourth = _phrases(random, 5, 4)
    gold = int(random.integers(2))
    match task:
        case "lambada_openai":
            word = str(random.choice(WORDS))
            return {"context": text, "continuation": word}, {"text": f"{text} {word}"}
        case "piqa":
            plain = {"query": f"Question: {text}\n", "choices": [first, second], "gold": gold}
            return plain, {"goal": text, "sol1": first, "sol2": second, "label": gold}
        case "arc_easy" | "arc_challenge":
            plain = {"query": f"Question: {text}?", "choices": [first, second, third], "gold": gold}
            choices = {"text": [first, second, third], "label": ["A", "B", "C"]}
            key = choices["label"][gold]
            return plain, {"question": f"{text}?", "choices": choices, "answerKey": key}
        case "hellaswag":
            endings = [first, second, third, fourth]
            plain = {"query": f"Reading: {text}", "choices": endings, "gold": gold}
            native = {"activity_label": "Reading", "ctx_a": text, "ctx_b": ""}
            return plain, {**native, "endings": endings, "label": str(gold)}
        case "winogrande":
            plain = {
                "context_options": [f"{text} {first}", f"{text} {second}"],
                "continuation": third,
                "gold": gold,
            }
            native = {"sentence": f"{text} _ {third}", "option1": first, "option2": second}
            return plain, {**native, "answer": str(gold + 1)}
        case "social_iqa":
            choices = [first, second, third]
            plain = {"query": f"Q: {text}. Why?\nA:", "choices": choices, "gold": gold}
            answers = dict(zip(("answerA", "answerB", "answerC"), choices, strict=True))
            native = {"context": f"{text}.", "question": "Why?", **answers}
            return plain, {**native, "label": str(gold + 1)}
        case "boolq":
            query = f"Passage: {text}.\nQuestion: {first}?"
            plain = {"query": query, "choices": ["no", "yes"], "gold": gold}
            return plain, {"passage": f"{text}.", "question": first, "label": gold}
        case "wikitext":
            page = f" = {text} = \n\n {first} , {second} . \n"
            return {"page": page}, {"page": page}


def write(folder, task, rows):
    folder.mkdir(exist_ok=True)
    file = folder / f"{task}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
