"""Turn a user's request to read a document into a job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.fetch.sources import sources
from job_handlers.fetch.sources.local import revision_of
from job_handlers.reading.reading_settings import LANGUAGE_CODE, PASSWORD_CREDENTIAL, QUALITIES, HowToRead, Quality
from worker_service.base.suggestions import did_you_mean
from worker_service.handlers import (
    BadInput,
    DeferredAction,
    DocumentRequest,
    NewJob,
    OnEnd,
    canonical,
    digest,
    display_path,
    path_to_text,
)
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.library import Document
from worker_service.jobs.tags import read_tags

# Attribute of `ReadOptions` or of a subclass → name of the option as users write it.
_OPTION_NAMES = {
    "as_usual": "as-usual", "languages": "lang", "force_ocr": "force-ocr", "password_file": "password-file",
    "on_failure": "on-failure", "tags": "tag", "size_max": "max-size", "newer_than": "since",
}  # fmt: skip

Options = TypeVar("Options", bound="ReadOptions")


class ReadOptions(Struct, frozen=True, kw_only=True, rename=_OPTION_NAMES.get):
    """An option that is not given keeps the document's own setting."""

    as_usual: bool = False
    languages: tuple[str, ...] = ()
    quality: Quality | None = None
    force_ocr: bool = False
    password_file: str | None = None
    then: tuple[str, ...] = ()
    on_failure: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def reading_settings(self) -> dict[str, object]:
        """Return the payload of `ingest`. None resets a setting to the default."""
        settings: dict[str, object] = dict.fromkeys(HowToRead.__struct_fields__) if self.as_usual else {}
        if self.languages:
            settings["languages"] = [language for word in self.languages for language in _parse_languages(word)]
        if self.quality is not None:
            settings["quality"] = self.quality
        if self.force_ocr:
            settings["force_ocr"] = True
        if self.password_file is not None:
            if not PASSWORD_CREDENTIAL.fullmatch(self.password_file):
                raise BadInput(
                    f"{self.password_file!r} is not the name of a credential that begins with password",
                    "give an existing file with `add` or `reindex`; otherwise add LoadCredential=password-reports:"
                    "/path/of/the/file to the service, and give --password-file password-reports",
                )
            settings["password_file"] = self.password_file
        return settings

    def document_request(
        self, source_key: str, name: str, *, is_forced: bool, is_standing: bool = False
    ) -> DocumentRequest:
        return DocumentRequest(
            source_key,
            name,
            settings=canonical(self.reading_settings()),
            is_forced=is_forced,
            actions=self.actions(is_standing=is_standing),
            tags=read_tags(self.tags),
        )

    def actions(self, *, is_standing: bool = False) -> list[DeferredAction]:
        """Return what follows the reading. A standing action is repeated for each new generation."""
        on_success = [read_action(word, OnEnd.SUCCESS, standing=is_standing) for word in self.then]
        return [*on_success, *self.actions_on_failure(is_standing=is_standing)]

    def actions_on_failure(self, *, is_standing: bool = False) -> list[DeferredAction]:
        return [read_action(word, OnEnd.FAILURE, standing=is_standing) for word in self.on_failure]

    def actions_and_tags(self, *, is_standing: bool = False) -> dict[str, object]:
        """Return them as in the payload of `download`."""
        tags = read_tags(self.tags)
        actions = [
            {
                "job_type": action.job_type,
                **({"payload": json.loads(action.payload)} if action.payload else {}),
                **({"on_end": action.on_end} if action.on_end is OnEnd.FAILURE else {}),
                **({"standing": True} if is_standing else {}),
            }
            for action in self.actions()
        ]
        return {**({"then": actions} if actions else {}), **({"tags": tags} if tags else {})}


def parse_options(options_type: type[Options], values_by_option: Mapping[str, object]) -> Options:
    # A value may be a list. An empty text is no value.
    field_of_option = {field.encode_name: field for field in msgspec.structs.fields(options_type)}
    converted: dict[str, Any] = {}
    for key, value_or_list in values_by_option.items():
        # "newer-than" is the earlier word for "since".
        name = "since" if key in ("newer-than", "newer_than") else key.replace("_", "-")
        if name not in field_of_option:
            raise BadInput(
                f"there is no option {key!r}",
                did_you_mean(name, field_of_option, f"there are {', '.join(field_of_option)}"),
            )
        given_values = value_or_list if isinstance(value_or_list, list | tuple) else [value_or_list]
        values = [value for value in given_values if value != ""]
        if not values:
            continue
        value_type = field_of_option[name].type
        value: object = values if value_type == tuple[str, ...] else values[-1]
        if value_type is bool:
            # Any other value, such as "on", means yes.
            value = value is not False
        try:
            converted[field_of_option[name].name] = msgspec.convert(value, value_type, strict=False)
        except msgspec.ValidationError as error:
            hint = f"choose {', '.join(QUALITIES)}" if name == "quality" else "`pagemill add --help` lists the options"
            raise BadInput(f"{name} cannot be {value!r}", hint) from error
    return options_type(**converted)


# ── Jobs ──


def download_job(
    file: Path, options: ReadOptions, *, owner: str, is_forced: bool = False, is_standing: bool = False
) -> NewJob:
    source = path_to_text(file)
    body = {
        "source": source,
        "read": options.reading_settings(),
        "force": is_forced,
        **options.actions_and_tags(is_standing=is_standing),
    }
    # Equal requests for equal bytes share a key. The file's size and times stand for its bytes.
    revision = revision_of(file.stat())
    key = f"ingest:{digest([owner, body, revision])}"
    request = options.document_request(source, "", is_forced=is_forced, is_standing=is_standing)
    return NewJob(
        "download",
        platform="local",
        owner=owner,
        payload=canonical(body),
        name=display_path(file.name),
        source_key=source,
        unique_key=key,
        adds_document=replace(request, revision=revision),
        on_failure=options.actions_on_failure(),
    )


def reindex_job(document: Document, options: ReadOptions, *, has_original: bool, is_forced: bool) -> NewJob:
    """Return a job that reads the document again, or that downloads it first if the original is missing."""
    platform, owner = document.platform, document.owner
    if has_original:
        request = options.document_request(document.source_key, document.name, is_forced=is_forced)
        return NewJob("ingest", platform=platform, owner=owner, document=replace(request, content=document.content))
    # Force reading: the document was adopted, or its files were lost.
    read = {"read": options.reading_settings(), "force": True, **options.actions_and_tags()}
    body = {"source": document.source_key, "name": document.name, **read}
    # Jobs of one source pause together.
    source_of_job = next((source.source_of_jobs("") for source in sources() if platform == source.PLATFORM), "")
    return NewJob(
        "download",
        platform=platform,
        owner=owner,
        payload=canonical(body),
        source=source_of_job,
        name=document.name,
        source_key=document.source_key,
        on_failure=options.actions_on_failure(),
    )


def adopt_job(request: DocumentRequest, text: str, *, owner: str) -> NewJob:
    return NewJob("adopt", platform="local", owner=owner, payload=canonical({"text": text}), document=request)


def _parse_languages(word: str) -> list[str]:
    languages = re.split(r"[+,]", word)
    if not all(LANGUAGE_CODE.fullmatch(code) for code in languages):
        raise BadInput(f"{word!r} is not a language", "write eng, or eng+deu")
    return languages
