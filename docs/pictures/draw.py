"""Draw a terminal's text as an SVG picture: ``python docs/pictures/draw.py < text > demo.svg``.

Plain text in, one self-contained file out: no fonts to fetch, no script.
"""

import re
import sys
from html import escape

COLUMNS = 116
LINE_PX = 16
CHAR_PX = 7.25
MARGIN_PX = 18
COLOURS = (
    (r"Succeeded|registered: \S+|resolved", "#7ee787"),
    (r"ALERT|kill -9|Failed", "#ff7b72"),
    (r"Retrying\S*", "#f2cc60"),
    (r"Running\S*|Scheduled\S*|Pending", "#79c0ff"),
    (r"^\[\d/\d\].*|^Summary|^Evaluation.*|^Timeline.*|^Alerts|^Where.*", "#ffffff"),
)


def pieces(line: str) -> list[tuple[str, str]]:
    """Return the line as (text, colour) pieces."""
    marks = ["#c9d1d9"] * len(line)
    for pattern, colour in COLOURS:
        for found in re.finditer(pattern, line):
            marks[found.start() : found.end()] = [colour] * (found.end() - found.start())
    made: list[tuple[str, str]] = []
    for char, colour in zip(line, marks, strict=True):
        if made and made[-1][1] == colour:
            made[-1] = (made[-1][0] + char, colour)
        else:
            made.append((char, colour))
    return made


def draw(text: str) -> str:
    """Return the picture of ``text``; longer lines are cut with an ellipsis."""
    lines = [line.rstrip() for line in text.splitlines()]
    lines = [line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…" for line in lines]
    width = int(COLUMNS * CHAR_PX + 2 * MARGIN_PX)
    height = len(lines) * LINE_PX + 2 * MARGIN_PX
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, '
        'monospace" font-size="12" xml:space="preserve">',
    ]
    for number, line in enumerate(lines):
        y = MARGIN_PX + number * LINE_PX + 11
        spans = "".join(
            f'<tspan fill="{colour}">{escape(text)}</tspan>' for text, colour in pieces(line)
        )
        made.append(f'<text x="{MARGIN_PX}" y="{y}" xml:space="preserve">{spans}</text>')
    return "\n".join([*made, "</g>", "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(draw(sys.stdin.read()))
