"""Numbers and placeholders that a translation keeps."""

from __future__ import annotations

import pytest

from dragoman.data.literals import has_changed_numbers, has_words
from dragoman.data.spans import keeps_spans

EN_FR, EN_DE, EN_ZH = ("en", "fr"), ("en", "de"), ("en", "zh")


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("It costs 1,000 dollars.", "Cela coûte 1 000 dollars.", EN_FR),
        ("It costs 1,000,000.", "Es kostet 1.000.000.", EN_DE), ("He is 1,80 m tall.", "Er ist 1.80 m groß.", EN_DE),
        ("It is 3.5 km.", "C'est à 3,5 km.", EN_FR), ("On May 5, 2010", "Le 05/5/2010", EN_FR),
        ("I saw 3 dogs.", "J'ai vu trois chiens.", EN_FR), ("I saw three dogs.", "J'ai vu 3 chiens.", EN_FR),
        ("There are 47 of them.", "Es sind siebenundvierzig.", EN_DE),
        ("I owe him 100 dollars.", "Ich schulde ihm hundert Dollar.", EN_DE),
        ("in the 19th century", "au XIXe siècle", EN_FR),
        ("The train leaves at 8 p.m.", "Le train part à 20 h.", EN_FR), ("It is 2:30.", "Es ist halb drei.", EN_DE),
        ("It is 2:30.", "Il est deux heures et demie.", EN_FR), ("Es ist halb drei.", "It is 2:30.", ("de", "en")),
        ("It is quarter to eight.", "Es ist 7:45 Uhr.", EN_DE),
        ("The meeting ends at 2:20 p.m.", "La réunion finit à quatorze heures vingt.", EN_FR),
        ("It lasts 2.5 hours.", "Es dauert zweieinhalb Stunden.", EN_DE),
        ("Am 3.5. kommt er.", "He is coming on May 3.", ("de", "en")),
        ("On 03.05.2024 she wrote.", "Elle a écrit le 3 mai 2024.", EN_FR),
        ("I have 1,000 yen.", "Ich habe tausend Yen.", EN_DE),
        ("I saw 12 dogs.", "J'ai vu une douzaine de chiens.", EN_FR), ("the 1990s", "die 90er", EN_DE),
        ("in the 1980s", "in den Achtzigern", EN_DE), ("1.5 million people", "150万人", EN_ZH),
        ("They met in September 1996.", "他们于1996年9月见面。", EN_ZH), ("10 of 10", "10 davon", EN_DE),
        ("Ｎｏ. １２", "No. 12", EN_DE), ("1.5 million people", "1,5 millones de personas", ("en", "es")),
        ("2 to 3 million people", "200万至300万人", EN_ZH), ("1.234 million euros", "1 234 000 euros", EN_FR),
        ("3 of 30 million", "trois des 30 millions", EN_FR), ("1,500 million", "1,5 Milliarden", EN_DE),
        ("1.5 billion", "1.500 Millionen", EN_DE), ("0.5 kg and .7 kg", "0,5 kg und 0,7 kg", EN_DE),
        ("5 dogs of 0.5 kg", "fünf Hunde von 0,5 kg", EN_DE), ("It is 2:30.", "Es ist 2.30 Uhr.", EN_DE),
        ("0.0 million", "0 Millionen", EN_DE), ("No number.", "Pas de nombre.", EN_FR),
    ],
)  # fmt: skip
def test_the_same_numbers(source: str, target: str, languages: tuple[str, str]) -> None:
    assert not has_changed_numbers(source, target, languages)


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("It costs 1,000 dollars.", "Cela coûte 100 dollars.", EN_FR), ("It is 3.5 km.", "C'est à 3,6 km.", EN_FR),
        ("I saw 3 dogs.", "J'ai vu 4 chiens.", EN_FR), ("I saw three dogs.", "J'ai vu 4 chiens.", EN_FR),
        ("There are 47 of them.", "Es sind viele.", EN_DE), ("He is old.", "Er ist 84.", EN_DE),
        ("The train leaves at 8 p.m.", "Le train part à 21 h.", EN_FR), ("1.5 million people", "160万人", EN_ZH),
        ("There are 12345678901234567890 of them.", "Es sind 12345678901234567891.", EN_DE),
        ("3 and 5", "3 and 6", (None, None)), ("The train leaves at 12:45.", "Le train part.", EN_FR),
        ("We meet at 10:15.", "On se voit.", EN_FR), ("We meet at 10:30.", "On se voit.", EN_FR),
        ("It costs 3,5 euros.", "Es ist teuer.", EN_DE), ("It is 8.5 km.", "C'est loin.", EN_FR),
        ("They met at 9:30.", "Sie trafen sich deshalb.", EN_DE),
        ("It grew by 2.7 percent.", "Es ist gewachsen.", EN_DE), ("We meet at 8:45.", "Vous y êtes.", EN_FR),
        ("It is 3:30.", "Il est trois heures.", EN_FR), ("The price is $1250.", "Le prix est dix ans.", EN_FR),
        ("The price is $1250.", "Le prix est cinquante dollars.", EN_FR), ("He has 50 dogs.", "Le chien.", EN_FR),
        ("3 million people", "30 millions de personnes", EN_FR),
        ("1.5 million people", "15 Millionen Menschen", EN_DE), ("1.5 million people", "1500万人", EN_ZH),
        ("50 mil millones", "5 billion", ("es", "en")), ("It weighs 0.5 kg.", "Es wiegt 5 kg.", EN_DE),
        ("It weighs 5 kg.", "Es wiegt 0,5 kg.", EN_DE),
    ],
)  # fmt: skip
def test_changed_numbers(source: str, target: str, languages: tuple[str | None, str | None]) -> None:
    assert has_changed_numbers(source, target, languages)


def test_numbers_of_any_length() -> None:
    assert has_changed_numbers("9" * 9000, "8" * 9000) and not has_changed_numbers("9" * 9000, "9" * 9000)


@pytest.mark.parametrize(
    ("text", "found"),
    [("one", True), ("5 km", True), ("一", True), ("See https://example.org", True), ("25,50", False), ("- * -", False),
     ("https://example.org/a, 5", False), ("a@example.org", False), ("{name}: %s", False), ("", False)],
)  # fmt: skip
def test_words(text: str, found: bool) -> None:
    assert has_words(text) == found


UNITS = [
    "!", "f0", "1", "1 ", "1,", "123,", "123 ", "1.1", "@", "a@", "a@b.", "%(a", "{a", "</a", "www.", "1 mil ",
    "1 m", "1:", "1h1 ",
]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_long_lines_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    assert not has_changed_numbers(text, text, EN_DE)
    assert keeps_spans(text, text)
    assert has_changed_numbers(f"{text} 5", "67", EN_DE)


def test_many_different_numbers_take_linear_time() -> None:
    numbers = " ".join(map(str, range(1000, 60_000, 3)))
    assert has_changed_numbers(numbers, "one and two " * 2000, EN_DE)
    assert has_changed_numbers("one and two " * 2000, numbers, EN_DE)
    assert not has_changed_numbers(numbers, numbers, EN_DE)
