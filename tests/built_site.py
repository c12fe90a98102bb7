"""The documentation site, built once for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from dragoman.data import spelled_numbers
from dragoman.interpret.demo import run_demo

_SMALL = ("train.budget=6 steps", "train.schedule.warmup=6", "train.validate_every=6 steps", "model.d_model=32",
          "model.d_ff=32", "search.max_extra=2")  # fmt: skip
_SCRIPT = Path(__file__).parents[1] / "scripts" / "docs"


def built_site(folders: pytest.TempPathFactory) -> Path:
    """Return the folder of the site; processes of one run of the tests share it."""
    pytest.importorskip("sphinx", reason="pip install -c requirements.lock -e '.[docs]'")
    base = folders.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    log = out.with_name("site.log")  # exists once a build has ended
    with FileLock(out.with_name("site.lock")):
        if not log.exists():
            corpus, demo = spelled_numbers.build(), out.with_name("site-demo")
            few = spelled_numbers.SpelledNumbers(corpus.train[:800], corpus.valid[:12], corpus.test[:20])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(spelled_numbers, "build", lambda seed, target: few)
                run_demo(demo, overrides=_SMALL)
            command = [sys.executable, str(_SCRIPT), str(out), "--demo", str(demo)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
            log.write_text(done.stdout + done.stderr if done.returncode else "", encoding="utf-8")
    assert not log.read_text(encoding="utf-8"), log.read_text(encoding="utf-8")
    return out
