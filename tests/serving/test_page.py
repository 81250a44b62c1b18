"""The page, in a real browser.

Needs Chromium and its driver (Debian: chromium, chromium-driver) and Selenium:
make test-promises
PAGE_SCREENSHOTS=folder keeps pictures of it.
"""

import base64
import os
import shutil
from pathlib import Path

import pytest
from encoded_images import encoded
from waiting import until

pytestmark = pytest.mark.promise

FLAGS = [
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
]


@pytest.fixture(scope="module")
def embedded(serve):
    with serve() as running:
        yield running


@pytest.fixture
def browse(tmp_path):
    """Open a page in a new browser that can reach this machine only; no error may be on its console in the end."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs: pip install selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs Chromium and its driver (Debian: chromium, chromium-driver)")
    opened = []

    def browse(address, width=1280, dark=False):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in [*FLAGS, f"user-data-dir={tmp_path / str(len(opened))}"]:
            options.add_argument(f"--{flag}")
        options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        opened.append(page)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        page.get(address)
        until(lambda: text(page, "deadline-text"))
        set_slider(page, "deadline", 100)  # half a second, which a busy machine keeps too
        return page

    yield browse
    logs = [entry for page in opened for entry in page.get_log("browser")]
    for page in opened:
        page.quit()
    # A deadline that a busy machine cannot keep is answered with 503 or 504, which the browser notes as an error.
    assert [entry for entry in logs if "503" not in entry["message"] and "504" not in entry["message"]] == []


def text(page, id):
    return page.execute_script("const e = document.getElementById(arguments[0]); return e.value || e.textContent", id)


def set_slider(page, id, value):
    page.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "for (const name of ['input', 'change']) e.dispatchEvent(new Event(name, {bubbles: true}))",
        id,
        value,
    )


def answered(page):
    """Whether there is an answer; asks again if the machine was too busy for one."""
    if "No answer" in text(page, "summary"):
        page.execute_script("document.getElementById('again').click()")
    return "after" in text(page, "summary")


def picture(page, name):
    if folder := os.environ.get("PAGE_SCREENSHOTS"):
        taken = page.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        Path(folder, name).write_bytes(base64.b64decode(taken["data"]))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_shows_an_answer_at_any_width(embedded, browse, width, dark):
    page = browse(embedded.address, width, dark)
    until(lambda: answered(page))
    until(lambda: "15 of 15" in text(page, "exit-text"))
    assert text(page, "class") == "airplane"
    assert "right" in text(page, "truth")
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "scrolls sideways"
    small = page.execute_script(
        "return [...document.querySelectorAll('button, select')].filter((e) => e.offsetParent)"
        ".map((e) => [e.id || e.ariaLabel, e.getBoundingClientRect().height]).filter(([, height]) => height < 40)"
    )
    assert small == [], "too small for a finger"
    picture(page, f"page-{width}-{'dark' if dark else 'light'}.png")


def test_an_uploaded_image_is_answered(embedded, browse, tmp_path):
    page = browse(embedded.address)
    until(lambda: answered(page))
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(encoded("JPEG", 1500))
    page.find_element("id", "file").send_keys(str(photo))
    until(lambda: page.find_element("id", "preview").get_attribute("alt") == "Your image" and answered(page))
    until(lambda: text(page, "truth") == "")
    assert len(page.find_elements("css selector", "#bars li")) == 5


def test_a_longer_deadline_gives_a_deeper_exit_and_every_exit_can_be_looked_at(embedded, browse):
    page = browse(embedded.address)
    until(lambda: answered(page))
    page.execute_script("document.getElementById('slow').click()")
    until(lambda: "exit 15 of 15" in text(page, "summary"))
    seen = set()
    for exit in range(15):
        page.execute_script(
            "const e = document.getElementById('exit'); e.value = arguments[0];"
            "e.dispatchEvent(new Event('input', {bubbles: true}))",
            exit,
        )
        seen.add(text(page, "exit-text"))
    assert len(seen) == 15
    set_slider(page, "deadline", 0)  # half a millisecond
    until(lambda: "exit 15 of 15" not in text(page, "summary"))


def test_an_answer_that_was_late_says_so(embedded, browse):
    page = browse(embedded.address)
    until(lambda: answered(page))
    assert text(page, "late") == "" or "late for the deadline" in text(page, "late")
    page.execute_script(
        "const ask = window.fetch; window.fetch = async (...given) => { const reply = await ask(...given);"
        'return new Response((await reply.text()).replaceAll(/"late":[0-9.e-]+/g, \'"late":0.102\'), reply); };'
        "document.getElementById('slow').checked = false; document.getElementById('again').click()"
    )
    until(lambda: answered(page) and text(page, "late") == "102 ms late for the deadline of 500 ms.")


def test_it_can_be_used_with_the_keyboard(embedded, browse):
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    chains = pytest.importorskip("selenium.webdriver").ActionChains
    page = browse(embedded.address)
    until(lambda: answered(page))
    page.find_element("id", "tab-try").send_keys(keys.ARROW_RIGHT)
    assert page.find_element("id", "rush").is_displayed()
    page.find_element("id", "tab-rush").send_keys(keys.ARROW_LEFT)
    assert page.find_element("id", "try").is_displayed()
    before = text(page, "deadline-text")
    page.find_element("id", "deadline").send_keys(keys.ARROW_LEFT * 5)
    assert text(page, "deadline-text") != before
    reached = set()
    for _ in range(25):
        chains(page).send_keys(keys.TAB).perform()
        reached.add(page.execute_script("return document.activeElement.id || document.activeElement.tagName"))
    assert {"again", "slow", "BUTTON", "file"} & reached >= {"again", "slow"}
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('input, button, select, svg')].filter((e) => !(e.ariaLabel || "
        "e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"
    )
    assert unnamed == [], "a screen reader has no name for these"


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_rush_hour(embedded, browse, width, dark):
    page = browse(embedded.address, width, dark)
    until(lambda: answered(page))
    page.find_element("id", "tab-rush").click()
    set_slider(page, "rate", int(os.environ.get("PAGE_LOAD", "40")))
    page.find_element("id", "start").click()
    until(lambda: "requests:" in text(page, "rush-summary"))
    assert "%" in text(page, "in-time")
    assert len(page.find_elements("css selector", "#strip rect")) > 0
    picture(page, f"rush-{width}-{'dark' if dark else 'light'}.png")
