from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from tests.fake_distributions import install, shipped
from worker_service.base.entry_points import EntryPoint, entry_points


def test_importlib_finds_the_same_entry_points() -> None:
    every = metadata.entry_points()

    for group in every.groups:
        named = {
            EntryPoint(point.name, point.value, point.dist.name) for point in every.select(group=group) if point.dist
        }
        assert set(entry_points(group)) == named
    assert {point.name for point in entry_points("worker_service.handlers")} == set(shipped())


def test_the_first_distribution_of_a_name_on_the_path_is_used(tmp_path: Path) -> None:
    install(tmp_path / "first", "acme-pages", {"fetch": "first:handler"})
    install(tmp_path / "second", "acme-pages", {"fetch": "second:handler", "read": "second:read"})
    install(tmp_path / "second", "other", {}, {"somebody.elses": {"read": "other:read"}})

    path = [str(tmp_path / name) for name in ("not there", "first", "second")]

    assert entry_points("worker_service.handlers", path) == [EntryPoint("fetch", "first:handler", "acme-pages")]


def test_a_half_removed_distribution_is_ignored(tmp_path: Path) -> None:
    install(tmp_path, "acme-pages", {"fetch": "new:handler"})
    left = tmp_path / "~cme_pages-0.9.dist-info"
    left.mkdir()
    (left / "METADATA").write_text("Name: acme-pages\n")
    (left / "entry_points.txt").write_text("[worker_service.handlers]\nfetch = old:handler\n")

    found = entry_points("worker_service.handlers", [str(tmp_path)])

    assert found == [EntryPoint("fetch", "new:handler", "acme-pages")]


def test_comments_and_extras_of_entry_points_are_ignored(tmp_path: Path) -> None:
    about = tmp_path / "odd.egg-info"
    about.mkdir()
    (about / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: odd\n")
    (about / "entry_points.txt").write_text("[a]\n# x = y\n\n[ b]\n[b]\n one=os.path:join [more]\nnonsense\n")

    [point] = entry_points("b", [str(tmp_path)])

    assert (point.name, point.distribution) == ("one", "odd")
    assert point.load() is __import__("os").path.join


@pytest.mark.parametrize(("spec", "error"), [("nowhere.at.all:x", ModuleNotFoundError), ("os:nothing", AttributeError)])
def test_an_error_at_import_is_raised_unchanged(spec: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        EntryPoint("one", spec, "").load()
