"""A handler that cannot be imported is set aside by name, and hurts nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.installed import install
from tests.runner.conftest import SABOTEURS, Desk, MakeDesk
from worker_service.runner.pool import LocalPool
from worker_service.runner.protocol import Begin, ChildError, Described, How

BROKEN = (
    "tests.saboteurs.hangs_at_import:handler",
    "tests.saboteurs.crashes_at_import:handler",
    "tests.saboteurs.raises_at_import:handler",
    "tests.saboteurs.nowhere:handler",
    "tests.saboteurs.handlers:SABOTAGE",
    "tests.saboteurs.handlers:MIB",
)


def open_nursery(tmp_path: Path, **more: object) -> LocalPool:
    return LocalPool(Begin(tmp_path / "s", tmp_path / "k", **more))  # type: ignore[arg-type]


def by_name(described: object) -> dict[str, Described]:
    return {one.facts.job_type: one for one in described}  # type: ignore[attr-defined]


def test_those_that_cannot_be_imported_are_set_aside_with_the_reason(tmp_path: Path) -> None:
    nursery = open_nursery(
        tmp_path, extra_handlers=(*BROKEN, *SABOTEURS), is_without_installed=True, import_seconds=1.5
    )
    began = time.monotonic()

    described = by_name(nursery.start())

    desk = Desk(nursery)
    assert time.monotonic() - began < 20
    hangs, crashes, raises, nowhere, absent, number = (described[name].set_aside or "" for name in BROKEN)
    assert "still being imported after 1.5 s" in hangs
    assert "SIGSEGV" in crashes
    assert "libghost.so.9 is not there" in raises
    assert "ModuleNotFoundError" in nowhere
    assert "AttributeError" in absent
    assert "an entry point names a Handler" in number
    assert described["silent"].set_aside is None
    assert desk.run("silent").how is How.DONE
    refused = desk.run(BROKEN[1])
    assert (refused.how, refused.code) == (How.RETRYABLE, "HANDLER_SET_ASIDE")
    assert "SIGSEGV" in refused.message
    nursery.close()


def test_a_job_type_that_two_provide_is_nobodys(make_desk: MakeDesk) -> None:
    desk = make_desk(extra_handlers=(*SABOTEURS, "tests.saboteurs.twice:handler"))

    ended = desk.run("silent")

    assert ended.code == "HANDLER_SET_ASIDE"
    assert "tests.saboteurs.handlers:handlers" in ended.message
    assert "tests.saboteurs.twice:handler" in ended.message
    assert desk.run("clean").how is How.DONE


def test_a_handler_is_described_by_its_facts(tmp_path: Path) -> None:
    nursery = open_nursery(tmp_path, extra_handlers=SABOTEURS)

    described = by_name(nursery.start())

    nursery.close()
    clean = described["clean"]
    assert clean.facts.job_class == "cpu"
    assert '"port"' in (clean.facts.payload_schema or "")
    assert described["loops"].facts.timeout_seconds == 1


def test_a_nursery_that_cannot_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    nursery = open_nursery(tmp_path)

    with pytest.raises(ChildError, match="exit code 1"):
        nursery.start()

    assert not nursery.is_alive
    nursery.close()


@pytest.mark.parametrize("is_sound", [True, False])
def test_those_of_one_distribution_share_a_trial_unless_something_is_wrong_with_one(
    tmp_path: Path, is_sound: bool
) -> None:
    path, told = tmp_path / "path", tmp_path / "told"
    install(path, "two-handlers", {"first": "first_of_two:handler", "second": "second_of_two:handler"})
    source = (
        f"import os\nopen({str(told)!r}, 'a').write(f'{{os.getpid()}}\\n')\nfrom tests.saboteurs.twice import handler\n"
    )
    (path / "first_of_two.py").write_text(source.replace("import handler", "import first as handler"))
    (path / "second_of_two.py").write_text(source if is_sound else f"{source}os.abort()\n")
    nursery = LocalPool(Begin(tmp_path / "s", tmp_path / "k", types=[""]), extra_path=[path])

    described = by_name(nursery.start())

    nursery.close()
    assert described["first"].set_aside is None
    trials = told.read_text().split()
    if is_sound:
        assert described["silent"].set_aside is None
        assert len(trials) == 2
        assert len(set(trials)) == 1
    else:
        assert "SIGABRT" in (described["second"].set_aside or "")
        # Together once, and then each alone.
        assert len(trials) == 4
        assert len(set(trials)) == 3


def of_the_house(tmp_path: Path, second: str) -> tuple[LocalPool, Path]:
    """A nursery where two handlers are shipped, and who has imported them, line by line: the second does this after."""
    path, told = tmp_path / "path", tmp_path / "told"
    install(path, "pagemill", {"first": "first_of_house:handler", "second": "second_of_house:handler"})
    source = f"import os\nopen({str(told)!r}, 'a').write(f'{{os.getpid()}}\\n')\nfrom tests.saboteurs.twice import "
    (path / "first_of_house.py").write_text(f"{source}first as handler\n")
    (path / "second_of_house.py").write_text(f"{source}handler\n{second}\n")
    return LocalPool(Begin(tmp_path / "s", tmp_path / "k", import_seconds=2.0), extra_path=[path]), told


def test_the_shipped_handlers_are_imported_once_by_the_nursery_itself(tmp_path: Path) -> None:
    nursery, told = of_the_house(tmp_path, "")

    described = by_name(nursery.start())

    assert told.read_text().split() == [str(nursery.pid)] * 2
    nursery.close()
    assert {name: one.set_aside for name, one in described.items()} == {"first": None, "silent": None}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("raise RuntimeError('the library is too old')", "the library is too old"),
        ("os.abort()", "SIGABRT"),
        ("import time; time.sleep(600)", "still being imported after 2 s"),
    ],
)
def test_a_shipped_handler_that_ends_or_holds_up_the_nursery_is_set_aside_as_any_other(
    tmp_path: Path, second: str, reason: str
) -> None:
    nursery, told = of_the_house(tmp_path, second)

    described = by_name(nursery.start())

    desk = Desk(nursery)
    assert described["first"].set_aside is None
    assert reason in (described["second"].set_aside or "")
    assert desk.run("first").how is How.DONE
    nursery.close()
    # By the first nursery, together in a trial, and alone; what is sound by the second nursery as well.
    assert len(told.read_text().split()) == 7


def test_what_a_shipped_handler_starts_at_its_import_is_not_left_in_the_nursery(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    second = (
        "import subprocess, threading, time\n"
        f"open({str(pid)!r}, 'a').write(f\"{{subprocess.Popen(['sleep', '600']).pid}}\\n\")\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    nursery, _ = of_the_house(tmp_path, second)

    nursery.start()

    assert nursery.threads == 1
    nursery.close()
    started = pid.read_text().split()
    assert len(started) == 3
    assert not [one for one in started if Path("/proc", one).exists()]
