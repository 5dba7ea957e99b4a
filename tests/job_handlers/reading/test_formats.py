"""Texts, web pages, mails, books, office documents, and archives of them."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import socket
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path

import pytest

from job_handlers.file_kinds import FileKind, kind_of
from job_handlers.reading import attachments
from job_handlers.reading.formats import (
    NEW_PAGE,
    PictureReference,
    TableRow,
    UnreadableDocument,
    open_document,
    paginate,
    tables_in,
)
from job_handlers.reading.spreadsheets import SheetFile
from tests.job_handlers.reading.documents import digital, picture, workbook
from tests.job_handlers.reading.kit import Library
from worker_service.handlers import KnownDocument, NewJob
from worker_service.testing import How

W = 'xmlns:w="http://w" xmlns:r="http://r" xmlns:a="http://a" xmlns:mc="http://mc"'
RELATIONS = '<Relationships xmlns="http://p">{}</Relationships>'
CONTAINER = '<container xmlns="urn:c"><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'


def packed(path: Path, members: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return path


def packed_picture(text: str, kind: str = "PNG") -> bytes:
    made = io.BytesIO()
    picture(text, dpi=150).save(made, kind)
    return made.getvalue()


def word(path: Path, body: str, more: Mapping[str, str | bytes] = {}) -> Path:
    return packed(path, {"word/document.xml": f"<w:document {W}><w:body>{body}</w:body></w:document>", **more})


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def mail(path: Path, *, html: str = "", attached: Mapping[str, bytes] = {}) -> Path:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = (
        "Ann <ann@example.com>",
        "bob@example.com",
        "The report, größer",
    )
    message.set_content("Dear Bob,\n\nhere it is.\n")
    if html:
        message.set_content(html, subtype="html")
    for name, body in attached.items():
        message.add_attachment(body, maintype="application", subtype="octet-stream", filename=name)
    path.write_bytes(bytes(message))
    return path


def pages_of(path: Path) -> list[str]:
    pages = paginate(open_document(path, kind_of(path)).pieces())
    return ["\n".join(piece if isinstance(piece, str) else f"<{piece.key[:30]}>" for piece in page) for page in pages]


# --- pages ---


def test_pages_end_at_page_breaks_or_between_paragraphs() -> None:
    lines = ["x" * 1000] * 7

    assert [len(page) for page in paginate(lines)] == [3, 3, 1]
    assert paginate(["one", NEW_PAGE, "two\fthree"]) == [("one",), ("two",), ("three",)]
    assert [len(page) for page in paginate([PictureReference("a")] * 25)] == [10, 10, 5]
    assert paginate([PictureReference("a"), "under it"]) == [(PictureReference("a"), "under it")]
    assert paginate([]) == paginate(["", NEW_PAGE]) == []


def test_a_long_paragraph_is_cut_between_words() -> None:
    book = "word " * 5000

    cut = paginate([book])

    assert max(len("".join(map(str, page))) for page in cut) <= 6000
    assert " ".join(str(piece) for page in cut for piece in page).split() == book.split()


# --- formats ---


def test_a_text_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Größe\r\n\r\nzwei\n".encode("cp1252"))
    (tmp_path / "b.md").write_text("<h1>Title</h1>\n\n- item\n\x00end\n")

    assert pages_of(tmp_path / "a.txt") == ["Größe\nzwei"]
    assert pages_of(tmp_path / "b.md") == ["<h1>Title</h1>\n- item\nend"]

    (tmp_path / "d.txt").write_bytes(b"only later\n" * 7000 + "Größe\n".encode("cp1252"))
    (tmp_path / "e.txt").write_text("A PDF begins with %PDF-1.4, they say.\n")

    (tmp_path / "f.txt").write_text("これは日本語の文章です。\n", "cp932")
    japanese = open_document(tmp_path / "f.txt", FileKind.TEXT)
    assert list(japanese.pieces()) == ["これは日本語の文章です。"]
    assert japanese.notes == ["it does not say in which encoding it is written: cp932, as it seems"]
    assert pages_of(tmp_path / "d.txt")[-1].endswith("only later\nGröße")
    assert pages_of(tmp_path / "e.txt") == ["A PDF begins with %PDF-1.4, they say."]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('<meta charset="utf-16"><p>Gr\xfc\xdfe', "Grüße"),
        ('<meta charset="idna"><p>Gr\xfc\xdfe', "Grüße"),
        ('<meta charset="us-ascii"><p>Gr\xfc\xdfe\x80', "Grüße€"),
        ('<meta charset="iso-8859-1"><p>\x8410\x93', "„10“"),
        ('<?xml version="1.0" encoding="koi8-r"?><html><p>\xf4\xc5\xcb\xd3\xd4', "Текст"),
    ],
)
def test_a_web_page_is_read_in_the_encoding_that_browsers_use(tmp_path: Path, body: str, text: str) -> None:
    (tmp_path / "a.html").write_bytes(body.encode("latin-1"))

    assert pages_of(tmp_path / "a.html") == [text]


def test_only_visible_text_of_a_web_page_is_read(tmp_path: Path) -> None:
    image = base64.b64encode(packed_picture("x")).decode()
    (tmp_path / "a.html").write_bytes(
        f"""<html><head><meta charset="iso-8859-1"><title>Climate &amp; Co</title><style>p {{}}</style></head>
        <body><h1>Gr\xf6\xdfe</h1><script>alert("not shown")</script><template>nor this</template>
        <p>one   <b>bold</b>
        line<br>and another</p><pre>  kept\n    as it is</pre>
        <table><tr><th>Scope</th><th>t CO2</th></tr><tr><td> 1 </td><td>17</td></tr></table>
        <img alt="A chart" src="https://example.com/x.png"><img src="file:///etc/passwd">
        <img src="data:image/png;base64,{image}"></body></html>""".encode("latin-1")
    )

    assert pages_of(tmp_path / "a.html") == [
        "Climate & Co\nGröße\none bold line\nand another\n  kept\n    as it is\nScope\tt CO2\n1\t17\nA chart\n"
        "<data:image/png;base64,iVBORw0K>"
    ]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("<tr><td><p>Scope 1</p><td><div>17<br></div><td>&nbsp;<td>x</tr><tr><th>b", ["Scope 1\t17\t\tx", "b"]),
        ("<tr><td>menu<td><h1>Title</h1><p>one</p><p>two</p></tr>", ["menu", "Title", "one", "two"]),
        ("<tr><td>out<td><table><tr><td>1<td>2</table>after<td>last</tr>", ["out", "1\t2", "after", "last"]),
        ("<tr><td>a<svg><style>.b{}</style><text>in a chart</text></svg></tr>", ["a", "in a chart"]),
        ("<tr>" + "<td>no end" * 3, ["no end\tno end\tno end"]),
        ("<tr>" + "<td>x" * 2000, ["\t".join("x" * 1000), "\t".join("x" * 1000)]),
        (
            "<tr><th rowspan=2>of<th colspan=2>year<th>all<tr><th>1<th>2<tr><td>a<td>3<td>4<td>5",
            ["of\tyear\t\tall", "\t1\t2", "a\t3\t4\t5"],
        ),
        ("<tr><td rowspan=3>a<td>b<tr><td>c<tr><td>d<tr><td>e<td>f", ["a\tb", "\tc", "\td", "e\tf"]),
        (
            "<tr><th>Fruit<th>Price<tr><td>Bananas<td><ul><li>cheap<li>wrapped</ul>",
            ["Fruit\tPrice", "Bananas\tcheap wrapped"],
        ),
        ("<tr><td colspan=-1>a<td colspan=x>b<td rowspan=99999999>c", ["a\tb\tc"]),
        ("<tr><td rowspan=2>a<td rowspan=2>b</tr><tr></tr><tr><td>c<td>d", ["a\tb", "c\td"]),
        ("<thead><tr><th rowspan=2>A<th>B</thead><tbody><tr><td>1<td>2", ["A\tB", "1\t2"]),
        ("<tr><td rowspan=0>a<td>b<tr><td>c<tr><td>d<tbody><tr><td>e<td>f", ["a\tb", "\tc", "\td", "e\tf"]),
    ],
)
def test_a_layout_table_of_a_web_page_is_not_read_as_rows(tmp_path: Path, body: str, lines: list[str]) -> None:
    (tmp_path / "a.html").write_text(f"<table>{body}</table>")

    assert list(open_document(tmp_path / "a.html", FileKind.HTML).pieces())[: len(lines)] == lines


def test_deleted_text_of_a_word_document_is_not_read(tmp_path: Path) -> None:
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("a", "b &amp; c"))
    body = (
        f"{paragraph('Annual')}<w:p><w:r><w:t>two </w:t></w:r><w:ins><w:r><w:t>runs</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:tab/><w:t>tab</w:t></w:r></w:p>"
        f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
        "<w:p><w:r><mc:AlternateContent><mc:Choice><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent>"
        "</mc:Choice><mc:Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent></w:r></w:p>"
        f'<w:p><w:r><w:br w:type="page"/><w:t>next</w:t></w:r></w:p>'
        '<w:p><w:r><a:blip r:embed="rId1"/><a:blip r:link="rId2"/></w:r></w:p>'
        "<w:p><w:r><w:lastRenderedPageBreak/><w:t>third</w:t></w:r></w:p>"
    )
    related = '<Relationship Id="rId1" Type="x/image" Target="media/a.png"/>'
    related += '<Relationship Id="rId2" Type="x/image" Target="https://example.com/b.png" TargetMode="External"/>'
    path = word(
        tmp_path / "a.docx",
        body,
        {
            "word/_rels/document.xml.rels": RELATIONS.format(related),
            "word/media/a.png": b"",
            "word/footnotes.xml": f"<w:footnotes {W}>{paragraph('a footnote')}</w:footnotes>",
            "word/header1.xml": f"<w:hdr {W}>{paragraph('a header')}</w:hdr>",
        },
    )

    assert pages_of(path) == [
        "Annual\ntwo runs\ttab\na\tb & c\nbox",
        "next\n<word/media/a.png>",
        "third\na header\na footnote",
    ]


def test_notes_and_boxes_in_a_word_document_do_not_cut_sentences(tmp_path: Path) -> None:
    related = '<Relationship Id="h" Type="x/aFChunk" Target="afchunk.html"/><Relationship Id="c" Type="x/chart"'
    related += ' Target="charts/chart1.xml"/><Relationship Id="r" Type="x/aFChunk" Target="afchunk.rtf"/>'
    chart = (
        "<c xmlns='http://c' xmlns:a='http://a'><title><a:p><a:t>Growth</a:t></a:p></title><ser><tx><v>Sales</v></tx>"
        "<cat><f>A1</f><v>East</v><v>West</v></cat><val><v>1</v><v>2</v></val></ser></c>"
    )
    path = packed(
        tmp_path / "a.docx",
        {
            "word/document2.xml": f"<w:document {W}><w:body>"
            "<w:p><w:r><w:t>be</w:t><w:txbxContent><w:p><w:r><w:t>the box</w:t></w:r></w:p></w:txbxContent></w:r>"
            "<w:r><w:t>fore</w:t></w:r></w:p>"
            "<w:p><w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>mail soft</w:t><w:softHyphen/><w:t>ly, 3 </w:t>"
            '<w:sym w:font="Symbol" w:char="F0B0"/><w:t>C </w:t><w:sym w:font="Arial" w:char="2265"/></w:r></w:p>'
            '<w:p><w:r><c:chart xmlns:c="http://c" r:id="c"/></w:r></w:p><w:altChunk r:id="h"/><w:altChunk r:id="r"/>'
            "</w:body></w:document>",
            "word/_rels/document2.xml.rels": RELATIONS.format(related),
            "word/charts/chart1.xml": chart,
            "word/afchunk.html": "<p>from elsewhere",
            "word/afchunk.rtf": "{",
        },
    )
    read = open_document(path, kind_of(path))

    assert list(read.pieces()) == [
        "before", "the box", "e-mail softly, 3 °C ≥", "Growth", "Sales\tEast West\t1 2", "from elsewhere",
    ]  # fmt: skip
    assert read.notes == ["word/afchunk.rtf, which is put into it, is left out"]


def word_row(*cells: str, before: str = "") -> str:
    return f"<w:tr>{before}{''.join(cells)}</w:tr>"


def word_cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{paragraph(text)}</w:tc>"


WIDE = '<w:gridSpan w:val="2"/>'
CHANGED = "<w:tcPrChange><w:tcPr><w:gridSpan w:val='3'/></w:tcPr></w:tcPrChange>"
NO_NUMBERS = "".join(f'<w:tc><w:tcPr><w:gridSpan w:val="{n}"/></w:tcPr><w:p/></w:tc>' for n in ("x", "9" * 5000, "-1"))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(paragraph("eﬀects"), "effects", id="ligature"),
        pytest.param(paragraph("sustain\u00adability"), "sustainability", id="soft hyphen"),
        pytest.param(word_row(word_cell("a", WIDE), word_cell("b")), "a\t\tb", id="wide cell"),
        pytest.param(
            word_row(word_cell("c"), before='<w:trPr><w:gridBefore w:val="1"/></w:trPr>'), "\tc", id="no first cell"
        ),
        pytest.param(word_row(word_cell("a", CHANGED), word_cell("b")), "a\tb", id="cell was wide once"),
        pytest.param(
            word_row('<w:tc><w:p><w:t>Total</w:t><w:br w:type="page"/><w:t>revenue</w:t></w:p></w:tc>'),
            "Total revenue",
            id="page break in a cell",
        ),
        pytest.param(
            "<w:p><w:t>a</w:t>"
            + "".join(f'<w:sym w:char="{code}"/>' for code in ("zz", "D800", "-1", "FFFFFFFFFF", "20AC"))
            + f"</w:p>{word_row(NO_NUMBERS)}",
            "a€",
            id="numbers that are none",
        ),
    ],
)
def test_a_word_document_is_read_as_shown(tmp_path: Path, body: str, text: str) -> None:
    table = f"<w:tbl>{body}</w:tbl>" if body.startswith("<w:tr>") else body

    assert pages_of(word(tmp_path / "a.docx", table)) == [text]


MATH = "<math xmlns='http://www.w3.org/1998/Math/MathML'>{}</math>"
DOCTYPE = '<!DOCTYPE math:math PUBLIC "-//OpenOffice.org//DTD Modified W3C MathML 1.01//EN" "math.dtd">'
REPEATED = (
    "<b:table><b:table-row b:number-rows-repeated='2'><b:table-cell b:number-columns-repeated='3'><t:p>{}</t:p>"
    "</b:table-cell></b:table-row></b:table>"
)


@pytest.mark.parametrize(
    ("body", "text", "formula"),
    [
        pytest.param("<t:p>one\n     line<t:tab/>of two</t:p>", "one line\tof two", "", id="spaces"),
        pytest.param("<t:p>b<t:s t:c='x'/><t:s t:c=''/>c</t:p>", "b  c", "", id="numbers that are none"),
        pytest.param(REPEATED.format("a"), "a\ta\ta\na\ta\ta", "", id="repeated cells"),
        pytest.param(REPEATED.format("a" * 5000), "a" * 5000, "", id="long cells are not repeated"),
        pytest.param(
            "<b:table><b:table-row><b:table-cell><t:p>a</t:p></b:table-cell>"
            "<b:table-cell b:number-columns-repeated='2'/><b:table-cell><t:p>b</t:p></b:table-cell>"
            "<b:table-cell b:number-columns-repeated='16380'/></b:table-row>"
            "</b:table>",
            "a\t\t\tb",
            "",
            id="empty cells",
        ),
        pytest.param(
            "<t:p><b:object x:href='./Formula/'/></t:p>",
            "E=m",
            MATH.format("<semantics>\n <mi>E</mi><mo>=</mo><mi>m</mi><annotation>E = m</annotation></semantics>"),
            id="formula",
        ),
        pytest.param("<b:object x:href='./Formula'/>", "E", DOCTYPE + MATH.format("<mi>E</mi>"), id="OpenOffice 3"),
    ],
)
def test_an_open_document_is_read_as_shown(tmp_path: Path, body: str, text: str, formula: str) -> None:
    members = {
        "mimetype": "application/vnd.oasis.opendocument.text",
        "content.xml": f"<o:d xmlns:o='http://o' xmlns:t='http://t' xmlns:b='http://b' xmlns:x='http://x'>{body}</o:d>",
        **({"Formula/content.xml": formula} if formula else {}),
    }

    assert pages_of(packed(tmp_path / "a.odt", members)) == [text]


def test_data_tables_are_distinguished_from_layout_tables(tmp_path: Path) -> None:
    row = "<tr><td>{}<td>{}"
    (tmp_path / "a.html").write_text(
        f"<p>before<table>{row.format('a', 1)}{row.format('b', '')}<tr><td>c<td>3</table><table>{row.format('d', 4)}"
        f"{row.format('e', 5)}</table>behind<table><tr><td>a box</table><table>{row.format('menu', 'text')}</table>"
    )
    [page] = paginate(open_document(tmp_path / "a.html", FileKind.HTML).pieces())

    text = "\n".join(map(str, page))
    first, second = tables_in(line for line in page if isinstance(line, str))

    assert first.rows == [["a", "1"], ["b", ""], ["c", "3"]]
    assert text[first.begin : first.end] == "a\t1\nb\nc\t3"
    assert second.rows == [["d", "4"], ["e", "5"]]


def test_macros_and_program_data_are_not_read_as_text(tmp_path: Path) -> None:
    carried = dict.fromkeys(("word/vbaProject.bin", "word/embeddings/oleObject1.bin"), b"Sub AutoOpen() Shell")
    custom = {"customXml/item1.xml": "<x>secret</x>", "docProps/core.xml": "<x>secret</x>"}
    path = word(tmp_path / "a.docm", paragraph("what is shown"), {**carried, **custom})

    assert pages_of(path) == ["what is shown"]


def test_slides_are_pages_with_their_speaker_notes(tmp_path: Path) -> None:
    def slide(text: str) -> str:
        return f"<p:sld xmlns:p='http://p' xmlns:a='http://a'><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>"

    note = '<Relationship Id="rId9" Type="x/notesSlide" Target="../notesSlides/notesSlide1.xml"/>'
    members = {f"ppt/slides/slide{number}.xml": slide(f"slide {number}") for number in (10, 2, 1)}
    path = packed(
        tmp_path / "a.pptx",
        {
            "ppt/presentation.xml": "<p/>",
            **members,
            "ppt/slides/_rels/slide2.xml.rels": RELATIONS.format(note),
            "ppt/notesSlides/notesSlide1.xml": slide("say this"),
        },
    )

    assert pages_of(path) == ["slide 1", "slide 2\nsay this", "slide 10"]


def test_moved_slides_are_read_in_the_order_shown(tmp_path: Path) -> None:
    slides = "".join(f'<Relationship Id="r{n}" Type="x/slide" Target="slides/slide{n}.xml"/>' for n in (1, 2))
    shown = '<s:sldId id="256" r:id="r2"/><s:sldId id="257" r:id="r1"/>'
    path = packed(
        tmp_path / "a.pptx",
        {
            "ppt/presentation.xml": f"<s:p xmlns:s='http://s' xmlns:r='http://r'>{shown}</s:p>",
            "ppt/_rels/presentation.xml.rels": RELATIONS.format(slides),
            **{f"ppt/slides/slide{n}.xml": f"<a:p xmlns:a='http://a'><a:t>slide {n}</a:t></a:p>" for n in (1, 2)},
        },
    )

    assert pages_of(path) == ["slide 2", "slide 1"]


def test_an_open_document_is_read(tmp_path: Path) -> None:
    content = (
        "<o:d xmlns:o='http://o' xmlns:text='http://t' xmlns:table='http://b' xmlns:draw='http://d' xmlns:x='http://x'>"
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes><text:h>Head</text:h>"
        "<text:p>one<text:s text:c='2'/>two <text:span>three</text:span><text:tab/>four</text:p>"
        "<table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell/>"
        "<table:table-cell><text:p>c</text:p></table:table-cell></table:table-row>"
        "<text:p><text:soft-page-break/>second<draw:image x:href='Pictures/p.png'/></text:p></o:d>"
    )
    path = packed(
        tmp_path / "a.odt",
        {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content, "Pictures/p.png": b""},
    )

    assert pages_of(path) == ["Head\none  two three\tfour\na\t\tc", "<Pictures/p.png>\nsecond"]


def test_an_odp_presentation_is_read_slide_by_slide_with_speaker_notes(tmp_path: Path) -> None:
    content = (
        "<o:d xmlns:o='http://o' xmlns:t='http://t' xmlns:b='http://b' xmlns:draw='http://d' xmlns:p='http://p'>"
        "<draw:page><draw:frame><draw:text-box><t:p>first</t:p></draw:text-box></draw:frame>"
        "<b:table-row><b:table-cell><t:p>a</t:p></b:table-cell><b:table-cell><t:p>b</t:p></b:table-cell></b:table-row>"
        "<p:notes><draw:page-thumbnail/><draw:text-box><t:p>a note</t:p></draw:text-box></p:notes></draw:page>"
        "<draw:page><t:p>second</t:p></draw:page></o:d>"
    )
    master = "<o:d xmlns:o='http://o' xmlns:t='http://t'><t:p>Click to add a title</t:p></o:d>"
    path = packed(
        tmp_path / "a.odp",
        {
            "mimetype": "application/vnd.oasis.opendocument.presentation",
            "content.xml": content,
            "styles.xml": master,
        },
    )

    assert pages_of(path) == ["first\na\tb\na note", "second"]


def test_notes_comments_headers_and_objects_do_not_cut_sentences_of_an_open_document(tmp_path: Path) -> None:
    office = (
        "<o:d xmlns:o='http://o' xmlns:t='http://t' xmlns:x='http://x' xmlns:dc='http://purl.org/dc/elements/1.1/'>"
    )
    content = (
        f"{office}<t:p>word<t:note><t:note-citation>1</t:note-citation><t:note-body><t:p>a note</t:p></t:note-body>"
        "</t:note> goes<o:annotation><dc:creator>Ann</dc:creator><t:p>a comment</t:p></o:annotation> on"
        "<o:object x:href='./Object 1'/></t:p></o:d>"
    )
    path = packed(
        tmp_path / "a.odt",
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": content,
            "styles.xml": f"{office}<o:header><t:p>a header</t:p></o:header></o:d>",
            "Object 1/content.xml": f"{office}<t:p>a cell<o:object x:href='./Object 1'/></t:p></o:d>",
        },
    )

    assert sorted(pages_of(path)[0].splitlines()) == ["a cell", "a comment", "a header", "a note", "word goes on"]


def test_a_book_is_read_in_the_order_of_its_spine(tmp_path: Path) -> None:
    package = (
        '<package xmlns="http://o"><manifest><item id="b" href="text/b.xhtml"/><item id="a" href="a%20b.xhtml"/>'
        '</manifest><spine><itemref idref="b"/><itemref idref="a"/><itemref idref="none"/></spine></package>'
    )
    path = packed(
        tmp_path / "a.epub",
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": CONTAINER,
            "OPS/book.opf": package,
            "OPS/a b.xhtml": "<html><head><title>a b.xhtml</title></head><body><p>the second</p></body></html>",
            "OPS/text/b.xhtml": '<html><body><p>the first</p><img src="../p.png"/></body></html>',
            "OPS/p.png": b"",
        },
    )

    assert pages_of(path) == ["the first\n<OPS/p.png>", "the second"]


@pytest.mark.parametrize("charset", ["unicode_escape", "raw_unicode_escape", "utf-7"])
def test_lone_surrogates_do_not_fail_the_page(tmp_path: Path, charset: str) -> None:
    (tmp_path / "a.html").write_text(f"<meta charset={charset}><p>a \\ud800+2AA- b<table><tr><td>\\ud800+2AA-<td>c")

    assert "a " in pages_of(tmp_path / "a.html")[0].encode().decode()


def test_chapters_and_their_pictures_are_read_once(tmp_path: Path) -> None:
    chapters = ("cover.xhtml", "scan.jpg", "plan.pdf", "sound.mp3", "cover.xhtml", "/OPS/last.xhtml")
    items = "".join(f'<item id="i{n}" href="{href}" fallback="f"/>' for n, href in enumerate(chapters[:3]))
    items += "".join(f'<item id="i{n}" href="{href}"/>' for n, href in enumerate(chapters) if n > 2)
    order = "".join(f'<itemref idref="i{n}"/>' for n in range(len(chapters)))
    package = (
        f'<package xmlns="http://o"><manifest>{items}<item id="f" href="plan.xhtml"/></manifest>'
        f"<spine>{order}</spine></package>"
    )
    path = packed(
        tmp_path / "a.epub",
        {
            "META-INF/container.xml": CONTAINER,
            "OPS/book.opf": package,
            "OPS/cover.xhtml": '<svg xmlns:xlink="x"><image xlink:href="cover.png"/></svg>',
            "OPS/plan.xhtml": "<p>instead of the plan</p>",
            "OPS/last.xhtml": "<p>the last</p>",
            **dict.fromkeys(("OPS/cover.png", "OPS/scan.jpg", "OPS/plan.pdf", "OPS/sound.mp3"), b"\0"),
        },
    )

    assert pages_of(path) == ["<OPS/cover.png>", "<OPS/scan.jpg>", "instead of the plan", "the last"]
    book = open_document(path, FileKind.EPUB)
    assert list(book.pieces())
    assert book.notes == ["1 chapter of a kind that is not read in a book: OPS/sound.mp3"]


def test_a_mail_has_its_headers_text_and_attachment_names(tmp_path: Path) -> None:
    plain = mail(tmp_path / "a.eml", attached={"report.pdf": b"%PDF-1.4"})
    html = mail(tmp_path / "b.eml", html="<p>Dear <b>Bob</b></p>")

    assert pages_of(plain) == [
        "From: Ann <ann@example.com>\nTo: bob@example.com\nSubject: The report, größer\n"
        "Dear Bob,\nhere it is.\nAttached: report.pdf"
    ]
    assert pages_of(html)[0].endswith("Dear Bob")


def raw_mail(path: Path, body: str, kind: str = 'multipart/mixed; boundary="b"') -> Path:
    path.write_bytes(f"\ufeffSubject: s\nContent-Type: {kind}\n\n{body}".encode())
    return path


def part(kind: str, text: str, *more: str) -> str:
    return "\n".join((f"--b\nContent-Type: {kind}", *more, "", text, ""))


def test_all_texts_of_a_mail_are_read(tmp_path: Path) -> None:
    three = part("text/plain", "above") + part("image/png", "x", "Content-ID: <p>") + part("text/plain", "below")
    stub = part("text/plain", "View it in a browser.") + part("text/html", "<p>All " + "that is to be told " * 5)
    kinds = {"html": "text/html", "us-ascii": "text/plain; charset=us-ascii", "idna": "text/plain; charset=idna"}

    assert pages_of(raw_mail(tmp_path / "a.eml", f"{three}--b--")) == ["Subject: s\nabove\nbelow\n<p>"]
    alternative = raw_mail(tmp_path / "b.eml", f"{stub}--b--", 'multipart/alternative; boundary="b"')
    assert pages_of(alternative)[0].startswith("Subject: s\nAll that is to be told")
    assert pages_of(raw_mail(tmp_path / "c.eml", "no boundary", "multipart/mixed")) == ["Subject: s\nno boundary"]
    for name, kind in kinds.items():
        assert pages_of(raw_mail(tmp_path / f"{name}.eml", "größer", kind)) == ["Subject: s\ngrößer"]


def test_the_alternative_with_tables_and_all_pictures_are_read(tmp_path: Path) -> None:
    shown = part("image/png", "x", "Content-ID: <a@b>", "Content-Disposition: inline; filename=a.png")
    rows = "".join(
        f"<tr><td><p>{region}</p></td><td>{sales}</td></tr>" for region, sales in (("Region", "Sales"), ("East", "19"))
    )

    def with_both_alternatives(page: str) -> str:
        inner = part("text/plain", "Region\n\nSales\n\nEast\n\n19") + part("text/html", page)
        inner = inner.replace("--b\n", "--c\n") + "--c--"
        return f"{part('multipart/alternative; boundary=c', inner)}{shown}--b--"

    plain = with_both_alternatives('<p>Region Sales East 19<img src="cid:a@b">')
    table = with_both_alternatives(f'<table>{rows}</table><img src="cid:a%40b"><p>under it')

    assert pages_of(raw_mail(tmp_path / "a.eml", plain)) == ["Subject: s\nRegion\nSales\nEast\n19\n<a@b>"]
    assert pages_of(raw_mail(tmp_path / "b.eml", table)) == ["Subject: s\nRegion\tSales\nEast\t19\n<a@b>\nunder it"]


@pytest.mark.parametrize(("declaration", "encoding"), [("", "utf-8"), ("", "cp1252"), ("; charset=koi8-r", "koi8-r")])
def test_headers_are_read_in_the_encoding_that_they_do_not_name(
    tmp_path: Path, declaration: str, encoding: str
) -> None:
    subject = "Отчёт" if encoding == "koi8-r" else "Größe"
    path = tmp_path / "a.eml"
    path.write_bytes(f"Subject: {subject}\nContent-Type: text/plain{declaration}\n\n{subject}\n".encode(encoding))

    assert pages_of(path) == [f"Subject: {subject}\n{subject}"]


def test_the_report_of_a_mail_that_was_not_delivered_is_read(tmp_path: Path) -> None:
    status = "Reporting-MTA: dns; a.example\n\nFinal-Recipient: rfc822; ann@b.example\nStatus: 5.2.2 (mailbox full)\n"
    report = part("text/plain", "It came back.") + part("message/delivery-status", status)
    path = raw_mail(tmp_path / "a.eml", f"{report}--b--", 'multipart/report; boundary="b"')

    [page] = pages_of(path)

    assert page.startswith("Subject: s\nIt came back.\nReporting-MTA: dns; a.example\n")
    assert "Status: 5.2.2 (mailbox full)" in page
    assert "Attached" not in page


def test_encrypted_mails_and_books_are_reported(tmp_path: Path) -> None:
    read = open_document(raw_mail(tmp_path / "a.eml", "MIA=", "application/pkcs7-mime; name=smime.p7m"), FileKind.MAIL)
    assert list(read.pieces()) == ["Subject: s", "", "Attached: smime.p7m"]
    assert read.notes == ["its text is encrypted, or within a signature: it is left out"]

    package = '<p xmlns="o"><manifest><item id="a" href="a.xhtml"/></manifest><spine><itemref idref="a"/></spine></p>'
    locked = '<e xmlns:c="c"><c:CipherReference URI="OPS/{}"/></e>'
    book = {"META-INF/container.xml": CONTAINER, "OPS/book.opf": package, "OPS/a.xhtml": "<p>words"}
    path = packed(tmp_path / "a.epub", {**book, "META-INF/encryption.xml": locked.format("font.otf")})
    assert pages_of(path) == ["words"]
    with pytest.raises(UnreadableDocument, match="protected against copying"):
        pages_of(packed(tmp_path / "b.epub", {**book, "META-INF/encryption.xml": locked.format("a.xhtml")}))


READS = """
import sys
from pathlib import Path
from job_handlers.file_kinds import kind_of
from job_handlers.reading.preprocess import decode_picture
from job_handlers.reading.formats import PictureReference, UnreadableDocument, paginate, open_document

