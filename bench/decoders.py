"""One program that translates, in a process of its own: what bench/decode.py starts and asks.

    python bench/decoders.py JOB.json PROGRAM OPTIONS        (not meant to be called by hand)

A request is a line of JSON on standard input, an answer a line on standard output.  {"numbers": [...], "beam": K,
"batch": B, "alone": true, "words": false} translates these sentences of the job, one by one or all at once, and answers
with seconds and tokens, with "words" also with the targets' ids; {"read": bytes} measures how fast memory of that size
is read.  Affinity is set before anything is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Job = dict[str, Any]
"""folder: where packed and exported models lie; sources: rows of ids, EOS last; length: tokens of every target, end
included, or 0 = as it comes; lengths: of each sentence, for a program that is not of the same weights; model: the
`[model]` section; pieces, target_pieces: the vocabularies; trained: the model folder, or None."""

Rows = list[list[int]]
Translate = Callable[[Rows, int, Any, list[int]], Rows]
"""(sources, beam, batch setting, length of each target for who must be told) -> ids of the targets without the end."""


def ours(job: Job, options: dict[str, Any]) -> Translate:
    """The native engine."""
    from dragoman.decoding.native.engine import Engine
    from dragoman.decoding.settings import SearchSettings

    engine = Engine(Path(job["folder"]) / f"packed-{options['precision']}")

    def translate(sources: Rows, beam: int, batch: Any, lengths: list[int]) -> Rows:
        settings = SearchSettings(beam=beam, min_length=max(0, job["length"] - 1))
        limits = [job["length"] or len(source) + settings.max_extra for source in sources]
        found = engine.search(sources, limits, settings, threads=options["threads"])
        return [best.tokens for best, *_ in found]

    return translate


def plain(job: Job, options: dict[str, Any]) -> Translate:
    """dragoman.decoding in PyTorch."""
    import torch

    from dragoman.config import parse_config
    from dragoman.data.batching import batches_within, collate_source
    from dragoman.decoding import ModelStepper, SearchSettings, generate
    from dragoman.models.build import build_model
    from dragoman.models.model_folder import load_model
    from dragoman.models.seq2seq import Model

    torch.set_num_threads(options["threads"])
    if job["trained"]:
        model = load_model(job["trained"])[0].eval()
    else:
        config = parse_config({"data": {"train": [{"source": "s", "target": "t"}]}, "model": job["model"]})
        built = build_model(config.model, len(job["pieces"]), len(job["target_pieces"]), seed=1).eval()
        assert isinstance(built, Model)
        model = built
    stepper = ModelStepper(model)

    def translate(sources: Rows, beam: int, batch: Any, lengths: list[int]) -> Rows:
        settings = SearchSettings(beam=beam, min_length=max(0, job["length"] - 1), max_extra=0 if job["length"] else 50)
        written: Rows = [[] for _ in sources]
        for places in batches_within([len(source) * beam for source in sources], batch):
            src, mask = collate_source([sources[i] for i in places])
            for place, (best, *_) in zip(places, generate(stepper, src, mask, settings), strict=True):
                written[place] = best.tokens
        return written

    return translate


def ctranslate2(job: Job, options: dict[str, Any]) -> Translate:
    """The same weights, exported.  Without torch and transformers, as it is where nobody needs them."""
    sys.modules.update(dict.fromkeys(("torch", "transformers", "huggingface_hub")))  # type: ignore[arg-type]
    import ctranslate2 as ct2  # type: ignore[import-untyped]

    precision = options["precision"]
    threads = {"inter_threads": options.get("inter", 1), "intra_threads": options["threads"] // options.get("inter", 1)}
    runner = ct2.Translator(str(Path(job["folder"]) / f"ct2-{precision}"), compute_type=precision, **threads)
    names, ids = job["pieces"], {piece: i for i, piece in enumerate(job["target_pieces"])}

    def translate(sources: Rows, beam: int, batch: Any, lengths: list[int]) -> Rows:
        size, kind = batch
        found = runner.translate_batch(
            [[names[i] for i in source[:-1]] for source in sources],
            beam_size=beam,
            length_penalty=0.6,
            max_batch_size=size,
            batch_type=kind,
            max_decoding_length=job["length"] or 256,
            min_decoding_length=job["length"] or 1,
        )
        return [[ids[piece] for piece in each.hypotheses[0]] for each in found]

    return translate


def onnxruntime(job: Job, options: dict[str, Any]) -> Translate:
    """The same weights as graphs of ONNX (bench/onnx_export.py), with a search in NumPy (bench/onnx_search.py)."""
    from onnx_search import Graphs, search

    graphs = Graphs(Path(job["folder"]) / f"onnx-{options['precision']}", options["threads"])

    def translate(sources: Rows, beam: int, batch: Any, lengths: list[int]) -> Rows:
        written: Rows = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        for begin in range(0, len(order), batch):
            places = order[begin : begin + batch]
            some = [sources[i] for i in places]
            limits = [job["length"] or len(source) + 50 for source in some]
            for place, found in zip(places, search(graphs, some, beam, limits, job["length"] - 1), strict=True):
                written[place] = found
        return written

    return translate


def huggingface(job: Job, options: dict[str, Any]) -> Translate:
    """A Marian model of the same sizes with random weights, whose targets are as long as the job says."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(options["threads"])
    shape = {"d_model": 512, "d_ff": 2048, "n_heads": 8, "encoder_layers": 6, "decoder_layers": 6} | job["model"]
    d_ff = shape["d_ff"] * 3 // 2 if shape.get("gated") else shape["d_ff"]  # as many numbers as three matrices have
    config = transformers.MarianConfig(
        vocab_size=max(len(job["pieces"]), len(job["target_pieces"])), d_model=shape["d_model"],
        max_position_embeddings=1024,
        encoder_layers=shape["encoder_layers"], decoder_layers=shape["decoder_layers"],
        encoder_attention_heads=shape["n_heads"], decoder_attention_heads=shape["n_heads"],
        encoder_ffn_dim=d_ff, decoder_ffn_dim=d_ff, activation_function="relu", scale_embedding=True,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()  # type: ignore[no-untyped-call]

    def translate(sources: Rows, beam: int, batch: Any, lengths: list[int]) -> Rows:
        order = sorted(range(len(sources)), key=lambda i: -lengths[i])
        for begin in range(0, len(order), batch):
            some = [sources[i] for i in order[begin : begin + batch]]
            longest = max(map(len, some))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in some])
            count = lengths[order[begin]]
            with torch.inference_mode():
                model.generate(
                    ids, attention_mask=(ids != 0).long(), num_beams=beam, do_sample=False,
                    min_new_tokens=count, max_new_tokens=count,
                )  # fmt: skip
        return [[0] * (length - 1) for length in lengths]

    return translate


