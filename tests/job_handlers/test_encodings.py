"""Detection of the encoding of a text that does not state it."""

from __future__ import annotations

import pytest

from job_handlers.encodings import HEAD_BYTES, decode, is_guessed

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
def test_the_encoding_follows_from_the_words(encoding: str, times: int) -> None:
    text = TEXTS[encoding] * times
    head = text.encode(encoding)[:HEAD_BYTES]

    decoded, detected = decode(head)

    assert detected == encoding
    assert decoded[:60] == text[:60]


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
def test_a_text_without_evidence_is_read_as_cp1252(text: str) -> None:
    assert decode(text.encode("cp1252")) == (text, "cp1252")
    assert not is_guessed("cp1252")


def test_binary_data_and_ascii_have_a_fixed_encoding() -> None:
    assert decode(bytes(range(256)) * 200)[1] == "cp1252"
    assert decode(b"plain\n") == ("plain\n", "utf-8-sig")
    assert decode(b"a\0b") == ("a\0b", "utf-8-sig")


@pytest.mark.parametrize("text", ["Größe der Übernahme\n", TEXTS["cp1251"], TEXTS["gb18030"], "📄 €\n"])
def test_a_character_cut_at_the_end_of_the_head_does_not_change_the_encoding(text: str) -> None:
    for before in range(len(text.encode())):
        body = b"x" * before + text.encode() * HEAD_BYTES

        decoded, detected = decode(body[:HEAD_BYTES])

        assert (detected, "�" in decoded, len(decoded.encode()) > HEAD_BYTES - 4) == ("utf-8-sig", False, True)


@pytest.mark.parametrize("text", [GERMAN * 3, TEXTS["cp1251"], TEXTS["gb18030"]])
@pytest.mark.parametrize("bad", [b"\xff", "é".encode("cp1252") + b"t"])
def test_an_invalid_byte_does_not_change_the_other_characters(text: str, bad: bytes) -> None:
    decoded, detected = decode(bad + b"\n" + text.encode())

    assert (detected, decoded.partition("\n")[2]) == ("utf-8-sig", text)
    assert decoded[0] in "ÿé"


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "iso2022_jp"])
def test_a_text_as_long_as_the_head_keeps_its_end(encoding: str) -> None:
    end = {"iso2022_jp": "これ", "cp1252": "Größe"}.get(encoding, "END").encode(encoding)
    body = "Größe ".encode(encoding, "ignore") + b"x" * HEAD_BYTES

    decoded, _ = decode(body[: HEAD_BYTES - len(end)] + end)

    assert decoded.endswith(end.decode(encoding))
