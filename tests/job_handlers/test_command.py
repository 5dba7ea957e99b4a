"""The administrator's programs, run by real child processes."""

from __future__ import annotations

import json
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worker_service.jobs.documents import KnownDocument
from worker_service.runner.messages import AttemptEvent, Begin, Ended, How, Logged, Order, Progressed
from worker_service.runner.pool import LocalPool

PATIENCE_SECONDS = 30.0


class CommandRunner:
    """Runs commands in a fork server, which the first run starts with all commands that were allowed before it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: dict[str, dict[str, object]] = {}
        self.pool: LocalPool | None = None
        self.events: list[AttemptEvent] = []

    def allow(self, script: str, *arguments: object, name: str = "x", **more: Any) -> None:
        path = self.root / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.commands[name] = {"argv": [str(path), *arguments], **more}

    def launch(
        self, payload: object = None, *, account: str | None = "user123", name: str = "x", **of_order: Any
    ) -> None:
        if self.pool is None:
            begin = Begin(
                self.root / "staging",
                self.root / "keep",
                commands=self.commands,
                grace_seconds=0.5,
                extra_handlers=["job_handlers.command:commands"],
                is_without_installed=True,
            )
            self.pool = LocalPool(begin)
            self.described = {description.facts.job_type: description for description in self.pool.start()}
        text = payload if isinstance(payload, str) else json.dumps(payload or {})
        self.pool.launch(Order(7, 1, name, "instagram", account, text, None, **of_order))

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        assert self.pool is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_true():
            seconds_left = deadline - time.monotonic()
            assert seconds_left > 0, f"it did not happen; events: {self.events}"
            select.select([self.pool], [], [], seconds_left)
            self.events += self.pool.take_events()

    def wait_for_end(self) -> Ended:
        self.wait_until(lambda: any(isinstance(event, Ended) for event in self.events))
        return next(event for event in self.events if isinstance(event, Ended))

    def run(self, payload: object = None, **more: Any) -> Ended:
        self.launch(payload, **more)
        return self.wait_for_end()

    @property
    def lines(self) -> list[str]:
        return [line for event in self.events if isinstance(event, Logged) for line in event.lines]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[CommandRunner]:
    runner = CommandRunner(tmp_path)
    yield runner
    if runner.pool is not None:
        runner.pool.close()


SHOW = 'for one in "$@"; do echo "[$one]"; done'


def test_each_table_is_a_job_type_and_its_arguments_are_filled_in(runner: CommandRunner) -> None:
    runner.allow(SHOW, "--user", "{account}", "--type={payload.scrape_type}", "{job_type} on {platform}: {job_id}")

    ended = runner.run({"scrape_type": "full; rm -rf $HOME"})

    assert (ended.how, ended.result) == (How.DONE, '{"exit_code": 0}')
    assert runner.lines == ["[--user]", "[user123]", "[--type=full; rm -rf $HOME]", "[x on instagram: 7]"]
    assert runner.described["x"].facts.job_class == "io"


@pytest.mark.parametrize("sandbox", ["off", "strict"])
def test_a_program_that_follows_a_document_gets_its_files_and_facts(
    runner: CommandRunner, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_DATABASE", "/data/pagemill.db")
    text = runner.root / "published.txt"
    text.write_text("what was read")
    facts = ("DOCUMENT_ID", "NAME", "GENERATION", "BATCH_ID", "OWNER")
    shown = "; ".join(f'echo "$PAGEMILL_{name}"' for name in facts)
    runner.allow(f'{shown}; cat "$PAGEMILL_FILE_TEXT"; echo; echo "$WORKER_DATABASE"', sandbox=sandbox)

    ended = runner.run(
        document_id=3,
        generation=None,
        inputs={"text": text},
        owner="ann",
        document=KnownDocument(name="Müller.pdf", generation=2, batch_id=5),
    )

    assert ended.how is How.DONE, ended.message
    assert runner.lines == ["3", "Müller.pdf", "2", "5", "ann", "what was read", "/data/pagemill.db"]


# The job types of the proposal with its example payloads: payload, arguments, standard input, and what it gets.
PROPOSED: dict[str, tuple[str, list[object], str | None, list[str]]] = {
    "scrape_account": (
        '{"username": "user123", "scrape_type": "full"}',
        ["--user", "{payload.username}", "--type={payload.scrape_type}", ["--as", "{account?}"]],
        None, ["--user", "user123", "--type=full"],
    ),
    "download_media": (
        '{"media_ids": [1, 2, 3], "source": "instagram"}', ["--source", "{payload.source}", "{payload.media_ids+}"],
        None, ["--source", "instagram", "1", "2", "3"],
    ),
    "paid_content_sync": (
        '{"creator_ids": null}', ["sync", ["--creators", "{payload.creator_ids*}"]],
        "{payload}", ["sync", '< {"creator_ids":null}'],
    ),
    "paid_content_creator": (
        '{"creator_id": 123}', ["sync", "--creator={payload.creator_id}"], None, ["sync", "--creator=123"],
    ),
    "forum_scrape": (
        '{"thread_ids": [456, 789]}', ["--thread={payload.thread_ids+}"], None, ["--thread=456", "--thread=789"],
    ),
    "youtube_monitor": ("{}", [["--channel", "{payload.channel?}"]], None, []),
    "easynews_monitor": (
        '{"search_queries": ["ubuntu iso", "q; rm -rf /"]}', ["--queries", "{payload.search_queries:json}"],
        "{payload.search_queries*}", ["--queries", '["ubuntu iso","q; rm -rf /"]', "< ubuntu iso", "< q; rm -rf /"],
    ),
    "appearances_sync": ("{}", ["{payload}"], "{payload}", ["{}", "< {}"]),
}  # fmt: skip


def test_all_job_types_of_the_proposal_run_with_their_own_payloads(runner: CommandRunner) -> None:
    script = 'for one in "$@"; do echo "$one"; done; sed "s/^/< /"'
    for name, (_, arguments, stdin, _) in PROPOSED.items():
        more: dict[str, Any] = {} if stdin is None else {"stdin": stdin}
        runner.allow(script, *arguments, name=name, **more)

    for name, (payload, _, _, received) in PROPOSED.items():
        runner.events.clear()

        assert runner.run(payload, account=None, name=name).how is How.DONE
        assert runner.lines == received, name


def test_arguments_that_would_be_misread_are_refused(runner: CommandRunner) -> None:
    runner.allow(SHOW, "{account}", "{payload.text}")
    for account, text, words in (
        ("--help", "x", "would become the option '--help'"),
        ("ann", "x" * 200_000, "arguments are longer than the system allows"),
    ):
        runner.events.clear()

        ended = runner.run({"text": text}, account=account)

        assert (ended.how, ended.code) == (How.PERMANENT, "PAYLOAD_INVALID")
        assert words in ended.message
        assert runner.lines == []


def test_memory_is_limited_if_the_table_says_so(runner: CommandRunner) -> None:
    fill = "import sys; print(len(bytearray(int(sys.argv[1]) << 20)))"
    runner.commands["x"] = {"argv": [sys.executable, "-c", fill, "{payload.mib}"], "memory": "128 MiB"}

    little = runner.run({"mib": 10})
    runner.events.clear()
    much = runner.run({"mib": 1000})

    assert little.how is How.DONE
    assert (much.code, much.message.splitlines()[-1]) == ("EXIT_1", "MemoryError")


LEAVES = """
mkdir -p media/deep .cache; echo '[]' > items.json; echo x > media/deep/a.jpg; echo x > .cache/junk; echo x > run.log
ln -s /etc/passwd link; printf x > "$(printf 'latin\\351.txt')"
"""


# Files to publish, published files, files that are not.
PUBLISHED: dict[str, tuple[list[str] | None, list[str], str]] = {
    "all": (None, ["items.json", r"latin\xe9.txt", "media/deep/a.jpg", "run.log"], ".cache/junk, link"),
    "some": (
        ["*.json", "media/*"], ["items.json", "media/deep/a.jpg"], r".cache/junk, latin\xe9.txt, link, run.log",
    ),
    "none": ([], [], r".cache/junk, items.json, latin\xe9.txt, link, media/deep/a.jpg, …"),
}  # fmt: skip


def test_files_left_by_the_program_are_published_and_the_others_named(runner: CommandRunner) -> None:
    for name, (files, _, _) in PUBLISHED.items():
        more: dict[str, Any] = {} if files is None else {"files": files}
        runner.allow(LEAVES, name=name, **more)

    for name, (_, published, dropped) in PUBLISHED.items():
        runner.events.clear()
        ended = runner.run(name=name)

        assert ended.how is How.DONE, ended.message
        assert [one.name for one in ended.published] == published
        assert all(one.path.is_file() for one in ended.published)
        assert runner.lines == [f"files not published, because `files` does not name them: {dropped}"]


def test_files_of_a_failed_attempt_are_not_published_but_named(runner: CommandRunner) -> None:
    runner.allow("echo '[' > items.json; exit 3")

    ended = runner.run()

    assert (ended.code, list(ended.published)) == ("EXIT_3", [])
    assert runner.lines == ["files not published, because the program failed: items.json"]


def test_progress_and_lines_of_both_streams_are_reported(runner: CommandRunner) -> None:
    runner.allow("echo one; echo 'progress: 40 page 4 of 10'; echo two >&2; printf three")

    runner.run()

    progress = [(event.percent, event.message) for event in runner.events if isinstance(event, Progressed)]
    assert progress == [(40.0, "page 4 of 10")]
    assert sorted(runner.lines) == ["one", "three", "two"]


EXITS = {
    "exit 0": (How.DONE, ""),
    "exit 3": (How.DONE, ""),
    "exit 65": (How.PERMANENT, "EXIT_65"),
    "exit 75": (How.RETRYABLE, "EXIT_75"),
    "exit 1": (How.RETRYABLE, "EXIT_1"),
    "kill -9 $$": (How.RETRYABLE, "COMMAND_CRASHED"),
}


def test_exit_codes_are_mapped_and_a_signal_is_retried(runner: CommandRunner) -> None:
    for number, end in enumerate(EXITS):
        runner.allow(f"echo because >&2; {end}", name=f"x{number}", done=[0, 3], permanent=[65, 75], retry=[75])

    for number, (how, code) in enumerate(EXITS.values()):
        runner.events.clear()
        ended = runner.run(name=f"x{number}")

        assert (ended.how, ended.code) == (how, code)
        assert how is How.DONE or "because" in ended.message
        assert ("SIGKILL" in ended.message) is (code == "COMMAND_CRASHED")


def test_the_program_gets_only_the_variables_of_its_table_and_its_key(
    runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRAPER_PROXY", "http://proxy")
    monkeypatch.setenv("SECRET", "canary")
    runner.allow("env", env=["SCRAPER_PROXY"])

    runner.run()

    assert "SCRAPER_PROXY=http://proxy" in runner.lines
    assert "PAGEMILL_IDEMPOTENCY_KEY=7" in runner.lines
    assert "canary" not in "".join(runner.lines)


def test_the_program_runs_in_the_directory_of_its_table(runner: CommandRunner, tmp_path: Path) -> None:
    runner.allow("pwd; echo x > left", cwd=str(tmp_path))

    ended = runner.run()

    assert runner.lines == [str(tmp_path)]
    assert (list(ended.published), (tmp_path / "left").read_text()) == ([], "x\n")


def test_a_stop_reaches_the_program_and_its_last_lines_are_logged(runner: CommandRunner) -> None:
    runner.allow("trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    runner.launch()
    runner.wait_until(lambda: "ready" in runner.lines)
    assert runner.pool is not None

    runner.pool.stop(7, 1)

    assert runner.wait_for_end().how is How.STOPPED
    assert "cleaned" in runner.lines


def test_a_timeout_ends_a_program_that_ignores_sigterm(runner: CommandRunner) -> None:
    runner.allow("trap '' TERM; while :; do sleep 0.05; done", timeout="1s")

    assert runner.run().how is How.TIMED_OUT


def test_processes_left_by_the_program_are_not_waited_for(runner: CommandRunner, tmp_path: Path) -> None:
    runner.allow(f"setsid sleep 3600 & echo $! > {tmp_path}/pid; echo started")

    ended = runner.run()

    assert ended.how is How.DONE
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_the_program_runs_in_a_sandbox_only_if_its_table_says_so(runner: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    script = f"echo x > {tmp_path}/outside && echo outside; echo x > {tmp_path}/allowed/in && echo inside; exit 0"
    runner.allow(script, name="free")
    runner.allow(script, name="sandboxed", sandbox="strict", write=[str(tmp_path / "allowed")])

    runner.run(name="free")
    lines_without_sandbox = runner.lines
    runner.events.clear()
    runner.run(name="sandboxed")

    assert lines_without_sandbox == ["outside", "inside"]
    assert "inside" in runner.lines
    assert "outside" not in runner.lines


def test_a_wrong_table_and_an_absent_program_affect_only_their_own_jobs(runner: CommandRunner) -> None:
    runner.allow("echo fine", name="good")
    runner.commands |= {"bad": {"argv": ["ls"]}, "ghost": {"argv": ["/opt/ghost"]}}

    assert runner.run(name="good").how is How.DONE

    assert "[commands.bad]" in (runner.described["bad"].set_aside or "")
    assert "/opt/ghost" in (runner.described["ghost"].facts.missing or "")
