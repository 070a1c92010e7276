"""Second reading: its arithmetic on a model that knows what it read, and where it is told."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import small_runs as runs
import torch
from models import build, shared, text

from atlas_memory.cli.main import main
from atlas_memory.training.reread import LEAD, PASSAGE, _cut, draw, reread, second_reading
from atlas_memory.training.run_folder import RunFolder

IDS = 32
SURE = 4.0  # what a token seen behind the same token gains, as a logit


class Copying:
    """Predicts what followed the last token the last time, if that was at most `span` ago."""

    config = SimpleNamespace(vocab_size=IDS)
    device = torch.device("cpu")

    def __init__(self, span: int) -> None:
        self.span = span

    def lm_head(self, logits):
        return logits

    def model(self, ids, past_key_values, use_cache):
        before = () if past_key_values is None else past_key_values.states
        seen = torch.cat([*before, ids], dim=1)
        logits = torch.zeros(*ids.shape, IDS)
        for row in range(len(ids)):
            for place in range(ids.shape[1]):
                self._copy(seen[row], seen.shape[1] - ids.shape[1] + place, logits[row, place])
        known = SimpleNamespace(states=(seen,))
        return SimpleNamespace(last_hidden_state=logits, past_key_values=known)

    def _copy(self, seen, now, logits):
        before = (seen[max(0, now - self.span) : now] == seen[now]).nonzero()
        if len(before):
            logits[seen[max(0, now - self.span) + int(before[-1]) + 1]] = SURE


def orders(rows, passage, filler):
    """Every id once in the passage and never in the gap: a copy is certain, or impossible."""
    generator = torch.Generator().manual_seed(0)
    half = IDS // 2
    shuffled = [torch.randperm(half, generator=generator)[:passage] for _ in range(rows)]
    fillers = torch.randint(half, IDS - 1, (rows, filler), generator=generator)
    return torch.stack(shuffled), fillers, torch.full((rows, 4), IDS - 1)


def test_a_model_that_copies_pays_what_its_logits_say():
    passages, fillers, leads = orders(3, 12, 40)
    found = second_reading(Copying(10_000), passages, fillers, (0, 7, 40), leads)
    first = np.log2(IDS)
    again = np.log2((IDS - 1 + np.exp(SURE)) / np.exp(SURE))
    assert found["first_bits"] == pytest.approx(first, rel=1e-6)
    assert {name for name in found if name != "first_bits"} == {"gap_0", "gap_7", "gap_40"}
    assert found["gap_0"] == pytest.approx(again / first, rel=1e-5)
    assert found["gap_40"] == pytest.approx(again / first, rel=1e-5)


def test_what_is_further_away_than_a_model_looks_costs_as_much_again():
    passages, fillers, leads = orders(2, 12, 40)
    found = second_reading(Copying(20), passages, fillers, (0, 7, 40), leads)
    assert found["gap_0"] < 0.3
    assert found["gap_7"] < 0.3
    assert found["gap_40"] == pytest.approx(1.0)


@pytest.mark.parametrize("variant", ["atlas", "transformer_plus", "atlas_mac"])
def test_the_carried_state_is_the_whole_text(variant):
    """The same figures as from one forward pass over lead, passage, gap and passage."""
    model = shared(variant)
    leads, passages, fillers = (text(model, 2, n, seed=n) for n in (5, 11, 23))
    found = second_reading(model, passages, fillers, (0, 9, 23), leads)
    for gap in (0, 9, 23):
        whole = torch.cat([leads, passages, fillers[:, :gap], passages], dim=1)
        with torch.no_grad():
            nats = torch.nn.functional.cross_entropy(
                model(whole).logits[:, :-1].mT, whole[:, 1:], reduction="none"
            )
        first = nats[:, 5 : 5 + 10].mean().item()
        again = nats[:, -10:].mean().item()
        assert found["first_bits"] == pytest.approx(first / np.log(2), rel=1e-6)
        assert found[f"gap_{gap}"] == pytest.approx(again / first, rel=1e-6)


def test_pieces_share_no_token():
    ids = np.arange(20_000)
    passages, fillers, leads = _cut(ids, 1_024, torch.device("cpu"))
    assert passages.shape == (8, PASSAGE)
    assert leads.shape == (8, LEAD)
    used = torch.cat([passages, fillers, leads], dim=1).flatten().tolist()
    assert len(used) == len(set(used))


def test_a_short_text_has_fewer_gaps():
    model = build("deltanet", vocab_size=256)
    ids = np.random.default_rng(0).integers(256, size=700, dtype=np.uint8)
    assert reread(model, ids[:231]) is None
    assert set(reread(model, ids[:232])) == {"first_bits", "gap_0"}
    assert set(reread(model, ids)) == {"first_bits", "gap_0", "gap_256"}


def test_a_picture(tmp_path):
    draw({"atlas": {"first_bits": 3.0, "gap_0": 0.8, "gap_256": 0.9}}, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path / "home"))
    return runs.write_text(tmp_path / "text", words=6000)


def tokenizer_of(words, folder):
    main_ = ["tokenizer", "train", "--data", str(words), "--output", str(folder / "t.json")]
    with pytest.raises(SystemExit):
        main([*main_, "--vocab-size", "300"])
    return str(folder / "t.json")


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_run_tells_its_second_reading(tmp_path, words, capsys, kind):
    tokens = "bytes" if kind == "bytes" else tokenizer_of(words, tmp_path)
    changes = {"data__tokenizer": json.dumps(tokens), "data__validation_tokens": 0}
    options = runs.set_options(words, data__validation_share=0.2, **changes)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["train", "--output", str(tmp_path / "run"), *options, "--set", "compare=deltanet"])
    printed = capsys.readouterr().out
    assert printed.count("second reading") == 2
    folder = RunFolder(tmp_path / "run")
    figures = json.loads(folder.result.read_text())["reread"]
    assert figures["gap_256"] == pytest.approx(1, abs=0.2)
    assert f"{figures['gap_256']:.3f} after 256 tokens" in printed
    logged = [m for m in folder.read_metrics() if "reread_gap_256" in m]
    assert [m["reread_gap_256"] for m in logged] == [figures["gap_256"]]
    assert folder.reread.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as exit_:
        main(["eval", str(tmp_path / "run"), "--task", "reread", "--json"])
    assert exit_.value.code == 0
    found = json.loads(capsys.readouterr().out)["tasks"]["reread"]
    assert found["gap_256"] == pytest.approx(figures["gap_256"], rel=1e-6)
    assert found["source"] == str(words)


def test_a_saved_model_needs_a_text(tmp_path, words, capsys):
    from saved import byte_model, save_model

    saved = str(save_model(tmp_path / "model", byte_model("deltanet")))
    with pytest.raises(SystemExit) as exit_:
        main(["eval", saved, "--task", "reread"])
    assert exit_.value.code == 2
    assert "give one with --corpus" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_:
        main(["eval", saved, "--task", "reread", "--corpus", str(words)])
    assert exit_.value.code == 0
    assert "gap_256" in capsys.readouterr().out
