"""Model folders for servers: a small trained model, and variations of it that translate differently."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

GOLDEN = Path(__file__).parent / "golden" / "model_v1"


def copied_model(folder: Path, seed: int = 0, target: str = "xx") -> Path:
    """A translation model from en to `target`; seed: 0 = the trained weights, otherwise weights with noise."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("packed"))
    changed = {}
    if seed:
        draw = np.random.default_rng(seed)
        tensors = load_file(folder / "model.safetensors")
        noisy = {n: (t + 0.3 * t.std() * draw.standard_normal(t.shape)).astype(t.dtype) for n, t in tensors.items()}
        changed["model.safetensors"] = save(noisy)
    config = json.loads((folder / "config.json").read_text())
    config["data"]["target_language"] = target
    changed["config.json"] = json.dumps(config).encode()
    meta = json.loads((folder / "meta.json").read_text())
    for name, content in changed.items():
        (folder / name).write_bytes(content)
        meta["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder
