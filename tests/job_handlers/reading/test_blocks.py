"""The structure of pages, from the file to Markdown."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image

from benchmarks.markdown_accuracy import score
from benchmarks.markdown_truth import reports
from job_handlers.file_kinds import kind_of
from job_handlers.reading import flow_pictures, ingest, page_recognition, pdf
from job_handlers.reading.blocks import TextLine, divide_lines, measure_page_facts
from job_handlers.reading.ocr import OcrSettings, reader_for
from tests.job_handlers.reading.documents import prose, scan
from tests.job_handlers.reading.test_formats import RELATIONS, WIDE, W, packed, paragraph, word, word_cell
from worker_service.handlers import PageResult
from worker_service.jobs.blocks import Role
from worker_service.jobs.markdown import document_markdown, page_markdown
from worker_service.jobs.page_structure import StructuredPage, structure_of

pymupdf: Any = partly_typed

ENGLISH = OcrSettings(("eng",), "fast")


def read(path: Path) -> Sequence[StructuredPage]:
    """Read a file in this process."""
    kind, results = kind_of(path), list[PageResult]()
    if kind.is_flowing:
        examine = ingest._flow_reader(path, kind, path.parent)
        recognise = flow_pictures.flow_reader(path, kind, ENGLISH)
        count = examine(0)
        assert isinstance(count, ingest.PageCount)
        for number in range(1, count.pages + 1):
            examined = examine(number)
            page = recognise(-number) if isinstance(examined, ingest.ExaminedPage) and examined.scan else examined
            assert isinstance(page, ingest.ExaminedPage | page_recognition.PageReading)
            results.append(PageResult(number, "", page.text, page.method, None, page.layout))
    else:
        with pdf.PagedFile(path) as book:
            for number in range(1, book.pages + 1):
                page = ingest.examine_page(book, number)
                if page.scan:
                    page = page_recognition.recognise_page(
                        reader_for(ENGLISH), page_recognition.draw_page(book, number)
                    )
                results.append(PageResult(number, "", page.text, page.method, None, page.layout))
    return structure_of(results)


def printed(path: Path, *lines: tuple[float, float, str, float, str], pages: int = 1) -> Path:
    """Save pages with these lines: x, y, font, size, text."""
    with pymupdf.open() as document:
        for number in range(1, pages + 1):
            page = document.new_page(width=595, height=842)
            for x, y, font, size, text in lines:
                page.insert_text((x, y), text.replace("{page}", str(number)), fontname=font, fontsize=size)
        document.save(path)
    return path


BODY = [prose(seed, 50).partition(".")[0][:75] for seed in range(12)]


def body(y: float, count: int = 4) -> Iterator[tuple[float, float, str, float, str]]:
    yield from ((72, y + 13 * at, "tiro", 10, BODY[at].lower() + ",") for at in range(count))


def test_headings_lists_and_code_become_markdown(tmp_path: Path) -> None:
    path = printed(
        tmp_path / "a.pdf",
        (72, 80, "tibo", 20, "Annual report"),
        *body(110),
        (72, 190, "tibo", 14, "Risks"),
        *body(215),
        (72, 290, "tiro", 10, "• water"),
        (72, 305, "tiro", 10, "• fire"),
        (90, 320, "tiro", 10, "• in forests"),
        (72, 360, "cour", 10, "def burn(): pass"),
        *body(400),
    )

    [page] = read(path)

    lines = page_markdown(page).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# Annual report", "## Risks"]
    assert [line for line in lines if line.lstrip().startswith("- ")] == ["- water", "- fire", "    - in forests"]
    assert lines[lines.index("```") + 1] == "def burn(): pass"
    assert sum(block.role is Role.PARAGRAPH for block in page.blocks) == 3


def test_running_heads_and_page_numbers_are_left_out_of_markdown_but_not_of_the_text(tmp_path: Path) -> None:
    running = [(72, 40, "helv", 8, "Report of the board"), (290, 815, "helv", 8, "Page {page} of 4")]

    pages = read(printed(tmp_path / "a.pdf", *running, *body(110), pages=4))

    whole = "".join(document_markdown(pages))
    assert "Report of the board" not in whole
    assert "of 4" not in whole
    assert whole.startswith("<!-- page 1 -->")
    assert "Report of the board" in pages[2].text
    assert "Page 3 of 4" in pages[2].text


def test_a_word_that_a_line_divides_is_whole_in_markdown() -> None:
    text = "The respon-\nsibility of the Anglo-\nSaxon board\n"

    [page] = structure_of(iter([PageResult(1, "d", text, "ocr")]))

    assert page_markdown(page) == "The responsibility of the Anglo-Saxon board\n"


def test_text_that_looks_like_markdown_is_escaped() -> None:
    [page] = structure_of(iter([PageResult(1, "d", "# not *one* <b> of_them\n\n1. neither", "ocr")]))

    assert page_markdown(page) == "\\# not \\*one\\* \\<b> of_them\n\n1\\. neither\n"


@pytest.mark.parametrize("layout", [None, '{"size":[595,842],"blocks":[[72,80,500,90,0,7]]}'])
def test_a_page_read_before_blocks_had_roles_becomes_paragraphs(layout: str | None) -> None:
    [page] = structure_of(iter([PageResult(1, "d", "old one", "layer", None, layout)]))

    assert page_markdown(page) == "old one\n"


def test_a_page_of_a_spreadsheet_becomes_a_table_below_its_name() -> None:
    layout = '{"sheet":"Costs","first":1,"values":[["Year","EUR"],[2024,1.5],[null,"a|b"]]}'

    [page] = structure_of(iter([PageResult(1, "d", "Year\tEUR\n2024\t1.5\n\ta|b\nCosts", "rows", None, layout)]))

    assert page_markdown(page) == "# Costs\n\n| Year | EUR |\n| --- | --- |\n| 2024 | 1.5 |\n|  | a\\|b |\n"


def test_the_styles_of_a_word_document_become_markdown(tmp_path: Path) -> None:
    def styled(style: str, text: str) -> str:
        return f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'

    styles = (
        f'<w:styles {W}><w:style w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>'
        '<w:style w:styleId="Liste"><w:name w:val="List Bullet"/></w:style></w:styles>'
    )
    body = styled("berschrift2", "Risks") + paragraph("We see:") + styled("Liste", "water") + styled("Liste", "fire")
    header = f"<w:hdr {W}>{paragraph('Report of the board')}</w:hdr>"

    [page] = read(word(tmp_path / "a.docx", body, {"word/styles.xml": styles, "word/header1.xml": header}))

    assert page_markdown(page) == "## Risks\n\nWe see:\n\n- water\n- fire\n"
    assert "Report of the board" in page.text


def test_the_elements_of_a_web_page_become_markdown(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        '<h2>Risks</h2><p>We <a href="https://a.example/x">see  now</a><br><a href="javascript:x()">two</a>:'
        "<ul><li>water<ul><li>salt</ul><li>fire</ul><pre>a = 1\n  b = 2</pre>"
        "<table><tr><th>Year<th>EUR<tr><td>2024<td>1</table>"
    )

    [page] = read(path)

    assert page_markdown(page) == (
        "## Risks\n\nWe [see now](https://a.example/x)\n\ntwo:\n\n"
        "- water\n    - salt\n- fire\n\n```\na = 1\n  b = 2\n```\n\n"
        "| Year | EUR |\n| --- | --- |\n| 2024 | 1 |\n"
    )


def test_a_table_with_spans_becomes_html(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("<table><tr><th rowspan=2>Year<th colspan=2>EUR<tr><td>A&amp;B<td>C<tr><td>2024<td>1<td>2</table>")

    [page] = read(path)

    assert page_markdown(page) == (
        '<table>\n<tr><th rowspan="2">Year</th><th colspan="2">EUR</th></tr>\n'
        "<tr><td>A&amp;B</td><td>C</td></tr>\n<tr><td>2024</td><td>1</td><td>2</td></tr>\n</table>\n"
    )


LINK = '<Relationship Id="r1" Type="http://o/hyperlink" Target="https://a.example/x" TargetMode="External"/>'
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
OPEN = "xmlns:o='http://o' xmlns:t='http://t' xmlns:b='http://b' xmlns:x='http://x' xmlns:d='http://d'"
OPEN += " xmlns:svg='urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0'"


def open_text(path: Path, body: str, more: Mapping[str, bytes] = {}) -> Path:
    kind = "application/vnd.oasis.opendocument.text"
    return packed(path, {"mimetype": kind, "content.xml": f"<o:d {OPEN}>{body}</o:d>", **more})


def presentation(path: Path, body: str, more: Mapping[str, bytes] = {}) -> Path:
    relations = LINK + '<Relationship Id="r2" Type="http://o/image" Target="a.png"/>'
    return packed(path, {
        "ppt/presentation.xml": "<p/>", "ppt/slides/slide1.xml": f"<p:sld xmlns:p='http://p' {W}>{body}</p:sld>",
        "ppt/slides/_rels/slide1.xml.rels": RELATIONS.format(relations), **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.docx", '<w:hyperlink r:id="r1"><w:r><w:t>here</w:t></w:r></w:hyperlink>'),
        ("b.docx", f"{FIELD.format('begin')}<w:r><w:instrText> HYPERLINK \"https://a.example/x\" </w:instrText></w:r>"
                   f"{FIELD.format('separate')}<w:r><w:t>here</w:t></w:r>{FIELD.format('end')}"),
        ("a.odt", "<t:a x:href='https://a.example/x'>here</t:a>"),
        ("a.pptx", '<a:r><a:rPr><a:hlinkClick r:id="r1"/></a:rPr><a:t>here</a:t></a:r>'),
    ],
)  # fmt: skip
def test_the_links_of_office_documents_are_links_in_markdown(tmp_path: Path, name: str, body: str) -> None:
    path, relations = tmp_path / name, {"word/_rels/document.xml.rels": RELATIONS.format(LINK)}
    if name.endswith(".docx"):
        run = "<w:r><w:t>{}</w:t></w:r>"
        word(path, f"<w:p>{run.format('Not here but ')}{body}{run.format(' and on.')}</w:p>", relations)
    elif name.endswith(".odt"):
        open_text(path, f"<t:p>Not here but {body} and on.</t:p>")
    else:
        run = "<a:r><a:t>{}</a:t></a:r>"
        presentation(path, f"<a:p>{run.format('Not here but ')}{body}{run.format(' and on.')}</a:p>")

    [page] = read(path)

    assert page_markdown(page) == "Not here but [here](https://a.example/x) and on.\n"
    assert page.text == "Not here but here and on."


def test_the_spans_of_office_documents_become_html(tmp_path: Path) -> None:
    merged = "<w:tr>{}</w:tr>"
    begin, goes_on = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    rows = (
        word_cell("Year", begin) + word_cell("EUR", WIDE), word_cell("", goes_on) + word_cell("A") + word_cell("B"),
        word_cell("2024") + word_cell("1") + word_cell("2"),
    )  # fmt: skip
    word(tmp_path / "a.docx", f"<w:tbl>{''.join(map(merged.format, rows))}</w:tbl>")
    cell = "<b:table-cell{}><t:p>{}</t:p></b:table-cell>"
    open_rows = (
        cell.format(" b:number-rows-spanned='2'", "Year") + cell.format(" b:number-columns-spanned='2'", "EUR")
        + "<b:covered-table-cell/>", "<b:covered-table-cell/>" + cell.format("", "A") + cell.format("", "B"),
        cell.format("", "2024") + cell.format("", "1") + cell.format("", "2"),
    )  # fmt: skip
    open_text(
        tmp_path / "a.odt", f"<b:table>{''.join(f'<b:table-row>{row}</b:table-row>' for row in open_rows)}</b:table>"
    )

    for name in ("a.docx", "a.odt"):
        [page] = read(tmp_path / name)
        assert page_markdown(page) == (
            '<table>\n<tr><th rowspan="2">Year</th><th colspan="2">EUR</th></tr>\n'
            "<tr><td>A</td><td>B</td></tr>\n<tr><td>2024</td><td>1</td><td>2</td></tr>\n</table>\n"
        )


def test_the_footnotes_of_office_documents_are_footnotes(tmp_path: Path) -> None:
    noted_run = '<w:r><w:t>We pay</w:t><w:footnoteReference w:id="7"/><w:t> for it.</w:t></w:r>'
    notes = f'<w:footnotes {W}><w:footnote w:id="0">{paragraph("-")}</w:footnote>'
    notes += f'<w:footnote w:id="7">{paragraph("A rule.")}</w:footnote></w:footnotes>'
    word(tmp_path / "a.docx", f"<w:p>{noted_run}</w:p>", {"word/footnotes.xml": notes})
    note = "<t:note><t:note-citation>1</t:note-citation><t:note-body><t:p>A rule.</t:p></t:note-body></t:note>"
    open_text(tmp_path / "a.odt", f"<t:p>We pay{note} for it.</t:p>")

    for name in ("a.docx", "a.odt"):
        [page] = read(tmp_path / name)
        assert page_markdown(page).startswith("We pay[^1] for it.\n\n")
        assert page_markdown(page).endswith("[^1]: A rule.\n")


@pytest.mark.parametrize("name", ["a.docx", "a.odt", "a.pptx", "a.html"])
def test_a_picture_with_alternative_text_has_it_in_markdown(tmp_path: Path, name: str) -> None:
    png = io.BytesIO()
    Image.new("RGB", (90, 60), "red").save(png, "PNG")
    path, red = tmp_path / name, png.getvalue()
    if name == "a.docx":
        image = RELATIONS.format('<Relationship Id="r2" Type="http://o/image" Target="a.png"/>')
        body = '<w:p><w:r><w:docPr descr="A red box"/><w:cNvPr descr=""/><a:blip r:embed="r2"/></w:r></w:p>'
        word(path, f"{paragraph('Above.')}{body}{paragraph('Below.')}",
             {"word/_rels/document.xml.rels": image, "word/a.png": red})  # fmt: skip
    elif name == "a.odt":
        title = "<svg:title>Box</svg:title><svg:desc>A red box</svg:desc>"
        frame = f"<d:frame><d:image x:href='Pictures/a.png'/>{title}</d:frame>"
        open_text(path, f"<t:p>Above.</t:p><t:p>{frame}</t:p><t:p>Below.</t:p>", {"Pictures/a.png": red})
    elif name == "a.pptx":
        body = "<a:p><a:r><a:t>{}</a:t></a:r></a:p>"
        picture = '<p:pic><p:cNvPr descr="A red box"/><a:blip r:embed="r2"/></p:pic>'
        presentation(path, f"{body.format('Above.')}{picture}{body.format('Below.')}", {"ppt/slides/a.png": red})
    else:
        data = base64.b64encode(red).decode()
        path.write_text(f'<p>Above.<p><img alt="A red box" src="data:image/png;base64,{data}"><p>Below.')

    [page] = read(path)

    assert page_markdown(page) == "Above.\n\n![A red box]()\n\nBelow.\n"


def test_a_scan_has_headings_and_paragraphs(tmp_path: Path) -> None:
    with pymupdf.open() as document:
        page = document.new_page(width=595, height=842)
        page.insert_text((72, 100), "Annual report", fontname="helv", fontsize=26)
        for line in range(12):
            page.insert_text((72, 150 + 16 * line + 20 * (line > 5)), BODY[line], fontname="helv", fontsize=11)
        image = Image.frombytes("L", (1240, 1754), page.get_pixmap(dpi=150, colorspace="gray").samples[: 1240 * 1754])

    [page] = read(scan(tmp_path / "a.pdf", [image], dpi=150))

    assert [block.role for block in page.blocks] == [Role.HEADING, Role.PARAGRAPH, Role.PARAGRAPH]
    assert page_markdown(page).startswith("# Annual report\n\n")


def test_the_outline_of_a_pdf_names_its_headings(tmp_path: Path) -> None:
    path = printed(tmp_path / "a.pdf", (72, 80, "tiro", 10, "Of water"), *body(110))
    with pymupdf.open(path) as document:
        document.set_toc([[1, "Front", 1], [2, "Of  Water", 1]])
        document.saveIncr()

    [page] = read(path)

    assert page_markdown(page).startswith("## Of water\n\n")


def test_the_links_of_a_pdf_are_links_in_markdown(tmp_path: Path) -> None:
    path = printed(
        tmp_path / "a.pdf", (72, 80, "tiro", 10, "Read the rules of water and"), (72, 93, "tiro", 10, "more.")
    )
    with pymupdf.open(path) as document:
        [box] = document[0].search_for("rules of water")
        link = {"kind": pymupdf.LINK_URI, "from": box, "uri": "https://a.example/rules"}
        document[0].insert_link(link)
        document.saveIncr()

    [page] = read(path)

    assert page_markdown(page) == "Read the [rules of water](https://a.example/rules) and more.\n"


def noted(path: Path, *texts: str, note: str = "1See the rules.") -> Path:
    """Save a page with these lines, in which ^1 is a superscript, above a footnote."""
    lines: list[tuple[float, float, str, float, str]] = []
    for at, text in enumerate(texts):
        before, mark, after = text.partition("^1")
        width = pymupdf.get_text_length(before, "tiro", 10)
        lines.append((72, 80 + 13 * at, "tiro", 10, before))
        if mark:
            lines += (72 + width, 77 + 13 * at, "tiro", 6, "1"), (76 + width, 80 + 13 * at, "tiro", 10, after or " ")
    return printed(path, *lines, (72, 760, "tiro", 5, note[0]), (75, 763, "tiro", 8, note[1:]))


def test_a_footnote_becomes_one_in_markdown(tmp_path: Path) -> None:
    [page] = read(noted(tmp_path / "a.pdf", "We pay for water^1 and", "for fire in forests."))

    assert page_markdown(page) == "We pay for water[^1] and for fire in forests.\n\n[^1]: See the rules.\n"


@pytest.mark.parametrize(
    "texts",
    [["An area of 20 cm^1 here."], ["Water^1 is", "wet^1 here"], ["Water1 is wet."], ["Nobody refers to it."]],
    ids=["exponent", "two", "no superscript", "none"],
)
def test_a_footnote_without_a_sure_reference_stays_a_paragraph(tmp_path: Path, texts: list[str]) -> None:
    [page] = read(noted(tmp_path / "a.pdf", *texts))

    assert page_markdown(page).endswith("\n\n1See the rules.\n")


def test_footnotes_of_two_pages_have_different_labels(tmp_path: Path) -> None:
    other = noted(tmp_path / "b.pdf", "We pay for fire^1 and", "for much more.", note="1Ask the board for it.")
    with pymupdf.open(noted(tmp_path / "a.pdf", "We pay for water^1 and")) as document, pymupdf.open(other) as more:
        document.insert_pdf(more)
        document.save(tmp_path / "c.pdf")

    whole = "".join(document_markdown(read(tmp_path / "c.pdf")))

    assert [whole.count(label) for label in ("[^p1-1]", "[^p2-2]", "[^p1-1]: See", "[^p2-2]: Ask")] == [2, 2, 1, 1]


def pictured(path: Path, alt: str = "", *boxes: tuple[float, float, float, float]) -> Path:
    """Save a page with text above and below red pictures; with `alt`, the first is a figure of the structure tree."""
    red = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 200, 100))
    red.clear_with(90)
    with pymupdf.open(
        printed(path.with_name("text.pdf"), *body(110), (72, 420, "tiro", 10, "Fire is hot."))
    ) as document:
        page = document[0]
        for box in boxes or [(72, 180, 272, 380)]:
            page.insert_image(box, pixmap=red)
        if alt:
            [content] = [stream for stream in page.get_contents() if b"Do" in document.xref_stream(stream)]
            document.update_stream(content, b"/Figure <</MCID 0>> BDC\n%s\nEMC" % document.xref_stream(content))
            tree, figure, parents = (document.get_new_xref() for _ in range(3))
            document.update_object(
                figure, f"<</Type/StructElem/S/Figure/P {tree} 0 R/Pg {page.xref} 0 R/K 0/Alt({alt})>>"
            )
            document.update_object(parents, f"<</Nums [0 [{figure} 0 R]]>>")
            document.update_object(tree, f"<</Type/StructTreeRoot/K {figure} 0 R/ParentTree {parents} 0 R>>")
            document.xref_set_key(page.xref, "StructParents", "0")
            document.xref_set_key(document.pdf_catalog(), "StructTreeRoot", f"{tree} 0 R")
        document.save(path)
    return path


@pytest.mark.parametrize(
    ("alt", "shown"), [("", "<!-- image -->"), ("Water [red]", "![Water \\[red\\]]()")], ids=["plain", "stated"]
)
def test_a_picture_of_a_pdf_is_in_reading_order(tmp_path: Path, alt: str, shown: str) -> None:
    [page] = read(pictured(tmp_path / "a.pdf", alt))

    assert page_markdown(page).split("\n\n")[1] == shown
    [block] = [block for block in page.blocks if block.role is Role.PICTURE]
    assert (block.x0, block.x1, page.text_of(block)) == (72, 272, "")


def test_signs_and_page_marks_are_no_pictures(tmp_path: Path) -> None:
    small, mark = (72, 200, 100, 228), (400, 20, 500, 80)

    [page] = read(pictured(tmp_path / "a.pdf", "", small, mark))

    assert {block.role for block in page.blocks} == {Role.PARAGRAPH}


def test_the_tags_of_a_pdf_name_its_parts(tmp_path: Path) -> None:
    lines = [
        ("Artifact", 20, "Page of the board"), ("H3", 700, "Of water"), ("LI", 660, "Rivers"), ("P", 640, "Lakes"),
        ("P", 600, "Seas"),
    ]  # fmt: skip
    with pymupdf.open() as document:
        page = document.new_page(width=595, height=842)
        page.insert_font(fontname="helv", fontbuffer=None)
        content_stream = "".join(
            f"/{kind} <</MCID {at - 1}>> BDC BT /helv 10 Tf 72 {y} Td ({text} and all the rest of it) Tj ET EMC\n"
            if kind != "Artifact" else f"/Artifact BMC BT /helv 10 Tf 72 {y} Td ({text}) Tj ET EMC\n"
            for at, (kind, y, text) in enumerate(lines)
        )  # fmt: skip
        content, tree, parents = (document.get_new_xref() for _ in range(3))
        document.update_object(content, "<<>>")
        document.update_stream(content, content_stream.encode())
        page.set_contents(content)
        elements = []
        for at, (kind, _, _) in enumerate(lines[1:]):
            elements.append(document.get_new_xref())
            document.update_object(
                elements[-1], f"<</Type/StructElem/S/{kind}/P {tree} 0 R/Pg {page.xref} 0 R/K {at}>>"
            )
        references = " ".join(f"{element} 0 R" for element in elements)
        document.update_object(parents, f"<</Nums [0 [{references}]]>>")
        document.update_object(tree, f"<</Type/StructTreeRoot/K [{references}]/ParentTree {parents} 0 R>>")
        document.xref_set_key(page.xref, "StructParents", "0")
        document.xref_set_key(document.pdf_catalog(), "StructTreeRoot", f"{tree} 0 R")
        document.xref_set_key(document.pdf_catalog(), "MarkInfo", "<</Marked true>>")
        document.save(tmp_path / "a.pdf")

    [read_page] = read(tmp_path / "a.pdf")

    assert [(block.role, block.level) for block in read_page.blocks] == [
        (Role.HEADING, 3), (Role.ITEM, 1), (Role.PARAGRAPH, 0), (Role.PARAGRAPH, 0), (Role.FOOT, 0),
    ]  # fmt: skip


def test_a_line_without_width_costs_no_page() -> None:
    line = TextLine(10, 10, 10, 20, 18, 10, 0, "x\n", begins_part=True)

    [block] = divide_lines([line, line], 0, measure_page_facts([line, line], 800))

    assert (block.begin, block.end) == (0, 4)


def test_the_structure_of_reports_is_found(tmp_path: Path) -> None:
    """`./run bench markdown` measures the same on more reports, and with other programs."""
    counts: dict[str, list[float]] = {}
    for truth in reports(tmp_path, "tested", 4):
        whole = "".join(document_markdown(read(truth.path)))
        for name, (points, points_most) in score(whole, truth).items():
            counts.setdefault(name, []).append(points)
            counts.setdefault(f"most {name}", []).append(points_most)

    scores = {
        name: sum(counts[name]) / (sum(counts[f"most {name}"]) or 1)
        for name in ("headings", "levels", "items", "order")
    }
    assert min(scores.values()) > 0.9, scores
