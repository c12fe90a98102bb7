"""The reference of configuration keys and commands: complete, true, and equal to the pages in docs/reference."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman.config import dump_toml, flatten, load_config, parse_config
from dragoman.config.errors import FOREIGN_NAMES
from dragoman.config.reference import Key, all_keys, all_kinds, look_up, section_of
from dragoman.config.stages import StageConfig
from dragoman.config.tune import TuneConfig
from dragoman.errors import UsageError
from small_run import Cli, small_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "bench" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    return Cli(monkeypatch, capsysbinary)


# --------------------------------------------------------------------------------------------- complete and true


def test_there_are_keys_of_every_section() -> None:
    sections = {section_of(key.name) for key in all_keys()}
    assert {"data", "data.filter", "tokenizer", "model", "model.norm", "train", "train.schedule", "search"} <= sections
    assert len(all_keys()) > 130 and len(all_kinds()) > 40


@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_every_key_has_a_meaning_and_an_example(key: Key) -> None:
    assert len(key.meaning.split()) >= 2, "write its meaning in src/dragoman/config"
    assert key.example, "write example=... in src/dragoman/config"
    assert key.value and (key.default or key.value == "section")
    assert not key.meaning.endswith(".") and key.meaning[0] != " "


def test_every_kind_has_a_meaning() -> None:
    assert [f"{kind.name} = {kind.tag}" for kind in all_kinds() if not kind.meaning.endswith(".")] == []


ARCHITECTURES = {"text": "decoder_only", "dialogue": "decoder_only", "masked": "encoder_only", "tagged": "encoder_only",
                 "labelled": "encoder_only", "images": "vision"}  # fmt: skip
DATA = {"decoder_only": "text", "recurrent_lm": "text", "encoder_only": "tagged", "recurrent_encoder": "tagged",
        "vision": "images"}  # fmt: skip


def document_for(key: Key, kinds: dict[str, str]) -> dict[str, Any]:
    """A document in which the example of a key can stand: with other kinds where they determine each other."""
    architecture, data = kinds.get("model.architecture"), kinds.get("data.kind")
    if key.name == "model.tie" and key.example == '"all"':  # of an encoder
        data = "masked"
    if key.name == "model.pooling":
        data = "labelled"
    data = data or DATA.get(architecture or "", "parallel")
    architecture = architecture or ARCHITECTURES.get(data, "transformer")
    document: dict[str, Any] = {"data": {"kind": data}, "model": {"architecture": architecture}}
    if data == "parallel":
        one = key.name.endswith(".path")
        document["data"]["train"] = [{"path": "c.tsv"} if one else {"source": "a", "target": "b"}]
        document["data"]["valid"] = {"path": "d.tsv"} if one else {"source": "c", "target": "d"}
        document["data"]["test"] = {"path": "e.tsv"} if one else {"source": "e", "target": "f"}
    elif data == "images":
        in_files = key.name.startswith(("data.train", "data.valid"))
        document["data"] |= {"train": "a"} if in_files else {"dataset": "digits"}
    else:
        document["data"]["train"] = ["a"]
    if key.name.startswith("data.prompt."):
        document["data"]["prompt"] = {"template": "{source}"}
    if data == "labelled":
        document["model"]["pooling"] = "mean"
    if key.name.startswith("tokenizer.target"):
        document["tokenizer"] = {"shared": False}
    if key.name.startswith(("tokenizer.add_words", "train.lora", "train.start_share")):
        document["train"] = {"init_from": "en-de"}
    for name, kind in kinds.items():
        *parents, last = name.split(".")
        section = document
        for part in parents:
            section = section.setdefault(part, {})
        section[last] = kind
    return document


@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_every_example_is_accepted_with_every_kind_that_has_the_key(key: Key) -> None:
    if key.name.startswith("stage."):
        *parents, last = key.name.removeprefix("stage.0.").split(".")
        value, stage = tomllib.loads(f"x = {key.example}")["x"], {"name": "final"}
        text: dict[str, Any] = {} if "prune" in parents else {"text": "t", "sampling": last == "temperature"}
        own = {parents[1]: {"model": "m", "max_cost": 3, last: value}} if len(parents) == 2 else {last: value}
        table = {"model": "m", **text, **own}
        StageConfig.model_validate(stage | ({parents[0]: table} if parents else {last: value}))
        return
    if key.name.startswith("tune."):
        value = tomllib.loads(f"x = {key.example}")["x"]
        TuneConfig.model_validate({"space": {}, key.name.removeprefix("tune."): value})
        return
    tagged = [{}] if not key.conditions else [
        {name: kind if name == turned else kinds[0] for name, kinds in key.conditions}
        for turned, all_of_one in key.conditions for kind in all_of_one
    ]  # fmt: skip
    for kinds in tagged:
        given = dict(kinds)
        if key.name in ("data.kind", "model.architecture"):
            given[key.name] = key.example.strip('"')
        document = document_for(key, given)
        found = flatten(parse_config(copy.deepcopy(document), shlex.split(key.override)).model_dump(mode="json"))
        if not key.example.startswith(("[", "{")) and key.name != "model.preset":
            assert str(found[key.name]) == {"true": "True", "false": "False"}.get(key.example, key.example.strip('"'))


def test_defaults_are_those_of_a_document_without_keys() -> None:
    found = flatten(parse_config({"data": {"train": [{"source": "a", "target": "b"}]}}).model_dump(mode="json"))
    shown = {key.name: key.default for key in all_keys() if all(found.get(n) in k for n, k in key.conditions)}
    assert shown["model.d_model"] == "512" and shown["train.budget"] == '"20 min"' and shown["train.seed"] == "1"
    compared = 0
    for name, value in found.items():
        if name in ("data.train.0.source", "data.train.0.target"):
            continue
        written = {"None": "none", "True": "true", "False": "false"}.get(str(value), str(value))
        assert shown[name].strip('"') == written, name
        compared += 1
    assert compared > 50


def test_names_of_other_toolkits_lead_to_keys() -> None:
    keys = {key.name for key in all_keys()}
    assert set(FOREIGN_NAMES.values()) <= keys
    assert not set(FOREIGN_NAMES) & {key.rpartition(".")[2] for key in keys}, "a key of ours needs no translation"
    assert FOREIGN_NAMES["early_stopping"] == "train.patience"


# ---------------------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("file", ["configuration.md", "cli.md"])
def test_pages_are_as_generated(file: str, pages: ModuleType) -> None:
    written = (ROOT / "docs" / "reference" / file).read_text(encoding="utf-8")
    assert written == pages.PAGES[file](), "run: python bench/reference.py"


def test_every_key_and_architecture_is_on_the_page_and_links_lead_somewhere(pages: ModuleType) -> None:
    page = pages.configuration_page()
    anchors = re.findall(r'<a id="([^"]+)"></a>', page)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(anchors)
    assert [key.name for key in all_keys() if key.meaning not in page and pages.text(key.meaning) not in page] == []
    for section, tag in pages.TAGS.items():
        families = [kind for kinds in pages.FAMILIES[section].values() for kind in kinds]
        assert sorted(families) == sorted(kind.tag for kind in all_kinds() if kind.name == tag)


# --------------------------------------------------------------------------------------------------------- look-up


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("train.seed", ["train.seed"]),
        ("seed", ["train.seed"]),
        ("[search]", ["search.beam", "search.shrink_beam", "search.beam_threshold", "search.recombine",
                      "search.early_end", "search.alpha", "search.max_extra", "search.min_length",
                      "search.no_repeat_ngram", "search.protect", "search.tag", "search.split_sentences"]),
        ("rotary", ["model.position.base", "model.position.fraction"]),
        ("data.train.3.weight", ["data.train.0.weight"]),
        ("schedule.warmup", ["train.schedule.warmup"] * 3),
    ],
)  # fmt: skip
def test_look_up(name: str, keys: list[str]) -> None:
    assert [key.name for key in look_up(name)[1]] == keys


def test_a_section_names_the_sections_in_it_but_not_their_keys() -> None:
    kinds, keys = look_up("train")
    names = [key.name for key in keys]
    assert "train.schedule.kind" in names and "train.schedule.warmup" not in names and kinds == []
    kinds_of_schedule = ["inverse_sqrt", "budget", "linear", "cosine", "warmup_stable_decay", "constant"]
    for name in ("train.schedule", "schedule", "train.schedule.kind", "schedule.kind"):
        assert [kind.tag for kind in look_up(name)[0]] == kinds_of_schedule, name
    assert look_up("train.schedule.warmup")[0] == []


@pytest.mark.parametrize(
    ("name", "near"),
    [("train.sead", "train.seed"), ("early_stopping", "train.patience"), ("rotery", "rotary"),
     ("gradient-clip-val", "clip")],
)  # fmt: skip
def test_unknown_names_get_suggestions(name: str, near: str, cli: Cli) -> None:
    with pytest.raises(UsageError, match=rf"no such key, section or kind \(did you mean '.*{near}"):
        look_up(name)
    code, out, err = cli("config", name)
    assert (code, out) == (2, b"") and "'dragoman config' lists all sections" in err


# --------------------------------------------------------------------------------------------------------- command


def test_config_prints_sections_keys_and_kinds(cli: Cli) -> None:
    code, out, err = cli("config")
    assert (code, err) == (0, "") and b"train.schedule" in out and max(map(len, out.split(b"\n"))) <= 82
    out = cli("config", "train.schedule.warmup")[1]
    assert out.count(b"train.schedule.warmup\n") == 3 and b"kind = inverse_sqrt" in out and b"default   4000" in out
    out = cli("config", "model.position")[1]
    assert b"rotary" in out and b"Su et al. 2021" in out and b"max_distance" in out
    found = json.loads(cli("config", "train.clip_norm", "--json")[1])
    assert found["keys"][0]["default"] == "0.0" and "1,000,000" in found["keys"][0]["value"]


def test_config_prints_a_document_with_defaults_and_what_was_set(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "en-de.toml"
    data = 'root = "/data"\ntrain = [{ source = "a", target = "b" }]'
    file.write_text(f'[data]\n{data}\n[model]\npreset = "big"\nd_ff = 64\nnorm.kind = "rms"\n', encoding="utf-8")
    code, out, _ = cli("config", file, "train.seed=2", "train.clip_norm=0.0", "model.position.kind=learned")
    lines = {re.sub(" +", " ", line) for line in out.decode().split("\n")}
    assert code == 0
    assert {
        'root = "/data" # set; default: ""',
        "d_ff = 64 # set; default: 2048",
        'd_model = 1024 # preset "big"',
        'norm.kind = "rms" # set; default: "layer"',
        'kind = "parallel" # default',
        "seed = 2 # set; default: 1",
        "clip_norm = 0.0 # default",
        "position.max_len = 512 # default",
        "# n_kv_heads: not set",
        'budget = "20 min" # default',
    } <= lines
    (tmp_path / "again.toml").write_bytes(out)
    assert load_config(tmp_path / "again.toml") == load_config(file, ["train.seed=2", "model.position.kind=learned"])
    assert json.loads(cli("config", file, "--json")[1])["model"]["d_ff"] == 64
    assert cli("config", file, "model.d_f=3")[0] == 2 and cli("config", tmp_path / "no.toml")[0] == 2
    code, _, err = cli("config", "train.seed", "train.seed=3")
    assert code == 2 and "specify the file before them" in err


def test_a_file_or_folder_does_not_hide_a_key_of_its_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cli("config", "rotary"), cli("config", "train")
    monkeypatch.chdir(tmp_path)
    Path("rotary").write_text("not a document", encoding="utf-8")
    for name in ("train", "demo"):
        Path(name).mkdir()
        Path(name, "config.toml").write_text(dump_toml(small_config(tmp_path)), encoding="utf-8")
    assert (cli("config", "rotary"), cli("config", "train")) == expected
    document = cli("config", "demo")
    assert document[0] == 0 and document == cli("config", "./train") == cli("config", "train/config.toml")
    assert "not valid TOML" in cli("config", "./rotary")[2]


def test_what_config_prints_of_a_whole_document_is_the_document(cli: Cli, tmp_path: Path) -> None:
    config = small_config(tmp_path, "tokenizer.shared=false", "tokenizer.target.kind=char", 'data.root="a \\"b\\" ☃"')
    (tmp_path / "one.toml").write_text(dump_toml(config), encoding="utf-8")
    out = cli("config", tmp_path / "one.toml")[1]
    (tmp_path / "two.toml").write_bytes(out)
    assert load_config(tmp_path / "two.toml") == load_config(tmp_path / "one.toml")
    lines = {re.sub(" +", " ", line) for line in out.decode().split("\n")}
    assert "alpha = 0.6 # default" in lines, "a stored document contains every key, also those with the default"
    (tmp_path / "one.toml").rename(tmp_path / "config.toml")
    assert cli("config", tmp_path)[1] == out, "a run folder is named by itself"
