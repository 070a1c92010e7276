"""What a draft, or the prompt itself, saves: assisted generation beside plain greedy decoding.

    python benchmarks/assisted.py RUN DRAFT               two folders of `atlas train`

DRAFT is a smaller model of the same tokens. The texts must be the same token for token; the script
says so, and how many processor seconds each of them took.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from atlas_memory.reading.loading import load_run

TEXT = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()
PROMPTS = [TEXT[at : at + 600] for at in (0, 2_000, 4_000, 6_000)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--precision", default="float64")
    return parser.parse_args()


def written(model: Any, tokens: int, **how: Any) -> tuple[list[list[int]], float]:
    """The answers to all prompts, and the processor seconds of it."""
    begin, answers = time.process_time(), []
    for prompt in PROMPTS:
        ids = torch.tensor([[*prompt.encode()]])
        mask = torch.ones_like(ids)
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **how,
        )
        answers.append(out[0, ids.shape[1] :].tolist())
    return answers, time.process_time() - begin


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    model = load_run(given.run, given.precision).model
    draft = load_run(given.draft, given.precision).model
    draft.generation_config.num_assistant_tokens = 6
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    ways = {"draft": {"assistant_model": draft}, "prompt lookup": {"prompt_lookup_num_tokens": 6}}
    written(model, 8)
    plain, seconds = written(model, given.tokens)
    share = draft.num_parameters() / model.num_parameters()
    figures: dict[str, Any] = {"draft_size": round(share, 3), "plain_seconds": round(seconds, 2)}
    for name, how in ways.items():
        found, spent = written(model, given.tokens, **how)
        figures[name] = {"same_text": found == plain, "speed_up": round(seconds / spent, 2)}
    print(json.dumps(figures, indent=2))
    raise SystemExit(not all(figures[name]["same_text"] for name in ways))


if __name__ == "__main__":
    main()
