"""What an engine is asked, and what transformers' generate answers alone."""

import threading

import torch

from atlas_memory.serving.jobs import Completion, Progress, Prompt, Token


class Answer:
    """Collects what is told about one job."""

    def __init__(self):
        self.tokens, self.scores, self.read, self.end = [], [], [], None
        self._done = threading.Event()

    def __call__(self, event):
        if isinstance(event, Token):
            self.tokens.append(event.id)
            self.scores.append(event.score)
        elif isinstance(event, Prompt):
            self.scores += event.scores
        elif isinstance(event, Progress):
            self.read.append(event.read)
        else:
            self.end = event
            self._done.set()

    def wait(self):
        assert self._done.wait(60)
        return self


def ask(engine, prompt, tokens=12, **options):
    answer = Answer()
    engine.submit(Completion(torch.tensor(prompt, dtype=torch.long), tokens, **options), answer)
    return answer


def alone(model, prompt, tokens=12):
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return out[0, len(prompt) :].tolist()
