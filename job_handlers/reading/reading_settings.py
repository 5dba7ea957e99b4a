"""Settings for reading a document. Requests are made without engines, so this module imports little."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

Quality = Literal["fast", "auto", "best"]
QUALITIES: Sequence[str] = get_args(Quality)

LANGUAGE_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_]{1,30}(?:/[A-Za-z0-9_]{1,30})?")
PASSWORD_CREDENTIAL = re.compile(r"password[\w.-]*", re.ASCII)


class HowToRead(Struct, frozen=True, kw_only=True):
    """Reading settings. In a payload, None means the document's own setting; in a document, the default."""

    languages: tuple[str, ...] | None = None
    """Tesseract codes, such as eng and deu. By default each page's language is chosen from those installed."""
    quality: Quality | None = None
    """fast: one engine; auto: a second engine rereads uncertain lines; best: it rereads every line."""
    force_ocr: bool | None = None
    """Also recognise pages that have a good text layer."""
    password_file: str | None = None
    """Credential with the password of an encrypted file.

    Its name must begin with `password`, which keeps all other secrets out of reach.
    """

    def given_settings(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in HowToRead.__struct_fields__}
        settings: dict[str, Any] = msgspec.to_builtins(
            {name: value for name, value in values.items() if value is not None}
        )
        return settings
