"""lm-eval's own client of OpenAI's completions gives the numbers of lm-eval's HFLM."""

import logging

import pytest
import torch
from evaluation.benchmark_items import plain_and_native, write
from saved import byte_model
from served import serving

from atlas_memory.data.tokenizer import train_tokenizer
from atlas_memory.evaluation.harness import Options, _configure, _run, harness_model
from atlas_memory.reading.loading import Loaded
from atlas_memory.serving.engine import Capacity

TASKS = ["lambada_openai", "piqa"]


@pytest.fixture(autouse=True)
def quiet():
    logger, before = logging.getLogger("lm_eval"), logging.getLogger("lm_eval").level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("concurrent", [1, 4])
def test_the_clients_numbers_are_those_of_hflm(tmp_path, concurrent):
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    words = train_tokenizer([[b"the memory reads a word and keeps what it can of text"]], 300)
    words.fast.save_pretrained(tmp_path / "tokenizer")
    model = byte_model(vocab_size=words.vocab_size, dtype=torch.float64)
    for task in TASKS:
        write(tmp_path / "items", task, [plain for plain, _ in plain_and_native(task)])
        _configure(tmp_path, task, tmp_path / "items")
    wanted = _run(harness_model(model, words, Options()), tmp_path, TASKS, 10)
    with serving(Loaded(model, words), capacity=Capacity(block=16, prefix_bytes=10**7)) as address:
        remote = LocalCompletionsAPI(
            base_url=f"{address}/v1/completions",
            model="small",
            tokenizer=str(tmp_path / "tokenizer"),
            tokenizer_backend="huggingface",
            num_concurrent=concurrent,
            batch_size=1 if concurrent > 1 else 3,
        )
        found = _run(remote, tmp_path, TASKS, 10)
    for task in TASKS:
        assert found[task] == pytest.approx(wanted[task], rel=1e-6)
    assert 0 < found["piqa"]["acc"] < 1
