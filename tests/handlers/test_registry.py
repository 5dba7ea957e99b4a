from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from tests.fake_distributions import install
from worker_service.base.entry_points import EntryPoint
from worker_service.handlers import Context, Done, Handler, Limits, Snooze, registry


def test_entry_points_are_found_and_not_imported(tmp_path: Path) -> None:
    install(tmp_path, "one", {"fetch": "no.such.module:handler"})
    install(tmp_path, "two", {"read": "another:handler"})

    found = registry.find_entry_points(["extra.module:handler"], path=[str(tmp_path)])

    assert found == [
        EntryPoint("extra.module:handler", "extra.module:handler", "extra"),
        EntryPoint("fetch", "no.such.module:handler", "one"),
        EntryPoint("read", "another:handler", "two"),
    ]


def test_shipped_handlers_are_found_by_their_entry_points() -> None:
    assert EntryPoint("command", "job_handlers.command:commands", "pagemill") in registry.find_entry_points()


def test_a_job_type_that_two_distributions_provide_is_refused(tmp_path: Path) -> None:
    install(tmp_path, "one", {"fetch": "one.module:handler"})
    install(tmp_path, "two", {"get": "two.module:handler"})
    fetch, get = registry.find_entry_points(path=[str(tmp_path)])

    refused = registry.find_clashes([("download", fetch), ("download", get), ("other", get)])

    assert list(refused) == ["download"]
    assert "one (one.module:handler) and by two (two.module:handler)" in refused["download"]


def test_an_entry_point_may_hold_several_handlers() -> None:
    offer = registry.load(EntryPoint("steps", "tests.saboteurs.steps:several", "extra"), {})

    assert [handler.job_type for handler in offer.handlers] == ["one_of_several"]


def test_each_table_of_a_family_becomes_a_handler_or_an_error() -> None:
    tables: dict[str, dict[str, object]] = {
        "good": {"argv": ["/bin/true"]},
        "bad": {"argv": ["true"]},
        "slow": {"argv": ["/bin/true"], "timeout": "x"},
    }

    offer = registry.load(EntryPoint("command", "job_handlers.command:commands", "pagemill"), {"commands": tables})

    assert [handler.job_type for handler in offer.handlers] == ["good"]
    assert set(offer.refused) == {"bad", "slow"}
    assert "argv begins with the program's full path" in offer.refused["bad"]


def run(context: Context[dict[str, str]]) -> Done:
    return Done()


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 101])
def test_a_job_type_has_a_name_that_fits_a_column(name: str) -> None:
    with pytest.raises(ValueError, match="name of a job type"):
        Handler(name, run, dict[str, str])


def test_a_handler_has_default_limits() -> None:
    limits = Handler("x", run, dict[str, str]).limits

    assert limits == Limits(memory_bytes=1 << 30, wall_seconds=3600, network=False)


def test_a_snooze_takes_either_a_length_or_a_time_with_a_zone() -> None:
    with pytest.raises(TypeError, match="either"):
        Snooze()
    with pytest.raises(TypeError, match="zone"):
        Snooze(until=datetime(2026, 11, 18))
