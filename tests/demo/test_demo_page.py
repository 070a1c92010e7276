"""The demo of the server: over HTTP, and in a browser as the page's second part."""

import re
import time
from itertools import chain
from pathlib import Path

import openai
import pytest
from browser import needs_chromium, open_page
from served import client, events, serving, small

from atlas_memory import demo
from atlas_memory.demo import routes
from atlas_memory.serving.server.limits import Limits

FACTS = "Mary went to the kitchen. John moved to the garden. Mary went to the office."
ASKED = {"words": 5_000, "facts": FACTS, "ask": "Where is Mary?"}


@pytest.fixture(scope="module")
def loaded():
    return small()


@pytest.fixture(scope="module")
def address(loaded):
    with serving(loaded, more=(routes.router(),)) as address:
        yield address


def children():
    """How many processes of this one run a demo."""
    own = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    commands = [Path(f"/proc/{child}/cmdline") for child in chain.from_iterable(own)]
    return sum(b"atlas_memory.demo" in path.read_bytes() for path in commands if path.exists())


def test_over_http_it_is_the_demo_of_python(address):
    *progress, told = events(address, "demo", ASKED)
    expected = demo.run(5_000, facts=FACTS, ask="Where is Mary?")
    assert [event["read"] for event in progress] == [0, 2_048, 4_096, 5_000]
    assert {event["total"] for event in progress} == {5_000}
    same = ("words", "right", "window_right", "state_bytes", "cache_bytes", "admitted")
    assert [told[name] for name in same] == [getattr(expected, name) for name in same]
    assert told["answers"][0]["answer"] == "office"
    assert told["picture"]["parts"] == [*expected.picture.parts]
    assert len(told["picture"]["facts"]) == 3


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"facts": "Bob went home."}, "does not know 'Bob went home.'"),
        ({"words": 10}, "words: Input should be greater than or equal to 1000"),
        ({"ask": "Where is Mary?"}, "is asked without facts"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(asked, sentence, address):
    with pytest.raises(openai.BadRequestError, match=re.escape(sentence)):
        client(address).post("/demo", body=asked, cast_to=dict)


def test_out_of_time_it_ends(loaded):
    with serving(loaded, limits=Limits(seconds=0.2), more=(routes.router(),)) as address:
        (told,) = events(address, "demo", ASKED)
        assert "not read within 0.2 seconds; try fewer words" in told["error"]["message"]
    assert children() == 0


@needs_chromium
def test_facts_of_ones_own_in_a_browser(address):
    with open_page(width=360, height=740, dark=True) as page:
        page.goto(address)
        page.click("#to-demo")
        assert page.is_hidden("#memories-of-texts")
        page.wait_for_selector("#demo-words-known:has-text('Sandra')")
        page.fill("#demo-facts", FACTS)
        page.fill("#demo-ask", "Where is Mary?")
        page.fill("#demo-words", "5000")
        page.click("#demonstrate")
        page.wait_for_selector("#demonstrating span:has-text('of 5,000 words')", timeout=120_000)
        page.wait_for_selector("#demo-result:not([hidden])", timeout=120_000)
        assert page.is_hidden("#demonstrating")
        assert page.inner_text("#demo-question") == "Where is Mary?"
        figures = page.inner_text("#demo-figures")
        assert re.search(r"the truth\s+office\s+the memory\s+office right\s", figures)
        assert re.search(r"a window of 32 words\s+\w+ (right|wrong)\s", figures)
        assert "61.8 KB" in figures
        assert "2.56 MB" in figures
        assert page.locator("#demo-hidden li").count() == 3
        assert page.get_attribute("#demo-gates", "d").count("z") >= 3
        assert page.get_attribute("#demo-marks", "d").count("z") == 3
        assert page.locator(".passage .fact.open").count() >= 3
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        unnamed = "all => all.filter(e => !e.labels.length).map(e => e.id)"
        assert page.eval_on_selector_all("input, textarea", unnamed) == []


@needs_chromium
def test_drawn_facts_and_a_demo_that_nobody_waits_for(address):
    with open_page() as page:
        page.goto(f"{address}/#demo")
        page.fill("#demo-words", "10000000")
        page.click("#demonstrate")
        page.wait_for_selector("#demonstrating:not([hidden])")
        while not children():
            time.sleep(0.05)
        with pytest.raises(openai.InternalServerError, match="a demo runs already"):
            client(address).post("/demo", body={}, cast_to=dict)
        page.click("#demo-stop")
        while children():
            time.sleep(0.05)
        page.fill("#demo-words", "2000")
        page.fill("#demo-seed", "3")
        page.click("#demonstrate")
        page.wait_for_selector("#demo-result:not([hidden])", timeout=120_000)
        assert page.locator("#demo-hidden li").count() >= 2
