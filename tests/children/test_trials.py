"""A handler that cannot be imported is set aside by name, and hurts nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.children.conftest import SABOTEURS, Desk, MakeDesk
from tests.installed import install
from worker_service.children.messages import Begin, ChildError, Described, How
from worker_service.children.nursery import Nursery

BROKEN = (
    "tests.saboteurs.hangs_at_import:handler",
    "tests.saboteurs.crashes_at_import:handler",
    "tests.saboteurs.raises_at_import:handler",
    "tests.saboteurs.nowhere:handler",
    "tests.saboteurs.handlers:SABOTAGE",
    "tests.saboteurs.handlers:MIB",
)


def open_nursery(tmp_path: Path, **more: object) -> Nursery:
    return Nursery(Begin(tmp_path / "s", tmp_path / "k", **more))  # type: ignore[arg-type]


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
    nursery = Nursery(Begin(tmp_path / "s", tmp_path / "k", types=[""]), extra_path=[path])

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
