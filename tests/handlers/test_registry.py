"""Finding handlers by their entry points, without importing one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from worker_service.base.entry_points import EntryPoint
from worker_service.handlers import Context, Done, Handler, Limits, Snooze, registry

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    def install(distribution: str, **points: str) -> None:
        folder = tmp_path / f"{distribution}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {spec}" for name, spec in points.items()]
        (folder / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines]))

    return install


def test_entry_points_are_found_and_not_imported(install: Install, tmp_path: Path) -> None:
    install("one", fetch="module.that.is.not.there:handler")
    install("two", read="another:handler")

    found = registry.find(["extra.module:handler"], path=[str(tmp_path)])

    assert found == [
        EntryPoint("extra.module:handler", "extra.module:handler", "extra"),
        EntryPoint("fetch", "module.that.is.not.there:handler", "one"),
        EntryPoint("read", "another:handler", "two"),
    ]


def test_the_shipped_handlers_come_in_by_the_same_door() -> None:
    assert EntryPoint("command", "job_handlers.command:commands", "pagemill") in registry.find()


def test_a_name_that_two_distributions_provide_is_refused_with_both(install: Install, tmp_path: Path) -> None:
    install("one", fetch="one.module:handler")
    install("two", get="two.module:handler")
    fetch, get = registry.find(path=[str(tmp_path)])

    refused = registry.find_clashes([("download", fetch), ("download", get), ("other", get)])

    assert list(refused) == ["download"]
    assert "one (one.module:handler) and by two (two.module:handler)" in refused["download"]


def test_an_entry_point_may_hold_several_handlers() -> None:
    offer = registry.load(EntryPoint("steps", "tests.saboteurs.steps:several", "extra"), {})

    assert [handler.job_type for handler in offer.handlers] == ["one_of_several"]


def test_each_table_of_a_family_is_a_job_type_or_a_sentence() -> None:
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


def test_a_handler_has_limits_unless_it_says_otherwise() -> None:
    limits = Handler("x", run, dict[str, str]).limits

    assert limits == Limits(memory_bytes=1 << 30, wall_seconds=3600, network=False)


def test_a_snooze_says_for_how_long_in_one_way() -> None:
    with pytest.raises(TypeError, match="either"):
        Snooze()
    with pytest.raises(TypeError, match="zone"):
        Snooze(until=datetime(2026, 11, 18))
