"""The examples of docs/plug-in.md, run as they are printed."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "plug-in.md"


def test_the_examples_run():
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) == 3
    torch.manual_seed(0)
    names = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    remembering = names["remembering"]
    assert remembering.gate.grad.abs().min() > 0
    assert all(p.grad is None for p in remembering.layer.parameters())
    # Later pieces start from a state, so the last one has nothing to say about W_0.
    learned = [p.grad for p in names["block"].parameters() if p.grad is not None]
    assert len(learned) > 10
    assert all(gradient.isfinite().all() for gradient in learned)
