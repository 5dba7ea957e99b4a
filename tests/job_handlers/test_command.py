"""The owner's programs, run by real children."""

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


class Bench:
    """Commands are allowed one by one; the first run starts the fork server with them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: dict[str, dict[str, object]] = {}
        self.pool: LocalPool | None = None
        self.heard: list[AttemptEvent] = []

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
            self.described = {one.facts.job_type: one for one in self.pool.start()}
        text = payload if isinstance(payload, str) else json.dumps(payload or {})
        self.pool.launch(Order(7, 1, name, "instagram", account, text, None, **of_order))

    def until(self, is_so: Callable[[], bool]) -> None:
        assert self.pool is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            left = deadline - time.monotonic()
            assert left > 0, f"it did not happen; heard {self.heard}"
            select.select([self.pool], [], [], left)
            self.heard += self.pool.take_events()

    def ended(self) -> Ended:
        self.until(lambda: any(isinstance(one, Ended) for one in self.heard))
        return next(one for one in self.heard if isinstance(one, Ended))

    def run(self, payload: object = None, **more: Any) -> Ended:
        self.launch(payload, **more)
        return self.ended()

    @property
    def lines(self) -> list[str]:
        return [line for one in self.heard if isinstance(one, Logged) for line in one.lines]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    if bench.pool is not None:
        bench.pool.close()


SHOW = 'for one in "$@"; do echo "[$one]"; done'


def test_each_key_is_a_job_type_and_its_arguments_are_filled_in(bench: Bench) -> None:
    bench.allow(SHOW, "--user", "{account}", "--type={payload.scrape_type}", "{job_type} on {platform}: {job_id}")

    ended = bench.run({"scrape_type": "full; rm -rf $HOME"})

    assert (ended.how, ended.result) == (How.DONE, '{"exit_code": 0}')
    assert bench.lines == ["[--user]", "[user123]", "[--type=full; rm -rf $HOME]", "[x on instagram: 7]"]
    assert bench.described["x"].facts.job_class == "io"


@pytest.mark.parametrize("sandbox", ["off", "strict"])
def test_a_program_that_follows_a_document_gets_its_files_and_facts(
    bench: Bench, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_DATABASE", "/data/pagemill.db")
    text = bench.root / "published.txt"
    text.write_text("what was read")
    facts = ("DOCUMENT_ID", "NAME", "GENERATION", "BATCH_ID", "OWNER")
    shown = "; ".join(f'echo "$PAGEMILL_{name}"' for name in facts)
    bench.allow(f'{shown}; cat "$PAGEMILL_FILE_TEXT"; echo; echo "$WORKER_DATABASE"', sandbox=sandbox)

    ended = bench.run(
        document_id=3,
        generation=None,
        inputs={"text": text},
        owner="ann",
        document=KnownDocument(name="Müller.pdf", generation=2, batch_id=5),
    )

    assert ended.how is How.DONE, ended.message
    assert bench.lines == ["3", "Müller.pdf", "2", "5", "ann", "what was read", "/data/pagemill.db"]


# The proposal's own job types with its own example payloads, as the owner of those scrapers would write them down:
# payload, arguments, standard input, and what the program is given.
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


def test_all_job_types_of_the_proposal_run_with_their_own_payloads(bench: Bench) -> None:
    script = 'for one in "$@"; do echo "$one"; done; sed "s/^/< /"'
    for name, (_, arguments, stdin, _) in PROPOSED.items():
        more: dict[str, Any] = {} if stdin is None else {"stdin": stdin}
        bench.allow(script, *arguments, name=name, **more)

    for name, (payload, _, _, given) in PROPOSED.items():
        bench.heard.clear()

        assert bench.run(payload, account=None, name=name).how is How.DONE
        assert bench.lines == given, name


def test_arguments_that_the_program_or_the_system_would_misread_are_refused_in_words(bench: Bench) -> None:
    bench.allow(SHOW, "{account}", "{payload.text}")
    for account, text, words in (
        ("--help", "x", "would become the option '--help'"),
        ("ann", "x" * 200_000, "arguments are longer than the system allows"),
    ):
        bench.heard.clear()

        ended = bench.run({"text": text}, account=account)

        assert (ended.how, ended.code) == (How.PERMANENT, "PAYLOAD_INVALID")
        assert words in ended.message
        assert bench.lines == []


def test_its_memory_is_bounded_where_its_table_says_so(bench: Bench) -> None:
    fill = "import sys; print(len(bytearray(int(sys.argv[1]) << 20)))"
    bench.commands["x"] = {"argv": [sys.executable, "-c", fill, "{payload.mib}"], "memory": "128 MiB"}

    little = bench.run({"mib": 10})
    bench.heard.clear()
    much = bench.run({"mib": 1000})

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


def test_what_it_leaves_is_published_and_what_is_not_is_named(bench: Bench) -> None:
    for name, (files, _, _) in PUBLISHED.items():
        more: dict[str, Any] = {} if files is None else {"files": files}
        bench.allow(LEAVES, name=name, **more)

    for name, (_, published, dropped) in PUBLISHED.items():
        bench.heard.clear()
        ended = bench.run(name=name)

        assert ended.how is How.DONE, ended.message
        assert [one.name for one in ended.published] == published
        assert all(one.path.is_file() for one in ended.published)
        assert bench.lines == [f"files not published, because `files` does not name them: {dropped}"]


def test_what_a_failed_attempt_leaves_is_thrown_away_and_named(bench: Bench) -> None:
    bench.allow("echo '[' > items.json; exit 3")

    ended = bench.run()

    assert (ended.code, list(ended.published)) == ("EXIT_3", [])
    assert bench.lines == ["files not published, because the program failed: items.json"]


def test_progress_and_lines_of_both_streams_are_told(bench: Bench) -> None:
    bench.allow("echo one; echo 'progress: 40 page 4 of 10'; echo two >&2; printf three")

    bench.run()

    progress = [(one.percent, one.message) for one in bench.heard if isinstance(one, Progressed)]
    assert progress == [(40.0, "page 4 of 10")]
    assert sorted(bench.lines) == ["one", "three", "two"]


EXITS = {
    "exit 0": (How.DONE, ""),
    "exit 3": (How.DONE, ""),
    "exit 65": (How.PERMANENT, "EXIT_65"),
    "exit 75": (How.RETRYABLE, "EXIT_75"),
    "exit 1": (How.RETRYABLE, "EXIT_1"),
    "kill -9 $$": (How.RETRYABLE, "COMMAND_CRASHED"),
}


def test_exit_codes_are_mapped_and_a_signal_may_run_again(bench: Bench) -> None:
    for number, end in enumerate(EXITS):
        bench.allow(f"echo because >&2; {end}", name=f"x{number}", done=[0, 3], permanent=[65, 75], retry=[75])

    for number, (how, code) in enumerate(EXITS.values()):
        bench.heard.clear()
        ended = bench.run(name=f"x{number}")

        assert (ended.how, ended.code) == (how, code)
        assert how is How.DONE or "because" in ended.message
        assert ("SIGKILL" in ended.message) is (code == "COMMAND_CRASHED")


def test_it_sees_the_variables_that_were_asked_for_and_its_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRAPER_PROXY", "http://proxy")
    monkeypatch.setenv("SECRET", "canary")
    bench.allow("env", env=["SCRAPER_PROXY"])

    bench.run()

    assert "SCRAPER_PROXY=http://proxy" in bench.lines
    assert "PAGEMILL_IDEMPOTENCY_KEY=7" in bench.lines
    assert "canary" not in "".join(bench.lines)


def test_it_runs_in_its_staging_or_where_its_table_says(bench: Bench, tmp_path: Path) -> None:
    bench.allow("pwd; echo x > left", cwd=str(tmp_path))

    ended = bench.run()

    assert bench.lines == [str(tmp_path)]
    assert (list(ended.published), (tmp_path / "left").read_text()) == ([], "x\n")


def test_a_stop_reaches_the_program_and_hears_its_last_words(bench: Bench) -> None:
    bench.allow("trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    bench.launch()
    bench.until(lambda: "ready" in bench.lines)
    assert bench.pool is not None

    bench.pool.stop(7, 1)

    assert bench.ended().how is How.STOPPED
    assert "cleaned" in bench.lines


def test_a_timeout_ends_a_deaf_program(bench: Bench) -> None:
    bench.allow("trap '' TERM; while :; do sleep 0.05; done", timeout="1s")

    assert bench.run().how is How.TIMED_OUT


def test_what_it_leaves_running_is_not_waited_for(bench: Bench, tmp_path: Path) -> None:
    bench.allow(f"setsid sleep 3600 & echo $! > {tmp_path}/pid; echo started")

    ended = bench.run()

    assert ended.how is How.DONE
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_it_is_free_unless_its_table_asks_for_a_sandbox(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    script = f"echo x > {tmp_path}/outside && echo outside; echo x > {tmp_path}/allowed/in && echo inside; exit 0"
    bench.allow(script, name="free")
    bench.allow(script, name="jailed", sandbox="strict", write=[str(tmp_path / "allowed")])

    bench.run(name="free")
    free = bench.lines
    bench.heard.clear()
    bench.run(name="jailed")

    assert free == ["outside", "inside"]
    assert "inside" in bench.lines
    assert "outside" not in bench.lines


def test_a_wrong_table_and_an_absent_program_hurt_only_their_own_jobs(bench: Bench) -> None:
    bench.allow("echo fine", name="good")
    bench.commands |= {"bad": {"argv": ["ls"]}, "ghost": {"argv": ["/opt/ghost"]}}

    assert bench.run(name="good").how is How.DONE

    assert "[commands.bad]" in (bench.described["bad"].set_aside or "")
    assert "/opt/ghost" in (bench.described["ghost"].facts.missing or "")
