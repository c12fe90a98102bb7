"""The built-in corpus: spelled-out numbers and dates, English to German or Chinese.

corpus.py    the pairs of each kind, their split, and the files
english.py   the source
target.py    the interface of a target language
german.py    German
chinese.py   Chinese
"""

from dragoman.data.spelled_numbers.corpus import DATE_FORMS as DATE_FORMS
from dragoman.data.spelled_numbers.corpus import TARGETS as TARGETS
from dragoman.data.spelled_numbers.corpus import SpelledNumbers as SpelledNumbers
from dragoman.data.spelled_numbers.corpus import build as build
from dragoman.data.spelled_numbers.corpus import cardinal_pair as cardinal_pair
from dragoman.data.spelled_numbers.corpus import date_pair as date_pair
from dragoman.data.spelled_numbers.corpus import ordinal_pair as ordinal_pair
from dragoman.data.spelled_numbers.corpus import target_language as target_language
from dragoman.data.spelled_numbers.corpus import write as write
from dragoman.data.spelled_numbers.corpus import year_pair as year_pair
from dragoman.data.spelled_numbers.english import ENGLISH_MONTHS as ENGLISH_MONTHS
from dragoman.data.spelled_numbers.english import ENGLISH_WEEKDAYS as ENGLISH_WEEKDAYS
from dragoman.data.spelled_numbers.german import GERMAN_MONTHS as GERMAN_MONTHS
from dragoman.data.spelled_numbers.german import GERMAN_WEEKDAYS as GERMAN_WEEKDAYS
