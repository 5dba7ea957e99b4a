"""In which encoding a text is written that does not say so."""

from __future__ import annotations

import pytest

from job_handlers.encodings import HEAD_BYTES, decoded, is_guessed

GERMAN = "Der Bericht über die Größe der Übernahme – 5 € je Stück – ist fertig.\n"
TEXTS = {
    "cp1252": GERMAN,
    "cp932": "これは日本語の文章です。気候変動のリスクについて報告します。\n",
    "euc_jp": "これは日本語の文章です。気候変動のリスクについて報告します。\n",
    "iso2022_jp": "これは日本語の文章です。\n",
    "gb18030": "这是一个关于气候风险的报告。营业收入为一百万元。\n",
    "big5": "這是一份關於氣候風險的報告。營業收入為一百萬元。\n",
    "cp949": "이것은 기후 위험에 관한 보고서입니다. 매출은 백만 원입니다.\n",
    "cp1251": "Годовой отчёт компании о рисках изменения климата.\n",
    "koi8_r": "Годовой отчёт компании о рисках изменения климата.\n",
    "cp1253": "Η ετήσια έκθεση της εταιρείας για τους κινδύνους.\n",
    "cp1256": "التقرير السنوي للشركة عن مخاطر المناخ\n",
    "cp1250": "Spółka nie jest na rynku i się do tego z czasem przyzna, że to po prostu źle.\n",
    "cp1254": "Şirketin yıllık raporu bir bilgi ve risk için çok önemli olarak da var.\n",
    "utf-16-le": GERMAN,
    "utf-16-be": GERMAN,
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("times", [1, 2000])
def test_a_text_tells_its_encoding(encoding: str, times: int) -> None:
    text = TEXTS[encoding] * times
    head = text.encode(encoding)[:HEAD_BYTES]

    found, told = decoded(head)

    assert told == encoding
    assert found[:60] == text[:60]


@pytest.mark.parametrize(
    "text",
    [
        "Summe …………………………………… 5 €\nGröße –––––––––––––\n",
        "Le résumé de l’année écoulée : « 5 € par tête », la société a réalisé ses objectifs à l’été.\n",
        "El año pasado la compañía creció según lo previsto; ¿qué más?\n",
        "Årets regnskab og det er på vej, som det ikke var ved årets begyndelse.\n",
        "“It’s all that’s odd” – a dash.\n",
        "Größe\n",
    ],
)
def test_what_tells_nothing_else_is_read_as_windows_writes_it_in_the_west_of_europe(text: str) -> None:
    assert decoded(text.encode("cp1252")) == (text, "cp1252")
    assert not is_guessed("cp1252")


def test_what_is_no_text_has_no_encoding_to_be_guessed() -> None:
    assert decoded(bytes(range(256)) * 200)[1] == "cp1252"
    assert decoded(b"plain\n") == ("plain\n", "utf-8-sig")
    assert decoded(b"a\0b") == ("a\0b", "utf-8-sig")
