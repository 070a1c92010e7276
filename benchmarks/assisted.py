"""What a draft, or the prompt itself, saves: assisted generation beside plain greedy decoding.

    python benchmarks/assisted.py RUN DRAFT               two folders of `atlas train`

DRAFT is a smaller model of the same tokens. The texts must be the same token for token; the script
says so, how much sooner they came in processor seconds, and why: how many tokens a pass of RUN
brought, and what a pass of one token, of all that were drafted, and of the draft costs.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from serve import tokens_of

from atlas_memory.reading.loading import Loaded, load_run

TEXT = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()
DRAFTED = 6
PROMPTS = [TEXT[at : at + 600] for at in (0, 2_000, 4_000, 6_000)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--precision", default="float64")
    return parser.parse_args()


def written(loaded: Loaded, tokens: int, **how: Any) -> tuple[list[list[int]], float]:
    """The answers to all prompts, and the processor seconds of it."""
    begin, answers = time.process_time(), []
    model: Any = loaded.model
    for prompt in PROMPTS:
        ids = torch.tensor([tokens_of(loaded, prompt)])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **how,
        )
        answers.append(out[0, ids.shape[1] :].tolist())
    return answers, time.process_time() - begin


@torch.no_grad()
def milliseconds(loaded: Loaded, model: Any, tokens: int) -> float:
    """Of a pass of so many tokens behind the first prompt; the best of five."""
    ids = torch.tensor([tokens_of(loaded, PROMPTS[0])])
    cache, taken = model(ids, use_cache=True).past_key_values, []
    for _ in range(5):
        begin = time.process_time()
        model(ids[:, :tokens], past_key_values=cache)
        taken.append(time.process_time() - begin)
    return round(1000 * min(taken), 1)


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    loaded = load_run(given.run, given.precision)
    draft: Any = load_run(given.draft, given.precision).model
    draft.generation_config.num_assistant_tokens = DRAFTED
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    ways: dict[str, Any] = {"draft": {"assistant_model": draft}}
    ways["prompt lookup"] = {"prompt_lookup_num_tokens": DRAFTED}
    passes: list[int] = []
    loaded.model.register_forward_hook(lambda *_: passes.append(1))
    written(loaded, 8)
    plain, seconds = written(loaded, given.tokens)
    figures: dict[str, Any] = {
        "draft_size": round(draft.num_parameters() / loaded.model.num_parameters(), 3),
        "plain_seconds": round(seconds, 2),
        "milliseconds": {
            "one token": milliseconds(loaded, loaded.model, 1),
            f"{DRAFTED + 1} tokens": milliseconds(loaded, loaded.model, DRAFTED + 1),
            "one token of the draft": milliseconds(loaded, draft, 1),
        },
    }
    for name, how in ways.items():
        passes.clear()
        found, spent = written(loaded, given.tokens, **how)
        figures[name] = {
            "same_text": found == plain,
            "speed_up": round(seconds / spent, 2),
            "tokens_per_pass": round(sum(map(len, found)) / len(passes), 2),
        }
    print(json.dumps(figures, indent=2))
    raise SystemExit(not all(figures[name]["same_text"] for name in ways))


if __name__ == "__main__":
    main()
