"""Many requests at once: every answer is the one that the request would have got alone."""

import queue
import random
import threading

import pytest
import torch
from asked import Answer, alone, ask
from models import shared
from saved import byte_model, greedy

import atlas_memory as am
from atlas_memory.family import variants
from atlas_memory.serving.engine import Capacity, Engine
from atlas_memory.serving.jobs import Completion, Failed, Finished, Reading, Ticket
from atlas_memory.serving.prefill import Prefill, feed
from atlas_memory.serving.sampling import Sampling

BLOCK = Capacity(rows=5, block=16)


def prompts(vocabulary, lengths):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture
def engine(request):
    engine = Engine(shared(getattr(request, "param", "omeganet")), BLOCK)
    yield engine
    engine.stop()


@pytest.mark.parametrize(
    "engine", ["atlas", "omeganet", "deltanet", "transformer_plus", "dot"], indirect=True
)
def test_answers_are_those_of_generate_alone(engine):
    """More requests than rows, prompts below, at and above a block, texts of different lengths."""
    asked = prompts(50, (1, 3, 16, 17, 40, 5, 9, 33))
    counts = (12, 5, 1, 9, 3, 14, 2, 7)
    answers = [ask(engine, p, n) for p, n in zip(asked, counts, strict=True)]
    for prompt, count, answer in zip(asked, counts, answers, strict=True):
        assert answer.wait().tokens == alone(engine.model, prompt, count)
        assert answer.end.reason == "length"


def test_float32_answers_are_those_of_generate_too():
    model = byte_model("atlas")
    engine = Engine(model, BLOCK)
    asked = prompts(256, (5, 14, 11, 8, 3))
    for prompt, answer in [(p, ask(engine, p, 20)) for p in asked]:
        assert answer.wait().tokens == alone(model, prompt, 20)
    engine.stop()


def test_a_memory_is_gone_on_from(engine):
    text, prompt = [*range(40)], [3, 1, 4]
    memory = am.read(engine.model, [text])
    told = [ask(engine, prompt, 6, memory=memory), ask(engine, [], 6, memory=memory)]
    assert told[0].wait().tokens == greedy(engine.model, memory, [prompt], tokens=6)[0]
    assert told[1].wait().tokens == greedy(engine.model, memory, tokens=6)[0]


def test_reading_makes_the_memory_that_read_makes(engine):
    text = prompts(50, (70,))[0]
    answer = Answer()
    engine.submit(Reading(torch.tensor(text)), answer)
    found, expected = answer.wait().end, am.read(engine.model, [text])
    assert found.memory.position == 70
    assert answer.read == [16, 32, 48, 64]
    torch.testing.assert_close(found.memory.bits, expected.bits)
    assert len(found.bits) == 69
    assert float(found.bits.double().sum()) == pytest.approx(float(expected.bits))
    assert greedy(engine.model, found.memory) == greedy(engine.model, expected)
    more = Answer()
    engine.submit(Reading(torch.tensor([7]), found.memory), more)
    longer = am.read(engine.model, [text, [7]])
    assert greedy(engine.model, more.wait().end.memory) == greedy(engine.model, longer)
    torch.testing.assert_close(more.end.memory.bits, longer.bits)


def test_a_text_ends_where_the_model_ends_it(engine):
    prompt = [5, 6, 7]
    expected = alone(engine.model, prompt)
    answer = ask(engine, prompt, ends=frozenset({expected[3]})).wait()
    assert answer.tokens == expected[: expected.index(expected[3])]
    assert answer.end.reason == "stop"


def test_draws_depend_on_their_seed_and_on_nothing_else(engine):
    drawn = Sampling(temperature=1.5, top_k=20, top_p=0.9, min_p=0.01, seed=11)
    first = ask(engine, [1, 2, 3], sampling=drawn).wait().tokens
    others = [ask(engine, [4] * n, sampling=Sampling(temperature=1.0)) for n in (2, 9)]
    again = ask(engine, [1, 2, 3], sampling=drawn)
    other = ask(engine, [1, 2, 3], sampling=Sampling(temperature=1.5, seed=12))
    assert again.wait().tokens == first != other.wait().tokens
    assert all(len(answer.wait().tokens) == 12 for answer in others)


