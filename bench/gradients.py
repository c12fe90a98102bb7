"""Vanishing and exploding gradients, and how far a network remembers a token.

    python bench/gradients.py [--kinds GRU LSTM ...] [--updates 400] [--seeds 2] [--rates 0.001 ...]
                               [--plot FILE.svg] [--quick]

A sequence is a token to remember (one of 10), k other tokens (each one of 10 others) and a query; the target is the
first token, after the query.  Every network has one layer of width 32 (the one with attention an encoder and a decoder
layer); the parameters are initialized as in the package.

Gradients: L is the cross-entropy at the last position T, h_t the hidden state at position t (of a Transformer layer:
the input at t).  The tables show |dL/dh_(T-k)| / |dL/dh_T|, computed in float64: the median over 64 sequences and
5 networks (trained: one per seed).  Measured are RNNs whose recurrent matrix U is scaled (U is orthogonal, so that the
factor is its spectral radius and its norm), all untrained networks, and the networks trained at distance 20.

Memory: percent of 1,000 new sequences answered correctly (chance: 10), mean over the seeds.  Networks are trained for
every distance k separately, with each learning rate of a grid; the rate with the highest accuracy on 256 other
sequences counts.  All networks receive the same batches of 32 sequences.  Seconds are processor time per training.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman import build_model, record
from dragoman.config import BahdanauAttention, DecoderOnlyConfig, LSTMConfig
from dragoman.nn.layers import Embedding, OutputProjection
from dragoman.nn.recurrent import GRU, LSTM, Cell, VanillaRNN
from dragoman.pages.charts import COLORS, MARKERS, drawing, series_color, standalone
from dragoman.tokenizers import BOS, EOS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

D, SYMBOLS, BATCH = 32, 10, 32
FIRST = EOS + 1
QUERY = FIRST + 2 * SYMBOLS
VOCABULARY = QUERY + 1
RADII = (0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0)
SHOWN = (1, 2, 5, 10, 20, 50, 100)
"""Values of k in the tables of gradients."""
VALIDATED, TESTED = 256, 1000
LOWEST, HIGHEST = 1e-15, 1e6
"""Range of the plots of gradients."""


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    sequences, models, longest: of the gradients; number of sequences and of networks, and largest k.
    updates, seeds, rates, distances: of the trainings.  trained_at: distance of the networks whose gradients are shown.
    """

    sequences: int = 64
    models: int = 5
    longest: int = 100
    updates: int = 400
    seeds: int = 2
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    distances: tuple[int, ...] = (2, 5, 10, 20, 50, 100)
    trained_at: int = 20


QUICK = Scale(sequences=4, models=1, longest=10, updates=2, seeds=1, rates=(1e-2,), distances=(2, 5), trained_at=5)

# ---------------------------------------------------------------------------------------------------------- networks


