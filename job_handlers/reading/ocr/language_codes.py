"""Tesseract's languages: codes, Debian's packages, and other names."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Code and English name of each language.
_LISTED = """
afr Afrikaans; amh Amharic; ara Arabic; asm Assamese; aze Azerbaijani; aze_cyrl Azerbaijani (Cyrillic); bel
Belarusian; ben Bengali; bod Tibetan Standard; bos Bosnian; bre Breton; bul Bulgarian; cat Catalan; ceb Cebuano; ces
Czech; chi_sim Chinese - Simplified; chi_sim_vert Chinese - Simplified (vertical); chi_tra Chinese - Traditional;
chi_tra_vert Chinese - Traditional (vertical); chr Cherokee; cos Corsican; cym Welsh; dan Danish; deu German; div
Divehi; dzo Dzongkha; ell Greek; eng English; enm English, Middle (1100-1500); epo Esperanto; est Estonian; eus
Basque; fao Faroese; fas Persian; fil Filipino; fin Finnish; fra French; frk German (Fraktur); frm French, Middle
(ca.1400-1600); fry Frisian (Western); gla Gaelic (Scots); gle Irish; glg Galician; grc Greek, Ancient (to 1453);
guj Gujarati; hat Haitian; heb Hebrew; hin Hindi; hrv Croatian; hun Hungarian; hye Armenian; iku Inuktitut; ind
Indonesian; isl Icelandic; ita Italian; ita_old Italian - Old; jav Javanese; jpn Japanese; jpn_vert Japanese
(vertical); kan Kannada; kat Georgian; kat_old Old Georgian; kaz Kazakh; khm Khmer; kir Kyrgyz; kmr Kurmanji
(Latin); kor Korean; kor_vert Korean (vertical); lao Lao; lat Latin; lav Latvian; lit Lithuanian; ltz Luxembourgish;
mal Malayalam; mar Marathi; mkd Macedonian; mlt Maltese; mon Mongolian; mri Maori; msa Malay; mya Burmese; nep
Nepali; nld Dutch; nor Norwegian; oci Occitan (post 1500); ori Oriya; pan Punjabi; pol Polish; por Portuguese; pus
Pashto; que Quechua; ron Romanian; rus Russian; san Sanskrit; sin Sinhala; slk Slovakian; slv Slovenian; snd Sindhi;
spa Spanish; spa_old Spanish, Castilian - Old; sqi Albanian; srp Serbian; srp_latn Serbian (Latin); sun Sundanese;
swa Swahili; swe Swedish; syr Syriac; tam Tamil; tat Tatar; tel Telugu; tgk Tajik; tha Thai; tir Tigrinya; ton
Tonga; tur Turkish; uig Uyghur; ukr Ukrainian; urd Urdu; uzb Uzbek; uzb_cyrl Uzbek (Cyrillic); vie Vietnamese; yid
Yiddish; yor Yoruba
"""
# Tesseract's data for scripts, and the names of Debian's packages.
_SCRIPTS = {
    "Arabic": "arab", "Armenian": "armn", "Bengali": "beng", "Canadian_Aboriginal": "cans", "Cherokee": "cher",
    "Cyrillic": "cyrl", "Devanagari": "deva", "Ethiopic": "ethi", "Fraktur": "frak", "Georgian": "geor",
    "Greek": "grek", "Gujarati": "gujr", "Gurmukhi": "guru", "HanS": "hans", "HanS_vert": "hans-vert", "HanT": "hant",
    "HanT_vert": "hant-vert", "Hangul": "hang", "Hangul_vert": "hang-vert", "Hebrew": "hebr", "Japanese": "jpan",
    "Japanese_vert": "jpan-vert", "Kannada": "knda", "Khmer": "khmr", "Lao": "laoo", "Latin": "latn",
    "Malayalam": "mlym", "Myanmar": "mymr", "Oriya": "orya", "Sinhala": "sinh", "Syriac": "syrc", "Tamil": "taml",
    "Telugu": "telu", "Thaana": "thaa", "Thai": "thai", "Tibetan": "tibt", "Vietnamese": "viet",
}  # fmt: skip
# Two-letter codes, other three-letter codes, and native names, each with Tesseract's code.
_OTHER_NAMES = """
ar ara; be bel; bg bul; bs bos; ca cat; cs ces; cy cym; da dan; de deu; el ell; en eng; es spa; et est; eu eus; fa fas;
fi fin; fr fra; ga gle; gl glg; he heb; hi hin; hr hrv; hu hun; hy hye; id ind; is isl; it ita; ja jpn; ka kat; ko kor;
la lat; lt lit; lv lav; mk mkd; ms msa; mt mlt; nb nor; nl nld; nn nor; no nor; pl pol; pt por; ro ron; ru rus; sk slk;
sl slv; sq sqi; sr srp; sv swe; ta tam; th tha; tr tur; uk ukr; ur urd; vi vie; zh chi_sim; alb sqi; arm hye; baq eus;
bur mya; chi chi_sim; cze ces; dut nld; fre fra; geo kat; ger deu; gre ell; ice isl; mac mkd; mao mri; may msa; per fas;
rum ron; slo slk; tib bod; wel cym; deutsch deu; espanol spa; farsi fas; francais fra; italiano ita; mandarin chi_sim;
nederlands nld; polski pol; portugues por; slovak slk; svenska swe; chinese chi_sim; fraktur frk
"""


def _pairs(listed: str) -> dict[str, str]:
    # `eng English; deu German` → {"eng": "English", "deu": "German"}
    return dict(pair.split(maxsplit=1) for pair in " ".join(listed.split()).split("; "))


NAMES = _pairs(_LISTED)


def _common_names() -> dict[str, str]:
    # The shortest name comes first: "greek" means "Greek", not "Greek, Ancient (to 1453)".
    names: dict[str, str] = {}
    for code, name in sorted(NAMES.items(), key=lambda pair: len(pair[1])):
        names.setdefault(re.split(r" [-(]|,", name)[0].lower(), code)
    return names | _pairs(_OTHER_NAMES)


CODE_OF_NAME = _common_names()


# Tesseract's script names, and the codes that read each script, beginning with the one to install first.
_CODES_OF_SCRIPT = {
    "Arabic": ("script/Arabic", "ara", "fas", "pus", "snd", "uig", "urd"),
    "Armenian": ("hye", "script/Armenian"),
    "Bengali": ("script/Bengali", "asm", "ben"),
    "Canadian_Aboriginal": ("script/Canadian_Aboriginal", "iku"),
    "Cherokee": ("chr", "script/Cherokee"),
    "Cyrillic": (
        "script/Cyrillic", "aze_cyrl", "bel", "bul", "kaz", "kir", "mkd", "mon", "rus", "srp", "tat", "tgk", "ukr",
        "uzb_cyrl",
    ),
    "Devanagari": ("script/Devanagari", "hin", "mar", "nep", "san"),
    "Ethiopic": ("script/Ethiopic", "amh", "tir"),
    "Georgian": ("kat", "kat_old", "script/Georgian"),
    "Greek": ("ell", "grc", "script/Greek"),
    "Gujarati": ("guj", "script/Gujarati"),
    "Gurmukhi": ("pan", "script/Gurmukhi"),
    "Han": (
        "chi_sim", "chi_tra", "jpn", "chi_sim_vert", "chi_tra_vert", "jpn_vert", "script/HanS", "script/HanT",
        "script/Japanese",
    ),
    "Hangul": ("kor", "kor_vert", "script/Hangul"),
    "Hebrew": ("heb", "yid", "script/Hebrew"),
    "Japanese": ("jpn", "jpn_vert", "script/Japanese"),
    "Kannada": ("kan", "script/Kannada"),
    "Khmer": ("khm", "script/Khmer"),
    "Korean": ("kor", "kor_vert", "script/Hangul"),
    "Lao": ("lao", "script/Lao"),
    "Malayalam": ("mal", "script/Malayalam"),
    "Myanmar": ("mya", "script/Myanmar"),
    "Oriya": ("ori", "script/Oriya"),
    "Sinhala": ("sin", "script/Sinhala"),
    "Syriac": ("syr", "script/Syriac"),
    "Tamil": ("tam", "script/Tamil"),
    "Telugu": ("tel", "script/Telugu"),
    "Thai": ("tha", "script/Thai"),
    "Tibetan": ("bod", "dzo", "script/Tibetan"),
}  # fmt: skip


def codes_for_script(script: str) -> tuple[str, ...]:
    return _CODES_OF_SCRIPT.get(script, ())


def install_command(codes: Iterable[str]) -> str:
    return f"apt-get install {' '.join(map(_package, codes))}"


def is_known(code: str) -> bool:
    return code in NAMES or code == "osd" or code.removeprefix("script/") in _SCRIPTS


def all_codes() -> list[str]:
    return [*NAMES, *(f"script/{name}" for name in _SCRIPTS)]


def _package(code: str) -> str:
    # Debian's packages write chi_sim as chi-sim, and scripts with four letters.
    script = _SCRIPTS.get(code.removeprefix("script/"))
    return f"tesseract-ocr-script-{script}" if script else f"tesseract-ocr-{code.replace('_', '-')}"