def test_cancelled_and_late_jobs_leave_and_the_others_go_on(engine):
    stays, late, heard = ask(engine, [1, 2]), Answer(), queue.Queue()
    engine.submit(Completion(torch.tensor([1]), 9), late, seconds=-1)
    ticket = engine.submit(Completion(torch.tensor([1]), 10_000), heard.put)
    heard.get(timeout=60)
    ticket.cancel()
    assert late.wait().end == Finished("time")
    assert stays.wait().tokens == alone(engine.model, [1, 2])
    engine.stop()
    assert not any(isinstance(event, Finished) for event in heard.queue)


def test_what_fails_concerns_nobody_else(engine, caplog):
    well, badly = ask(engine, [1, 2]), ask(engine, [1, 999])
    assert isinstance(badly.wait().end, Failed)
    assert "token id 999 is not in the vocabulary" in badly.end.error
    assert well.wait().tokens == alone(engine.model, [1, 2])
    with pytest.raises(ValueError, match="no token to go on from"):
        ask(engine, [])
    caplog.clear()


def test_too_many_are_refused_and_a_stop_finishes_what_was_begun():
    engine = Engine(shared("omeganet"), Capacity(rows=1, block=16, waiting=2))
    answers = [ask(engine, [1, 2, 3], 20)]
    with pytest.raises(BlockingIOError, match="2 requests wait"):
        answers += [ask(engine, [1, 2, 3], 20) for _ in range(9)]
    engine.stop()
    assert answers[0].end == Finished("length")
    with pytest.raises(BlockingIOError, match="shutting down"):
        ask(engine, [1])


def test_who_has_gone_takes_no_place():
    """While the engine is held inside of a round, so that nothing but the count can make room."""
    engine = Engine(shared("omeganet"), Capacity(rows=1, block=16, waiting=2))
    held, release = threading.Event(), threading.Event()
    job = Completion(torch.tensor([1, 2, 3]), 4)
    engine.submit(job, lambda event: (held.set(), release.wait(60)))
    assert held.wait(60)
    tickets = [engine.submit(job, lambda event: None) for _ in range(2)]
    with pytest.raises(BlockingIOError, match="2 requests wait"):
        ask(engine, [4])
    tickets[0].cancel()
    answer = ask(engine, [4])
    assert engine.load["waiting"] == 2
    release.set()
    assert answer.wait().tokens == alone(engine.model, [4])
    engine.stop()


@pytest.mark.parametrize("variant", ["atlas", "omeganet", "samba", "transformer_plus"])
def test_an_engine_with_prefixes_answers_as_one_without(variant):
    """Shared and diverging prefixes, a memory, and rows side by side."""
    model = shared(variant)
    engine = Engine(model, Capacity(rows=4, block=8, prefix_bytes=3_000_000))
    draw = random.Random(0)
    stems = [[draw.randrange(50) for _ in range(40)] for _ in range(3)]
    memory = am.read(model, [stems[0]])
    asked = []
    for _ in range(40):
        prompt = draw.choice(stems)[: draw.randrange(1, 41)]
        prompt = prompt + [draw.randrange(50) for _ in range(draw.randrange(4))]
        given = {"memory": memory, "begin": "m"} if draw.random() < 0.3 else {}
        asked.append((prompt, given, ask(engine, prompt, 3, **given)))
    for prompt, given, answer in asked:
        found = answer.wait().tokens
        if given:
            assert found == greedy(model, memory, [prompt], tokens=3)[0]
        else:
            assert found == alone(model, prompt, 3)
        assert engine.prefix_bytes <= 3_000_000
    engine.stop()
    assert engine.tally.reused > 100


@pytest.mark.parametrize("variant", variants())
def test_prompts_side_by_side_are_read_as_if_alone(variant):
    """Ragged blocks of rows at different positions, in one forward pass."""
    model = shared(variant)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 50, (n,), generator=generator) for n in (3, 30, 12, 21)]
    prefills = [Prefill(Ticket(Completion(ids, 1), print), 10) for ids in texts]
    with torch.no_grad():
        feed(model, prefills)
        while left := [p for p in prefills if not p.done]:
            feed(model, left)
        for ids, prefill in zip(texts, prefills, strict=True):
            assert prefill.cache.seen == len(ids)
            expected = model(ids[None]).logits[:, -1]
            torch.testing.assert_close(prefill.logits, expected, rtol=1e-9, atol=1e-10)
