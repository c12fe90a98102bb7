"""Searches of many callers at the same time: a service of the engine that runs a model."""

from dragoman.decoding.backend import BATCH_TOKENS, DecodingBackend
from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.search_types import SearchSettings
from dragoman.extras import has_torch
from dragoman.serve.search.native import NativeSearchService
from dragoman.serve.search.service import BatchedSearchService, SearchService

_GPU_BATCH_TOKENS = 1 << 14
"""`batch_tokens` of a service on a GPU; a step for 256 rows takes about twice as long as for 4 (base size, H200)."""


def open_service(backend: DecodingBackend, max_source: int, usual: SearchSettings | None = None) -> SearchService:
    """Return a service for searches of many callers.

    max_source: longest source in tokens, end of sentence included; longer ones take a slower way.  usual: settings of
    most searches, for which a service may prepare itself.
    """
    if isinstance(backend, NativeBackend) and backend.has_encoder:  # the slots of its service are too short for prompts
        return NativeSearchService(backend, max_source)
    if has_torch():
        from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend
        from dragoman.serve.search.slots import SlotSearchService

        if isinstance(backend, CudaGraphBackend):
            return SlotSearchService(backend, _GPU_BATCH_TOKENS, usual)
    return BatchedSearchService(backend, BATCH_TOKENS if str(backend.device) == "cpu" else _GPU_BATCH_TOKENS)
