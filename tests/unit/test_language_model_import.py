"""Refusals of checkpoints of GPT-2 and Llama, and the commands on an imported language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.formats.importing.importer import import_model
from dragoman.models.model_folder import read_config, read_meta, verify
from imported_checks import refusal, set_values
from small_run import Cli
from transformers_checkpoints import language_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return language_checkpoint(tmp_path / "gpt2", "gpt2, one layer, untied")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return language_checkpoint(tmp_path / "llama", "llama")


def test_every_reason_is_in_one_message(gpt2: Path) -> None:
    set_values(
        gpt2, activation_function="quick_gelu", scale_attn_by_inverse_layer_idx=True, n_layer=0, bos_token_id=None,
        scale_attn_weights=False, add_cross_attention=True, n_inner="many",
    )  # fmt: skip
    (gpt2 / "tokenizer.json").write_text("{}")
    (gpt2 / "model.safetensors").write_bytes((gpt2 / "model.safetensors").read_bytes()[:-9])
    message = refusal(gpt2)
    for reason in (
        "activation_function = 'quick_gelu'; accepted: 'relu'",
        "scale_attn_by_inverse_layer_idx = True; accepted: False",
        "n_layer = 0; accepted: an integer, at least 1", "bos_token_id = None; accepted: an integer, at least 0",
        "scale_attn_weights = False; accepted: True", "add_cross_attention = True; accepted: False",
        "n_inner = 'many'; accepted: an integer, at least 1, or null", "its header specifies",
    ):  # fmt: skip
        assert reason in message
    set_values(gpt2, bos_token_id=330)
    assert "the tokenizer cannot be used: tokenizer.json: Model missing" in refusal(gpt2)


def test_every_reason_of_llama(llama: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 0.5, "factor": 4.0}
    set_values(llama, rope_parameters=rope, hidden_act="tanh", attention_bias=True, head_dim="x", eos_token_id=[1, 2])
    (llama / "tokenizer.json").unlink()
    message = refusal(llama)
    for reason in (
        "rope_type = 'yarn' (rope_scaling, rope_parameters); accepted: 'default'",
        "rope_theta = 0.5; accepted: a number above 1",
        "hidden_act = 'tanh'; accepted: 'relu'", "attention_bias = True, mlp_bias = False; accepted: equal",
        "head_dim = 'x'; accepted: an integer, at least 2, or null", "eos_token_id = [1, 2]; a text has one end here",
    ):  # fmt: skip
        assert reason in message
    assert "generation_config.json: " not in message


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gpt2", {"n_head": 4}, "n_embd = 15; accepted: a multiple of n_head = 4"),
        ("gpt2", {"n_inner": 8}, "h.0.mlp.c_fc.weight: shape (7, 15), the settings and the vocabulary require (8, 15)"),
        ("gpt2", {"vocab_size": 320}, "bos_token_id = 330, but vocab_size = 320"),
        ("gpt2", {"vocab_size": 340}, "wte.weight: shape (331, 15), the settings and the vocabulary require (340, 15)"),
        ("gpt2", {"tie_word_embeddings": True}, "the tensors differ, but the settings tie them"),
        ("gpt2", {"n_positions": 10**9}, "max_len"),
        (
            "llama",
            {"num_key_value_heads": 4},
            "num_key_value_heads = 4; accepted: a divisor of num_attention_heads = 6",
        ),
        ("llama", {"num_key_value_heads": 3}, "require (48, 24)"),
        (
            "llama",
            {"num_attention_heads": 8, "head_dim": None},
            "hidden_size = 24; accepted: an even multiple of num_attention_heads = 8, or head_dim set",
        ),
        ("llama", {"head_dim": 7}, "head_dim = 7; accepted: even numbers"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type = 'yarn'"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 0.5}}, "factor = 0.5 of rope"),
        ("llama", {"vocab_size": 329}, "tokenizer.json has the id 329, but token_ids.json 329 ids"),
        ("llama", {"tie_word_embeddings": True}, "the tensors differ, but the settings tie them"),
    ],
)
def test_wrong_settings(family: str, changes: dict[str, Any], reason: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(family)
    set_values(folder, **changes)
    assert reason in refusal(folder)


def test_several_ends_of_generation_are_refused(llama: Path) -> None:
    set_values(llama, "generation_config.json", eos_token_id=[2, 5])
    assert "eos_token_id = [2, 5]; a text has one end here" in refusal(llama)


def test_a_sliding_window_is_the_maximum_length(tmp_path: Path) -> None:
    import_model(language_checkpoint(tmp_path / "mistral", "mistral, window, one layer"), tmp_path / "model")
    assert read_config(tmp_path / "model").data.max_tokens == 41


def test_the_commands_on_an_imported_model(cli: Cli, llama: Path, tmp_path: Path) -> None:
    check = tmp_path / "lines.txt"
    check.write_text("A dog runs across a field\ntwo people sit\n")
    model = tmp_path / "model"
    code, out, _ = cli("import", llama, model, "--check", check)
    assert code == 0 and b"2 prompts from lines of lines.txt" in out and b"greedy search: 2 identical" in out
    meta = verify(model)
    assert {"tokenizer.json", "token_ids.json"} <= meta["sha256"].keys() and read_meta(model)["imported"] == "llama"
    assert read_config(model).data.max_tokens == 48
    code, out, _ = cli("generate", model, "--prompt", "A dog", "--max-tokens", "8", "--seed", "1")
    assert code == 0 and out.startswith(b"A dog")
    code, out, _ = cli("score", model, "--target", check)
    assert code == 0 and out.count(b"\n") == 2
    code, out, _ = cli("explain", model, "A dog", "--out", tmp_path / "page.html")
    assert code == 0 and (tmp_path / "page.html").exists()
    code, out, _ = cli("info", model)
    assert code == 0 and b"native" in out
    (model / "token_ids.json").write_text("{}")
    code, _, err = cli("generate", model, "--prompt", "A dog")
    assert code == 1 and "token_ids.json" in err
