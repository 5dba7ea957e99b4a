from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.kit.system import System, wait_until
from tests.system.test_commands import read
from worker_service.jobs.job import Status

SPIDER = """
import argparse, json, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("crawl"), parser.add_argument("spider"), parser.add_argument("-O", dest="out")
parser.add_argument("-a", action="append", dest="arguments")
given = parser.parse_args()
pathlib.Path(given.out).write_text(json.dumps({"spider": given.spider, "arguments": given.arguments}))
pathlib.Path("media").mkdir()
pathlib.Path("media/logo.png").write_bytes(b"png")
"""


def allow(system: System, **commands: dict[str, Any]) -> Path:
    file = system.place / "pagemill.toml"
    tables = [
        "\n".join([f"[commands.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        for name, table in commands.items()
    ]
    file.write_text("\n".join(tables))
    return file


def test_files_that_a_program_writes_are_published(system: System) -> None:
    (system.place / "scrapy.py").write_text(SPIDER)
    spider = [sys.executable, str(system.place / "scrapy.py"), "crawl", "news", "-O", "items.json"]
    config = allow(system, news={"argv": [*spider, ["-a", "topic={payload.topic?}"]]})
    job = system.enqueue("news", topic="climate")

    assert system.begin("--drain", config=config).wait_for_exit() == 0

    shown = read(system.run("show", str(job), "--json"))["files"]
    assert [(item["name"], item["size"]) for item in shown] == [("items.json", 50), ("media/logo.png", 3)]
    assert json.loads(Path(shown[0]["path"]).read_text()) == {"spider": "news", "arguments": ["topic=climate"]}
    assert f"items.json         50  {shown[0]['path']}" in system.run("show", str(job)).stdout
    exported = system.run("export", "--job", str(job), "-o", "out")
    assert exported.stdout.splitlines() == ["out/items.json", "out/media/logo.png"]
    assert (system.place / "out/media/logo.png").read_bytes() == b"png"
    again = system.run("export", "--job", str(job), "-o", "out")
    assert (again.returncode, "--update replaces what has changed" in again.stderr) == (1, True)
    assert "cannot be combined with documents" in system.run("export", "--job", str(job), "7").stderr


def test_concurrency_alone_limits_programs_too(system: System) -> None:
    config = allow(system, scrape={"argv": ["/bin/sleep", "{payload.seconds}"]})
    jobs = [system.enqueue("scrape", seconds=1000) for _ in range(6)]

    daemon = system.start(config=config, io_concurrency="")

    [started] = daemon.events("daemon.started")
    assert (started["concurrency"], started["io_concurrency"]) == (2, 2)
    system.wait_for_all(Status.RUNNING, 2)
    # The claim that finds no room has been: the gate says so.
    wait_until(
        lambda: [gate.code for gate in system.store.gates.explain(jobs[-1])] == ["SLOTS_FULL"], "the slots are full"
    )
    assert [system.status(job) for job in jobs].count(Status.RUNNING) == 2
