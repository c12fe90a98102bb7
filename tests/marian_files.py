"""Random models in Marian's own files, written from the description of the formats."""

from __future__ import annotations

import functools
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]

LINES = [
    "a dog runs across a field", "two people sit", "the bench", "dogs and people run in the field", "日本語 dog",
    "a a a", "ein hund läuft", "two dogs sit on a bench and run",
]  # fmt: skip
_TEXT = [
    "a dog runs across a field", "two people sit on a bench", "dogs and people run", "the bench is in the field",
    "ein hund läuft über ein feld", "zwei leute sitzen auf einer bank", "hunde und leute laufen",
]  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "ssru": {
        "dim-emb": 24, "enc-depth": 2, "dec-depth": 3, "transformer-heads": 3, "transformer-dim-ffn": 20,
        "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "tied-embeddings-all": True,
        "transformer-ffn-activation": "relu",
    },
    "attention": {
        "dim-emb": 10, "enc-depth": 1, "dec-depth": 1, "transformer-heads": 5, "transformer-dim-ffn": 7,
        "tied-embeddings": True, "transformer-ffn-activation": "swish",
    },
    "pre-norm ssru": {
        "dim-emb": 12, "enc-depth": 3, "dec-depth": 2, "transformer-heads": 2, "transformer-dim-ffn": 16,
        "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "transformer-ffn-activation": "gelu",
        "transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n",
    },
    "two vocabularies": {
        "dim-emb": 16, "enc-depth": 1, "dec-depth": 2, "transformer-heads": 4, "transformer-dim-ffn": 24,
        "transformer-ffn-activation": "relu", "output-omit-bias": True,
    },
}  # fmt: skip
"""By name, settings that differ from `_DEFAULTS`."""
_DEFAULTS: dict[str, Any] = {
    "type": "transformer", "tied-embeddings": False, "tied-embeddings-all": False, "tied-embeddings-src": False,
    "transformer-decoder-autoreg": "self-attention", "transformer-preprocess": "", "transformer-postprocess": "dan",
    "transformer-postprocess-top": "", "transformer-postprocess-emb": "d", "transformer-tied-layers": [],
    "transformer-ffn-depth": 2, "layer-normalization": False, "lemma-dim-emb": 0, "version": "v1.9.56 2021-04-28",
}  # fmt: skip


@functools.cache
def vocabulary(size: int = 60) -> bytes:
    """A sentencepiece model with `</s>` and `<unk>` first, as Marian trains it."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXT * 3), model_writer=model, vocab_size=size, model_type="unigram", minloglevel=2,
        hard_vocab_limit=False, eos_id=0, unk_id=1, bos_id=-1, pad_id=-1,
    )  # fmt: skip
    return model.getvalue()


def random_tensors(settings: dict[str, Any], seed: int = 1) -> Tensors:
    rng = np.random.default_rng(seed)
    d, ffn, (source, target) = settings["dim-emb"], settings["transformer-dim-ffn"], settings["dim-vocabs"]
    recurrent = settings["transformer-decoder-autoreg"] == "rnn"
    suffix = "_pre" if settings["transformer-preprocess"] else ""
    tensors: Tensors = {}

    def add(name: str, *shape: int, mean: float = 0.0, scale: float = 0.3) -> None:
        tensors[name] = (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    def norm(name: str, suffix: str = suffix) -> None:
        add(f"{name}_ln_scale{suffix}", 1, d, mean=1)
        add(f"{name}_ln_bias{suffix}", 1, d)

    def attention(name: str) -> None:
        for part in "qkvo":
            add(f"{name}_W{part}", d, d)
            add(f"{name}_b{part}", 1, d)
        norm(f"{name}_Wo")

    for stack, depth in (("encoder", settings["enc-depth"]), ("decoder", settings["dec-depth"])):
        for layer in range(1, depth + 1):
            name = f"{stack}_l{layer}"
            if stack == "decoder" and recurrent:
                add(f"{name}_rnn_W", d, d)
                add(f"{name}_rnn_Wf", d, d)
                add(f"{name}_rnn_bf", 1, d)
                norm(f"{name}_rnn" if suffix else f"{name}_rnn_ffn")
            else:
                attention(f"{name}_self")
            if stack == "decoder":
                attention(f"{name}_context")
            add(f"{name}_ffn_W1", d, ffn)
            add(f"{name}_ffn_b1", 1, ffn)
            add(f"{name}_ffn_W2", ffn, d)
            add(f"{name}_ffn_b2", 1, d)
            norm(f"{name}_ffn_ffn")
        if suffix:
            norm(f"{stack}_top", "")
    if settings["tied-embeddings-all"]:
        add("Wemb", source, d)
    else:
        add("encoder_Wemb", source, d)
        add("decoder_Wemb", target, d)
        if not settings["tied-embeddings"]:
            add("decoder_ff_logit_out_Wt", target, d)
    if not settings.get("output-omit-bias"):
        add("decoder_ff_logit_out_b", 1, target, scale=1)
        tensors["decoder_ff_logit_out_b"][0, 0] += 1.5  # so that most targets end before the limit of their length
    return tensors


def _yaml(settings: dict[str, Any]) -> bytes:
    def shown(value: Any) -> str:
        return (
            {True: "true", False: "false"}.get(value, str(value))
            if isinstance(value, bool)
            else (f'"{value}"' if value == "" else str(value))
        )

    return "".join(f"{key}: {shown(value)}\n" for key, value in settings.items()).encode()


def items_of(tensors: Tensors, settings: dict[str, Any], bits: int) -> list[tuple[str, int, tuple[int, ...], bytes]]:
    """Name, type, shape and data of each item.  bits: 32, or 8 or 16 for intgemm's integers."""
    found = []
    for name, values in sorted(tensors.items()):
        is_matrix = name.split("_")[-1].startswith("W")
        if bits == 32 or not is_matrix:
            found.append((name, 0x0404, values.shape, values.tobytes()))
            continue
        scale = np.float32(127 / np.abs(values).max() if bits == 8 else 1024)
        stored = values if "Wemb" in name else values.T
        numbers = np.rint(stored * scale).astype(np.int8 if bits == 8 else np.int16).tobytes()
        data = numbers + scale.tobytes()
        found.append((name, 0x4101 if bits == 8 else 0x4102, values.shape, data + b"\7" * (-len(data) % 256)))
        # Of embeddings, Marian writes an item of one integer with bytes without meaning behind it.
        kind = 0x4101 if "Wemb" in name else 0x0404
        found.append((f"{name}_QuantMultA", kind, (1, 1), struct.pack("<f", 20.0) + b"\xff" * 252))
    text = _yaml(settings) + b"\0"
    return [*found, ("special:model.yml", 0x0101, (len(text),), text)]


