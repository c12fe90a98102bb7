"""Writes the golden files of the current formats: each once per format version, by hand, and never again.

    python tests/golden/write_golden.py

What exists is left alone.  The formats and the files:

    model_v<N>/, expected_v<N>.json               a Transformer as `dragoman train` writes it, without training files
    lstm_v<N>/, expected_lstm_v<N>.json           a recurrent translation model
    every_step_v<N>/, expected_every_step_v<N>.json   one that reads the context at every step, with two tokenizers
    ssru_v<N>/, expected_ssru_v<N>.json           a Transformer whose decoder has an SSRU
    language_v<N>/, expected_language_v<N>.json   a language model
    recurrent_lm_v<N>/, expected_recurrent_lm_v<N>.json   a recurrent language model
    tagger_v<N>/, expected_tagger_v<N>.json       a recurrent encoder with labels and a learned initial state
    imported_v<N>/, expected_imported_v<N>.json   an imported MarianMT checkpoint with random weights
    bert_v<N>/, expected_bert_v<N>.json           an imported BERT for masked text with random weights
    vit_v<N>/, expected_vit_v<N>.json             an imported ViT with random weights
    llama_v<N>/, expected_llama_v<N>.json         an imported Llama checkpoint with random weights and `tokenizer.json`
    families_v<N>/<name>/, .../expected_<name>.json   imported checkpoints of all other families: `write_families.py`
    dialogue_v<N>/, expected_dialogue_v<N>.json   a model of dialogues, whose tokenizer has roles
    shortlist_v<N>.bin, expected_shortlist_v<N>.json   the shortlist of model_v1
    run_v<N>/                                     a run folder with training state, its data, and its prepared store;
                                                  `expected.json`: the losses of the next three steps, and some pairs

The outcomes do not depend on the processor: numbers are compared with a tolerance, and tokens are recorded only where
the best one leads by at least `MARGIN`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from write_families import WRITERS, write_family  # noqa: E402

SOURCES = ["one two three", "nine zero seven seven", "", "six", "four five eight one two"]
PAIRS = [("one two", "deux un"), ("nine", "neuf"), ("three four", "quatre trois")]
TEXTS = ["one two three", "six"]
SMALL_VOCABULARY = ("tokenizer.vocab_size=36", "tokenizer.normalization=identity")
SMALL_ENCODER = {"hidden_size": 6, "intermediate_size": 7, "num_attention_heads": 3, "num_hidden_layers": 1}
MARGIN = 0.5
"""Least lead, in nats, of the best token over the next where tokens are recorded."""


def write_json(name: str, content: Any) -> None:
    """A JSON file with one line per item of a list, so that numbers do not take a line each."""
    if isinstance(content, list):
        text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in content) + "\n]"
    else:
        text = json.dumps(content, indent=1, ensure_ascii=False)
    (HERE / name).write_bytes((text + "\n").encode())


def logits_of(network: Any, source: Sequence[int], target: Sequence[int]) -> list[list[float]]:
    """Logits (T, V) of a target under teacher forcing."""
    import torch

    from dragoman.tokenizers import BOS

    with torch.no_grad():
        rows = network.output(network.hidden(torch.tensor([source]), None, torch.tensor([[BOS, *target[:-1]]])))
    return [[round(float(value), 4) for value in row] for row in rows[0]]


def clear_steps(logits: list[list[float]]) -> list[int | None]:
    """Per step the best token, or None where its lead is below `MARGIN`."""
    found: list[int | None] = []
    for row in logits:
        first, second = sorted(range(len(row)), key=lambda token: -row[token])[:2]
        found.append(first if row[first] - row[second] >= MARGIN else None)
    return found


# ------------------------------------------------------------------------------------------------------------- pieces


def write_model(version: int) -> None:
    from dragoman.models.model_folder import load_network, save_model, unique_tensors
    from dragoman.pipelines.translation import Translator
    from dragoman.training.trainer import train
    from small_run import small_config, write_corpus

    folder = HERE / f"model_v{version}"
    with tempfile.TemporaryDirectory() as place:
        data = write_corpus(Path(place) / "data")
        config = small_config(
            data, "tokenizer.normalization=identity", "train.budget=900 steps", "train.validate_every=450 steps",
            "model.position.kind=rotary",
            "model.order=pre", "model.norm.kind=rms", "model.gated=true", "model.activation=silu",
        )  # fmt: skip
        train(config, Path(place) / "run")
        model, tokenizer, config = load_network(Path(place) / "run" / "last")
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": "data"})})
        save_model(folder, config, tokenizer, unique_tensors(model), {"step": 900, "scores": {}})
    translator = Translator.load(folder, engine="pytorch")
    rows = [
        {"source": t.source, "text": t.text, "score": t.score, "tokens": t.tokens}
        for t in translator.translate(SOURCES, beam=3)
    ]
    scores = [s.log_prob for s in translator.score(["one two", "nine"], ["deux un", "neuf"])]
    write_json(f"expected_v{version}.json", {"translations": rows, "scores": scores})


def write_trained(folder: Path, place: str, document: dict[str, Any], *overrides: str) -> tuple[Any, Any]:
    """Train and write a model folder; return the network and its vocabulary.  place: the folder of the data."""
    from dragoman.config import parse_config
    from dragoman.models.model_folder import load_network, save_model, unique_tensors
    from dragoman.training.trainer import train

    result = train(parse_config(document, overrides), Path(place) / "run")
    network, vocabulary, config = load_network(Path(place) / "run" / "last")
    config = config.model_copy(update={"data": config.data.model_copy(update={"root": "data"})})
    meta = {"step": result.progress.step, "scores": {}}
    save_model(folder, config, vocabulary, unique_tensors(network), meta)
    return network, vocabulary


def budget(steps: int) -> dict[str, str]:
    return {"budget": f"{steps} steps", "validate_every": f"{steps} steps"}


def write_translator(name: str, version: int, *overrides: str) -> None:
    """A translation model, recurrent unless the overrides change it."""
    from small_run import small_document, write_corpus

    with tempfile.TemporaryDirectory() as place:
        document = small_document(write_corpus(Path(place) / "data"))
        document["model"] = {"architecture": "lstm", "d_model": 10, "encoder_layers": 1, "decoder_layers": 1}
        document["train"] |= budget(400)
        model, tokenizer = write_trained(HERE / f"{name}_v{version}", place, document, *SMALL_VOCABULARY, *overrides)
    rows = []
    for source, target in PAIRS:
        ids = tokenizer.encode_source(source), tokenizer.encode_target(target)
        logits = logits_of(model, *ids)
        rows.append({"pair": [source, target], "ids": ids, "logits": logits, "best": clear_steps(logits)})
    write_json(f"expected_{name}_v{version}.json", rows)


def write_language(name: str, version: int, model: dict[str, Any], steps: int = 300) -> None:
    """A language model of lines."""
    from dragoman.pipelines.generation import TextGenerator
    from small_run import digit_pairs, small_document, write_lines

    folder = HERE / f"{name}_v{version}"
    with tempfile.TemporaryDirectory() as place:
        write_lines(Path(place) / "text", [source for source, _ in digit_pairs(200)])
        document = small_document(Path(place))
        document["data"] = {"kind": "text", "root": place, "train": ["text"], "form": "lines", "max_tokens": 30}
        document["model"] = model
        document["train"] |= budget(steps)
        network, _ = write_trained(folder, place, document, *SMALL_VOCABULARY)
    generator = TextGenerator.load(folder, engine="pytorch")
    rows = []
    for text in TEXTS:
        ids = generator.tokenizer.encode_target(text)
        logits, found = logits_of(network, [], ids), generator.score([text])[0]
        rows.append({"text": text, "ids": ids, "log_prob": found.log_prob, "tokens": found.tokens, "logits": logits})
        rows[-1]["best"] = clear_steps(logits)
    write_json(f"expected_{name}_v{version}.json", rows)


def write_tagger(version: int) -> None:
    """A recurrent encoder: the tag of a digit is its parity, that of the last one is END."""
    from dragoman.pipelines.labelling import Labeller
    from small_run import SOURCE_WORDS, digit_pairs, small_document, write_lines

    folder = HERE / f"tagger_v{version}"
    with tempfile.TemporaryDirectory() as place:
        lines = []
        for source, _ in digit_pairs(200):
            *words, last = source.split()
            tagged = [f"{word}/{'ODD' if SOURCE_WORDS.index(word) % 2 else 'EVEN'}" for word in words]
            lines.append(" ".join([*tagged, f"{last}/END"]))
        write_lines(Path(place) / "train.tags", lines)
        document = small_document(Path(place))
        document["data"] = {"kind": "tagged", "root": place, "train": ["train.tags"]}
        document["model"] = {
            "architecture": "recurrent_encoder", "d_model": 10, "n_layers": 1, "initial_state": {"kind": "learned"},
        }  # fmt: skip
        document["train"] |= budget(200)
        write_trained(folder, place, document, *SMALL_VOCABULARY)
    rows = [
        {"text": text, "labels": found.labels, "probabilities": [round(p, 4) for p in found.probabilities]}
        for text, found in zip(SOURCES, Labeller.load(folder).label(SOURCES), strict=True)
    ]
    assert all(p > 0.7 for row in rows for p in row["probabilities"]), "the best label must lead clearly"
    write_json(f"expected_tagger_v{version}.json", rows)


def write_imported(version: int) -> None:
    """An imported checkpoint: an output bias, pieces in a list, language tags."""
    from dragoman.formats.importing.importer import import_model
    from dragoman.models.model_folder import load_network
    from transformers_checkpoints import marian_checkpoint

    folder = HERE / f"imported_v{version}"
    with tempfile.TemporaryDirectory() as place:
        import_model(
            marian_checkpoint(Path(place) / "checkpoint", "one layer, unscaled", normalization="identity"), folder
        )
    model, tokenizer, _ = load_network(folder)
    rows = []
    for source, target in [("a dog runs", "ein hund"), (">>fra<< two people", "zwei leute"), ("12", "34 ein")]:
        ids = tokenizer.encode_source(source), tokenizer.encode_target(target)  # type: ignore[union-attr]
        logits = logits_of(model, *ids)
        rows.append({"pair": [source, target], "ids": ids, "logits": logits, "best": clear_steps(logits)})
    write_json(f"expected_imported_v{version}.json", rows)


def write_bert(version: int) -> None:
    """An imported encoder: `tokenizer.json` with a mask, a norm of the embeddings, a head."""
    import torch

    from dragoman.formats.importing.importer import import_model
    from dragoman.models.model_folder import load_network
    from dragoman.tokenizers import EOS
    from transformers_checkpoints import bert_checkpoint

    folder = HERE / f"bert_v{version}"
    with tempfile.TemporaryDirectory() as place:
        import_model(bert_checkpoint(Path(place) / "checkpoint", **SMALL_ENCODER), folder)
    model, tokenizer, _ = load_network(folder)
    rows: list[dict[str, Any]] = []
    for before, after in [("Two", "RUNNING !"), ("a dog-park", "漢 12")]:
        words = [*tokenizer.encode_source(before)[:-1], tokenizer.mask, *tokenizer.encode_source(after)[:-1], EOS]  # type: ignore[union-attr]
        ids = tokenizer.masked_source(words)  # type: ignore[union-attr]
        rows.append({"text": [before, after], "ids": ids, "logits": logits_of(model, ids, [0])})
    assert torch.tensor(rows[0]["logits"]).std() > MARGIN
    write_json(f"expected_bert_v{version}.json", rows)


def write_vit(version: int) -> None:
    """An imported image model with a normalization of its own."""
    import numpy as np

    from dragoman.formats.importing.importer import import_model
    from dragoman.pipelines.labelling import Labeller
    from transformers_checkpoints import vit_checkpoint

    folder = HERE / f"vit_v{version}"
    with tempfile.TemporaryDirectory() as place:
        import_model(vit_checkpoint(Path(place) / "checkpoint", "grey", **SMALL_ENCODER), folder)
    images = np.arange(3 * 81).reshape(3, 9, 9).astype(np.uint8)
    labels = [each.to_json() for each in Labeller.load(folder).label(images)]
    write_json(f"expected_vit_v{version}.json", labels)


def write_llama(version: int) -> None:
    """An imported language model with a tokenizer of Hugging Face."""
    from dragoman.formats.importing.importer import import_model
    from dragoman.models.model_folder import load_network
    from transformers_checkpoints import language_checkpoint

    folder = HERE / f"llama_v{version}"
    with tempfile.TemporaryDirectory() as place:
        sizes = {"hidden_size": 12, "intermediate_size": 10, "num_attention_heads": 3, "num_key_value_heads": 1}
        name = "llama, one layer, tied"
        source = language_checkpoint(Path(place) / "checkpoint", name, tokenizer="wordpiece", **sizes)
        import_model(source, folder)
    model, tokenizer, _ = load_network(folder)
    text = "Dogs sit [SEP]"
    ids = tokenizer.encode_target(text)  # type: ignore[union-attr]
    logits = logits_of(model, [], ids)
    rows = [{"text": text, "ids": ids, "logits": logits, "best": clear_steps(logits)}]
    write_json(f"expected_llama_v{version}.json", rows)


def write_dialogue(version: int) -> None:
    """A language model of dialogues: B answers A in one language, C in another one."""
    from dragoman.data.dialogues import Turn, encode_turns
    from dragoman.pipelines.generation import Chat
    from small_run import SOURCE_WORDS, TARGET_WORDS, small_document, write_lines

    folder = HERE / f"dialogue_v{version}"
    with tempfile.TemporaryDirectory() as place:
        words = list(zip(SOURCE_WORDS[:4], TARGET_WORDS[:4], strict=True))
        turns = [[f"A: {one}", f"B: {two}", "", f"A: {one}", f"C: no {one}", ""] for one, two in words]
        write_lines(Path(place) / "turns.txt", [line for dialogue in turns for line in dialogue] * 5)
        document = small_document(Path(place))
        document["data"] = {
            "kind": "dialogue", "root": place, "train": ["turns.txt"], "format": "plain", "max_tokens": 40,
            "context_tokens": 8,
        }  # fmt: skip
        document["model"] = {"architecture": "decoder_only", "n_layers": 1, "d_model": 16, "d_ff": 16, "n_heads": 2}
        document["train"] |= budget(500)
        network, _ = write_trained(folder, place, document, "tokenizer.kind=char")
    chat = Chat.load(folder, engine="pytorch")
    rows = []
    for (one, two), role in zip(words, "BCBC", strict=True):
        reply = chat.reply([("A", one)], role, sample=False, max_tokens=20)
        dialogue = [("A", one), (role, reply.text)]
        ids = [i for turn in encode_turns(chat.tokenizer, [Turn(*turn) for turn in dialogue]) for i in turn.inputs]
        best = clear_steps(logits_of(network, [], [*ids, 0]))[-len(reply.text) - 1 :]
        assert None not in best and reply.text == (two if role == "B" else f"no {one}"), (reply, best)
        scores = [[score.log_prob, score.tokens] for score in chat.score([dialogue])[0]]
        rows.append({"dialogue": dialogue, "ids": ids, "scores": scores})
    write_json(f"expected_dialogue_v{version}.json", rows)


def write_shortlist(version: int) -> None:
    from dragoman.decoding.shortlist import SHORTLIST, Shortlist
    from dragoman.models.model_folder import read_meta
    from dragoman.pipelines.translation import Translator
    from dragoman.training.shortlist import learn_shortlist
    from small_run import write_corpus

    with tempfile.TemporaryDirectory() as place:
        data = write_corpus(Path(place) / "data")
        folder = Path(shutil.copytree(HERE / "model_v1", Path(place) / "model"))
        learn_shortlist(folder, data / "train.src", data / "train.tgt", best=3, frequent=4)
        shutil.copy(folder / SHORTLIST, HERE / f"shortlist_v{version}.bin")
        translator = Translator.load(folder, engine="pytorch", shortlist=True)
        found = Shortlist.read(folder / SHORTLIST, read_meta(folder)["sha256"]["model.safetensors"])
        texts = [t.text for t in translator.translate(SOURCES, beam=1)]
    rows = [
        {"source": source, "text": text, "words": found.of(translator.tokenizer.encode_source(source))}
        for source, text in zip(SOURCES, texts, strict=True)
    ]
    write_json(f"expected_shortlist_v{version}.json", {"about": found.description, "sources": rows})


def run_config(data: Path) -> Any:
    """Everything that a resumed run has to restore: moments, averaged and raw weights, the place within an epoch."""
    from small_run import small_config

    return small_config(
        data, *SMALL_VOCABULARY, "model.d_model=8", "model.d_ff=8", "model.n_heads=1", "train.batch_tokens=150",
        "train.budget=6 steps", "train.validate_every=3 steps", "train.log_every=1", "train.keep=1",
        "train.schedule.kind=inverse_sqrt", "train.schedule.warmup=4", "train.schedule.factor=0.1",
        "train.ema=0.9", "train.accumulate=2", "train.clip_norm=1.0",
    )  # fmt: skip


def write_run(version: int) -> None:
    """Six steps; then three more in a copy, whose log is what is expected."""
    from dragoman.config import load_config
    from dragoman.data.store.reader import Store
    from dragoman.io.run_log import read_log
    from dragoman.training.trainer import train
    from small_run import write_corpus

    folder = HERE / f"run_v{version}"
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        write_corpus(place / "data", train=60, valid=4)
        train(run_config(place / "data"), place / "run")
        shutil.rmtree(place / "run" / "tensorboard")
        shutil.copytree(place, folder)
        train(load_config(place / "run" / "config.toml", ["train.budget=9 steps"]), place / "run")
        rows = [row for row in read_log(place / "run") if row["step"] > 6]
    steps = [{key: row[key] for key in ("step", "loss", "learning_rate")} for row in rows if "loss" in row]
    scores = [{key: row[key] for key in ("step", "epoch", "valid_loss")} for row in rows if "valid_loss" in row]
    (prepared,) = (folder / "prepared").iterdir()
    store = Store(prepared)
    pairs = [{"number": n, "ids": store.pair(n), "text": store.text(n)} for n in (0, 17, len(store) - 1)]
    content = {"steps": steps, "scores": scores, "account": store.stats, "pairs": pairs}
    write_json(f"{folder.name}/expected.json", content)
    _rename_root(folder / "run", str(place / "data"))


def _rename_root(run: Path, root: str) -> None:
    """Replace the temporary path of the data in the run's files by `data`."""
    import hashlib

    (run / "config.toml").write_bytes((run / "config.toml").read_bytes().replace(root.encode(), b"data"))
    for checkpoint in (run / "checkpoints").iterdir():
        content = (checkpoint / "config.json").read_bytes().replace(root.encode(), b"data")
        (checkpoint / "config.json").write_bytes(content)
        meta = json.loads((checkpoint / "meta.json").read_bytes())
        meta["sha256"]["config.json"] = hashlib.sha256(content).hexdigest()
        (checkpoint / "meta.json").write_bytes(json.dumps(meta, indent=1, ensure_ascii=False).encode())


