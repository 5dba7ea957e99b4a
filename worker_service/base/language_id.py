"""Identify the language of a text by its most frequent words, which survive bad OCR."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

# Words that are in nearly every paragraph of a language, and in few other languages.
_SMALL_WORDS = {
    code: frozenset(words.split())
    for code, words in {
        "ces": "je na se že si jako pro ale jsou byl které který nebo také jeho tak podle až však při po od být může",
        "dan": "og er det til på af som med ikke den har de jeg blev fra ved også hvor efter være kan vil mellem når",
        "deu": "der die und den von zu das mit sich des auf ist im dem nicht ein eine als auch es an werden aus wird",
        "eng": "the of and to in that is was for it with as his on be at by had not are but from have this which",
        "est": "ja on ei see et oli kui ka ning mis aga oma või tema siis selle nii mida kes üks veel pole välja",
        "fin": "ja on ei että oli se hän mutta kun joka myös ovat ole olla sen tai niin jos mukaan kuin siitä nyt",
        "fra": "le la les et des en un une du dans est que pour qui par sur au il plus pas ce avec sont ne se",
        "hrv": "je se na da su što kao za bi ali od koji kako sam bio koje ili nije biti iz po samo već nakon",
        "hun": "az és hogy nem egy is volt meg csak mint már van ez ha de el még vagy azt kell lehet után volna",
        "ita": "il di che la per un non è una del con si da le dei della sono più nel alla ha gli anche come ma",
        "lav": "un ir ar no par kas ka tas uz bija lai pie vai kā viņš tika arī bet gan pēc tā ko ja jau nav",
        "lit": "ir yra kad į su iš tai kaip buvo bet ar jo po dėl už nuo apie savo jis taip tik jau gali bus jos",
        "nld": "de het een van en in is dat op te zijn met voor niet aan er om hij ook als maar door wordt bij naar",
        "nor": "og er det til på av som med ikke den har de jeg ble fra ved også hvor etter være kan vil mellom når",
        "pol": "w i na z się do nie jest że to jak po od ale za przez przy dla są jego oraz był który tym może ich",
        "por": "de a o que e do da em um para com não uma os no se na por mais as dos como mas foi ao ele das são",
        "ron": "de și în a la cu pe din nu să o este care un mai prin pentru că sau sunt fost după fi al se au lui",
        "slk": "je na sa že si ako pre ale sú bol ktoré ktorý alebo tiež jeho tak podľa až však pri po od byť môže",
        "slv": "je in se na da so za ki ne pa bi po od tudi kot ali pri bil ko še lahko kar zelo več med biti ter",
        "spa": "de la que el en y a los se del las un por con no una su para es al lo como más pero sus le ha o este",
        "swe": "och i att det som en på är av för med den till inte har de om ett men var jag från vid eller kan när",
        "tur": "ve bir bu da de için ile çok olarak daha olan gibi kadar sonra ne ama en o her ya değil var ise göre",
        # Languages in other scripts.
        "bel": "і у на што не да гэта як з але ён яго была было па для быў таксама ці за ад калі яна",
        "bul": "на и да се в от за е не са с че по като това но как беше той или ще до при си много",
        "ell": "και το να του η της με που την από για είναι τα ο σε των δεν στο θα τον οι στην ότι μια",
        "mkd": "на и да во се од за не е со ќе како што но го ги тоа дека по или беше тој сум ние би",
        "rus": "и в не на что он с как это по но из у к за от так же бы его был для она все или мы только",
        "srp": "је и у да на се за су од што као са не али или који није би то из по због све после већ",
        "ukr": "і в у на що не з як та це до за але він від його була було для є або так при вона також",
    }.items()
}
_SCRIPTS = {"Cyrillic": ("bel", "bul", "mkd", "rus", "srp", "ukr"), "Greek": ("ell",)}
_WORD = re.compile(r"[^\W\d_]+")
_SMALL_WORDS_MIN = 5
_LEAD_MIN = 1.5  # Minimum factor over the second-best language; related languages share half of their small words.

KNOWN_LANGUAGES = frozenset(_SMALL_WORDS)


def language_of(text: str, languages: Sequence[str]) -> str | None:
    """Return None if the text has too few small words, or two languages have many."""
    words = Counter(_WORD.findall(text.lower()))
    hits = {code: sum(words[word] for word in _SMALL_WORDS[code]) for code in languages if code in KNOWN_LANGUAGES}
    best_first = sorted(hits, key=lambda code: -hits[code])
    if not best_first or hits[best_first[0]] < _SMALL_WORDS_MIN:
        return None
    best, *others = best_first
    is_clear = not others or hits[best] >= _LEAD_MIN * hits[others[0]]
    return best if is_clear else None


def small_words(language: str) -> frozenset[str]:
    return _SMALL_WORDS[language]


def one_of_each_script(languages: Sequence[str], *, but: str) -> list[str]:
    """Return the first language of each script, except the script of the language `but`."""
    # Reversed, because the last language of a script replaces the others.
    code_by_script = {script_of(code): code for code in reversed(languages)}
    return [code for script, code in code_by_script.items() if script != script_of(but)]


def script_of(code: str) -> str:
    return next((script for script, codes in _SCRIPTS.items() if code in codes), "Latin")
