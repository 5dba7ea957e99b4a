from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx

_EMPTY = {"input", "meta", "link", "br", "img", "hr", "option"}


@dataclass
class Form:
    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[tuple[str, str]] = field(default_factory=list)
    """Name and value of each checkbox."""
    buttons: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value and label."""


class Page(HTMLParser):
    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.answer = answer
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.links: dict[str, str] = {}
        self.forms: list[Form] = []
        self._texts: list[str] = []
        self._open: list[tuple[str, dict[str, str], int]] = []
        self.feed(answer.text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag == "form":
            self.forms.append(Form(attributes.get("method", "get"), attributes["action"]))
        if tag == "input" and self.forms and "name" in attributes:
            kind = self.forms[-1].boxes if attributes.get("type") == "checkbox" else self.forms[-1].fields
            kind.append((attributes["name"], attributes.get("value", "")))
        if tag not in _EMPTY:
            self._open.append((tag, attributes, len(self._texts)))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        while self._open:
            opened, attributes, since = self._open.pop()
            text = " ".join(" ".join(self._texts[since:]).split())
            if opened == "a" and "href" in attributes:
                self.links[text] = attributes["href"]
            if opened == "button" and self.forms:
                self.forms[-1].buttons.append((attributes.get("name", ""), attributes.get("value", ""), text))
            if opened == tag:
                return

    def form(self, label: str) -> Form:
        for form in self.forms:
            if any(button[2] == label for button in form.buttons):
                return form
        raise AssertionError(f"no button {label!r} among {[form.buttons for form in self.forms]}")

    def press(self, site: httpx.Client, label: str, *, ticked: tuple[str, ...] = (), **chosen: str) -> Page:
        form = self.form(label)
        button = next(button for button in form.buttons if button[2] == label)
        pairs = [(name, value) for name, value in form.fields if name not in chosen]
        pairs += [box for box in form.boxes if box[1] in ticked]
        pairs += [*chosen.items(), *([button[:2]] if button[0] else [])]
        headers = {"Accept": "text/html", "Origin": str(site.base_url).rstrip("/")}
        many: dict[str, list[str]] = {}
        for name, value in pairs:
            many.setdefault(name, []).append(value)
        if form.method == "get":
            answer = site.get(form.action, params=many, headers=headers, follow_redirects=True)
        else:
            answer = site.post(form.action, data=many, headers=headers, follow_redirects=True)
        return Page(answer)


def open_page(site: httpx.Client, path: str, *, status: int = 200) -> Page:
    answer = site.get(path, headers={"Accept": "text/html"}, follow_redirects=True)
    assert answer.status_code == status, answer.text
    return Page(answer)