DECODER_ONLY: dict[str, Any] = {
    "architecture": "decoder_only", "n_layers": 1, "d_model": 12, "d_ff": 12, "n_heads": 2,
}  # fmt: skip
RECURRENT_LM: dict[str, Any] = {"architecture": "recurrent_lm", "n_layers": 1, "d_model": 12, "cell": {"kind": "gru"}}
EVERY_STEP = (
    "model.attention.kind=none", "model.attention.context=every_step", "tokenizer.shared=false",
    "tokenizer.target.kind=char", "tokenizer.target.byte_fallback=false",
)  # fmt: skip
SSRU = (
    "model.architecture=transformer", "model.decoder_self=ssru", "model.d_ff=16", "model.n_heads=2",
    "model.dropout=0.0",
)  # fmt: skip
PIECES: dict[str, Callable[[int], None]] = {
    "model_v{}": write_model,
    "lstm_v{}": partial(write_translator, "lstm"),
    "every_step_v{}": lambda version: write_translator("every_step", version, *EVERY_STEP),
    "ssru_v{}": lambda version: write_translator("ssru", version, *SSRU),
    "language_v{}": lambda version: write_language("language", version, DECODER_ONLY),
    "recurrent_lm_v{}": lambda version: write_language("recurrent_lm", version, RECURRENT_LM, 600),
    "tagger_v{}": write_tagger,
    "imported_v{}": write_imported,
    "bert_v{}": write_bert,
    "vit_v{}": write_vit,
    "llama_v{}": write_llama,
    "dialogue_v{}": write_dialogue,
    "shortlist_v{}.bin": write_shortlist,
    "run_v{}": write_run,
    **{f"families_v{{}}/{name}": partial(write_family, name) for name in WRITERS},
}


def main() -> None:
    from dragoman.models.model_folder import FORMAT_VERSION

    for name, write in PIECES.items():
        path = HERE / name.format(FORMAT_VERSION)
        if path.exists():
            print(f"{path} exists: golden files are never written again")
            continue
        write(FORMAT_VERSION)
        for left in HERE.glob(".*.unfinished"):
            shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    main()
