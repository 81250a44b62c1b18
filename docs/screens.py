"""Takes serving-page.png and serving-rush.png: the server's page in Chromium, with the model in the package.

python docs/screens.py          # on a quiet machine; needs selenium, Chromium and its driver

Each picture says of which model it is: the digest of the model's evaluation is in its metadata.
"""

import hashlib
import io
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, PngImagePlugin

DOCS = Path(__file__).parent
MODEL = DOCS.parent / "src/anytime/serving/embedded_model"
SCREENS = ("serving-page.png", "serving-rush.png")
RATE, DEADLINE = 90, 62
"""Where the sliders of the rush hour stand, from 0 to 100."""


def model() -> str:
    """The digest of the model in the package."""
    return hashlib.sha256((MODEL / "evaluation.json").read_bytes()).hexdigest()[:16]


def shown(name: str) -> str | None:
    """The digest of the model that a picture shows."""
    with Image.open(DOCS / name) as image:
        return image.info.get("Model")


def main() -> None:
    """Start a server, and take the pictures."""
    command = [sys.executable, "-m", "anytime", "serve", "--port", "0", "--no-access-log"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(line.split()[1] for line in server.stdout if line.startswith("ready"))
        take(address)
    finally:
        server.terminate()
        server.wait()


def take(address: str) -> None:
    """Use the page as a visitor would."""
    from selenium import webdriver
    from selenium.webdriver.common.by import By

    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1265,1400"):
        options.add_argument(option)
    browser = webdriver.Chrome(options=options)
    try:
        browser.get(address)
        time.sleep(2)
        browser.find_elements(By.CSS_SELECTOR, "#samples button, #samples img")[0].click()
        time.sleep(8)  # the answer comes in slow motion
        keep(browser.get_screenshot_as_png(), SCREENS[0])
        browser.find_element(By.ID, "tab-rush").click()
        slide = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input'))"
        browser.execute_script(slide, "rate", RATE)
        browser.execute_script(slide, "rush-deadline", DEADLINE)
        browser.find_element(By.ID, "start").click()
        time.sleep(12)
        keep(browser.get_screenshot_as_png(), SCREENS[1])
    finally:
        browser.quit()


def keep(screenshot: bytes, name: str) -> None:
    """Write a picture with the digest of its model, in colors that fit one byte."""
    about = PngImagePlugin.PngInfo()
    about.add_text("Model", model())
    image = Image.open(io.BytesIO(screenshot)).convert("RGB").quantize(256)
    image.save(DOCS / name, pnginfo=about, optimize=True)
    print(name, image.size)


if __name__ == "__main__":
    main()
