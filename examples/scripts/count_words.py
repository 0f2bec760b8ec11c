"""Count the words of text files: the smallest script that reports and leaves a result.

Reads the folder that is named, or the modules of the Python that runs it.
"""

import argparse
import json
import os
import re
from collections import Counter
from pathlib import Path

import lineshaft

WORD = re.compile(r"[A-Za-z]{3,}")


def main() -> None:
    """Count file by file, report after each, write the most frequent words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(os.__file__).parent)
    parser.add_argument("--files", type=int, default=200, help="read at most so many")
    parser.add_argument("--top", type=int, default=10)
    options = parser.parse_args()
    words: Counter[str] = Counter()
    for step, path in enumerate(sorted(options.folder.glob("*.py"))[: options.files], start=1):
        words.update(WORD.findall(path.read_text(encoding="utf-8", errors="replace").lower()))
        lineshaft.report(step=step, words=words.total(), distinct=len(words))
        if lineshaft.stop_requested():
            break
    found = words.most_common(options.top)
    output = Path(os.environ.get("LINESHAFT_OUTPUT_DIR", "."))
    (output / "words.json").write_text(json.dumps(dict(found), indent=1), encoding="utf-8")
    for word, count in found:
        print(f"{count:7d} {word}", flush=True)


if __name__ == "__main__":
    main()
