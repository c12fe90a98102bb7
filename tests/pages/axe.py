"""axe-core, the accessibility checker, from npm; its rules run inside the page under test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from browser import Page


_PACKAGE = "axe-core@4"

_RUN = """
const done = arguments[arguments.length - 1];
const shown = (node) => `${node.target.join(" ")} ${node.html.slice(0, 90)}`;
axe.run(document, { resultTypes: ["violations"] }).then(
  ({ violations }) => done(violations.map((found) => `${found.id}: ${found.nodes.slice(0, 3).map(shown).join("; ")}`)),
  (error) => done([String(error)]));
"""


def axe_script(folder: Path) -> tuple[str, str]:
    """Return the text of axe-core, installed in `folder`, or "" and why it is not available."""
    if not (shutil.which("node") and shutil.which("npm")):
        return "", "node and npm are not installed"
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", _PACKAGE]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    except (subprocess.SubprocessError, OSError) as error:
        return "", f"npm cannot install {_PACKAGE}: {error}"
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8"), ""


def violations(page: Page, script: str) -> list[str]:
    """Return what axe-core finds in the page as it is shown now, one line per rule."""
    if not page.run("return Boolean(window.axe)"):
        page.run(script)
    page.driver.set_script_timeout(240)
    found: list[str] = page.driver.execute_async_script(_RUN)
    return found
