"""Preparation of parallel text before training, on several cores or machines."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from dragoman.config import Config
from dragoman.data.corpus import corpus_spec
from dragoman.data.precheck import precheck
from dragoman.data.profile import TrainingProfile
from dragoman.data.store.build import build_store
from dragoman.data.store.reader import Store
from dragoman.data.store.segments import Processes, RayTasks
from dragoman.errors import UsageError
from dragoman.io.run_log import Reporter
from dragoman.tokenizers import Tokenizer
from dragoman.training.initial import open_initial
from dragoman.training.run import check_files


def prepare(
    config: Config,
    out: str | Path,
    *,
    workers: int | None = None,
    ray: bool = False,
    reporter: Reporter | None = None,
) -> Store:
    """Prepare the training data of the run `out`, in `prepared` beside it, where training finds them.

    workers: processes; default: one per core.  ray: use the Ray cluster at RAY_ADDRESS instead, or Ray on this machine;
    the folder must have the same path on all machines.  Raises as `train` does for the data, and UsageError for other
    data than parallel text, which are prepared in memory when training starts.
    """
    check_files(config)
    if not config.data.about.translates:
        raise UsageError(
            f'data.kind = {config.data.kind!r}: nothing to prepare; accepted: "parallel". Start training: its data '
            "are read into memory"
        )
    reporter = reporter or Reporter()
    reporter.phase("checking the data")
    cache = Path(out).parent / "prepared"
    precheck(config, reporter.warn, cache)
    initial = open_initial(config, Path(out), reporter)
    tokenizer = initial.vocabulary if initial is not None and isinstance(initial.vocabulary, Tokenizer) else None
    specs = [corpus_spec(config, corpus) for corpus in config.parallel.train]
    pool: AbstractContextManager[Processes | RayTasks] = RayTasks() if ray else Processes(workers)
    with pool as used:
        store = build_store(config, specs, cache, reporter, used, tokenizer)
    reporter.phase("describing the training data")
    TrainingProfile.cached(store, config.parallel.source_language)
    return store
