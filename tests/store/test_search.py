"""Search by words: queries, ranking, snippets, copies, filters, suggestions and keyword counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.full_length import short
from tests.store.kit import ByHand, MovableClock, publish, save, start_reading, work_as
from worker_service.base.errors import BadInput
from worker_service.jobs.attempts import Completion
from worker_service.jobs.documents import DocumentFacts
from worker_service.jobs.search import FoundCopy, KeywordCount, SearchRequest, SearchResult
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("document_worker")


def find(store: Store, query: str, **where: object) -> SearchResult:
    return store.search.find(SearchRequest(query, **where))  # type: ignore[arg-type]


def find_pages(store: Store, query: str, **where: object) -> list[tuple[int, int]]:
    """Return (document, page), best document first and within it the best page."""
    found = find(store, query, **({"pages_each": 1000, "documents": 1000} | where))
    return [(document.document_id, page.number) for document in found.items for page in document.best_pages]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("climate", [1, 2]),
        ("CLIMATE risk", [1, 2]),
        ("climate NEAR risk", [1]),
        ("climate NEAR/25 risk", [1, 2]),
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


def test_a_hit_shows_its_words_in_their_place(store: Store) -> None:
    publish(store, "report.pdf", "x " * 200 + "the risk of climate change" + " y" * 200, owner="ann")

    [document] = find(store, "climate", marks=("<b>", "</b>")).items
    [page] = document.best_pages

    assert "the risk of <b>climate</b> change" in page.snippet
    assert len(page.snippet) < 200
    assert (document.name, document.owner, page.number) == ("report.pdf of ann", "ann", 1)


def test_a_search_stays_within_an_owner_or_a_document(store: Store) -> None:
    publish(store, "a.pdf", "climate", "climate change", owner="ann")
    publish(store, "b.pdf", "climate of bob", owner="bob")

    assert find_pages(store, "climate", owner="bob") == [(2, 1)]
    assert sorted(find_pages(store, "climate", document_id=1)) == [(1, 1), (1, 2)]
    assert find_pages(store, "climate", document_id=1, owner="bob") == []


def test_p11_only_the_current_generation_is_found(store: Store) -> None:
    publish(store, "report.pdf", "old words", "gone words")
    job = start_reading(store, content="c2")
    save(store, job.lease, "new words")

    assert [find_pages(store, word) for word in ("old", "new", "words")] == [[(1, 1)], [], [(1, 1), (1, 2)]]

    store.leases.complete_many([Completion(job.lease, publishes=True)])

    assert [find_pages(store, word) for word in ("old", "new", "words")] == [[], [(1, 1)], [(1, 1)]]
    assert [page.text for page in store.library.page_texts(1)] == ["new words"]


def test_one_page_of_two_documents_is_found_in_both(store: Store) -> None:
    publish(store, "a.pdf", "climate", content="c1")
    publish(store, "b.pdf", "climate", content="c2")

    assert sorted(find_pages(store, "climate")) == [(1, 1), (2, 1)]


def test_a_document_shows_its_best_pages_and_the_numbers_of_all(store: Store) -> None:
    publish(store, "a.pdf", "climate and so on and on", "water", "climate climate", "the climate")

    [document] = find(store, "climate", pages_each=2).items

    assert [page.number for page in document.best_pages] == [3, 4]
    assert list(document.page_numbers) == [1, 3, 4]
    assert list(store.search.page_numbers(1, "climate")) == [1, 3, 4]


def test_pages_of_the_result_list_do_not_overlap(store: Store) -> None:
    for number in range(5):
        publish(store, f"{number}.pdf", f"climate {number}", content=f"c{number}")
    publish(store, "some.pdf", "climate", content="some")

    first = find(store, "climate 4 OR climate", documents=4)
    second = find(store, "climate 4 OR climate", documents=4, skip=first.next)

    assert (first.next, second.next, first.documents_with_all, first.pages_with_all) == (4, None, 6, 6)
    assert sorted(document.document_id for found in (first, second) for document in found.items) == [1, 2, 3, 4, 5, 6]


def test_copies_are_listed_below_one_document_within_the_owner_filter(store: Store) -> None:
    publish(store, "a.pdf", "climate", "risk", owner="ann")
    publish(store, "b.pdf", "climate", "risk", owner="bob")
    publish(store, "c.pdf", "climate of another file", owner="ann", content="c2")

    everybody = find(store, "risk")
    [hers] = find(store, "risk", owner="ann").items
    [his] = find(store, "risk", owner="bob").items

    assert [(document.document_id, list(document.copies)) for document in everybody.items] == [
        (1, [FoundCopy(2, "b.pdf of bob", "bob")])
    ]
    assert (everybody.documents_with_all, everybody.pages_with_all) == (1, 1)
    assert (hers.document_id, list(hers.copies), his.document_id, list(his.copies)) == (1, [], 2, [])
    assert len(find(store, "climate").items) == 2


def test_documents_are_filtered_by_kind_and_by_the_day_they_were_added(store: Store, clock: MovableClock) -> None:
    for name, kind in (("a.pdf", "pdf"), ("b.png", "image")):
        job = start_reading(store, name, content=name)
        save(store, job.lease, f"climate of {name}")
        store.leases.complete_many([Completion(job.lease, document=DocumentFacts(kind=kind), publishes=True)])
        clock.advance(seconds=86400)
        work_as(store)

    assert find_pages(store, "climate", kind="image") == [(2, 1)]
    assert find_pages(store, "climate", since="2026-11-19") == [(2, 1)]
    assert find_pages(store, "climate", until="2026-11-19") == [(1, 1)]
    assert find_pages(store, "climate", document_id=1, kind="image") == []


def test_only_the_newest_of_too_many_hits_are_ranked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, "report.pdf", *(f"climate {number}" for number in range(9)))
    assert not find(store, "climate").is_partial

    monkeypatch.setattr("worker_service.store.search.PAGES_WITH_ALL_WORDS_RANKED_MAX", 4)

    some = find(store, "climate")
    assert (some.is_partial, list(some.items[0].page_numbers)) == (True, [6, 7, 8, 9])


@pytest.mark.parametrize(
    "query",
    [
        "it's", "it’s", "scope-3", "GHG/CO2", '"unbalanced', "C++", "50%", "a:b", "^a:b", "-unbalanced", "scope(3)",
        "emissions (scope", "scope -- emissions", "AND", "climate AND", "NOT climate", "to be OR NOT to be",
        "near NEAR", "“scope 3”", "{climate}", "clim**", '"clim"*', "R AND D", "a\0b", "NEAR(GHG CO2)", "((climate))",
        "GHG OR (water NOT climate)", "climate AND NOT water", "water OR GHG NEAR/2 CO2",
    ],
)  # fmt: skip
def test_punctuation_in_a_query_still_finds_the_page(store: Store, query: str) -> None:
    text = "it's unbalanced: scope-3 emissions, GHG/CO2, 50% in C++ near a:b b a, R&D and not the climate, scope(3)"
    publish(store, "report.pdf", f"{text} to be or not to be", "oil")

    assert find_pages(store, query) == [(1, 1)]
    assert find_pages(store, query, document_id=1) == [(1, 1)]


def test_a_question_finds_pages_with_some_of_its_words_behind_those_with_all(store: Store) -> None:
    publish(store, "wings.pdf", "a wing")
    publish(store, "flows.pdf", "the flow over a wing in a wind tunnel", "nothing else")

    question = "what is known of the flow over a wing"
    assert [document.has_all_words for document in find(store, question).items] == [False, False]
    result = find(store, "wing flow")
    assert [(document.document_id, document.has_all_words) for document in result.items] == [(2, True), (1, False)]
    assert (result.documents_with_all, result.documents_with_some, result.pages_with_some) == (1, 1, 1)
    [page] = result.items[1].best_pages
    assert ("[wing]" in page.snippet, list(page.missing_words)) == (True, ["flow"])
    assert store.search.match_ranges(1, 1, "wing flow") == [(2, 6)]


@pytest.mark.parametrize(
    "query", ["wing AND oil", "wing OR (oil AND gas)", "wing NOT oil", "wing NEAR oil", '"wing oil"']
)
def test_a_query_with_operators_finds_only_what_matches_all_of_it(store: Store, query: str) -> None:
    publish(store, "wings.pdf", "a wing", "oil")

    assert all(document.has_all_words for document in find(store, query).items)
    assert sorted(find_pages(store, "wing oil")) == [(1, 1), (1, 2)]
    assert find_pages(store, "wing oil", needs_all=True) == []


def test_within_a_document_pages_with_some_words_are_found_only_if_none_has_all(store: Store) -> None:
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
    assert find(store, query).items[0].has_all_words
    assert store.search.match_ranges(1, 1, query)


def test_a_search_with_too_many_pages_with_some_words_is_partial(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_service.store.search.PAGES_WITH_SOME_WORDS_RANKED_MAX", 2)
    publish(store, "wings.pdf", "a wing", "a wing", "oil")

    assert find(store, "wing oil").is_partial


def test_a_quoted_word_or_a_prefix_matches_without_stemming(store: Store) -> None:
    publish(store, "floods.pdf", "the risk of a flood in the valley is high and it was not known to them")

    assert find_pages(store, '"flooding of" risks OR "floods of"') == []
    assert find_pages(store, "flooding*") == []


def test_common_small_words_choose_no_page_and_are_not_marked(store: Store) -> None:
    text = "the risk of a flood in the valley is high and it was not known to them"
    publish(store, "floods.pdf", text, "the end of it")

    [document] = find(store, "which is the flood of the valley").items
    [page] = document.best_pages
    assert (page.number, document.has_all_words, page.snippet.count("[")) == (1, True, 2)
    assert find_pages(store, "is of the")[0] == (1, 1)


def test_a_word_on_many_pages_does_not_choose_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_service.store.search.RARE_WORD_PAGES_MAX", 3)
    publish(store, "wings.pdf", "the wing", "the oil", "the water")

    assert find_pages(store, "the wing today") == [(1, 1)]
    assert len(find_pages(store, "the today")) == 3


@pytest.mark.parametrize(
    "query", ["3-scope", "co2 ghg NEAR risk", "climate NOT scope-3", '"emissions scope"', "scope4", "c* NOT 50%"]
)
def test_a_word_with_punctuation_is_searched_as_a_phrase(store: Store, query: str) -> None:
    publish(store, "report.pdf", "scope-3 emissions, GHG/CO2, 50% of the climate")

    assert find_pages(store, query) == []


def test_no_query_is_a_syntax_error(store: Store) -> None:
    publish(store, "report.pdf", "climate and risk, a NEAR b")
    pieces = st.sampled_from('AND OR NOT NEAR NEAR/3 NEAR( ( ) " * ^ + - : , text a climate'.split())

    @settings(max_examples=short(150, full=20_000), deadline=None)
    @given(st.lists(pieces | st.text(max_size=4), max_size=25), st.sampled_from(["", " "]))
    def search(parts: list[str], between: str) -> None:
        text = between.join(parts)
        for search_in in (
            lambda text: find(store, text),
            lambda text: find(store, text, document_id=1),
            lambda text: store.search.keyword_counts([text]),
        ):
            if any(character.isalnum() for character in text):
                search_in(text)
            else:
                with pytest.raises(BadInput, match="no letter and no digit"):
                    search_in(text)

    search()


def test_very_long_and_deeply_nested_queries_are_valid(store: Store) -> None:
    publish(store, "report.pdf", "a b c")

    for query in ("(a OR (b NOT (c " * 200, "a NOT " * 2000 + "b", "NEAR(" * 2000 + "a", "a AND " * 2000 + "a"):
        find(store, query)


@pytest.mark.parametrize("query", ["straße", "STRASSE", '"lange strasse"', "strasse NEAR lange", "strass*", "straß*"])
@pytest.mark.parametrize("word", ["Straße", "Strasse"])
def test_sharp_s_and_ss_are_the_same_letter(store: Store, word: str, query: str) -> None:
    publish(store, "a.pdf", f"die lange {word}", "die Sträucher")

    assert find_pages(store, query)[0] == (1, 1)
    assert store.search.match_ranges(1, 1, query)[-1][1] == len(f"die lange {word}")


@pytest.mark.parametrize("word", ["Wirt-\nschaft", "Wirt\u00adschaft", "Wirt\u00ad\nschaft", "Wirt-  \r\n  schaft"])
def test_a_divided_word_is_found_whole_and_marked_where_it_is(store: Store, word: str) -> None:
    text = f"die high-\nspeed {'und so ' * 60} {word} der Stadt"
    publish(store, "a.pdf", text)

    [document] = find(store, "wirtschaft").items

    assert [text[begin:end] for begin, end in store.search.match_ranges(1, 1, "wirtschaft")] == [word]
    assert f"[{word}] der Stadt" in document.best_pages[0].snippet
    assert store.search.keyword_counts(["wirtschaft"]) == [KeywordCount("wirtschaft", 1, 1, 1)]
    assert find_pages(store, "high-speed") == find_pages(store, "highspeed") == [(1, 1)]
    assert store.library.page_texts(1)[0].text == text


def test_documents_are_found_by_their_names_and_tags(store: Store) -> None:
    publish(store, "Nordwind report.pdf", "nothing", "a nordwind report of the climate", owner="ann")
    publish(store, "Halden.pdf", "nothing else", owner="ann", content="c2")
    publish(store, "Nordwind report.pdf", "the same name", owner="bob", content="c3")
    store.tags.add([2], ["annual report"])

    publish(store, "Nordwind report 2.pdf", "a nordwind report, a nordwind report", owner="ann", content="c4")

    first = find(store, "nordwind report", owner="ann", documents=1)
    assert [document.document_id for document in first.items] == [4]
    named = find(store, "nordwind report", owner="ann", skip=first.next).items

    assert [(document.document_id, document.is_named, list(document.page_numbers)) for document in named] == [
        (1, True, [2])
    ]
    assert [
        document.document_id for document in find(store, "halden annual report", owner="ann").items if document.is_named
    ] == [2]
    assert [document.document_id for document in find(store, "annual report", tags=("annual report",)).items] == [2]
    assert find(store, "annual report", owner="nobody").items == []
    assert find(store, "annual report", owner="bob").documents_with_all == 0


def test_a_document_is_found_by_its_new_name_and_after_its_removal_by_none(store: Store, by_hand: ByHand) -> None:
    publish(store, "old.pdf", "text")
    by_hand("UPDATE document SET name = 'new.pdf'")

    assert (find_pages(store, "old"), [document.document_id for document in find(store, "new").items]) == ([], [1])
    store.removal.remove_documents([1], actor="ann")
    assert find(store, "new").items == []
    by_hand("INSERT INTO document_name (document_name, rank) VALUES ('integrity-check', 1)")


def test_a_similar_word_is_suggested_that_the_asker_can_find(store: Store) -> None:
    publish(store, "a.pdf", "the government and its climate", owner="ann")
    publish(store, "b.pdf", "the gouvernment of bob, a secret merger", owner="bob", content="c2")

    assert find(store, "Goverment climate", owner="ann").suggestion == "government climate"
    assert find(store, "clmiate").suggestion == "climate"
    assert find(store, "goverment", owner="bob").suggestion is None
    assert find(store, "secert", owner="ann").suggestion is None
    assert find(store, "secert", owner="bob").suggestion == "secret"
    assert find(store, "climate", owner="ann").suggestion is None


def test_keywords_are_counted_by_document_and_page(store: Store) -> None:
    publish(store, "a.pdf", "climate, Climate and climatic", "nothing", "climate risk", owner="ann")
    publish(store, "b.pdf", "climate risk climate risk", owner="bob")

    assert store.search.keyword_counts(["climate", "climate risk", "clim*", 'ris"k']) == [
        KeywordCount("climate", 1, 1, 2),
        KeywordCount("climate", 1, 3, 1),
        KeywordCount("climate", 2, 1, 2),
        KeywordCount("climate risk", 1, 3, 1),
        KeywordCount("climate risk", 2, 1, 2),
        KeywordCount("clim*", 1, 1, 3),
        KeywordCount("clim*", 1, 3, 1),
        KeywordCount("clim*", 2, 1, 2),
    ]
    assert [count.document_id for count in store.search.keyword_counts(["climate"], owner="bob")] == [2]


@pytest.mark.parametrize("term", ["", "*", '"', " - "])
def test_a_term_without_a_letter_is_refused(store: Store, term: str) -> None:
    with pytest.raises(BadInput, match="no letter and no digit"):
        store.search.keyword_counts([term])
