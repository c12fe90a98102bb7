"""LibreTranslate with the weights of a Dragoman model, as a peer for `bench/serve.py`; runs in its own environment.

    python -m venv peer && peer/bin/pip install libretranslate
    peer/bin/python bench/serve_libretranslate.py PACKAGES --threads 8

PACKAGES is a folder of Argos packages (`argos_packages`).  Two things differ from LibreTranslate as it is installed,
because they need a network: no packages are looked up, and texts are not split into sentences (its models for that are
downloaded), which saves it work; the texts of the benchmark are single sentences.  The search has the beam of the
model (`ARGOS_BEAM_SIZE`); its length penalty is fixed in the code of Argos Translate, so translations can differ.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path


def argos_packages(folder: Path, exported: Path, tokenizer: Path, languages: tuple[str, str]) -> None:
    """Write Argos packages of an exported model.

    exported: folder of CTranslate2.  tokenizer: SentencePiece model of both languages.  The second package, of the
    opposite direction, is never used: LibreTranslate downloads packages if there are fewer than two.
    """
    for source, target in (languages, languages[::-1]):
        package = folder / f"{source}_{target}"
        shutil.copytree(exported, package / "model")
        shutil.copy(tokenizer, package / "sentencepiece.model")
        names = {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
        described = {"package_version": "1.0", "argos_version": "1.0", **names, "links": []}
        (package / "metadata.json").write_text(json.dumps(described))


def announce(port: int) -> None:
    """Print the address once the server accepts connections."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--threads", default="8", help="threads of the HTTP server")
    parser.add_argument("--cores", default="2", help="threads of CTranslate2, each with its own batch")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        os.chdir(folder)  # LibreTranslate writes its own database
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME"):
            os.environ[name] = folder
        os.environ["ARGOS_PACKAGES_DIR"] = str(given.packages)
        os.environ["ARGOS_COMPUTE_TYPE"] = "int8"
        os.environ["ARGOS_INTER_THREADS"], os.environ["ARGOS_INTRA_THREADS"] = given.cores, "1"

        logging.disable(logging.WARNING)  # Argos Translate logs each step, which takes time

        from argostranslate import sbd

        sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
        from libretranslate.main import main as serve

        options = ["--host", "127.0.0.1", "--port", str(port), "--threads", given.threads, "--disable-web-ui"]
        sys.argv = ["libretranslate", *options, "--disable-files-translation"]
        threading.Thread(target=announce, args=(port,), daemon=True).start()
        serve()


if __name__ == "__main__":
    main()
