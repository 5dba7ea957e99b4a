"""What a crawl takes for granted about a Drive, asked of ours and of two that nobody here wrote (`peers`).

Where they differ, and what that means for us:

| | Drive, as documented | our server | google-drive-mock 1.2.0 | backlot 0.1.0 |
| --- | --- | --- | --- | --- |
| changes, start token | yes | yes | yes | 404, no such method: walked each time |
| a change token that is none | 400 invalid | 400 invalid | taken for the beginning | – |
| a page token that is none | 400 invalid | 400 invalid | taken for the first page | 400 invalid |
| 404 of a file | reason notFound | reason notFound | no reason: taken for notFound by its status | reason notFound |
| headRevisionId | yes | yes | no: the MD5 tells revisions apart | no: likewise |
| shared drives, shortcuts, resource keys | yes | yes | no | shared drives only |
| more than one page | yes | yes | yes | yes |
| Range of the bytes | 206 | 206 | 200, the whole | 200, the whole |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from google.oauth2.credentials import Credentials

from job_handlers.sources.drive import client as drive
from job_handlers.sources.drive import credentials as drive_credentials
from job_handlers.sources.drive.tree import DriveTree
from job_handlers.sources.tree import Changes, ItemTrouble, ListingExpired
from tests.drive_server import DriveServer, serving
from tests.job_handlers.crawl import peers
from tests.job_handlers.crawl.kit import Crawls
from tests.job_handlers.crawl.peers import Place, Thing
from tests.job_handlers.fetching import drive_for
from worker_service.jobs.model import Status

THINGS = (
    Thing("top"),
    Thing("inner", "top"),
    Thing("deep", "inner"),
    Thing("elsewhere"),
    Thing("a.csv", "top", "a,b"),
    Thing("b.csv", "inner", "a,b,c"),
    Thing("c.csv", "deep", "a,b,c,d"),
    Thing("other.csv", "elsewhere", "no"),
    Thing("trashed.csv", "top", "gone", is_trashed=True),
)
OURS, MOCK, BACKLOT = "ours", "google-drive-mock", "backlot"


class WalkOnly(DriveTree):
    """Of a place that cannot tell what has changed."""

    def change_token(self, corpus: str) -> str:
        return ""

    def changes(self, corpus: str, token: str) -> Changes:
        raise ListingExpired("it cannot tell what has changed")


@pytest.fixture(scope="module")
def backlot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Slow to begin, and the same for all, for it cannot be changed."""
    with peers.backlot(THINGS, tmp_path_factory.mktemp("backlot")) as made:
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    name = request.param
    if name != OURS and (reason := peers.why_absent(name)):
        pytest.skip(reason)
    with ExitStack() as stack:
        if name == OURS:
            made: Place = peers.Ours(stack.enter_context(drive_for(monkeypatch, tmp_path)))
        elif name == MOCK:
            made = stack.enter_context(peers.mock())
        else:
            made = request.getfixturevalue("backlot")
        if name != BACKLOT:
            for thing in THINGS:
                made.add(thing)
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, made.url)
        if made.token:
            # Neither of them gives a token to a service account: one that is there already takes its place.
            ready = (Credentials(made.token), "a token", "me")  # type: ignore[no-untyped-call]
            monkeypatch.setattr(drive, "_credentials", lambda _: ready)
        yield made


@pytest.fixture
def crawls(place: Place, tmp_path: Path) -> Iterator[Crawls]:
    tree = WalkOnly if isinstance(place, peers.Backlot) else DriveTree
    # The server is only for what the kit counts there.
    made = Crawls(DriveServer(), tmp_path, tree)
    yield made
    made.close()


everywhere = pytest.mark.parametrize("place", [OURS, MOCK, BACKLOT], indirect=True)
with_changes = pytest.mark.parametrize("place", [OURS, MOCK], indirect=True)


@everywhere
def test_a_walk_finds_what_is_below_a_folder_and_not_in_the_trash(place: Place, crawls: Crawls) -> None:
    ran = crawls.run(place.ids["top"])

    assert crawls.downloads() == ["a.csv", "b.csv", "c.csv"]
    assert (ran.folders, ran.enqueued) == (3, 3)


@everywhere
def test_a_second_crawl_of_what_has_not_changed_enqueues_nothing(place: Place, crawls: Crawls) -> None:
    crawls.run(place.ids["top"])

    assert crawls.run(place.ids["top"]).enqueued == 0
    assert crawls.run(place.ids["top"], reconcile=True).unchanged == 3


@everywhere
def test_what_is_not_there_is_the_trouble_of_one_item(place: Place, crawls: Crawls) -> None:
    with pytest.raises(ItemTrouble):
        crawls.tree_at("there-is-no-such-thing").entry("there-is-no-such-thing", "")


@pytest.mark.parametrize("place", [OURS, BACKLOT], indirect=True)
def test_a_page_that_is_not_known_is_begun_again(place: Place, crawls: Crawls) -> None:
    with pytest.raises(ListingExpired):
        crawls.tree_at(place.ids["top"]).children(place.ids["top"], "", "", "no-such-page")


@with_changes
def test_changes_tell_what_is_new_what_has_changed_and_what_went(place: Place, crawls: Crawls) -> None:
    crawls.run(place.ids["top"])
    crawls.finish_downloads()

    place.write("a.csv", "a,b and more")
    place.add(Thing("new folder", "inner"))
    place.add(Thing("new.csv", "new folder", "new"))
    place.add(Thing("also elsewhere.csv", "elsewhere", "no"))
    place.trash("b.csv")
    place.remove("c.csv")
    ran = crawls.run(place.ids["top"])

    assert crawls.downloads(status=Status.PENDING) == ["a.csv", "new.csv"]
    assert (ran.enqueued, ran.gone) == (2, 2)
    assert crawls.run(place.ids["top"]).found == 0


def test_our_server_is_no_easier_than_drive_on_what_the_others_let_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving() as server:
        monkeypatch.setenv(drive_credentials.ENDPOINT.variable, server.url)
        key = tmp_path / "drive"
        key.write_text(server.tokens.service_account())
        key.chmod(0o600)
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
        crawls = Crawls(server, tmp_path)

        with pytest.raises(ListingExpired):
            crawls.tree_at("any-folder-at-all").changes("", "no-such-token")

        crawls.close()
