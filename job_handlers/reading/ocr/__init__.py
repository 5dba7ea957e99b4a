"""Recognise the pixels of a page, and choose languages and engines.

The first engine is Tesseract. The second, `neural`, rereads uncertain lines with quality "auto", all with "best".
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from job_handlers.reading.layout import UnreadScript
from job_handlers.reading.ocr import language_codes, neural, tesseract
from job_handlers.reading.ocr.recognition import PageReader as PageReader
from job_handlers.reading.ocr.second_pass import SecondReader
from job_handlers.reading.ocr.tesseract import Engine
from job_handlers.reading.ocr.tesseract import OcrSettings as OcrSettings
from job_handlers.reading.ocr.tesseract import missing as missing
from worker_service.base import language_id
from worker_service.handlers import Choices


def ocr_settings(languages: Sequence[str] | None, quality: str) -> OcrSettings:
    if languages is None:
        likely = _likely_languages()
        settings = OcrSettings(likely, quality, chooses_language=len(likely) > 1)
    else:
        settings = OcrSettings(languages, quality)
    # Without a second engine, "auto" reads like "fast": equal settings share one digest.
    if quality == "auto" and not _uses_second_engine(settings):
        return replace(settings, quality="fast")
    return settings


def reader_for(settings: OcrSettings) -> PageReader:

    def engine_for(languages: Sequence[str]) -> Engine:
        return tesseract.engine_for(_for_first_engine(replace(settings, languages=languages)))

    def second_reader_for(languages: Sequence[str]) -> SecondReader | None:
        return second_reader if second_reader is not None and _second_engine_reads(languages) else None

    second_reader = None
    if _uses_second_engine(settings):
        second_reader = SecondReader(is_thorough=settings.quality == "best")
    return PageReader(_language_choices(settings), engine_for, second_reader_for)


def identity_of(settings: OcrSettings) -> str:
    """Return the engines and the checksums of their data; `none` if an engine or data is missing."""
    identities = [
        tesseract.identity(_for_first_engine(replace(settings, languages=languages)))
        for languages in _language_choices(settings)
    ]
    if "none" in identities:
        return "none"
    return " or ".join(identities) + (f" + {neural.NAME}" if _uses_second_engine(settings) else "")


def offers() -> str | None:
    first = tesseract.offers()
    problem = neural.missing()
    second = f"a second opinion by {neural.NAME}" if problem is None else f"no second opinion: {problem}"
    return first and f"{first}; {second}"


def identity() -> Sequence[str]:
    # A cluster node with a second engine may read other words than one without.
    if missing():
        return []
    return [*tesseract.engine_and_data_sizes(), f"second opinion: {'none' if neural.missing() else neural.NAME}"]


def unread_script(script: str | None, languages: Sequence[str]) -> UnreadScript | None:
    """Return None if one of the languages is written in the script."""
    codes = language_codes.codes_for_script(script or "")
    if script is None or not codes or not set(codes).isdisjoint(languages):
        return None
    installed = [code for code in codes if code in tesseract.languages_of("fast")]
    if installed:
        return UnreadScript(script, installed[0], "")
    return UnreadScript(script, codes[0], language_codes.install_command(codes[:1]))


def choices() -> Mapping[str, Choices]:
    has_best = neural.missing() is None or bool(tesseract.languages_of("best"))
    qualities = ["fast", "auto", "best"] if has_best else ["fast", "auto"]
    return {**tesseract.choices(), "quality": Choices(qualities, {"best": neural.HOW_TO_GET})}


def _likely_languages() -> Sequence[str]:
    installed = [code for code in tesseract.languages_of("fast") if code in language_id.KNOWN_LANGUAGES]
    return sorted(installed, key=lambda code: (code != "eng", code)) or ["eng"]


def _language_choices(settings: OcrSettings) -> list[Sequence[str]]:
    return [[code] for code in settings.languages] if settings.chooses_language else [settings.languages]


def _second_engine_reads(languages: Sequence[str]) -> bool:
    return neural.missing() is None and neural.LANGUAGES.issuperset(languages)


def _uses_second_engine(settings: OcrSettings) -> bool:
    return settings.quality != "fast" and any(map(_second_engine_reads, _language_choices(settings)))


def _for_first_engine(settings: OcrSettings) -> OcrSettings:
    is_best = settings.quality == "best"
    if is_best and _second_engine_reads(settings.languages):
        # The second engine makes the fast data good enough, if the best data is not installed.
        is_best = set(settings.languages) <= set(tesseract.languages_of("best"))
    return replace(settings, quality="best" if is_best else "fast")