def binary(items: list[tuple[str, int, tuple[int, ...], bytes]]) -> bytes:
    """A binary model file."""
    names = [name.encode() + b"\0" for name, *_ in items]
    head = struct.pack("<2Q", 1, len(items))
    for name, (_, kind, shape, data) in zip(names, items, strict=True):
        head += struct.pack("<4Q", len(name), kind, len(shape), len(data))
    head += b"".join(names) + b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(head) + 8) % 256
    return head + struct.pack("<Q", padding) + b"\0" * padding + b"".join(data for *_, data in items)


def lexical_shortlist(lists: list[list[int]], first: int) -> bytes:
    """A binary shortlist.  lists: target ids per source id."""
    offsets = np.cumsum([0, *map(len, lists)]).astype("<u8").tobytes()
    ids = np.array([token for row in lists for token in row], "<u4").tobytes()
    body = struct.pack("<4Q", first, max(map(len, lists)), len(lists) + 1, sum(map(len, lists))) + offsets + ids
    checksum = 0
    for (word,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8]):
        checksum ^= (word + 0x9E3779B9 + (checksum << 6) + (checksum >> 2)) % 2**64
    return struct.pack("<2Q", 0xF11A48D5013417F5, checksum) + body


def marian_model(folder: Path, name: str = "ssru", kind: str = "npz", seed: int = 1, **changes: Any) -> Path:
    """Write a model with random weights and return its folder.

    kind: "npz", "float" or "int8" or "int16" for binary files.  changes: of the settings.
    """
    folder.mkdir(parents=True)
    models = [vocabulary(), vocabulary(52) if name == "two vocabularies" else vocabulary()]
    sizes = [spm.SentencePieceProcessor(model_proto=model).get_piece_size() for model in models]
    settings = _DEFAULTS | MODELS[name] | {"dim-vocabs": sizes}
    tensors = random_tensors(settings, seed)
    settings |= changes
    if kind == "npz":
        text = np.frombuffer(_yaml(settings) + b"\0", np.int8)
        np.savez(folder / "model.npz", **tensors, **{"special:model.yml": text})
    else:
        bits = {"float": 32, "int8": 8, "int16": 16}[kind]
        (folder / "model.bin").write_bytes(binary(items_of(tensors, settings, bits)))
    if name == "two vocabularies":
        for side, model in zip(("src", "trg"), models, strict=True):
            (folder / f"{side}vocab.spm").write_bytes(model)
    else:
        (folder / "vocab.spm").write_bytes(models[0])
    return folder
