"""Users read and find the pages of current generations only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.full_length import short
from tests.store.kit import MovableClock, ask_for, claim, publish, save, start_reading, work_as
from worker_service.base.errors import BadInput, DocumentNotFound
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.documents import DocumentFacts, IndexStatus, NewFile, PageResult
from worker_service.jobs.job import NewJob
from worker_service.jobs.library import DocumentSelector, KeywordCount
from worker_service.store import library
from worker_service.store.store import Store


@pytest.fixture(autouse=True)
def worker_is_there(store: Store) -> None:
    work_as(store)


def find_pages(store: Store, query: str, **where: object) -> list[tuple[int, int]]:
    return [(hit.document_id, hit.number) for hit in store.library.search(query, **where).hits]  # type: ignore[arg-type]


# ── Documents ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_document_is_shown_with_all_that_is_known_of_it(store: Store, clock: MovableClock) -> None:
    asked = ask_for(store, owner="ann")
    job = claim(store)
    save(store, job.lease, "one")
    facts = DocumentFacts(kind="pdf", pages=2, note="repaired")
    store.leases.complete_many([Completion(job.lease, document=facts, publishes=True)])

    document = store.library.document(asked.document_id or 0)

    assert (document.owner, document.platform, document.source_key) == ("ann", "gdrive", "report.pdf")
    assert (document.status, document.percent, document.pages, document.kind) == (IndexStatus.SUCCESS, 100, 2, "pdf")
    assert (document.index_generation, document.current_generation, document.note) == (1, 1, "repaired")
    assert document.updated_at == clock.text


def test_documents_are_listed_newest_first_and_page_by_page(store: Store) -> None:
    made = [publish(store, f"{number}.pdf", "text") for number in range(5)]

    first = store.library.documents(DocumentSelector(), most=2)
    rest = store.library.documents(DocumentSelector(), most=9, before_id=first[-1].id)

    assert [document.id for document in [*first, *rest]] == made[::-1]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (DocumentSelector(ids=(1, 99)), [1]),
        (DocumentSelector(owners=("bob",)), [2]),
        (DocumentSelector(owners=("ann", "bob")), [3, 2, 1]),
        (DocumentSelector(statuses=(IndexStatus.FAILED,)), [3]),
        (DocumentSelector(statuses=(IndexStatus.FAILED, IndexStatus.SUCCESS), owners=("ann",)), [3, 1]),
        (DocumentSelector(platforms=("gdrive",)), [3, 2, 1]),
        (DocumentSelector(platforms=("local",)), []),
        (DocumentSelector(name="CLIMATE"), [1]),
        (DocumentSelector(name="%"), []),
    ],
)
def test_a_selector_chooses_documents(store: Store, selector: DocumentSelector, expected: list[int]) -> None:
    publish(store, "Climate 2025.pdf", "a", owner="ann")
    publish(store, "b.pdf", "b", owner="bob")
    ask_for(store, "c.pdf", owner="ann")
    store.leases.fail(claim(store).lease, Failure("X", "x"), retry_at=None)

    assert [document.id for document in store.library.documents(selector)] == expected


def test_a_document_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(DocumentNotFound, match="no document 7"):
        store.library.document(7)


def test_what_failed_before_it_was_a_document_is_told_until_it_is_tried_again(
    store: Store, clock: MovableClock
) -> None:
    def fail(name: str, owner: str = "ann") -> int:
        asked = NewJob("download", "gdrive", name=name, source_key=f"key of {name}", owner=owner)
        job_id = store.intake.enqueue(asked).job_id
        [job] = store.leases.claim("w1", 1, "io") or store.leases.claim("w1", 1)
        store.leases.fail(job.lease, Failure("NOT_WHAT_IT_SAYS", "it is HTML"), retry_at=None)
        clock.advance(seconds=1)
        return job_id

    def unread_jobs(**chosen: Any) -> list[int]:
        return [job.id for job in store.library.not_brought_in(DocumentSelector(**chosen))]

    slides, others, again = fail("slides.pdf"), fail("slides.pdf", "bob"), fail("again.pdf")

    assert unread_jobs() == [again, others, slides]
    assert unread_jobs(name="SLIDES", owners=("ann",)) == [slides]
    assert unread_jobs(statuses=(IndexStatus.FAILED,)) == [again, others, slides]
    assert unread_jobs(statuses=(IndexStatus.SUCCESS,)) == unread_jobs(ids=(1,)) == []

    store.intake.enqueue(NewJob("download", "gdrive", name="slides.pdf", source_key="key of slides.pdf", owner="ann"))
    publish(store, "key of again.pdf", owner="ann")

    assert unread_jobs() == [others]


def test_pages_are_summed_up_and_read(store: Store) -> None:
    job = start_reading(store)
    pages = [PageResult(1, "a", "Grüße", "layer"), PageResult(2, "b", "scan", "ocr", 87.5, '{"words": []}')]
    store.attempts.save_pages([(job.lease, page) for page in pages])
    assert store.library.page_texts(1) == []
    store.leases.complete_many([Completion(job.lease, publishes=True)])

    summaries = [
        (page.number, page.method, page.confidence, page.characters) for page in store.library.page_summaries(1)
    ]

    assert summaries == [(1, "layer", None, 5), (2, "ocr", 87.5, 4)]
    assert store.library.page_texts(1, 2, 2, with_layout=True) == [pages[1]]
    assert [page.text for page in store.library.page_texts(1, 1, 1)] == ["Grüße"]


def test_what_a_document_notes_of_itself_and_of_its_newest_original_is_told_together(store: Store) -> None:
    first = NewFile("a.pdf", "objects/1-1/a.pdf", "original", note="nobody named a digest")
    other = NewFile("a.txt", "objects/1-1/a.txt", "text", note="of no original")
    job = start_reading(store)
    store.leases.complete_many([Completion(job.lease, files=[first, other], publishes=True)])
    alone = store.library.document(1).note
    job = start_reading(store, is_forced=True)
    store.leases.complete_many([Completion(job.lease, document=DocumentFacts(note="repaired"), publishes=True)])
    both = store.library.document(1).note
    job = start_reading(store, is_forced=True)
    named = NewFile("a.pdf", "objects/3-1/a.pdf", "original")
    store.leases.complete_many([Completion(job.lease, files=[named], publishes=True)])

    assert (alone, both) == ("nobody named a digest", "repaired; nobody named a digest")
    assert store.library.document(1).note is None


def test_files_of_a_document_are_listed_newest_first(store: Store) -> None:
    job = start_reading(store)
    files = [NewFile("a.txt", "objects/1-1/a.txt", "text"), NewFile("a.json", "objects/1-1/a.json", "pages")]
    store.leases.complete_many([Completion(job.lease, files=files, publishes=True)])

    assert [file.name for file in store.library.files(1)] == ["a.json", "a.txt"]
    assert store.library.files(2) == []


# ── Search ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("climate", [1, 2]),
        ("CLIMATE risk", [1, 2]),
        ("climate NEAR risk", [1]),
        ('"climate NEAR risk"', []),
        ("NEAR(climate risk, 3)", [1]),
        ('"climate risk"', []),
        ('"risk of climate"', [1]),
        ("clim*", [1, 2]),
        ("climate NOT disclosure", [1]),
        ("emissions OR disclosure", [2, 3]),
        ("uber", [3]),
        ("über", [3]),
        ('"co2-emissions"', [3]),
        ("nothing", []),
    ],
)
def test_words_phrases_nearness_and_beginnings_are_found(store: Store, query: str, numbers: list[int]) -> None:
    publish(
        store,
        "report.pdf",
        "the risk of climate change",
        "climate and, many many many many many many many many many words later, risk disclosure",
        "Über CO2-Emissions",
    )

    assert sorted(number for _, number in find_pages(store, query)) == numbers


def test_near_between_two_words_is_understood_as_people_write_it(store: Store) -> None:
    publish(store, "report.pdf", "the risk of climate change", "climate " + "and " * 20 + "risk")

    assert find_pages(store, "climate NEAR risk") == [(1, 1)]
    assert find_pages(store, "climate NEAR/25 risk") == [(1, 1), (1, 2)]


def test_a_hit_shows_its_words_in_their_place(store: Store) -> None:
    publish(store, "report.pdf", "x " * 200 + "the risk of climate change" + " y" * 200, owner="ann")

    [hit] = store.library.search("climate", marks=("<b>", "</b>")).hits

    assert "the risk of <b>climate</b> change" in hit.snippet
    assert len(hit.snippet) < 200
    assert (hit.name, hit.number) == ("report.pdf of ann", 1)


def test_the_better_page_comes_first(store: Store) -> None:
    publish(store, "report.pdf", "climate " + "and so on " * 50, "climate climate climate", "nothing", "nothing")

    assert find_pages(store, "climate") == [(1, 2), (1, 1)]


def test_a_search_stays_within_an_owner_or_a_document(store: Store) -> None:
    publish(store, "a.pdf", "climate", "climate change", owner="ann")
    publish(store, "b.pdf", "climate of bob", owner="bob")

    assert find_pages(store, "climate", owner="bob") == [(2, 1)]
    assert sorted(find_pages(store, "climate", document_id=1)) == [(1, 1), (1, 2)]
    assert find_pages(store, "climate", document_id=1, owner="bob") == []
    assert len(find_pages(store, "climate", most=2)) == 2


def test_p11_only_the_current_generation_is_found(store: Store) -> None:
    publish(store, "report.pdf", "old words", "gone words")
    job = start_reading(store, content="c2")
    save(store, job.lease, "new words")

    assert [find_pages(store, word) for word in ("old", "new", "words")] == [[(1, 1)], [], [(1, 1), (1, 2)]]

    store.leases.complete_many([Completion(job.lease, publishes=True)])

    assert [find_pages(store, word) for word in ("old", "new", "words")] == [[], [(1, 1)], [(1, 1)]]
    assert [page.text for page in store.library.page_texts(1)] == ["new words"]


def test_one_page_of_two_documents_is_found_in_both(store: Store) -> None:
    publish(store, "a.pdf", "climate")
    publish(store, "b.pdf", "climate")

    assert sorted(find_pages(store, "climate")) == [(1, 1), (2, 1)]


def test_of_very_many_hits_the_newest_are_compared_and_that_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, "report.pdf", *(f"climate {number}" for number in range(9)))
    assert not store.library.search("climate", most=3).is_partial

    monkeypatch.setattr(library, "RANKED_MOST", 4)

    some = store.library.search("climate", most=9)
    assert (some.is_partial, sorted(hit.number for hit in some.hits)) == (True, [6, 7, 8, 9])


@pytest.mark.parametrize(
    "query",
    [
        "it's", "it’s", "scope-3", "GHG/CO2", '"unbalanced', "C++", "50%", "a:b", "^a:b", "-unbalanced", "scope(3)",
        "emissions (scope", "scope -- emissions", "AND", "climate AND", "NOT climate", "to be OR NOT to be",
        "near NEAR", "“scope 3”", "{climate}", "clim**", '"clim"*', "R AND D", "a\0b", "NEAR(GHG CO2)", "((climate))",
        "GHG OR (water NOT climate)", "climate AND NOT water", "water OR GHG NEAR/2 CO2",
    ],
)  # fmt: skip
def test_what_people_type_finds_what_they_mean(store: Store, query: str) -> None:
    said = "it's unbalanced: scope-3 emissions, GHG/CO2, 50% in C++ near a:b b a, R&D and not the climate, scope(3)"
    publish(store, "report.pdf", f"{said} to be or not to be", "oil")

    assert find_pages(store, query) == [(1, 1)]
    assert find_pages(store, query, document_id=1) == [(1, 1)]


def test_a_question_finds_pages_with_some_of_its_words_behind_those_with_all(store: Store) -> None:
    publish(store, "wings.pdf", "the flow over a wing in a wind tunnel", "a wing", "nothing else")

    question = "what is known of the flow over a wing"
    assert [hit.has_all_words for hit in store.library.search(question).hits] == [False, False]
    result = store.library.search("wing flow")
    assert [(hit.number, hit.has_all_words) for hit in result.hits] == [(1, True), (2, False)]
    assert "[wing]" in result.hits[1].snippet
    assert store.library.marked(1, 2, "wing flow", ("<", ">")) == "a <wing>"


@pytest.mark.parametrize(
    "query", ["wing AND oil", "wing OR (oil AND gas)", "wing NOT oil", "wing NEAR oil", '"wing oil"']
)
def test_a_query_with_operators_finds_only_what_matches_all_of_it(store: Store, query: str) -> None:
    publish(store, "wings.pdf", "a wing", "oil")

    assert all(hit.has_all_words for hit in store.library.search(query).hits)
    assert sorted(find_pages(store, "wing oil")) == [(1, 1), (1, 2)]
    assert store.library.search("wing oil", needs_all=True).hits == []


def test_within_a_document_pages_with_some_of_the_words_come_only_where_none_has_all(store: Store) -> None:
    publish(store, "wings.pdf", "a wing", "a wing in oil", "oil")

    assert find_pages(store, "wing oil", document_id=1) == [(1, 2)]
    assert sorted(find_pages(store, "wing water", document_id=1)) == [(1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("the risk of a flood in the valley is high and it was not known to them", "flooding"),
        ("the risk of a flood in the valley is high and it was not known to them", "floods valleys"),
        ("der Schutz vor den Überschwemmungen ist nicht mit dem Tal und auf dem Berg", "Überschwemmung"),
        ("le risque est dans la vallée et il ne se voit pas avec les inondations que nous avons", "inondation"),
    ],
)
def test_other_forms_of_a_word_are_found_in_the_language_of_the_pages(store: Store, text: str, query: str) -> None:
    publish(store, "floods.pdf", text, "another page")

    assert find_pages(store, query) == [(1, 1)]
    assert store.library.search(query).hits[0].has_all_words
    assert "<" in (store.library.marked(1, 1, query, ("<", ">")) or "")


def test_of_very_many_pages_with_some_of_the_words_it_is_said_that_not_all_were_compared(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_service.store.library.ANY_RANKED_MOST", 2)
    publish(store, "wings.pdf", "a wing", "a wing", "oil")

    assert store.library.search("wing oil").is_partial


def test_a_word_that_is_in_quotes_or_has_a_star_is_taken_as_it_is(store: Store) -> None:
    publish(store, "floods.pdf", "the risk of a flood in the valley is high and it was not known to them")

    assert find_pages(store, '"flooding of" risks OR "floods of"') == []
    assert find_pages(store, "flooding*") == []


def test_small_words_of_a_question_choose_no_page_and_are_not_marked(store: Store) -> None:
    text = "the risk of a flood in the valley is high and it was not known to them"
    publish(store, "floods.pdf", text, "the end of it")

    [hit] = store.library.search("which is the flood of the valley").hits
    assert (hit.number, hit.has_all_words, hit.snippet.count("[")) == (1, True, 2)
    assert find_pages(store, "is of the")[0] == (1, 1)


def test_a_word_on_many_pages_does_not_choose_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_service.store.library.COMMON_MOST", 3)
    publish(store, "wings.pdf", "the wing", "the oil", "the water")

    assert find_pages(store, "the wing today") == [(1, 1)]
    assert len(find_pages(store, "the today")) == 3


@pytest.mark.parametrize(
    "query", ["3-scope", "co2 ghg NEAR risk", "climate NOT scope-3", '"emissions scope"', "scope4", "c* NOT 50%"]
)
def test_signs_in_a_word_hold_its_parts_together(store: Store, query: str) -> None:
    publish(store, "report.pdf", "scope-3 emissions, GHG/CO2, 50% of the climate")

    assert find_pages(store, query) == []


def test_no_text_at_all_is_an_error_of_syntax(store: Store) -> None:
    publish(store, "report.pdf", "climate and risk, a NEAR b")
    pieces = st.sampled_from('AND OR NOT NEAR NEAR/3 NEAR( ( ) " * ^ + - : , text a climate'.split())

    @settings(max_examples=short(300, full=20_000), deadline=None)
    @given(st.lists(pieces | st.text(max_size=4), max_size=25), st.sampled_from(["", " "]))
    def search(parts: list[str], between: str) -> None:
        said = between.join(parts)
        for ask in (
            store.library.search,
            lambda said: store.library.search(said, document_id=1),
            lambda said: store.library.keyword_counts([said]),
        ):
            if any(one.isalnum() for one in said):
                ask(said)
            else:
                with pytest.raises(BadInput, match="no letter and no digit"):
                    ask(said)

    search()


def test_however_long_and_deep_a_search_is_it_is_one(store: Store) -> None:
    publish(store, "report.pdf", "a b c")

    for query in ("(a OR (b NOT (c " * 200, "a NOT " * 2000 + "b", "NEAR(" * 2000 + "a", "a AND " * 2000 + "a"):
        store.library.search(query)


def test_keywords_are_counted_by_document_and_page(store: Store) -> None:
    publish(store, "a.pdf", "climate, Climate and climatic", "nothing", "climate risk", owner="ann")
    publish(store, "b.pdf", "climate risk climate risk", owner="bob")

    assert store.library.keyword_counts(["climate", "climate risk", "clim*", 'ris"k']) == [
        KeywordCount("climate", 1, 1, 2),
        KeywordCount("climate", 1, 3, 1),
        KeywordCount("climate", 2, 1, 2),
        KeywordCount("climate risk", 1, 3, 1),
        KeywordCount("climate risk", 2, 1, 2),
        KeywordCount("clim*", 1, 1, 3),
        KeywordCount("clim*", 1, 3, 1),
        KeywordCount("clim*", 2, 1, 2),
    ]
    assert [count.document_id for count in store.library.keyword_counts(["climate"], owner="bob")] == [2]


@pytest.mark.parametrize("term", ["", "*", '"', " - "])
def test_a_term_without_a_letter_is_refused(store: Store, term: str) -> None:
    with pytest.raises(BadInput, match="no letter and no digit"):
        store.library.keyword_counts([term])
