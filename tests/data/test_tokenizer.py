"""Ids and back, for bytes, a trained vocabulary and one from a file."""

import numpy as np
import pytest

from atlas_memory.data.tokenizer import END, load_tokenizer, train_tokenizer

TEXT = "The café — 木 \x7f\n\ttabs  and   spaces; the the the then"


def ids(tokenizer, *pieces):
    return np.concatenate(list(tokenizer.encode([piece.encode() for piece in pieces])))


def test_bytes_are_their_own_ids():
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.vocab_size == 256
    assert tokenizer.end is None
    assert ids(tokenizer, TEXT).tolist() == list(TEXT.encode())
    assert tokenizer.fast.encode(TEXT) == list(TEXT.encode())
    assert tokenizer.fast.decode(list(TEXT.encode())) == TEXT
    assert all(tokenizer.fast.encode(chr(i)) == [i] for i in range(128))


def test_the_packed_vocabulary_gives_every_text_back_in_fewer_tokens():
    tokenizer = load_tokenizer("enwik8-2048")
    assert tokenizer.vocab_size == 2048
    assert tokenizer.fast.decode(tokenizer.fast.encode(TEXT)) == TEXT
    english = "The history of the world is the history of its cities."
    assert len(tokenizer.fast.encode(english)) < len(english) / 2.5


def test_bytes_survive_a_folder(tmp_path):
    load_tokenizer("bytes").fast.save_pretrained(tmp_path)
    again = load_tokenizer(str(tmp_path))
    assert ids(again, TEXT).tolist() == list(TEXT.encode())


@pytest.mark.parametrize("kind", ["bytes", "trained", "a folder"])
def test_rows_can_be_padded(kind, tmp_path):
    """transformers' collator needs a pad token, and masks the labels where it stands."""
    from transformers import DataCollatorForLanguageModeling

    trained = train_tokenizer([[TEXT.encode()] * 20], 300)
    tokenizer = trained if kind == "trained" else load_tokenizer("bytes")
    if kind == "a folder":
        tokenizer.fast.save_pretrained(tmp_path)
        tokenizer = load_tokenizer(str(tmp_path))
    size = tokenizer.vocab_size
    collate = DataCollatorForLanguageModeling(tokenizer.fast, mlm=False)
    batch = collate(
        [tokenizer.fast("a short row"), tokenizer.fast("and a much longer row of text")]
    )
    padded = batch["attention_mask"] == 0
    assert padded.any()
    assert (batch["labels"][padded] == -100).all()
    assert (batch["labels"][~padded] == batch["input_ids"][~padded]).all()
    assert batch["input_ids"].max() < size == len(tokenizer.fast)


def test_the_padding_takes_no_byte_away_that_a_text_can_have():
    tokenizer = load_tokenizer("bytes")
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000), 0x10FFFF]))
    assert tokenizer.fast.encode(text) == list(text.encode())
    assert tokenizer.fast.decode(list(text.encode())) == text
    assert tokenizer.fast.pad_token_id == 255


def test_a_trained_vocabulary_is_lossless_and_shorter(tmp_path):
    trained = train_tokenizer([[TEXT.encode()] * 20], 300)
    trained.fast.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    encoded = ids(tokenizer, TEXT).tolist()
    assert tokenizer.vocab_size <= 300
    assert encoded[-1] == tokenizer.end == tokenizer.fast.convert_tokens_to_ids(END)
    assert tokenizer.fast.decode(encoded[:-1]) == TEXT
    assert len(encoded) < len(TEXT.encode())
    other = "never seen: ÿ 你好"
    assert tokenizer.fast.decode(ids(tokenizer, other).tolist()[:-1]) == other
    assert tokenizer.fingerprint() == trained.fingerprint() != "bytes"


def test_training_is_deterministic():
    documents = [[TEXT.encode()] * 5, [b"other words"]]
    one, two = (train_tokenizer(documents, 280) for _ in range(2))
    assert one.fingerprint() == two.fingerprint()


def test_mistakes_are_told(tmp_path):
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a tokenizer\.json"):
        load_tokenizer(str(tmp_path / "broken.json"))
    with pytest.raises(ValueError, match="is neither bytes"):
        load_tokenizer(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="at least 258"):
        train_tokenizer([[b"x"]], 100)
