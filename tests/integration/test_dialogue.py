"""A model of dialogues: trained, asked in both backends, through a pipe and at a terminal."""

from __future__ import annotations

import json
import math
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import Chat, TextGenerator
from dragoman.config import Config, TokenizerConfig, dump_toml, parse_config
from dragoman.data.dialogues import Prompt, Turn
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.search_types import Hypothesis, PartialHypothesis
from dragoman.errors import ModelFolderError, UsageError
from dragoman.models.model_folder import find_model, load_network, read_config, read_meta, write_folder
from dragoman.tokenizers import BOS, EOS, Tokenizer, learn_tokenizer
from dragoman.training.trainer import train
from small_run import COMMAND, Cli, write_lines
from terminal import ENVIRONMENT, Terminal

QUESTIONS = {
    "which pet?": ("the cat.", "the dog."),
    "which day?": ("one day.", "two days."),
    "how is it?": ("it is.",) * 2,
}


def dialogue_lines() -> list[str]:
    """Questions of A, in all orders of three, which B and C answer differently."""
    lines = []
    for question, answers in QUESTIONS.items():
        for other, others in QUESTIONS.items():
            for role in (0, 1):
                name = "BC"[role]
                lines += [f"A: {question}", f"{name}: {answers[role]}", f"A: {other}", f"{name}: {others[role]}", ""]
    return lines


