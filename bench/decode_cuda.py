"""Check and measure decoding on a GPU, in about two minutes; called by `bench/decode.py --device cuda`.

    python bench/decode_cuda.py                                  # base, random weights, bfloat16
    python bench/decode_cuda.py check one many                   # some sections
    python bench/decode_cuda.py --device cpu --size tiny         # smoke test of this program

check     hypotheses of a small random model in float32 beside those of the PyTorch search on the same device
steps     milliseconds of a step for several numbers of sentences, without the host
one       one sentence after the other, milliseconds per target token
many      all sentences at once, target tokens per second: token ids, and text to text with the translator
service   searches of 1, 64 and 256 callers that ask again once they have their answer, sentences per second (no HTTP)
peer      `generate` of transformers, the same sizes, if it is installed

All targets have 40 tokens, in the section service 20; all sources as many as their targets.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import random
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dragoman.config.model import TransformerConfig
from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend, SlotSearchService
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.search_types import SearchSettings
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS, Tokenizer

SIZES: dict[str, tuple[dict[str, Any], int]] = {
    "tiny": ({"d_model": 32, "d_ff": 64, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 2}, 500),
    "small": ({"d_model": 128, "d_ff": 256, "n_heads": 4, "encoder_layers": 3, "decoder_layers": 3}, 2000),
    "base": ({"d_model": 512, "d_ff": 2048, "n_heads": 8, "encoder_layers": 6, "decoder_layers": 6}, 32_000),
}
LENGTH = 40
SECTIONS = ("check", "steps", "one", "many", "service", "peer")
rows: list[tuple[str, str]] = []
"""Lines of the table."""


show = partial(print, flush=True)


def report(name: str, value: str) -> None:
    rows.append((name, value))
    show(f"    {name}: {value}")


def network(size: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Model:
    document, vocabulary = SIZES[size]
    built = build_model(TransformerConfig(**document, **changes), vocabulary, vocabulary, seed=1).to(dtype).eval()
    assert isinstance(built, Model)
    return built


def sentences(count: int, vocabulary: int, length: int = LENGTH) -> list[list[int]]:
    draw = random.Random(1)
    return [[*draw.choices(range(4, vocabulary), k=length - 1), EOS] for _ in range(count)]


def settings(beam: int, length: int = LENGTH) -> SearchSettings:
    return SearchSettings(beam=beam, min_length=length - 1, max_extra=0)


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def check(given: argparse.Namespace) -> None:
    """Random weights make almost all words equally probable; larger ones of the output layer decide."""
    draw = random.Random(2)
    for name, changes in {
        "paper": {}, "rotary, pre-norm, gated": {
            "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "gated": True, "bias": False,
            "activation": "silu",
        },
        "t5": {"position": {"kind": "t5"}, "order": "pre"},
        "grouped keys": {"n_kv_heads": 2, "position": {"kind": "alibi"}},
    }.items():  # fmt: skip
        model = network("small" if given.size != "tiny" else "tiny", **changes)
        vocabulary = SIZES["small" if given.size != "tiny" else "tiny"][1]
        with torch.no_grad():
            for weight in model.output.parameters():
                weight.mul_(4)
        sources = [[*draw.choices(range(4, vocabulary), k=draw.randint(1, 30)), EOS] for _ in range(50)]
        prefixes = [[7, 8] if i % 7 == 0 else [] for i in range(50)]
        plain, graphs = TorchBackend(model, given.device), CudaGraphBackend(model, given.device)
        for asked in (SearchSettings(beam=1), SearchSettings(beam=4, nbest=2), SearchSettings(beam=6, min_length=9)):
            wanted = plain.search(sources, prefixes, asked, 4000)
            found = graphs.search(sources, prefixes, asked, None)
            equal = sum(
                [h.tokens for h in ours] == [h.tokens for h in theirs]
                and all(abs(a.score - b.score) < 1e-3 for a, b in zip(ours, theirs, strict=True))
                for ours, theirs in zip(found, wanted, strict=True)
            )
            report(f"check {name}, beam {asked.beam}", f"equal {equal} of {len(sources)}")


def steps(given: argparse.Namespace, backend: CudaGraphBackend) -> None:
    for beam in (1, 4):
        rows_at_once = (1, 16, 64, 256, 1024, 4096)
        with backend.slots(beam, 64, max(rows_at_once) // beam) as search:
            for count in [count for count in rows_at_once if count * beam <= 4096 and count <= search.slots]:
                run = search._step_of(count)
                state = search.state
                state.info[0] = 20  # in the middle of a target
                state.info[1], state.info[2], state.info[3], state.info[4], state.info[5] = 64, 63, 1, 0, LENGTH
                state.active[:count] = torch.arange(count, device=state.active.device)
                run()
                synchronize(given.device)
                began = time.perf_counter()
                for _ in range(20):
                    run()
                synchronize(given.device)
                each = (time.perf_counter() - began) / 20
                report(f"step of {count} sentences, beam {beam}", f"{1000 * each:.3f} ms, {count / each:,.0f} tokens/s")
                state.info[4] = 1
                search._changed = True


def one(given: argparse.Namespace, backend: CudaGraphBackend) -> None:
    for beam in (1, 4):
        sources = sentences(given.alone + 2, SIZES[given.size][1])
        for number, source in enumerate(sources):
            if number == 2:
                began = time.perf_counter()
            backend.search([source], [[]], settings(beam), None)
        each = (time.perf_counter() - began) / given.alone / LENGTH
        report(f"one sentence, beam {beam}", f"{1000 * each:.3f} ms per token")


def letters(number: int) -> str:
    """Return a word for a number, without digits, which a translator checks one by one."""
    word = ""
    while True:
        word, number = chr(ord("a") + number % 20) + word, number // 20
        if not number:
            return "v" + word


def word_tokenizer(vocabulary: int) -> Tokenizer:
    """A vocabulary of words, so that a text has as many tokens as words."""
    import sentencepiece

    content = io.BytesIO()
    lines = (" ".join(letters(i + j) for j in range(50)) for i in range(0, vocabulary + 50, 50))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=content, model_type="word", vocab_size=vocabulary, pad_id=0, unk_id=1,
        bos_id=2, eos_id=3, minloglevel=2, use_all_vocab=False,
    )  # fmt: skip
    return Tokenizer(content.getvalue())


def many(given: argparse.Namespace, backend: CudaGraphBackend) -> None:
    from dragoman.decoding import retry
    from dragoman.pipelines.translation import Translator

    vocabulary = SIZES[given.size][1]
    sources = sentences(given.sentences, vocabulary)
    for beam in (1, 4):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            backend.search(sources, [[]] * len(sources), settings(beam), None)
            times.append(time.perf_counter() - began)
        speed = len(sources) * LENGTH / min(times[1:])
        report(f"{len(sources)} sentences, beam {beam}, ids", f"{speed:,.0f} tokens/s (first time {times[0]:.1f} s)")
    # Random weights repeat themselves, which a translator would search a second time.
    retry.fault_of = lambda *_: ""  # type: ignore[assignment]
    tokenizer = word_tokenizer(vocabulary)
    translator = Translator(backend, tokenizer)
    texts = [tokenizer.decode_source(ids) for ids in sources]
    assert len(tokenizer.encode_source(texts[0])) == LENGTH, "a text has another number of tokens"
    for beam in (1, 4):
        times = []
        for _ in range(2):
            began = time.perf_counter()
            found = translator.translate(texts, split=False, beam=beam, min_length=LENGTH - 1, max_extra=0)
            times.append(time.perf_counter() - began)
        assert len(found) == len(texts)
        speed = len(sources) * LENGTH / min(times)
        report(f"{len(sources)} sentences, beam {beam}, text to text", f"{speed:,.0f} tokens/s")


def service(given: argparse.Namespace, backend: CudaGraphBackend) -> None:
    """Each caller asks again when it has its answer."""
    asked = settings(4, 20)
    sources = sentences(256, SIZES[given.size][1], 20)
    server = SlotSearchService(backend, 1 << 14)
    try:
        for callers in (1, 64, 256):
            for seconds in (1.0, given.seconds):  # the first captures
                end = time.perf_counter() + seconds
                waiting = [server.submit([sources[i]], [[]], asked) for i in range(callers)]
                count, began = 0, time.perf_counter()
                while time.perf_counter() < end:
                    for place, search in enumerate(waiting):
                        if search.future.done():
                            search.future.result()
                            count += 1
                            waiting[place] = server.submit([sources[place]], [[]], asked)
                    time.sleep(0.0002)
                elapsed = time.perf_counter() - began
                for search in waiting:
                    search.future.result()
            report(f"service, beam 4, {callers} callers", f"{count / elapsed:,.0f} sentences/s")
    finally:
        server.close()


def peer(given: argparse.Namespace) -> None:
    if importlib.util.find_spec("transformers") is None:
        show("    transformers is not installed")
        return
    from transformers import MarianConfig, MarianMTModel

    document, vocabulary = SIZES[given.size]
    config = MarianConfig(
        vocab_size=vocabulary, d_model=document["d_model"], encoder_layers=document["encoder_layers"],
        decoder_layers=document["decoder_layers"], encoder_attention_heads=document["n_heads"],
        decoder_attention_heads=document["n_heads"], encoder_ffn_dim=document["d_ff"],
        decoder_ffn_dim=document["d_ff"], max_position_embeddings=256, pad_token_id=0, eos_token_id=3,
        decoder_start_token_id=2, bos_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    dtype = torch.bfloat16 if given.device != "cpu" else torch.float32
    model = MarianMTModel(config).to(given.device, dtype).eval()
    source = torch.tensor(sentences(given.sentences, vocabulary), device=given.device)
    for beam, batches in ((1, (1, 1000, 2000, 4000)), (4, (500, 1000))):
        for batch in batches:
            part = source[:batch]
            times = []
            for _ in range(2):
                synchronize(given.device)
                began = time.perf_counter()
                with torch.no_grad():
                    model.generate(part, num_beams=beam, do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH)
                synchronize(given.device)
                times.append(time.perf_counter() - began)
            speed = len(part) * LENGTH / min(times)
            report(f"transformers, {len(part)} sentences, beam {beam}", f"{speed:,.0f} tokens/s")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=SECTIONS, choices=SECTIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--sentences", type=int, default=4096)
    parser.add_argument("--alone", type=int, default=10, help="sentences of the section one")
    parser.add_argument("--seconds", type=float, default=3, help="per number of callers")
    given = parser.parse_args(arguments)
    show(torch.cuda.get_device_name() if given.device != "cpu" else "CPU", "PyTorch", torch.__version__)
    dtype = torch.bfloat16 if given.device != "cpu" else torch.float32
    backend = CudaGraphBackend(network(given.size, dtype), given.device)
    show(backend.description)
    work: dict[str, Callable[[], None]] = {
        "check": lambda: check(given), "steps": lambda: steps(given, backend), "one": lambda: one(given, backend),
        "many": lambda: many(given, backend), "service": lambda: service(given, backend), "peer": lambda: peer(given),
    }  # fmt: skip
    began = time.perf_counter()
    for name in given.sections:
        show(name)
        try:
            work[name]()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            rows.append((name, "failed"))
        show(f"    ({time.perf_counter() - began:.0f} s)")
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        show(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
