from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_service.base.clock import as_text, from_text, parse_duration, parse_length, parse_time
from worker_service.base.errors import BadTime

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)
_moments = st.datetimes(datetime(1970, 1, 1), datetime(9990, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("30d", 2_592_000),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("1d 2h", 93_600),
        ("0s", 0),
    ],
)
def test_a_length_of_time_is_parsed(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "10", "m", "10 minutes", "-5m", "1.5h", "10m!", "ten", "1y", "10M", "m10", "+5m"]
)
def test_an_invalid_length_of_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadTime, match="write it like 90s"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "seconds"), [("20", 20), ("0.5", 0.5), ("0", 0), ("1h30m", 5400)])
def test_a_length_may_be_a_number_of_seconds(text: str, seconds: float) -> None:
    assert parse_length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-18 10:00", NOW),
        ("2026-11-18T10:00:00", NOW),
        ("2026-11-18 10:00:00Z", NOW),
        ("2026-11-18 12:00+02:00", NOW),
        ("2026-11-18", NOW.replace(hour=0)),
        ("+10m", NOW + timedelta(minutes=10)),
        ("+1h30m", NOW + timedelta(minutes=90)),
    ],
)
def test_a_time_is_parsed(text: str, moment: datetime) -> None:
    assert parse_time(text, now=NOW) == moment
    assert parse_time(text, now=NOW).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    ["", "tomorrow", "2026-02-30", "2026-13-01", "25:00", "2026-11-18 10:61", "+", "+x", "-10m", "1763460000000"],
)
def test_an_invalid_time_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadTime, match="write it like"):
        parse_time(text, now=NOW)


@pytest.mark.parametrize("text", ["+99999999d", "+9999999999w", "0001-01-01 00:00+14:00", "9999-12-31 23:59-12:00"])
def test_a_time_that_datetime_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(BadTime):
        parse_time(text, now=NOW)


@pytest.mark.parametrize(
    "text",
    ["", "-5", "+5", "1e3", "inf", "nan", "\u0665", "5 5", "9" * 400, "99999999999999d", "9" * 400 + "s"],
)
def test_an_invalid_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(BadTime):
        parse_length(text)


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_is_refused(text: str) -> None:
    try:
        is_told = parse_time(text, now=NOW).tzinfo is UTC
    except BadTime as refusal:
        is_told = "write it like" in str(refusal)

    assert is_told


def test_a_time_is_stored_as_utc_text_with_milliseconds() -> None:
    assert as_text(NOW) == "2026-11-18 10:00:00.000"
    assert as_text(NOW.replace(microsecond=123_999)) == "2026-11-18 10:00:00.123"
    assert as_text(datetime(900, 1, 1, tzinfo=UTC)) == "0900-01-01 00:00:00.000"
    assert as_text(datetime(2026, 11, 18, 12, 0, tzinfo=timezone(timedelta(hours=2)))) == "2026-11-18 10:00:00.000"


@given(_moments)
def test_stored_text_gives_back_the_same_millisecond(moment: datetime) -> None:
    kept = from_text(as_text(moment))

    assert timedelta(0) <= moment - kept < timedelta(milliseconds=1)
    assert as_text(kept) == as_text(moment)


@given(one=_moments, other=_moments)
def test_stored_times_sort_as_text(one: datetime, other: datetime) -> None:
    assert (as_text(one) < as_text(other)) <= (one < other)
    assert (one < other) <= (as_text(one) <= as_text(other))


@pytest.mark.parametrize("text", ["now", "", "0000-01-01 00:00:00.000", "2026-02-30", "-4713-11-24 12:00:00.000"])
def test_an_invalid_stored_time_counts_as_1970(text: str) -> None:
    assert from_text(text).year == 1970
