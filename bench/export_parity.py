"""Compare every export of a model with the model itself, on the lines of a file.

For each format: the number of lines with the same tokens, ties and differences, of greedy search and of a beam search
for targets of the greedy length, and the largest difference of a token log-probability.

    python bench/export_parity.py runs/en-de data/multi30k/test2016.en
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from dragoman.errors import UsageError
from dragoman.formats.export import FORMATS, export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run or model folder")
    parser.add_argument("lines", type=Path, help="text in the source language; the first 200 lines are compared")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--json", type=Path, help="output file for the reports")
    given = parser.parse_args()
    reports = {}
    print(f"{'format':<13}{'program':<30}{'lines':>6}{'largest':>10}  {'greedy':<42}beam")
    for name in given.formats:
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = export(given.model, Path(folder) / "out", name, check=given.lines).parity
            except UsageError as error:
                reasons = "; ".join(line.removeprefix("  - ") for line in str(error).splitlines()[1:])
                print(f"{name:<13}not supported: {reasons}")
                continue
        reports[name] = asdict(report)
        numbers = f"{report.cases:>6}{report.largest:>10.1e}  {report.greedy!s:<42}{report.beam} (beam {report.width})"
        print(f"{name:<13}{report.peer:<30}{numbers}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(reports, indent=1))


if __name__ == "__main__":
    main()
