"""Damage to the full-text index by hand or by a disk: how it is found and repaired."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.store.kit import ByHand, RefusedByHand, publish, work_as
from worker_service.base.errors import StoreDamaged
from worker_service.jobs.search import SearchRequest
from worker_service.store.backup_and_restore import back_up, check_backup
from worker_service.store.store import Store

# The record with the structure of the index has the id 10; the largest id is a leaf of its newest segment.
DAMAGE = {
    "a leaf": "UPDATE page_text_data SET block = x'00112233' WHERE id = (SELECT max(id) FROM page_text_data)",
    "its structure": "UPDATE page_text_data SET block = x'ffffffffffff' WHERE id = 10",
    "all of it": "DELETE FROM page_text_data",
    "pages that it does not have": "INSERT INTO page_text (page_text) VALUES ('delete-all')",
    "pages that are not stored": "DROP TRIGGER page_result_deleted; DELETE FROM page_result WHERE id = 1",
}


@pytest.fixture(autouse=True)
def two_documents(store: Store) -> None:
    work_as(store)
    publish(store, "one.pdf", "climate risk", "fossil fuel")
    publish(store, "two.pdf", "climate change", "other words")


def state_of(store: Store, name: str) -> bool:
    [found] = [check.is_good for check in store.integrity.check() if check.name == name]
    return found


def find_pages(store: Store, query: str) -> set[tuple[int, int]]:
    return {
        (document.document_id, number)
        for document in store.search.find(SearchRequest(query)).items
        for number in document.page_numbers
    }


def test_deleting_results_by_hand_does_not_break_search(store: Store, by_hand: ByHand) -> None:
    by_hand("DELETE FROM page_result WHERE id = 1")

    assert find_pages(store, "climate") == {(2, 1)}
    assert find_pages(store, "fossil") == {(1, 2)}
    assert (state_of(store, "integrity"), state_of(store, "search index")) == (True, True)
    by_hand("INSERT INTO page_text (page_text, rank) VALUES ('integrity-check', 1)")


@pytest.mark.parametrize("change", ["text = 'other'", "id = 99"])
def test_the_text_of_a_page_cannot_be_changed_by_hand(by_hand: ByHand, change: str) -> None:
    with pytest.raises(RefusedByHand, match="what was read of a page does not change"):
        by_hand(f"UPDATE page_result SET {change} WHERE id = 1")

    by_hand("UPDATE page_result SET method = 'ocr' WHERE id = 1")


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_index_is_found_and_built_again(store: Store, by_hand: ByHand, path: Path, damage: str) -> None:
    subprocess.run(["sqlite3", str(path), damage], check=True)

    wrong = [
        check for check in store.integrity.check() if not check.is_good and check.name in ("integrity", "search index")
    ]
    assert [(check.name, check.fix) for check in wrong] == [("search index", "pagemill db rebuild-search")]

    stored = by_hand.value("SELECT count(*) FROM page_result")
    assert store.integrity.rebuild_search() == stored

    assert state_of(store, "search index")
    assert find_pages(store, "fossil") == {(1, 2)}
    assert (2, 1) in find_pages(store, "climate")
    by_hand("INSERT INTO page_text (page_text, rank) VALUES ('integrity-check', 1)")


def test_a_search_in_a_damaged_index_names_the_repair_and_no_backup(store: Store, by_hand: ByHand) -> None:
    by_hand(DAMAGE["pages that are not stored"])

    with pytest.raises(StoreDamaged, match="rebuild-search") as error:
        store.search.find(SearchRequest("climate"))

    assert "backup" not in str(error.value)


def test_a_database_with_a_damaged_index_is_backed_up(
    store: Store, by_hand: ByHand, path: Path, tmp_path: Path
) -> None:
    by_hand(DAMAGE["a leaf"])

    back_up(path, tmp_path / "copy.db")

    assert check_backup(tmp_path / "copy.db").jobs == {"completed": 2}
