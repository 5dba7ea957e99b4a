"""Recognise the pixels of a page, and choose languages and engines."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from job_handlers.reading.layout import UnreadScript
from job_handlers.reading.ocr import language_codes, neural, tesseract
from job_handlers.reading.ocr.recognition import Reader as Reader
from job_handlers.reading.ocr.second_pass import SecondReader
from job_handlers.reading.ocr.tesseract import Engine
from job_handlers.reading.ocr.tesseract import WayToRead as WayToRead
from job_handlers.reading.ocr.tesseract import missing as missing
from worker_service.base import language_id
from worker_service.handlers import Choices


def way_to_read(languages: Sequence[str] | None, quality: str) -> WayToRead:
    """`auto` becomes `fast` without a second engine, so that equal readings share one digest."""
    some = _likely_languages() if languages is None else languages
    wanted = WayToRead(some, quality, is_one_of_them=languages is None and len(some) > 1)
    is_alone = quality == "auto" and not _is_second_asked(wanted)
    return replace(wanted, quality="fast") if is_alone else wanted


def reader_for(wanted: WayToRead) -> Reader:
    def engine(some: Sequence[str]) -> Engine:
        return tesseract.engine_for(_for_first_engine(replace(wanted, languages=some)))

    def second(some: Sequence[str]) -> SecondReader | None:
        return asked if asked is not None and _has_second(some) else None

    asked = SecondReader(is_thorough=wanted.quality == "best") if _is_second_asked(wanted) else None
    return Reader(_alternatives(wanted), engine, second)


def identity_of(wanted: WayToRead) -> str:
    """`none` without an engine."""
    each = [tesseract.identity(_for_first_engine(replace(wanted, languages=some))) for some in _alternatives(wanted)]
    if "none" in each:
        return "none"
    return " or ".join(each) + (f" + {neural.name()}" if _is_second_asked(wanted) else "")


def offers() -> str | None:
    of_first = tesseract.offers()
    lacks = neural.missing()
    of_second = f"a second opinion by {neural.name()}" if lacks is None else f"no second opinion: {lacks}"
    return of_first and f"{of_first}; {of_second}"


def identity() -> Sequence[str]:
    if missing():
        return []
    # A machine with a second engine reads other words than one without.
    return [*tesseract.identities(), f"second opinion: {'none' if neural.missing() else neural.name()}"]


def unread(script: str | None, read_in: Sequence[str]) -> UnreadScript | None:
    """Return the language that a page in this script needs."""
    codes = language_codes.codes_for_script(script or "")
    if script is None or not codes or not set(codes).isdisjoint(read_in):
        return None
    there = [one for one in codes if one in tesseract.languages_of("fast")]
    return UnreadScript(script, (there or codes)[0], "" if there else language_codes.install_command(codes[:1]))


def choices() -> Mapping[str, Choices]:
    of_first = tesseract.choices()
    best = ["best"] if neural.missing() is None or tesseract.languages_of("best") else []
    return {**of_first, "quality": Choices(["fast", "auto", *best], {"best": neural.HOW_TO_GET})}


def _likely_languages() -> Sequence[str]:
    there = [one for one in tesseract.languages_of("fast") if one in language_id.KNOWN]
    return sorted(there, key=lambda one: (one != "eng", one)) or ["eng"]


def _alternatives(wanted: WayToRead) -> list[Sequence[str]]:
    return [[one] for one in wanted.languages] if wanted.is_one_of_them else [wanted.languages]


def _has_second(languages: Sequence[str]) -> bool:
    return neural.missing() is None and neural.LANGUAGES.issuperset(languages)


def _is_second_asked(wanted: WayToRead) -> bool:
    return wanted.quality != "fast" and any(map(_has_second, _alternatives(wanted)))


def _for_first_engine(wanted: WayToRead) -> WayToRead:
    is_best = wanted.quality == "best" and not (
        _has_second(wanted.languages) and not set(wanted.languages) <= set(tesseract.languages_of("best"))
    )
    return replace(wanted, quality="best" if is_best else "fast")
