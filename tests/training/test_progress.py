import os
import pty
import re
import subprocess
import sys

import pytest
import torch
from short_runs import small, train

import anytime

TRAIN = """
import anytime
data = anytime.load_data("digits").subset(100)
anytime.fit(anytime.create_model("resann-1-4", in_channels=1), data, epochs=2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="makes a pseudo-terminal")
def test_a_terminal_shows_a_bar(environment):
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    environment = {**environment, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", TRAIN], env=environment, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0, shown
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "resann-1-4 AdaLoss" in text
    last = [line for line in text.replace("\r", "\n").split("\n") if "epoch" in line][-1]
    assert re.search(r"━ epoch 2/2 ", last), "the bar ends full"
    assert "╸" not in last
    assert "0:00:00" in last
    assert re.search(r"epoch [12]/2 +[\d,]+ images/s +loss \d\.\d{3} … \d\.\d{3} … \d\.\d{3}", text)
    assert text.count("\n") < 10, "one bar that moves, not one line after the other"


def test_elsewhere_there_is_a_line_for_the_last_epoch(data, capsys):
    train(small(), data, show=True)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 2
    assert re.search(r"resann-1-4 AdaLoss  epoch 2/2  [\d,]+ images/s  loss .* error .*%", lines[-1])


def test_shares_are_percentages_and_other_errors_numbers(capsys):
    batches = [(torch.randn(8, 1, 8, 8), torch.randint(10, (8,)))]
    train(small(), batches, show=True)
    assert re.search(r"samples/s  loss .* error \d+\.\d% … ", capsys.readouterr().err)
    train(small(), [(x, torch.randn(8, 10)) for x, _ in batches], show=True, loss=anytime.losses.squared)
    assert "%" not in capsys.readouterr().err


def test_nothing_is_shown_if_so_wished(data, capsys):
    train(small(), data, show=False)
    assert capsys.readouterr() == ("", "")