def config_of(folder: Path) -> Config:
    return parse_config({
        "data": {
            "kind": "dialogue", "format": "plain", "root": str(folder), "train": ["train.txt"], "valid": "valid.txt",
            "max_tokens": 48, "context_tokens": 16,
        },
        "tokenizer": {"kind": "char", "byte_fallback": False},
        "model": {
            "architecture": "decoder_only", "d_model": 32, "d_ff": 48, "n_heads": 2, "n_layers": 2, "dropout": 0.0,
            "order": "pre", "position": {"kind": "rotary"},
        },
        "train": {
            "budget": "120 steps", "batch_tokens": 400, "validate_every": "120 steps", "device": "cpu",
            "label_smoothing": 0.0, "schedule": {"kind": "budget", "peak": 0.01, "warmup": 10},
        },
    })  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dialogue")
    write_lines(folder / "train.txt", dialogue_lines())
    write_lines(folder / "valid.txt", [line for line in dialogue_lines() if not line.startswith("A: how")])
    (folder / "dialogue.toml").write_text(dump_toml(config_of(folder)), encoding="utf-8")
    train(config_of(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def chat(run: Path) -> Chat:
    return Chat.load(run, engine="pytorch")


PET = [("A", "which pet?")]
LONG = [turn for _ in range(9) for turn in (("A", "which day?"), ("B", "one day."))]
PROMPTS: list[list[tuple[str, str]]] = [
    PET, [], [*PET, ("C", "the dog."), ("A", "how is it?")], [*LONG, ("A", "which pet?")], [("A", "w" * 80)],
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ replies


def test_the_reply_is_that_of_the_role(chat: Chat) -> None:
    """The same question has another answer from B than from C; only the token of the role differs."""
    for question, answers in QUESTIONS.items():
        for role, answer in zip("BC", answers, strict=True):
            reply = chat.reply([("A", question)], role, sample=False)
            assert (reply.role, reply.text, reply.ended) == (role, answer, True)
            assert not reply.truncated and reply.dropped_turns == 0


def test_the_score_of_a_reply_is_that_of_teacher_forcing(chat: Chat, run: Path) -> None:
    reply = chat.reply(PET, "C", sample=False)
    (scores,) = chat.score([[*PET, ("C", reply.text)]])
    assert scores[1].log_prob == pytest.approx(reply.log_prob, abs=1e-5)
    assert [score.role for score in scores] == ["A", "C"] and scores[1].tokens == len(reply.text) + 1

    network, tokenizer, _ = load_network(run)
    assert isinstance(tokenizer, Tokenizer)
    ids = [tokenizer.roles["A"], *tokenizer.encode_target("which pet?")[:-1], tokenizer.roles["C"]]
    answer = tokenizer.encode_target(reply.text)
    with torch.no_grad():
        inputs = torch.tensor([[BOS, *ids, *answer[:-1]]])
        log_probs = network(inputs[:, :0], None, inputs).log_softmax(-1)[0, len(ids) :]
    assert answer[-1] == EOS
    assert sum(log_probs[i, t].item() for i, t in enumerate(answer)) == pytest.approx(reply.log_prob, abs=1e-4)


def test_scores_add_up_to_the_validation_loss(chat: Chat, run: Path) -> None:
    lines = (run.parent / "valid.txt").read_text(encoding="utf-8").split("\n\n")
    dialogues = [[tuple(line.split(": ")) for line in text.strip().split("\n")] for text in lines if text.strip()]
    scores = [score for turns in chat.score(dialogues) for score in turns]  # type: ignore[arg-type]
    found = read_meta(run / (run / "last").read_text().strip())["scores"]
    tokens = sum(score.tokens for score in scores)
    assert -sum(score.log_prob for score in scores) / tokens == pytest.approx(found["valid_loss"], abs=1e-5)
    own = [score for score in scores if score.role == "B"]
    loss = -sum(score.log_prob for score in own) / sum(score.tokens for score in own)
    assert loss == pytest.approx(found["loss_B"], abs=1e-5)
    bits = found["valid_loss"] * tokens / sum(score.characters for score in scores) / math.log(2)
    assert found["bits_per_character"] == pytest.approx(bits, rel=1e-5)


@pytest.mark.skipif(load_native() is None, reason=unavailable_reason())
@pytest.mark.parametrize("settings", [{"sample": False}, {"sample": False, "beam": 3}, {"seed": 3}], ids=str)
def test_both_backends_stop_at_the_same_end_of_turn(chat: Chat, run: Path, settings: dict[str, Any]) -> None:
    native = Chat.load(run, engine="native", quantize="none")
    assert native.description.startswith("native engine")
    expected = chat.replies(PROMPTS, "B", max_tokens=14, **settings)
    found = native.replies(PROMPTS, "B", max_tokens=14, **settings)
    assert any(reply.ended for reply in expected)
    for one, other in zip(found, expected, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        assert one.to_json() | {"log_prob": 0} == other.to_json() | {"log_prob": 0}
    for one, other in zip(native.score([LONG]), chat.score([LONG]), strict=True):
        assert [s.log_prob for s in one] == pytest.approx([s.log_prob for s in other], abs=1e-3)


def test_a_reply_depends_on_its_own_turns_alone(chat: Chat) -> None:
    together = chat.replies(PROMPTS, "B", max_tokens=10, seed=5)
    assert len(together) == len(PROMPTS)
    for turns, reply in zip(PROMPTS, together, strict=True):
        alone = chat.reply([{"role": role, "content": text} for role, text in turns], "B", max_tokens=10, seed=5)
        assert alone.log_prob == pytest.approx(reply.log_prob, abs=1e-4)
        assert alone.to_json() | {"log_prob": 0} == reply.to_json() | {"log_prob": 0}


def test_the_oldest_turns_are_dropped_and_reported(chat: Chat) -> None:
    reply = chat.reply([*LONG, *PET], "B", max_tokens=14, seed=1)
    assert reply.truncated and reply.dropped_turns == 16  # 48 - 15 ids: 11 + 9 + 11 and the role
    kept = chat.reply([*LONG[16:], *PET], "B", max_tokens=14, seed=1)
    assert not kept.truncated and (kept.text, kept.log_prob) == (reply.text, pytest.approx(reply.log_prob, abs=1e-5))
    cut = chat.reply([*PET, ("A", "w" * 80)], "B", max_tokens=14, seed=1)
    assert cut.truncated and cut.dropped_turns == 1
    assert cut.text == chat.reply([("A", "w" * 31)], "B", max_tokens=14, seed=1).text, "the end of the turn is kept"


def test_a_streamed_reply_is_the_reply(chat: Chat) -> None:
    for turns in PROMPTS:
        pieces, stream = [], chat.stream_reply(turns, "C", max_tokens=12, seed=7)
        while True:
            try:
                pieces.append(next(stream))
            except StopIteration as stop:
                reply = stop.value
                break
        expected = chat.reply(turns, "C", max_tokens=12, seed=7)
        assert reply.text == expected.text == "".join(pieces) and all(pieces)
        assert len(pieces) == len(reply.text), "one piece per token of this tokenizer"


def test_characters_of_several_bytes_are_streamed_whole() -> None:
    chat = object.__new__(Chat)
    chat.tokenizer = learn_tokenizer(TokenizerConfig(kind="char"), ["ab"] * 9, lossless=True, roles=["A"])
    ids = chat.tokenizer.encode_target("a语b")[:-1]

    def search() -> Any:
        for end in range(len(ids) + 1):
            yield PartialHypothesis([4, *ids[:end]], [], [], end + 1)
        return Hypothesis([4, *ids], 0.0, 0.0, [0.0] * (len(ids) + 2), False), None

    stream = chat._pieces(search(), "A", Prompt([4], 0, False))
    assert list(stream) == ["a", "语", "b"] and len(ids) == 5


@pytest.mark.parametrize(
    ("turns", "options", "message"),
    [
        (PET, {"role": "b"}, "role = 'b': not a role of this model.*accepted: A, B, C"),
        (PET, {}, "it is not clear who speaks next; specify role = A or B or C"),
        ([("D", "hi")], {"role": "B"}, "turn 1: role 'D': not a role"),
        ([{"role": "A"}], {"role": "B"}, "turn 1: text: None is of type NoneType"),
        (["hi"], {"role": "B"}, r"turn 1: 'hi' is not a turn; accepted: \(\"role\", \"text\"\)"),
        ("hi", {"role": "B"}, "expected a list of texts"),
        (None, {"role": "B"}, "None is not a dialogue"),
        ([*PET, ("A", "\ud800")], {"role": "B"}, r"turn 2: text: invalid Unicode \(lone surrogate\)"),
        (PET, {"role": "B", "max_tokens": 47}, "max_tokens = 47; accepted: 1 to 46"),
        (PET, {"role": "B", "max_tokens": 0}, "max_tokens = 0; accepted: 1 to 46"),
        (PET, {"role": "B", "nbest": 2}, "nbest = 2; accepted: 1"),
        (PET, {"role": "B", "max_extra": 2}, "use max_tokens"),
        (PET, {"role": "B", "temprature": 2}, "did you mean 'temperature'"),
    ],
)
def test_calls_that_are_refused(chat: Chat, turns: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chat.reply(turns, **options)
    with pytest.raises(UsageError, match=message):
        chat.stream_reply(turns, **options)


def test_the_role_that_answers_by_default() -> None:
    chat = object.__new__(Chat)
    for roles, turns, answers in (
        (("A", "B"), PET, "B"), (("A", "B"), [("B", "")], "A"), (("assistant", "system", "user"), [], "assistant"),
    ):  # fmt: skip
        chat.roles = roles
        assert chat.answering_role([Turn(*turn) for turn in turns]) == answers


def test_limits_of_a_long_context(chat: Chat) -> None:
    long = Chat(chat.model, chat.tokenizer, 65_536)
    assert long.check_settings().max_extra == 10_000 and chat.check_settings().max_extra == 13
    with pytest.raises(UsageError, match="max_tokens = 10000; accepted: 1 to 9,999"):
        long.check_settings(10_000)


def test_a_model_without_roles_is_refused(chat: Chat) -> None:
    tokenizer = learn_tokenizer(config_of(Path()).tokenizer, ["ab"] * 9)
    with pytest.raises(ModelFolderError, match="contains no roles"):
        Chat(chat.model, tokenizer, 48)


# --------------------------------------------------------------------------------------------------- the command line

GREEDY = ("--role", "B", "--as", "A", "--greedy")


def test_one_line_in_one_line_out(cli: Cli, run: Path) -> None:
    lines = ["which pet?", "", "which day?", "/reset", "/nothing", "/role C", "which pet?", "//role B", "/quit", "lost"]
    code, out, err = cli("chat", run, *GREEDY, stdin="\n".join(lines).encode())
    rows = out.decode().split("\n")
    assert code == 0 and len(rows) == 9 and rows[8] == "", "one per line before /quit"
    assert rows[:7] == ["the cat.", "", "one day.", "", "", "", "the dog."]
    assert "all turns are forgotten" in err and "/nothing: no such command" in err and "the model is C" in err
    assert cli("chat", run, *GREEDY, stdin=b"")[:2] == (0, b"")


def test_the_first_truncated_reply_of_a_session_is_reported(cli: Cli, run: Path) -> None:
    code, out, err = cli("chat", run, *GREEDY, stdin=b"which pet?\n" * 60)
    assert code == 0 and out == b"the cat.\n" * 60, "the turns that fit, however long the session"
    assert err.count("truncated: only the newest turns fit into the context of 48 tokens") == 1
    code, out, err = cli("chat", run, *GREEDY, stdin=b"which pet?\n/reset\n" * 9)
    assert code == 0 and out == b"the cat.\n\n" * 9 and "truncated" not in err


def test_turns_in_replies_out(cli: Cli, run: Path, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": r, "content": t} for r, t in turns]} for turns in PROMPTS]
    path = write_lines(tmp_path / "turns.jsonl", [*map(json.dumps, rows), ""])
    code, out, err = cli("generate", run, "--turns", path, "--role", "B", "--greedy", "--max-tokens", "14")
    assert code == 0 and out.count(b"\n") == len(PROMPTS) + 1 and out.startswith(b"the cat.\n")
    assert "truncated: 2 dialogues longer than the context" in err
    options = ("--role", "B", "--greedy", "--max-tokens", "14", "--jsonl")
    code, found, _ = cli("generate", run, "--turns", "-", *options, stdin=path.read_bytes())
    texts = [json.loads(row)["text"] for row in found.decode().split("\n")[:-1]]
    assert texts == out.decode().split("\n")[:-1] and json.loads(found.split(b"\n")[3])["dropped_turns"] == 16
    plain = write_lines(tmp_path / "turns.txt", ["A: which pet?", "", "A: which day?"])
    code, out, _ = cli("generate", run, "--turns", plain, "--role", "C", "--greedy")
    assert (code, out) == (0, b"the dog.\ntwo days.\n"), "in the format of the training data"


def test_a_line_per_dialogue_is_scored(cli: Cli, run: Path, chat: Chat, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "turns.jsonl", [json.dumps([{"role": r, "content": t} for r, t in LONG]), ""])
    code, out, _ = cli("score", run, "--target", path)
    (scores,) = chat.score([LONG])
    log_prob, tokens = out.decode().split("\n")[0].split("\t")
    assert code == 0 and float(log_prob) == pytest.approx(sum(s.log_prob for s in scores), abs=1e-2)
    assert int(tokens) == sum(len(text) + 1 for _, text in LONG) and out.decode().split("\n")[1] == "0.000000\t0"


def test_doctor_info_explain_and_atlas(cli: Cli, run: Path, tmp_path: Path) -> None:
    code, out, _ = cli("doctor", run.parent / "dialogue.toml", "--json")
    account = json.loads(out)["account"]
    assert code == 0 and "18 dialogues; read 72 turns = kept 72; turns by role: A 36, B 18, C 18" in account
    assert "longest dialogue: 4 turns; longest turn: 11 tokens; 18 windows" in account
    code, out, _ = cli("info", run, "--json")
    assert code == 0 and json.loads(out)["data"] == "dialogue"
    code, out, _ = cli("explain", run, "A: which pet?\nC:", "--out", tmp_path / "page.html")
    assert code == 0 and "C: the dog." in out.decode()
    code, out, _ = cli("explain", run, "which pet?", "--target", "the dog.", "--out", tmp_path / "page.html")
    assert code == 0 and "B: the dog." in out.decode()
    lines = write_lines(tmp_path / "lines", ["A: which pet?", "B: one day.", "which day?"])
    code, _, err = cli("atlas", run, "--source", lines, "--out", tmp_path / "atlas.html")
    assert code == 0 and (tmp_path / "atlas.html").stat().st_size > 10_000, err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["generate", "--prompt", "a"], 'does not continue plain text: its architecture is "decoder_only", trained on'),
        (["generate"], 'data of kind "dialogue"; it is used by: dragoman chat'),
        (["generate", "--prompt", "a", "--turns", "-"], "--prompt, --input and --turns exclude each other"),
        (["generate", "--role", "A"], "--role applies to dialogues"),
        (["score", "--target", "x", "--source", "x"], "omit --source"),
        (["chat"], "it is not clear who speaks next; specify --role A or B or C"),
        (["chat", "--role", "B"], "your role is not specified; specify --as, one of A, B, C"),
        (["chat", "--role", "Z"], "--role 'Z': not a role of this model; accepted: A, B, C"),
        (["chat", *GREEDY, "--max-tokens", "99"], "--max-tokens 99; accepted: 1 to 46"),
        (["chat", *GREEDY[:-1], "--temperature", "0"], "use greedy search (--greedy)"),
        (["chat", "--role", "B", "--as", "Z"], "--as 'Z': not a role of this model; accepted: A, B, C"),
        (["generate", "--turns", "-"], "input 1, it is not clear who speaks next"),
    ],
)
def test_commands_that_are_refused(args: list[str], words: str, cli: Cli, run: Path) -> None:
    command, *options = args
    code, out, err = cli(command, run, *options, stdin=b'{"messages": []}\n')
    assert (code, out) == (2, b"") and words in err


def test_a_role_that_was_not_learned_is_warned_about(cli: Cli, run: Path, tmp_path: Path) -> None:
    """Of the same model with `loss_roles`, which only the configuration of the checkpoint records."""
    folder = Path(shutil.copytree(find_model(run), tmp_path / "model"))
    config = read_config(folder)
    data = config.data.model_copy(update={"loss_roles": ("B",)})
    files = {name: (folder / name).read_bytes() for name in read_meta(folder)["sha256"]}
    files["config.json"] = config.model_copy(update={"data": data}).model_dump_json().encode()
    write_folder(folder, files, {"step": 1})
    turns = write_lines(tmp_path / "turns.jsonl", ['[{"role": "A", "content": "which pet?"}]'])
    unlearned = "warning: the model was not trained on turns of C, only on those of B (data.loss_roles)"
    for command in (["chat", folder, "--as", "A"], ["generate", folder, "--turns", turns]):
        for role, warned in (("B", False), ("C", True)):
            code, _, err = cli(*command, "--greedy", "--role", role, stdin=b"hi\n")
            assert (code, unlearned in err, "warning" in err) == (0, warned, warned)
    assert unlearned in cli("chat", folder, "--as", "A", "--role", "B", stdin=b"/role C\n")[2]


@pytest.mark.parametrize("text", ["X: which pet?", "A: which pet?\nX:", "a: which pet?"])
def test_explain_refuses_an_unknown_role(cli: Cli, run: Path, tmp_path: Path, text: str) -> None:
    code, _, err = cli("explain", run, text, "--out", tmp_path / "page.html")
    assert code == 2 and "not a role of this model" in err and "accepted: A, B, C" in err


def test_chat_needs_a_model_of_dialogues(cli: Cli, tmp_path: Path) -> None:
    write_lines(tmp_path / "text", ["the cat."] * 20)
    config = config_of(tmp_path).model_dump(mode="json", exclude_none=True)
    config["data"] = {"kind": "text", "train": [str(tmp_path / "text")]}
    config["train"] |= {"budget": "1 steps", "validate_every": "1 steps", "schedule": {"kind": "budget", "warmup": 1}}
    train(parse_config(config), tmp_path / "run")
    code, out, err = cli("chat", tmp_path / "run", stdin=b"hello\n")
    assert (code, out) == (2, b"") and "was not trained on dialogues: " in err and "dragoman generate" in err
    assert TextGenerator.load(tmp_path / "run").max_tokens == 256


# ----------------------------------------------------------------------------------------- processes and the terminal


def test_a_dialogue_at_a_terminal(run: Path) -> None:
    terminal = Terminal("chat", run, *GREEDY)
    assert "You are A, the model is B." in terminal.until(b"A: ")
    terminal.send(b"which pet?\n")
    assert terminal.until(b"B: ").strip() == "which pet?" and terminal.until(b"\r\nA: ") == "the cat."
    terminal.send(b"/role X\n")
    assert "'X': not a role" in terminal.until(b"A: ")
    terminal.send(b"/role C\n")
    terminal.until(b"A: ")
    terminal.send(b"which pet?\n")
    terminal.until(b"C: ")
    assert terminal.until(b"\r\nA: ") == "the dog."
    terminal.send(b"\x04")  # Ctrl-D
    code, rest = terminal.end()
    assert code == 0 and "Traceback" not in rest


def test_ctrl_c_leaves_a_terminal(run: Path) -> None:
    terminal = Terminal("chat", run, *GREEDY)
    terminal.until(b"A: ")
    code, rest = terminal.interrupt()
    assert code == 130 and "Traceback" not in rest


@pytest.fixture
def piped(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND, "chat", str(run), *GREEDY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as process:  # type: ignore[call-overload]
        yield process
        process.kill()


def test_another_program_receives_each_reply_at_once(piped: subprocess.Popen[bytes]) -> None:
    assert piped.stdin is not None and piped.stdout is not None and piped.stderr is not None
    for line, reply in ((b"which pet?\n", b"the cat.\n"), (b"which day?\n", b"one day.\n")):
        piped.stdin.write(line)
        piped.stdin.flush()
        assert select.select([piped.stdout], [], [], 120)[0], "no reply before the next line"
        assert piped.stdout.readline() == reply
    piped.send_signal(signal.SIGINT)
    assert piped.wait(300) == 130
    assert b"Traceback" not in piped.stderr.read()
