"""The documentation site, built once for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

_SCRIPT = Path(__file__).parents[1] / "scripts" / "docs"


def built_site(folders: pytest.TempPathFactory) -> Path:
    """Return the folder of the site; processes of one run of the tests share it."""
    pytest.importorskip("sphinx", reason="pip install -c requirements.lock -e '.[docs]'")
    base = folders.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    log = out.with_name("site.log")  # exists once a build has ended
    with FileLock(out.with_name("site.lock")):
        if not log.exists():
            done = subprocess.run([sys.executable, str(_SCRIPT), str(out)], capture_output=True, text=True, timeout=900)
            log.write_text(done.stdout + done.stderr if done.returncode else "", encoding="utf-8")
    assert not log.read_text(encoding="utf-8"), log.read_text(encoding="utf-8")
    return out
