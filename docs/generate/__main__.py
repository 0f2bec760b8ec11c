"""Write every generated page: ``python -m docs.generate``; with ``--check`` only compare."""

import sys

from docs.generate.pages import FOLDER, made


def main(arguments: list[str]) -> int:
    """Write what differs and name it; with ``--check`` write nothing, 1 when something differs."""
    is_check = "--check" in arguments
    differing = 0
    for name, make in made().items():
        page, text = FOLDER / name, make()
        if page.is_file() and page.read_text(encoding="utf-8") == text:
            continue
        differing += 1
        sys.stdout.write(f"{'differs' if is_check else 'written'}: docs/reference/{name}\n")
        if not is_check:
            page.write_text(text, encoding="utf-8")
    return 1 if is_check and differing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