def read(path):
    try:
        document = open_document(path, kind_of(path))
        for page in paginate(document.pieces()):
            for piece in page:
                print(decode_picture(document.picture(piece.key)) if isinstance(piece, PictureReference) else piece)
    except UnreadableDocument as error:
        print(error)

paths = [Path(one) for one in sys.argv[1:]]
for path in paths:
    read(path)

def tell(event, args):
    reaches_out = event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "urllib."))
    if reaches_out or (event == "open" and str(args[0]) not in sys.argv):
        print("REACHED", event, args)

# By now all modules have been found.
sys.addaudithook(tell)
for path in paths:
    read(path)
"""


def test_files_and_addresses_that_a_document_names_are_never_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(packed_picture("secret"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        web, file = f"http://127.0.0.1:{server.getsockname()[1]}/a.png", secret.as_uri()
        page = "".join(
            f'<img src="{at}"><link rel="stylesheet" href="{at}"><iframe src="{at}"></iframe><object data="{at}">'
            f'</object><script src="{at}"></script><meta http-equiv="refresh" content="0;url={at}">'
            for at in (web, file, secret.name, "../secret.png", "//127.0.0.1/a.png")
        )
        outside = [f"<!DOCTYPE d SYSTEM '{at}' [<!ENTITY e SYSTEM '{at}'>]>" for at in (web, file)]
        links = "".join(
            f'<Relationship Id="r{n}" Type="x/image" Target="{at}" {mode}/>'
            for n, at in enumerate((web, file, "../../secret.png"))
            for mode in ("", 'TargetMode="External"')
        )
        shown = "".join(f'<a:blip r:embed="r{n}" r:link="r{n}"/><w:altChunk r:id="r{n}"/>' for n in range(3))
        book = {"META-INF/container.xml": CONTAINER, "OPS/a.xhtml": page}
        package = '<p xmlns="o"><manifest>{}</manifest><spine><itemref idref="a"/><itemref idref="b"/></spine></p>'
        items = f'<item id="a" href="a.xhtml"/><item id="b" href="{web}"/>'
        paths = [
            word(tmp_path / "a.docx", f"<w:p>{shown}</w:p>", {"word/_rels/document.xml.rels": RELATIONS.format(links)}),
            *(
                packed(tmp_path / f"{n}.docx", {"word/document.xml": f"{one}<w:d {W}>&e;</w:d>"})
                for n, one in enumerate(outside)
            ),
            packed(tmp_path / "a.epub", {**book, "OPS/book.opf": package.format(items)}),
            *(
                packed(tmp_path / f"{n}.epub", {**book, "OPS/book.opf": f"{one}{package.format(items)}"})
                for n, one in enumerate(outside)
            ),
            raw_mail(tmp_path / "a.eml", f"{part('text/html', page)}--b--"),
            raw_mail(tmp_path / "b.eml", f"{part(f'message/external-body; access-type=URL; URL={web!r}', 'x')}--b--"),
        ]
        (tmp_path / "a.html").write_text(page)

        output = subprocess.run(
            [sys.executable, "-c", READS, *paths, tmp_path / "a.html"], check=True, capture_output=True, text=True
        ).stdout

        assert "REACHED" not in output
        assert "Gray(" not in output
        with pytest.raises(BlockingIOError):
            server.accept()


# --- through the shipped handlers, in their sandbox ---


def test_a_text_needs_no_ocr_and_pictures_are_read_in_their_place(library: Library, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Water stress.\n")
    library.read(tmp_path / "a.txt")
    assert (library.text, library.methods, library.known.kind) == ("Water stress.", ["layer"], "text")
    assert not library.jobs("ocr_pages")

    said = "The board has reviewed each climate risk of the sites in the south twice."
    rows = "".join(f"<w:tr>{f'<w:tc>{paragraph(text)}</w:tc>' * 2}</w:tr>" for text in ("Scope", "17"))
    related = '<Relationship Id="rId1" Type="x/image" Target="media/a.png"/>'
    library.read(
        word(
            tmp_path / "a.docx",
            f'{paragraph("Before")}<w:p><w:r><a:blip r:embed="rId1"/></w:r></w:p>{paragraph("behind")}'
            f"<w:tbl>{rows}</w:tbl>",
            {"word/_rels/document.xml.rels": RELATIONS.format(related), "word/media/a.png": packed_picture(said)},
        )
    )
    assert library.methods == ["ocr"]
    assert library.text.split() == ["Before", *said.split(), "behind", "Scope", "Scope", "17", "17"]
    layout = json.loads(library.by_number[1].layout or "")
    assert layout["tables"][0]["rows"] == [["Scope", "Scope"], ["17", "17"]]
    assert layout["readers"][0].startswith("tesser")


def test_pictures_of_common_formats_are_read_and_the_others_noted(library: Library, tmp_path: Path) -> None:
    kinds = ("WEBP", "BMP", "GIF")
    said = {kind: f"The {kind.lower()} shows what the board has decided." for kind in kinds}
    names = [*(f"a.{kind.lower()}" for kind in kinds), "b.emf", "a.emf"]
    related = "".join(f'<Relationship Id="{name}" Type="x/image" Target="media/{name}"/>' for name in names)
    shown = "".join(f'<w:p><w:r><a:blip r:embed="{name}"/></w:r></w:p>' for name in [*names, "a.emf"])
    made = {f"word/media/{name}": packed_picture(said[kind], kind) for name, kind in zip(names, kinds, strict=False)}
    made |= {"word/media/a.emf": b"x", "word/media/b.emf": b"x"}

    library.read(word(tmp_path / "a.docx", shown, {"word/_rels/document.xml.rels": RELATIONS.format(related), **made}))

    assert library.text.split("\n") == [*said.values()]
    document = library.runs[0][1].ended.document
    assert document is not None
    assert document.note == "2 pictures of a kind that is not read: word/media/a.emf"


def test_a_drawing_that_also_exists_as_a_picture_is_not_noted(tmp_path: Path) -> None:
    frame = '<d:frame><d:image x:href="a.svg"/><d:image x:href="a.png"/></d:frame>'
    alone = '<d:frame><d:image x:href="b.svg"/></d:frame>'
    body = f'<o:body xmlns:o="o" xmlns:d="d" xmlns:x="x" xmlns:t="t"><t:p>{frame}{alone}</t:p></o:body>'
    path = packed(
        tmp_path / "a.odt",
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": body,
            **dict.fromkeys(("a.svg", "a.png", "b.svg"), "x"),
        },
    )
    read = open_document(path, FileKind.ODT)

    assert list(read.pieces()) == [PictureReference("a.png")]
    assert read.notes == ["1 picture of a kind that is not read: b.svg"]


def test_a_broken_picture_does_not_lose_the_text_of_its_page(library: Library, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p>Before<img src="data:image/png;base64,AAA"><p>behind')

    run = library.read(tmp_path / "a.html")

    assert run.how is How.DONE
    assert library.text == "Before\nbehind"


def unpack(library: Library, path: Path) -> tuple[list[NewJob], str]:
    library.known = KnownDocument(source_key="/mail/box")
    run = library.run("ingest", {}, path)
    assert run.how is How.DONE, run.ended
    jobs = [job for job in run.ended.follow_ups if job.document is not None]
    name_by_sha256 = {file.sha256: file.name for file in run.ended.published}
    assert [name_by_sha256[job.document.content] for job in jobs if job.document] == [job.name for job in jobs]
    assert {file.role for file in run.ended.published} <= {"inside", "text", "pages"}
    assert run.ended.document is not None
    return jobs, run.ended.document.note or ""


def test_files_of_an_archive_become_documents_or_are_noted(library: Library, tmp_path: Path) -> None:
    report = digital(tmp_path / "made.pdf", ["words"]).read_bytes()
    path = packed(
        tmp_path / "a.zip",
        {
            "2024/Report.pdf": report,
            "2024/the same.pdf": report,
            "../../evil.txt": "no way out",
            "setup.exe": b"MZ\0\0",
            "__MACOSX/2024/._Report.pdf": b"x",
        },
    )

    jobs, note = unpack(library, path)

    assert [(job.name, job.document and job.document.source_key) for job in jobs] == [
        ("Report.pdf", "/mail/box!/2024/Report.pdf"),
        ("evil.txt", "/mail/box!/../../evil.txt"),
    ]
    assert note == "1 file in it left out: setup.exe (it is a program, which cannot be read)"


def test_a_file_name_in_utf_8_is_read_with_and_without_its_flag(tmp_path: Path) -> None:
    body = packed(tmp_path / "a.zip", {"Größe.txt": "x"}).read_bytes()
    (tmp_path / "b.zip").write_bytes(
        body.replace(b"PK\3\4\x14\0\0\x08", b"PK\3\4\x14\0\0\0").replace(
            b"PK\1\2\x14\3\x14\0\0\x08", b"PK\1\2\x14\3\x14\0\0\0"
        )
    )

    assert (tmp_path / "b.zip").read_bytes() != body
    assert pages_of(tmp_path / "b.zip") == pages_of(tmp_path / "a.zip") == ["Größe.txt"]


def test_broken_files_of_an_archive_are_noted(library: Library, tmp_path: Path) -> None:
    packed(tmp_path / "a.zip", {"good.txt": "good", "bad.txt": "bad"})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        wrong = archive.getinfo("bad.txt").CRC.to_bytes(4, "little")
    body = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(body.replace(wrong, b"\0\0\0\0"))

    jobs, note = unpack(library, tmp_path / "a.zip")

    assert [job.name for job in jobs] == ["good.txt"]
    assert note == "1 file in it left out: bad.txt (it is broken (Bad CRC-32 for file 'bad.txt'))"


def test_attachments_and_attached_mails_become_documents(library: Library, tmp_path: Path) -> None:
    inner = EmailMessage()
    inner["Subject"] = "inner"
    inner.set_content("an inner word")
    outer = EmailMessage()
    outer["Subject"] = "outer"
    outer.set_content("an outer word")
    outer.add_attachment("a;b\n1;2\n", subtype="csv", filename="table.csv")
    outer.add_attachment(inner, filename="inner.eml")
    (tmp_path / "a.eml").write_bytes(bytes(outer))

    jobs, note = unpack(library, tmp_path / "a.eml")

    assert [job.name for job in jobs] == ["table.csv", "inner.eml"]
    assert (note, library.text) == ("", "Subject: outer\nan outer word\nAttached: table.csv\nAttached: inner.eml")


def test_files_with_equal_names_become_several_documents(library: Library, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.txt")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        warnings.simplefilter("ignore")
        for name, body in (("a.txt", "first"), ("a.txt", "second"), ("b.zip!/a.txt", "third"), (link, "/etc/passwd")):
            archive.writestr(name, body)
    scans = part("text/csv", "a;b", "Content-Disposition: attachment; filename=a.csv")
    scans += part("text/csv", "c;d", "Content-Disposition: attachment; filename=a.csv")
    scans += part("application/pdf", "%PDF-1.4", "Content-Disposition: attachment")
    raw_mail(tmp_path / "a.eml", f"{scans}--b--")

    of_archive, note = unpack(library, tmp_path / "a.zip")
    of_mail, _ = unpack(library, tmp_path / "a.eml")

    def keys(jobs: list[NewJob]) -> list[str]:
        return [job.document.source_key.removeprefix("/mail/box!/") for job in jobs if job.document]

    assert keys(of_archive) == ["a.txt", "a.txt (2)", "b.zip!a.txt"]
    assert note == "1 file in it left out: link.txt (it is a link)"
    assert keys(of_mail) == ["a.csv", "a.csv (2)", "attachment 3.pdf"]


def test_nested_archives_are_unpacked_up_to_a_depth(library: Library, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.zip", {"b.txt": "deep"})
    library.known = KnownDocument(source_key="/a.zip!/b.zip!/c.zip!/d.zip")

    run = library.run("ingest", {}, path)

    assert run.ended.follow_ups == []
    assert run.ended.document is not None
    assert run.ended.document.note == "what is in it is left out: it is packed 3 times already"


def test_equal_files_of_an_archive_are_stored_once(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.zip", {f"{number}.txt": "the same" for number in range(5)} | {"other.txt": "other"})
    read = attachments.unpacker(open_document(path, FileKind.ZIP), tmp_path)

    answers = [read(number) for number in range(2, 8)]

    assert all(isinstance(one, attachments.UnpackedFile) for one in answers)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1 0.txt", "6 other.txt", "a.zip"]


def test_unpacking_stops_at_the_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "_ALL_BYTES_MAX", 10)
    path = packed(tmp_path / "a.zip", {f"{number}.txt": f"text {number} " * 2 for number in range(4)})
    read = attachments.unpacker(open_document(path, FileKind.ZIP), tmp_path)

    answers = [read(number) for number in range(2, 6)]

    assert [isinstance(one, attachments.UnpackedFile) for one in answers] == [True, False, False, False]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1 0.txt", "a.zip"]


ENTITIES = '<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("name", "members", "code"),
    [
        ("a.docx", {"word/document.xml": f"{ENTITIES}<w:d {W}><w:p><w:t>&e;</w:t></w:p></w:d>"}, "DOCX_BROKEN"),
        ("b.docx", {"word/document.xml": f"<w:d {W}>" + "<w:p>" * 100}, "DOCX_BROKEN"),
        ("c.docx", {"word/document.xml": f"<w:d {W}><w:p/></w:d>"}, "DOCX_EMPTY"),
        ("j.docx", {"word/document.xml": '<?xml version="1.0" encoding="none"?><d/>'}, "DOCX_BROKEN"),
        ("k.epub", {"META-INF/container.xml": '<?xml version="1.0" encoding="none"?><d/>'}, "EPUB_BROKEN"),
        ("d.pptx", {"ppt/presentation.xml": "<p/>"}, "PPTX_EMPTY"),
        ("e.epub", {"META-INF/container.xml": CONTAINER}, "EPUB_BROKEN"),
        ("f.epub", {"META-INF/container.xml": f"{ENTITIES}<c>&e;</c>"}, "EPUB_BROKEN"),
        ("g.odt", {"mimetype": "application/vnd.oasis.opendocument.text"}, "ODT_BROKEN"),
        ("i.odp", {"mimetype": "application/vnd.oasis.opendocument.presentation"}, "ODP_BROKEN"),
        ("h.zip", {"__MACOSX/x": "x"}, "ZIP_EMPTY"),
    ],
)
def test_a_broken_document_fails_with_its_code(
    library: Library, tmp_path: Path, name: str, members: dict[str, str], code: str
) -> None:
    path = packed(tmp_path / name, members)

    run = library.read(path)

    assert (run.how, run.ended.code) == (How.PERMANENT, code)
    assert "root:" not in json.dumps([run.ended.message, library.text])
    assert "exit code" not in run.ended.message, "the process that reads it has failed"


LINK_FIELD_IN_ONE_RUN = (
    '<w:p><w:r><w:fldChar w:fldCharType="begin"/><w:instrText> HYPERLINK "https://example.com" </w:instrText>'
    '<w:fldChar w:fldCharType="separate"/><w:t>link</w:t><w:fldChar w:fldCharType="end"/><w:t>more</w:t></w:r></w:p>'
)
WORD_PARTS = {
    "word/document.xml": f"<w:d {W}>{LINK_FIELD_IN_ONE_RUN}<w:p><w:hyperlink r:id='h'><w:t>b</w:t></w:hyperlink>"
    "<w:footnoteReference w:id='2'/><w:txbxContent><w:p><w:t>box</w:t></w:p></w:txbxContent><w:del><w:t>c</w:t></w:del>"
    "</w:p><w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr><w:p><w:t>d</w:t></w:p></w:tc>"
    "<w:tc><w:tcPr><w:vMerge/></w:tcPr><w:p><w:t>e</w:t></w:p></w:tc></w:tr></w:tbl></w:d>",
    "word/_rels/document.xml.rels": RELATIONS.format(
        '<Relationship Id="h" Type="x/hyperlink" Target="https://e.org"/>'
    ),
    "word/styles.xml": f"<w:s {W}><w:style w:styleId='a'><w:name w:val='heading 1'/></w:style></w:s>",
    "word/footnotes.xml": f"<w:f {W}><w:footnote w:id='2'>{paragraph('note')}</w:footnote></w:f>",
}
SLIDE_SHAPE = (
    "<p:sp><p:ph type='title'/><a:p><a:pPr lvl='1'/><a:r><a:hlinkClick r:id='h'/><a:t>a</a:t></a:r></a:p></p:sp>"
)
SLIDE_TABLE = "<a:tbl><a:tr><a:tc gridSpan='2'><a:p><a:t>b</a:t></a:p></a:tc><a:tc/></a:tr></a:tbl>"
SLIDE = f"<p:s xmlns:p='http://p' xmlns:a='http://a' xmlns:r='http://r'>{SLIDE_SHAPE}{SLIDE_TABLE}</p:s>"
OPEN_DOCUMENT = (
    "<o:d xmlns:o='urn:o' xmlns:t='urn:t' xmlns:b='urn:b' xmlns:d='urn:d' xmlns:x='http://x'"
    " xmlns:s='urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0'><d:page><t:p>a<t:note><t:note-citation>1"
    "</t:note-citation><t:p>note</t:p></t:note><t:a x:href='https://e.org'>b</t:a></t:p><t:list><t:p>c</t:p></t:list>"
    "<d:frame><d:image x:href='m.png'/><s:title>d</s:title></d:frame><b:table><b:table-row b:number-rows-repeated='2'>"
    "<b:table-cell b:number-columns-repeated='2'><t:p>e</t:p></b:table-cell></b:table-row></b:table></d:page></o:d>"
)
ELEMENT = re.compile(r"<([\w:]+)[^>]*?(?:/>|>.*?</\1>)")


def damage(xml: str, chance: random.Random) -> str:
    """Delete a closing tag, or write an element twice."""
    if chance.random() < 0.5:
        tag = chance.choice(list(re.finditer(r"</[\w:]+>", xml)))
        return xml[: tag.start()] + xml[tag.end() :]
    element = ELEMENT.match(xml, chance.choice([tag.start() for tag in re.finditer(r"<\w", xml)]))
    assert element is not None
    return xml[: element.end()] + element[0] + xml[element.end() :]


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (FileKind.DOCX, WORD_PARTS),
        (FileKind.PPTX, {"ppt/slides/slide1.xml": SLIDE}),
        (FileKind.ODT, {"content.xml": OPEN_DOCUMENT, "styles.xml": OPEN_DOCUMENT, "m.png": ""}),
        (FileKind.ODP, {"content.xml": OPEN_DOCUMENT, "m.png": ""}),
        (FileKind.SHEET, {"xl/drawings/drawing1.xml": SLIDE}),
    ],
)
def test_an_office_file_with_damaged_elements_is_read_or_reported_as_broken(
    tmp_path: Path, kind: FileKind, parts: Mapping[str, str]
) -> None:
    chance = random.Random(20261120)
    with zipfile.ZipFile(workbook(tmp_path / "whole.xlsx", {"One": [["a", 1]]})) as archive:
        sheet = {name: archive.read(name).decode() for name in archive.namelist()}
    whole = {**sheet, **parts} if kind is FileKind.SHEET else parts
    names = [name for name in whole if name.endswith((".xml", ".rels")) and "</" in whole[name]]
    broken: list[str] = []

    for _ in range(400):
        name = chance.choice(names)
        path = packed(tmp_path / "damaged", {**whole, name: damage(whole[name], chance)})
        try:
            if kind is FileKind.SHEET:
                sheets = SheetFile(path, kind)
                [sheets.page(rows) for rows in sheets.row_ranges()]
            else:
                paginate(open_document(path, kind).pieces())
        except UnreadableDocument as error:
            broken.append(error.detail)

    assert 50 < len(broken) < 350, broken
    assert min(len(detail.split()) for detail in broken) > 2, "the detail is not a sentence"


@pytest.mark.parametrize("bomb", ["entities", "depth", "html", "mail"])
def test_a_hostile_file_fails_only_its_own_document(library: Library, tmp_path: Path, bomb: str) -> None:
    if bomb == "entities":
        laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
        body = f'<!DOCTYPE d [<!ENTITY l0 "ha">{laughs}]><container>&l9;</container>'
        path = packed(tmp_path / "a.epub", {"META-INF/container.xml": body})
    elif bomb == "depth":
        path = word(tmp_path / "a.docx", "<w:p>" * 300_000)
    elif bomb == "html":
        path = tmp_path / "a.html"
        path.write_text("<div><pre>" * 100_000 + "<![" * 30_000)
    else:
        path = tmp_path / "a.eml"
        nested = "".join(f'--{n}\nContent-Type: multipart/mixed; boundary="{n + 1}"\n\n' for n in range(3000))
        path.write_text(f'Subject: x\nContent-Type: multipart/mixed; boundary="0"\n\n{nested}')

    run = library.read(path)

    assert run.how in (How.DONE, How.PERMANENT), run.ended
    (tmp_path / "next.txt").write_text("still here\n")
    library.read(tmp_path / "next.txt")
    assert library.text == "still here"


@pytest.mark.parametrize(
    "sign", ["<!--", "<a ", "<![CDATA[", "<template><style></style>", "<tr><td rowspan=9999 colspan=200>x"]
)
def test_unterminated_html_is_read_in_seconds(tmp_path: Path, sign: str) -> None:
    (tmp_path / "a.html").write_text("<p>before</p>" + "<table>" + sign * (2_000 if "td" in sign else 50_000))

    began = time.process_time()

    assert pages_of(tmp_path / "a.html")[0].startswith("before")
    assert time.process_time() - began < 10


def test_a_huge_mail_is_refused_by_its_size(tmp_path: Path) -> None:
    raw_mail(tmp_path / "a.eml", "x")
    with (tmp_path / "a.eml").open("ab") as file:
        file.truncate((128 << 20) + 1)

    with pytest.raises(UnreadableDocument, match="the mail is larger than 128 MiB"):
        open_document(tmp_path / "a.eml", FileKind.MAIL)


@pytest.mark.parametrize(
    "header",
    [
        "To: " + ", ".join(f"a{number}@example.org" for number in range(10_000)),
        "Content-Disposition: attachment; filename=" + '"' * 30_000,
        "Content-Type: text/plain; x=" + "(" * 30_000,
    ],
    ids=["a million characters of addresses", "quotes", "nested comments"],
)
def test_long_headers_of_a_mail_are_cut_before_they_are_parsed(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.eml"
    path.write_text(f"Subject: Minutes\n{header}\n\nThe body.")
    began = time.process_time()

    read = open_document(path, FileKind.MAIL)
    text = "\n".join(piece for piece in read.pieces() if isinstance(piece, str))

    assert time.process_time() - began < 15
    assert "Subject: Minutes" in text
    assert read.notes == (["longer than 64 KiB and cut: To"] if header.startswith("To") else [])


def test_a_picture_that_unpacks_to_too_many_pixels_is_left_out(tmp_path: Path) -> None:
    from PIL import Image

    from job_handlers.reading.preprocess import Damaged, decode_picture

    made = io.BytesIO()
    Image.new("1", (7_000, 7_000)).save(made, "PNG")

    assert decode_picture(made.getvalue()) is None
    with pytest.raises(Damaged):
        decode_picture(b"\x89PNG\r\n\x1a\n, and no more")


@pytest.mark.parametrize(("mode", "shade"), [("I;16", 128 * 256), ("L", 128), ("LA", 128), ("RGB", (128,) * 3)])
def test_a_gray_picture_has_the_same_pixels_in_every_colour_space(mode: str, shade: int | tuple[int, ...]) -> None:
    from PIL import Image

    from job_handlers.reading.preprocess import decode_picture

    made = io.BytesIO()
    Image.new(mode, (30, 30), (128, 255) if mode == "LA" else shade).save(made, "PNG")

    found = decode_picture(made.getvalue())

    assert found is not None
    assert set(found.samples) == {128}


def test_a_table_with_too_many_cells_is_read_as_lines() -> None:
    wide, narrow = TableRow([*[""] * 2000, "x"], begins_table=True), TableRow(["a", "b"], begins_table=False)

    assert tables_in([wide, *[narrow] * 20]) == []
    assert len(tables_in([TableRow(["a", "b"], begins_table=True), *[narrow] * 700])[0].rows) == 701


def test_text_beyond_the_limit_is_refused_with_a_remedy() -> None:
    with pytest.raises(UnreadableDocument, match="split it"):
        paginate("x" * 6000 for _ in range(17_000))