class CellReader(nn.Module):
    """Embedding, one recurrent cell and an output layer at the last position, initialized like the models."""

    def __init__(self, cell: Cell, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = Embedding(VOCABULARY, D)
        self.cell = cell
        self.output = OutputProjection(D, VOCABULARY)
        for weight in (self.embedding.weight, self.output.weight):
            nn.init.normal_(weight, std=D**-0.5, generator=generator)
        cell.reset(generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (N, V) at the last position of tokens (N, T)."""
        states, _ = self.cell(self.embedding(tokens))
        logits: Tensor = self.output(states[:, -1])
        return logits


class LayerReader(nn.Module):
    """A decoder-only model of one layer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"d_model": D, "d_ff": 2 * D, "n_heads": 4, "n_layers": 1, "dropout": 0.0}
        config = DecoderOnlyConfig(order="pre", tie="none", **sizes)
        self.model = build_model(config, VOCABULARY, VOCABULARY, seed=seed)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.model.hidden(tokens[:, :0], None, tokens)
        logits: Tensor = self.model.output(hidden[:, -1])
        return logits


class AttentionReader(nn.Module):
    """An LSTM encoder, and one step of an LSTM decoder with Bahdanau attention."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"d_model": D, "encoder_layers": 1, "decoder_layers": 1, "directions": 1}
        config = LSTMConfig(attention=BahdanauAttention(), tie="none", dropout=0.0, **sizes)
        self.model = build_model(config, VOCABULARY, VOCABULARY, seed=seed)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, None, torch.full((len(tokens), 1), BOS))
        return logits[:, 0]


def rnn(seed: int, activation: str = "tanh", radius: float = 1.0) -> CellReader:
    """Return an RNN whose U has the spectral radius `radius`: an orthogonal matrix times a number."""
    reader = CellReader(VanillaRNN(D, D, activation), seed)
    reader.cell.weights[1].data *= radius
    return reader


def identity_rnn(seed: int) -> CellReader:
    """Return an RNN with ReLU and U = identity (Le et al. 2015)."""
    reader = CellReader(VanillaRNN(D, D, "relu"), seed)
    nn.init.eye_(reader.cell.weights[1].data)
    return reader


def gru(seed: int) -> CellReader:
    return CellReader(GRU(D, D), seed)


def lstm(seed: int, forget_bias: float = 1.0) -> CellReader:
    reader = CellReader(LSTM(D, D), seed)
    reader.cell.weights[2].data[D : 2 * D] = forget_bias
    return reader


@dataclass(frozen=True)
class Kind:
    """build: seed -> network.  tap: name of the quantity h_t.  trained: whether memory is measured."""

    build: Callable[[int], nn.Module]
    tap: str = "cell.hidden"
    trained: bool = True


KINDS = {
    "RNN, tanh": Kind(rnn),
    "RNN, ReLU": Kind(partial(rnn, activation="relu")),
    "RNN, ReLU, U = identity": Kind(identity_rnn),
    "GRU": Kind(gru),
    "LSTM": Kind(lstm),
    "LSTM, forget bias 0": Kind(partial(lstm, forget_bias=0.0), trained=False),
    "LSTM, cell state": Kind(lstm, "cell.cell", trained=False),
    "LSTM, forget bias 5": Kind(partial(lstm, forget_bias=5.0)),
    "LSTM, Bahdanau attention": Kind(AttentionReader, "model.encoder.layers.0.ahead.hidden"),
    "Transformer layer": Kind(LayerReader, "model.positioned"),
}
SCALED = {
    f"RNN, {name}, spectral radius {radius}": Kind(partial(rnn, activation=name.lower(), radius=radius))
    for name in ("tanh", "ReLU")
    for radius in RADII
}


def examples(distance: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return tokens (count, distance + 2) and the tokens to remember (count,)."""
    remembered = torch.randint(FIRST, FIRST + SYMBOLS, (count, 1), generator=generator)
    others = torch.randint(FIRST + SYMBOLS, QUERY, (count, distance), generator=generator)
    return torch.cat([remembered, others, torch.full((count, 1), QUERY)], dim=1), remembered[:, 0]


# --------------------------------------------------------------------------------------------------------- gradients


def relative_gradients(network: nn.Module, tap: str, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return |dL/dh_(T-k)| / |dL/dh_T| at index k of (N, T), for the cross-entropy L at the last position T."""
    with record(network, tap, gradients=True) as recording:
        F.cross_entropy(network(tokens), targets, reduction="sum").backward()
    norms = recording.gradient(tap).norm(dim=-1).flip(1)
    network.zero_grad()
    ratios: Tensor = norms / norms[:, :1]
    return ratios


def quartiles(networks: Sequence[nn.Module], tap: str, sequences: int, longest: int) -> Tensor:
    """Return the quartiles (3, longest + 1) of the relative gradients over all networks and sequences.

    Sequences whose loss is exactly 0 in float64 have no gradient and do not count.
    """
    tokens, targets = examples(longest, sequences, torch.Generator().manual_seed(10**6))
    found = [relative_gradients(network.double(), tap, tokens, targets) for network in networks]
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return torch.cat(found)[:, : longest + 1].nanquantile(levels, dim=0)


Curves = dict[str, Tensor]
"""Name -> quartiles."""


def untrained_curves(kinds: dict[str, Kind], scale: Scale) -> Curves:
    curves = {}
    for name, kind in kinds.items():
        networks = [kind.build(seed) for seed in range(1, scale.models + 1)]
        curves[name] = quartiles(networks, kind.tap, scale.sequences, scale.longest)
    return curves


def print_curves(title: str, curves: Curves) -> None:
    longest = next(iter(curves.values())).size(1) - 1
    shown = [k for k in SHOWN if k <= longest]
    print(f"\n{title}\n\n| network | {' | '.join(f'k = {k}' for k in shown)} | quartiles, k = {shown[-1]} |")
    print("|---" * (len(shown) + 2) + "|")
    for name, (low, median, high) in curves.items():
        cells = [f"{median[k]:.2g}" for k in shown] + [f"{low[shown[-1]]:.1g} to {high[shown[-1]]:.1g}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


# ------------------------------------------------------------------------------------------------------------ memory


@dataclass
class Trained:
    """rate: the learning rate with the best validation.  correct: percent per seed.  seconds: per training."""

    rate: float
    correct: list[float]
    seconds: float
    networks: list[nn.Module]


def train(network: nn.Module, distance: int, updates: int, rate: float, seed: int) -> None:
    """Train with Adam, the learning rate decreasing linearly to 0 and gradients clipped to norm 1."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters())
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - update / updates)
        tokens, targets = examples(distance, BATCH, generator)
        optimizer.zero_grad()
        F.cross_entropy(network(tokens), targets).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


@torch.inference_mode()
def percent_correct(network: nn.Module, distance: int, count: int, seed: int) -> float:
    tokens, targets = examples(distance, count, torch.Generator().manual_seed(seed))
    return 100 * float((network(tokens).argmax(-1) == targets).float().mean())


def remember(kind: Kind, distance: int, scale: Scale) -> Trained:
    """Train with every rate and seed, and return the results of the rate that is best on validation sequences."""
    best, best_percent = None, -1.0
    began = time.process_time()
    for rate in scale.rates:
        networks = [kind.build(seed) for seed in range(1, scale.seeds + 1)]
        for seed, network in enumerate(networks, 1):
            train(network, distance, scale.updates, rate, seed)
        percent = statistics.mean(percent_correct(network, distance, VALIDATED, 10**6 + 1) for network in networks)
        if percent > best_percent:
            correct = [percent_correct(network, distance, TESTED, 10**6 + 2) for network in networks]
            best, best_percent = Trained(rate, correct, 0.0, networks), percent
    assert best is not None
    best.seconds = (time.process_time() - began) / (len(scale.rates) * scale.seeds)
    return best


Memory = dict[str, dict[int, Trained]]
"""Name -> distance -> result."""


def measure_memory(kinds: dict[str, Kind], scale: Scale) -> Memory:
    print(f"\nPercent correct after {scale.updates} updates: mean (one per seed), learning rate\n")
    print(f"| network | parameters | {' | '.join(f'k = {k}' for k in scale.distances)} | seconds |")
    print("|---" * (len(scale.distances) + 3) + "|")
    memory: Memory = {}
    for name, kind in kinds.items():
        row = memory[name] = {k: remember(kind, k, scale) for k in scale.distances}
        size = sum(p.numel() for p in kind.build(1).parameters())
        cells = [
            f"{statistics.mean(p.correct):.0f} ({', '.join(f'{c:.0f}' for c in p.correct)}), {p.rate:g}"
            for p in row.values()
        ]
        seconds = f"{min(p.seconds for p in row.values()):.1f} to {max(p.seconds for p in row.values()):.1f}"
        print(f"| {name} | {size:,} | {' | '.join(cells)} | {seconds} |", flush=True)
    return memory


# -------------------------------------------------------------------------------------------------------------- plot


Look = Callable[[str], dict[str, Any]]
"""Name -> style of its line."""


def kind_look(name: str) -> dict[str, Any]:
    group = list(KINDS).index(name)
    return {"color": series_color(group), "label": name, "linestyle": "--" if group >= COLORS else "-"}


def radius_look(name: str) -> dict[str, Any]:
    _, activation, radius = name.split(", ")
    color = series_color(RADII.index(float(radius.split()[-1])))
    label = radius.removeprefix("spectral radius ") if activation == "tanh" else None
    return {"color": color, "label": label, "linestyle": "-" if activation == "tanh" else "--"}


def draw_gradients(axes: Axes, title: str, curves: Curves, look: Look) -> None:
    """Draw the medians as lines and the quartiles as bands."""
    for name, quartiles_of in curves.items():
        low, median, high = quartiles_of.clamp(LOWEST / 1e3, HIGHEST * 1e3).tolist()
        k, style = range(len(median)), look(name)
        axes.plot(k, median, **style)
        axes.fill_between(k, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set(yscale="log", ylim=(LOWEST, HIGHEST), title=title, xlabel="k, steps back from the last position")
    powers = range(-15, 7, 3)
    axes.set_yticks([10.0**i for i in powers], [f"1e{i}".replace("-", "−") for i in powers])
    axes.set_yticks([], minor=True)
    axes.set_ylabel("|dL/dh_(T−k)| / |dL/dh_T|")


def draw_memory(axes: Axes, memory: Memory) -> None:
    for i, (name, row) in enumerate(memory.items()):
        means = [statistics.mean(point.correct) for point in row.values()]
        axes.plot(list(row), means, marker=MARKERS[i % len(MARKERS)], clip_on=False, **kind_look(name))
    distances = sorted({distance for row in memory.values() for distance in row})
    axes.set(xscale="log", ylim=(0, 100), xlabel="k, tokens between the token to remember and the query")
    axes.set_title("Remembered, percent (chance: 10), same colors")
    axes.set_xticks(distances, [str(k) for k in distances])
    axes.set_xticks([], minor=True)


def write_plot(path: Path, distance: int, scaled: Curves, untrained: Curves, trained: Curves, memory: Memory) -> None:
    """Draw the four panels as an SVG file; distance: that of the networks of `trained`."""
    with drawing("gradients", width=1100, height=960, panels=4) as chart:
        figure, (first, second, third, fourth) = chart.figure, chart.panels
        figure.set_layout_engine("constrained")
        grid = figure.add_gridspec(2, 2)
        for i, axes in enumerate(chart.panels):
            axes.set_subplotspec(grid[i // 2, i % 2])
        draw_gradients(first, "RNN by spectral radius of U: tanh (solid), ReLU (dashed)", scaled, radius_look)
        draw_gradients(second, "Untrained networks", untrained, kind_look)
        draw_gradients(third, f"Networks trained at distance {distance}, same colors", trained, kind_look)
        draw_memory(fourth, memory)
        first.legend(frameon=False, fontsize=11, loc="lower left", handlelength=1.2)
        second.legend(frameon=False, fontsize=11, loc="lower left")
        path.write_text(standalone(chart.svg()), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = [name for name, kind in KINDS.items() if kind.trained]
    parser.add_argument("--kinds", nargs="+", choices=names, default=names, metavar="KIND", help=" | ".join(names))
    parser.add_argument("--updates", type=int, metavar="N")
    parser.add_argument("--seeds", type=int, metavar="N")
    parser.add_argument("--rates", nargs="+", type=float, metavar="RATE", help="learning rates of the trainings")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--quick", action="store_true", help="measure little, to test the program")
    args = parser.parse_args()
    given = {key: value for key in ("updates", "seeds", "rates") if (value := getattr(args, key)) is not None}
    scale = replace(QUICK if args.quick else Scale(), **given)
    torch.set_num_threads(1)
    began = time.process_time()
    shown = {name: kind for name, kind in KINDS.items() if name in args.kinds or not kind.trained}
    scaled, untrained = untrained_curves(SCALED, scale), untrained_curves(shown, scale)
    print_curves("Relative gradient, RNN with scaled U", scaled)
    print_curves("Relative gradient, untrained networks", untrained)
    memory = measure_memory({name: kind for name, kind in shown.items() if kind.trained}, scale)
    trained = {
        name: quartiles(row[scale.trained_at].networks, KINDS[name].tap, scale.sequences, scale.longest)
        for name, row in memory.items()
    }
    correct = {name: statistics.mean(row[scale.trained_at].correct) for name, row in memory.items()}
    named = {f"{name} ({correct[name]:.0f} % correct)": curve for name, curve in trained.items()}
    print_curves(f"Relative gradient, networks trained at distance {scale.trained_at}", named)
    print(f"\n{(time.process_time() - began) / 60:.1f} minutes of processor time")
    if args.plot:
        write_plot(args.plot, scale.trained_at, scaled, untrained, trained, memory)


if __name__ == "__main__":
    main()
