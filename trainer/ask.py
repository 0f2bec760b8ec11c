"""Ask a model folder one question: ``python -m trainer.ask --model DIR --prompt TEXT``.

The folder is loaded by transformers alone, as a deployment team would; the answer is decoded
greedily and printed as one JSON object. With ``--suite`` and ``--task`` the task's first sample
is asked, and its expected answer is printed beside the model's.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from trainer.datasets import tokens
from trainer.datasets.rendering import Renderer
from trainer.evaluation import suite as suites
from trainer.faults import ConfigFault, DataFault


def answer(model: Any, tokenizer: Any, prompt: str, tokens_max: int) -> str:
    """Return the greedy continuation of ``prompt``, up to its end mark."""
    asked = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    made = model.generate(
        input_ids=asked["input_ids"],
        attention_mask=asked["attention_mask"],
        max_new_tokens=tokens_max,
        do_sample=False,
    )
    new = made[0][asked["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True)).strip()


def question(options: argparse.Namespace) -> tuple[str, str | None]:
    """Return the prompt, and the expected answer where there is one."""
    if options.prompt is not None:
        return options.prompt, None
    tasks = {task.name: task for task in suites.load(options.suite).tasks}
    if options.task not in tasks:
        raise ConfigFault(f"{options.suite} has no task {options.task!r}; it has {sorted(tasks)}")
    renderer = Renderer(tokens.load(options.model))
    sample = tasks[options.task].samples[0]
    return renderer.prompt(sample), renderer.answer(sample).strip()


def main() -> int:
    """Load, ask, print."""
    parser = argparse.ArgumentParser(prog="trainer.ask", description="Ask a model one question.")
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--prompt", help="the question, as the model was trained to see it")
    parser.add_argument("--suite", type=Path, help="take the question from this suite")
    parser.add_argument("--task", default="", help="the suite's task")
    parser.add_argument("--tokens", type=int, default=24, help="longest answer, in tokens")
    options = parser.parse_args()
    if (options.prompt is None) == (options.suite is None):
        parser.error("give either --prompt or --suite")
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - seconds

    try:
        prompt, expected = question(options)
    except (ConfigFault, DataFault) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    given = answer(model, tokenizer, prompt, options.tokens)
    told = {"question": prompt, "answer": given, "expected": expected}
    sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
