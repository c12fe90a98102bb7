"""`scripts/release` refuses what is not ready, with all problems at once."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

release = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "release")))


def test_all_problems_of_a_release_are_reported_at_once(tmp_path: Path) -> None:
    def write(version: str, changelog: str) -> None:
        for name, text in {
            "src/dragoman/_version.py": f'__version__ = "{version}"\n',
            "CHANGELOG.md": changelog,
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    write("0.1.0", "# Changelog\n\n## 0.2.0 (unreleased)\n\n- New\n")
    found = "\n".join(release.problems("0.2.0", tmp_path))
    assert "_version.py has 0.1.0; write 0.2.0" in found and "'0.2.0 (unreleased)' for this version; write" in found
    assert "uncommitted changes" in found and "accepted: MAJOR" in release.problems("v2", tmp_path)[0]
    write("0.2.0", "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- New\n\n## 0.1.0 (2026-11-01)\n\n- Old\n")
    git("add", ".")
    git("commit", "-m", "Release")
    assert release.problems("0.2.0", tmp_path) == []
    git("tag", "v0.2.0")
    assert release.problems("0.2.0", tmp_path) == ["tag v0.2.0 exists; choose the next version"]
    assert release.section((tmp_path / "CHANGELOG.md").read_text(), "0.1.0") == ("0.1.0 (2026-11-01)", "- Old")
