"""Draws three-deadlines.svg: a session in which `anytime.predict` answers before three deadlines, from its record.

    python docs/figures.py draw

The picture is animated with CSS and needs no script; it ends with everything shown, which is also what a reader sees
whose program does not animate, or who prefers no motion.
"""

from html import escape
from typing import Any

WIDTH, LEFT, LINE, TOP = 540, 20, 23, 58
SECONDS_BETWEEN = 2.6
BARS = 230
"""Pixels of a certainty of 100 %."""
STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #edecf3; white-space: pre }
.prompt { fill: #9a9cff } .quiet { fill: #a5a2b5 } .title { font-size: 13px; fill: #a5a2b5 }
.step { animation: come 0.4s both } @keyframes come { from { opacity: 0 } to { opacity: 1 } }
.bar { transform-box: fill-box; animation: grow 0.8s both ease-out } @keyframes grow { from { transform: scaleX(0) } }
@media (prefers-reduced-motion: reduce) { .step, .bar { animation: none } }
"""
COLORS = {"#f2a33a": "#1c1c25", "#d9586f": "#1c1c25", "#8a4fb0": "#ffffff"}
"""The project's, from a first to a last exit, each with the color of the text on it."""


def three_deadlines(facts: dict[str, Any]) -> str:
    """The picture: for each answer the command, a bar as long as it is sure, its class, its exit and its time."""
    lines, answers = [], facts["answers"]
    name = escape(facts["picture"].rpartition(".")[0].rpartition("-")[2])
    height = TOP + len(answers) * 3.6 * LINE + 8
    for number, (answer, (color, ink)) in enumerate(zip(answers, COLORS.items(), strict=True)):
        y, begin = TOP + number * 3.6 * LINE, 0.3 + number * SECONDS_BETWEEN
        lines.append(
            f'<g class="step" style="animation-delay: {begin:.1f}s"><text x="{LEFT}" y="{y:.0f}"><tspan class="prompt">&gt;&gt;&gt; </tspan>'
            f"anytime.predict(net, {name}, deadline={answer['deadline_ms'] / 1000:g})</text></g>"
        )
        shown = f"{answer['class']}, {100 * answer['probability']:.0f} % sure"
        lines.append(
            f'<g class="step" style="animation-delay: {begin + 0.9:.1f}s"><rect class="bar" style="animation-delay: {begin + 0.9:.1f}s" '
            f'x="{LEFT + 18}" y="{y + 12:.0f}" width="{BARS * answer["probability"]:.0f}" height="{LINE}" rx="3" fill="{color}"/>'
            f'<text style="fill: {ink}" x="{LEFT + 26}" y="{y + 29:.0f}">{escape(shown)}</text>'
            f'<text class="quiet" x="{LEFT + 18 + BARS + 16}" y="{y + 29:.0f}">exit {answer["exit"]} of {facts["exits"]}, '
            f"{answer['ms']:.2f} ms</text></g>"
        )
    said = "; ".join(
        f"before {each['deadline_ms']:g} ms {each['class']}, {100 * each['probability']:.0f} % sure, exit {each['exit']}"
        for each in answers
    )
    dots = "".join(
        f'<circle cx="{LEFT + 18 * i}" cy="20" r="6" fill="{color}"/>' for i, color in enumerate((*COLORS, "#4c4fd0"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(said)}"><style>{STYLE}</style><rect width="100%" height="100%" rx="10" fill="#1c1c25"/>{dots}'
        f'<text class="title" x="{LEFT + 84}" y="25">one picture, three deadlines, one thread</text>{"".join(lines)}</svg>\n'
    )