def nothing(job: Job, options: dict[str, Any]) -> Translate:
    """No program: a process that only reads memory."""
    return lambda sources, beam, batch, lengths: sources


PROGRAMS: dict[str, Callable[[Job, dict[str, Any]], Translate]] = {
    "ours": ours, "plain": plain, "ctranslate2": ctranslate2, "onnxruntime": onnxruntime, "huggingface": huggingface,
    "nothing": nothing,
}  # fmt: skip


def read_speed(size: int, threads: int) -> float:
    """Bytes a second at which `threads` cores read `size` bytes over and over, each its share; the best of 40."""
    import numpy as np

    shares = [np.ones(size // threads // 4, np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(40):
            began = time.perf_counter()
            list(pool.map(lambda share: float(np.dot(share, share)), shares))  # one pass over memory, outside the GIL
            best = max(best, size / (time.perf_counter() - began))
    return best


def peak_megabytes() -> float:
    """The most memory this process has held (`getrusage` would count what its parent held before it started)."""
    line = next(line for line in Path("/proc/self/status").read_text().split("\n") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def answers(job: Job, translate: Translate, threads: int) -> Iterator[dict[str, Any]]:
    """One for each request."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "read" in asked:
            yield {"bytes_per_second": read_speed(asked["read"], threads)}
            continue
        sources = [job["sources"][i] for i in asked["numbers"]]
        lengths = [job["length"] or job["lengths"][i] for i in asked["numbers"]]
        groups = [([source], [length]) for source, length in zip(sources, lengths, strict=True)]
        times, written = [], []
        for some, count in groups if asked["alone"] else [(sources, lengths)]:
            began = time.perf_counter()
            written += translate(some, asked["beam"], asked["batch"], count)
            times.append(time.perf_counter() - began)
        # A target of a given length has no end with one program and one more word with another: as many steps.
        tokens = [min(len(row) + 1, job["length"] or len(row) + 1) for row in written]
        answer = {"seconds": times, "tokens": tokens, "peak_mb": peak_megabytes()}
        yield answer | ({"ids": written} if asked.get("words") else {})


def main() -> None:
    job, options = json.loads(Path(sys.argv[1]).read_text()), json.loads(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options["threads"]])
    said = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come between the answers
    with os.fdopen(said, "w", buffering=1) as out:
        translate = PROGRAMS[sys.argv[2]](job, options)
        out.write(json.dumps({"ready": True}) + "\n")
        for answer in answers(job, translate, options["threads"]):
            out.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
