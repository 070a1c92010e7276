"""The page in a browser: load a text, see its surprise, ask, watch, fork, compare."""

import re

import pytest
from browser import needs_chromium, open_page
from saved import greedy
from served import client, serving

import atlas_memory as am
from atlas_memory.reading.memory_file import MemoryFile
from atlas_memory.serving.engine import Capacity
from atlas_memory.serving.server.guard import Access
from atlas_memory.serving.server.pages import PAGE

pytestmark = needs_chromium
TEXT = "The tide came in. The tide went out. " * 6


@pytest.fixture
def address(loaded):
    with serving(loaded) as address:
        yield address


def read(page, text=TEXT, name="tide"):
    page.fill("#text", text)
    page.fill("#name", name)
    page.click("#read")
    page.wait_for_selector("#surprise span")


def written(loaded, texts, prompt, tokens):
    memory = am.read(loaded.model, [[*text.encode()] for text in texts])
    found = greedy(loaded.model, memory, [[*prompt.encode()]], tokens=tokens)[0]
    return loaded.tokenizer.fast.decode(found, skip_special_tokens=True)


def answered(page, pane):
    """The text of an answer without the question in front of it, once it is whole."""
    page.wait_for_selector(f"#pane-{pane} figcaption:has-text('per second')")
    return page.eval_on_selector_all(
        f"#answer-{pane} span:not(.asked)", "spans => spans.map(span => span.textContent)"
    )


def test_read_ask_fork_compare(address, loaded):
    with open_page() as page:
        page.goto(address)
        page.wait_for_selector("#model:text-is('small')")
        read(page)
        assert page.text_content("#surprise") == TEXT
        shades = page.eval_on_selector_all("#surprise span", "s => s.map(e => e.className)")
        assert len({*shades}) > 2
        page.hover("#surprise span:nth-child(5)")
        assert re.fullmatch(r'"t": \d+\.\d\d bits', page.inner_text("#bits"))
        page.fill("#prompt", " Then")
        page.fill("#tokens", "30")
        page.click("#ask")
        page.wait_for_selector("#answer-a span:nth-child(3)")
        assert page.is_enabled("#stop")  # the first tokens are there and others still come
        parts = answered(page, "a")
        assert len(parts) > 5
        assert "".join(parts) == written(loaded, [TEXT], " Then", 30)
        page.click("#memories li button:has-text('Fork')")
        page.fill("#fork-text", "But once it stayed.")
        page.fill("#fork-name", "stayed")
        page.click("#fork")
        page.wait_for_selector("#memories li:nth-child(2)")
        page.wait_for_selector("#surprise:has-text('But once')")
        page.click("#ask")
        assert "".join(answered(page, "a")) == written(loaded, [TEXT], " Then", 30)
        other = [TEXT, "But once it stayed."]
        assert "".join(answered(page, "b")) == written(loaded, other, " Then", 30)


def test_reading_tells_how_far_it_is(loaded):
    """Tokens of all tokens and the time left, until the text is read."""
    heard = """() => {
      window.heard = [];
      const place = document.getElementById("reading");
      const note = () => place.hidden || window.heard.push(place.innerText.trim());
      new MutationObserver(note).observe(place, { childList: true, subtree: true });
    }"""
    with serving(loaded, capacity=Capacity(block=64)) as address, open_page() as page:
        page.goto(address)
        page.evaluate(heard)
        assert page.is_hidden("#reading")
        read(page, TEXT[:200])
        assert page.is_hidden("#reading")
        told = page.evaluate("window.heard")
    assert told[1] == "0 of 200 tokens"
    assert re.fullmatch(r"64 of 200 tokens, \d+ s left", told[2])
    assert re.fullmatch(r"192 of 200 tokens, \d+ s left", told[-1])


def test_a_file_that_does_not_know_its_surprise_says_so(loaded):
    known = MemoryFile(am.read(loaded.model, [[*TEXT.encode()]]), ("book.txt",))
    with serving(loaded, memories=(known,)) as address, open_page() as page:
        page.goto(address)
        page.wait_for_selector("#memories li")
        assert "does not say how surprising" in page.inner_text("#memories li")
        assert page.locator("#memories li button:has-text('Surprise')").count() == 0
        page.click("#memories li button:has-text('Fork')")
        page.click("#fork")  # without a text it knows as little
        page.wait_for_selector("#memories li:nth-child(2)")
        assert page.is_hidden("#picture")
        read(page)
        assert page.locator("#memories li button:has-text('Surprise')").count() == 1


def test_by_keyboard_on_a_phone_in_the_dark(address):
    with open_page(width=360, height=740, dark=True) as page:
        page.goto(address)
        page.focus("#text")
        page.keyboard.insert_text("A short text.")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#surprise span")
        page.focus("#surprise")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.inner_text("#bits").startswith('"s": ')
        page.focus("#tokens")
        page.keyboard.press("Control+A")
        page.keyboard.type("8")
        page.keyboard.press("Control+Enter")
        assert len("".join(answered(page, "a"))) >= 8
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        small = page.eval_on_selector_all(
            "button:not([disabled])",
            "all => all.filter(b => b.offsetParent && b.offsetHeight < 36).length",
        )
        assert small == 0
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150
        names = page.eval_on_selector_all(
            "input, textarea, select", "all => all.filter(e => !e.labels.length).map(e => e.id)"
        )
        assert names == []


def test_mistakes_are_said_and_memories_go(address):
    with open_page(expected=["400", "404"]) as page:
        page.goto(address)
        page.click("#ask")
        page.wait_for_selector("#notice:not([hidden])")
        assert "prompt is empty" in page.inner_text("#notice")
        read(page)
        made = client(address).get("/memories", cast_to=dict)["data"][0]
        client(address).delete(f"/memories/{made['id']}", cast_to=dict)
        page.click("#ask")
        page.wait_for_selector("#notice:has-text('no memory')")
        page.reload()
        read(page)
        with page.expect_download() as download:
            page.click("#memories li button:has-text('Download')")
        assert download.value.suggested_filename == "tide.memory"
        page.click("#memories li button:has-text('Delete')")
        page.wait_for_selector("#empty:not([hidden])")
        assert page.is_hidden("#picture")


def test_a_token_is_asked_for(loaded):
    with (
        serving(loaded, access=Access("s3cret", None)) as address,
        open_page(expected=["401"]) as page,
    ):
        page.goto(address)
        page.fill("#token", "s3cret")
        page.click("#access button")
        page.wait_for_selector("#access", state="hidden")
        read(page)
        assert page.text_content("#surprise") == TEXT


def test_the_page_needs_nothing_else():
    for file in PAGE.iterdir():
        assert "://" not in file.read_text()
        assert " style=" not in file.read_text()
