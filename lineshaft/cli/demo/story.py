"""The demo's story, told top down; each chapter asks the platform as any user could."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lineshaft.cli import platform as processes
from lineshaft.cli import watching
from lineshaft.cli.demo import files, summary
from lineshaft.cli.models import Progress
from lineshaft.cli.output import print_line, reason_line, size, span
from lineshaft.cli.watching import Printer
from lineshaft.sdk import discovery, download
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import EXIT_JOB_FAILED, PlatformError
from lineshaft.sdk.watch import Change, watch

KILL_AFTER_COMMITS = 2
REGISTERED_WITHIN_S = 60.0
CANCEL_WITHIN_S = 20.0
DEMO_FOLDER = ".lineshaft-demo"


class DemoFailure(Exception):
    """The line did not do what the demo promises; the message says what."""


def fresh_folder() -> Path:
    """Return a state folder that no demo used before."""
    stamp = datetime.now(UTC).astimezone().strftime("%Y%m%d-%H%M%S")
    root = Path.cwd() / DEMO_FOLDER
    for number in range(1, 1000):
        folder = root / (f"{stamp}-{number}" if number > 1 else stamp)
        if not folder.exists():
            return folder
    raise DemoFailure(f"{root} is full of demos; remove some")


def tell(folder: Path, *, keep: bool, processes: bool = False) -> int:
    """Run the demo in ``folder``; return the exit code. Stops all it started unless ``keep``."""
    if folder.exists() and any(folder.iterdir()):
        print_line(f"demo: {folder} is not empty; name a fresh folder with --state")
        return 2
    # A container's or a script's SIGTERM must clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    demo = Demo(folder, is_in_processes=processes)
    try:
        asyncio.run(demo.run())
        code = 0
    except (DemoFailure, PlatformError) as error:
        print_line(f"\ndemo: {error}")
        hint = getattr(error, "hint", None)
        print_line(f"  next: {hint}" if hint else f"  the platform's log: {folder}/logs")
        code = EXIT_JOB_FAILED
    finally:
        if not keep:
            demo.stop()
    if code == 0:
        demo.say_next(keep)
    return code


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


class Demo:
    """One run of the demo: what it made so far, and its chapters."""

    def __init__(self, folder: Path, *, is_in_processes: bool = False) -> None:
        self.folder = folder
        self.is_in_processes = is_in_processes
        self.data = folder / "demo" / "data"
        self.models = folder / "demo" / "models"
        self.report: dict[str, Any] = {"state_dir": str(folder), "chapters": {}}
        self.platform: discovery.Platform | None = None
        self.open_job: str | None = None
        self.started = time.monotonic()
        self.number = 0

    async def run(self) -> None:
        """Tell all chapters and write the report."""
        print_line(f"Lineshaft demo. State folder: {self.folder}")
        self.prepare_data()
        self.start_platform()
        async with Client.connect(platform=self.platform) as client:
            base = await self.pretrain(client)
            job = await self.finetune(client)
            version = await self.registered(client, job)
            pulled = await self.pull(client, version)
            evaluation = self.evaluated(pulled)
            answer = self.ask(pulled)
            curves = await client.curves(job["job"], points=400)
            alerts = await client.alerts(job=job["job"])
        self.report |= {"base": base, "job": job, "version": version, "alerts": alerts}
        self.report |= {"evaluation": evaluation, "answer": answer, "curves": curves}
        self.report["pulled"] = str(pulled)
        self.report["seconds"] = round(time.monotonic() - self.started, 1)
        for line in summary.lines(self.report):
            print_line(line)
        (self.folder / "demo-report.json").write_text(
            json.dumps(self.report, indent=2, ensure_ascii=False) + "\n"
        )
        _judge(evaluation)

    def chapter(self, title: str) -> Callable[[], None]:
        """Begin a chapter; the returned function ends it and says how long it took."""
        self.number += 1
        begun = time.monotonic()
        print_line(f"\n[{self.number}/6] {title}")

        def end() -> None:
            seconds = time.monotonic() - begun
            self.report["chapters"][title] = round(seconds, 1)
            print_line(f"      done in {span(seconds * 1000)}")

        return end

    def prepare_data(self) -> None:
        """Make the corpus, the questions, the tokenizer and the suite out of the library's docs."""
        end = self.chapter("Preparing data: the docstrings of Python's standard library")
        self.data.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "trainer.datasets.docstrings", "--out", str(self.data)])
        report = json.loads((self.data / "report.json").read_text())
        self.report["data"] = report
        for name, value in _flat(report):
            print_line(f"      {name}: {value}")
        end()

    def start_platform(self) -> None:
        """Start the platform on the state folder."""
        end = self.chapter("Starting the platform: bus, journal, four services")
        config = self.folder / "lineshaft.toml"
        config.write_text(files.settings(self.folder))
        self.platform = processes.start(self.folder, config, processes=self.is_in_processes)
        print_line(f"      process {self.platform.pid}, bus {self.platform.bus_url}")
        command = f"LINESHAFT_STATE_DIR={self.folder} {sys.executable} -m lineshaft.cli jobs"
        print_line(f"      look at it from another terminal: {command}")
        end()

    async def pretrain(self, client: Client) -> dict[str, Any]:
        """Make the base model."""
        end = self.chapter(f"Pretraining {files.BASE_NAME} from a configuration")
        file = self.folder / "demo" / "pretrain-job.yaml"
        file.write_text(files.pretrain(self.data, self.models))
        job = await self.follow(client, file)
        version = await self.registered(client, job)
        end()
        return version

    async def finetune(self, client: Client) -> dict[str, Any]:
        """Fine-tune the base with two ranks, and kill one after the second commit."""
        end = self.chapter("Fine-tuning with two ranks, DeepSpeed ZeRO-2; one rank will be killed")
        file = self.folder / "demo" / "train-job.yaml"
        file.write_text(files.finetune(self.data, self.models))
        job = await self.follow(client, file, self.kill_after_commits())
        killed = self.report.get("killed")
        if killed is None:
            raise DemoFailure("the job ended before a rank could be killed")
        resume = job.get("resume_from") or {}
        if job["attempt"] < 2 or not resume.get("step"):
            raise DemoFailure("the job did not go on from a committed checkpoint")
        print_line(
            f"      rank {killed['rank']} was killed at attempt 1; attempt {job['attempt']} "
            f"went on from step {resume['step']}, not from zero"
        )
        end()
        return job

    def kill_after_commits(self) -> Callable[[Change], None]:
        """Return what kills rank 1 with SIGKILL when enough checkpoints are committed."""

        def look(change: Change) -> None:
            commits = len(change.job.get("checkpoints", []))
            if "killed" in self.report or commits < KILL_AFTER_COMMITS:
                return
            status = self.status(change.job["job"])
            rank = _rank_of(status, 1)
            if rank is None:
                return
            print_line(f"      --- kill -9 {rank['pid']} (rank {rank['rank']}), on purpose ---")
            os.kill(int(rank["pid"]), signal.SIGKILL)
            self.report["killed"] = {**rank, "after_commits": commits}

        return look

    def status(self, job: str) -> dict[str, Any]:
        """Ask ``lineshaft status -o json`` in a process of its own, as a user would."""
        command = [sys.executable, "-m", "lineshaft.cli", "status", job, "-o", "json"]
        env = {**os.environ, "LINESHAFT_STATE_DIR": str(self.folder)}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
        if done.returncode:
            raise DemoFailure(f"lineshaft status failed: {done.stderr.strip() or done.stdout}")
        return dict(json.loads(done.stdout))

    async def follow(
        self, client: Client, file: Path, look: Callable[[Change], None] | None = None
    ) -> dict[str, Any]:
        """Submit a job file, show what happens, and return the job's last state."""
        print_line(f"      lineshaft submit {file} --watch")
        receipt = await client.submit(file.read_text())
        if not receipt.get("admitted"):
            reasons = "; ".join(reason_line(reason) for reason in receipt.get("reasons", []))
            raise DemoFailure(f"the job was refused: {reasons}")
        self.open_job = receipt["job"]
        printer = Printer("      ")
        state: dict[str, Any] = {}
        async for change in watch(client, receipt["job"]):
            state = change.job or state
            printer.show(change)
            if look:
                look(change)
        printer.close()
        self.open_job = None
        if state.get("state") != "Succeeded":
            raise DemoFailure(f"{file.name} ended {state.get('state')}: {state.get('reason')}")
        return state

    async def registered(self, client: Client, job: dict[str, Any]) -> dict[str, Any]:
        """Wait until the job's version is in the registry and return it."""
        deadline = time.monotonic() + REGISTERED_WITHIN_S
        while time.monotonic() < deadline:
            version = await watching.registered(client, job)
            if version:
                print_line(f"      registered: {version['name']}:{version['version']}")
                return version
        raise DemoFailure(f"{job['name']} was not registered within {REGISTERED_WITHIN_S:.0f} s")

    async def pull(self, client: Client, version: dict[str, Any]) -> Path:
        """Download the version as a deployment team would, and verify it."""
        ref = f"{version['name']}:{version['version']}"
        end = self.chapter(f"Downloading {ref} and verifying every digest")
        target = self.folder / "demo" / "pulled" / str(version["name"])
        progress = Progress()
        report = await client.pull(ref, target, progress=progress)
        progress.close()
        await asyncio.to_thread(download.verify, target)
        print_line(f"      {report.files} files, {size(report.bytes)} in {target}")
        end()
        return target

    def evaluated(self, pulled: Path) -> dict[str, Any]:
        """Return the evaluation report that came with the version."""
        return dict(json.loads((pulled / "evaluation.json").read_text()))

    def ask(self, pulled: Path) -> dict[str, Any]:
        """Load the pulled folder with transformers and let it answer one held-out question."""
        end = self.chapter("Loading it with transformers and asking one question")
        suite = self.data / "suite.json"
        command = [sys.executable, "-m", "trainer.ask", "--model", str(pulled)]
        answer = json.loads(_run([*command, "--suite", str(suite), "--task", "kind"]))
        for name in ("question", "answer", "expected"):
            print_line(f"      {name}: {' '.join(str(answer.get(name)).split())}")
        end()
        return dict(answer)

    def stop(self) -> None:
        """End what the demo started: its open job, then the platform."""
        if self.platform is None:
            with contextlib.suppress(PlatformError):
                self.platform = discovery.of_state(self.folder)
        if self.platform is None:
            return
        try:
            if self.open_job:
                with contextlib.suppress(PlatformError, TimeoutError):
                    asyncio.run(asyncio.wait_for(self._cancel(self.open_job), CANCEL_WITHIN_S))
        finally:
            processes.stop(self.platform)

    async def _cancel(self, job: str) -> None:
        async with Client.connect(platform=self.platform) as client:
            await client.command("cancel", job, reason="the demo was interrupted")
            async for _ in watch(client, job):
                pass

    def say_next(self, keep: bool) -> None:
        """Say where everything is and what to try."""
        for line in summary.next_steps(self.folder, self.report, keep=keep):
            print_line(line)


def _judge(evaluation: dict[str, Any]) -> None:
    """Raise unless the held-out exact match of ``kind`` is better after than before."""
    before = summary.value(evaluation, "before", "kind", "exactMatch")
    after = summary.value(evaluation, "after", "kind", "exactMatch")
    if before is None or after is None or after <= before:
        raise DemoFailure(f"exact match of 'kind' is not better after ({after}) than ({before})")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise DemoFailure(f"{' '.join(command[1:3])} failed: {' | '.join(last)}")
    return done.stdout


def _rank_of(status: dict[str, Any], rank: int) -> dict[str, Any] | None:
    """Return the live rank of the current attempt, out of what ``status -o json`` printed."""
    for attempt in (status.get("run") or {}).get("attempts", []):
        if attempt.get("attempt") != status.get("attempt"):
            continue
        for node in attempt.get("nodes", []):
            for found in node.get("ranks", []):
                if found.get("rank") == rank and found.get("pid"):
                    return {"node": node.get("node"), "rank": rank, "pid": found["pid"]}
    return None


def _flat(report: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(k, v) for k, v in report.items() if isinstance(v, str | int | float)]
