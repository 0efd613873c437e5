"""What a request can start from: the longest prefix of its prompt that the last one has left.

The cells of a prefix have the same bits whichever request computed them, drafting or not, so a
request that starts from them gives what a cold one gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

from drafthead.backbone.cells import copy_cells, reachable
from drafthead.backbone.handle import Backbone, KvCache
from drafthead.common_start import common_start
from drafthead.decoding.loop import Request
from drafthead.errors import RequestError


class Turn:
    """The right to work with a cache: one thread has it at a time, and others are refused.

    What an interrupt leaves behind is that its thread has the turn, and it may take it again.
    """

    def __init__(self) -> None:
        self._holder: dict[str, int] = {}

    def __enter__(self) -> None:
        me = get_ident()
        if self._holder.setdefault("thread", me) != me:  # one step, which no thread can part
            raise RequestError(
                "The session is at work in another thread: wait for that, or load a second session."
            )

    def __exit__(self, *_: object) -> None:
        self._holder.clear()


class PrefixCache:
    """The one cache of a session, and the tokens whose keys and values it holds.

    It grows by doubling up to the context, and is kept between requests. `request` has it now:
    those before must not go on. Whoever works with it takes its `turn`. Its cells are those of
    `tokens`, as far as both reach, whatever interrupts it and where.
    """

    def __init__(self) -> None:
        self.turn = Turn()
        self.cache: KvCache | None = None
        self.request: Request | None = None
        self.tokens: Sequence[int] = []  # those of the request, which appends while it runs

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self.cache.nbytes if self.cache is not None else 0

    def lend(self, backbone: Backbone, request: Request, cells: int, most: int) -> KvCache:
        """Give a request the cache, and tell it how many tokens of its prompt are there already.

        Args:
            backbone: of the cache.
            request: about to start.
            cells: positions it needs.
            most: positions that no cache may exceed.
        """
        # Cells have no logits any more: a prompt that is scored starts cold.
        request.cached_tokens = 0 if request.echo else self._reusable(request.prompt)
        if self.cache is None or self.cache.capacity < cells:
            self._grow(backbone, cells, most, request.cached_tokens)
        assert self.cache is not None
        self.cache.rollback(request.cached_tokens)
        self.request, self.tokens = request, request.tokens
        return self.cache

    def take(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Go on from another cache, which holds these tokens up to its length."""
        self.forget()
        self.cache, self.request = cache, None
        self.tokens = tokens

    def forget(self) -> None:
        """Start the next request cold; the cache stays."""
        self.tokens = []

    def _reusable(self, prompt: Sequence[int]) -> int:
        """How many cells the prompt may start from: its last token is always fed again.

        A sliding window may have overwritten what a short prefix needs: then none.
        """
        if self.cache is None:
            return 0
        common = common_start(self.tokens[: self.cache.length], prompt[:-1])
        return reachable(self.cache, common)

    def _grow(self, backbone: Backbone, cells: int, most: int, kept: int) -> None:
        old = self.cache
        double = 2 * old.capacity if old is not None else 0
        self.cache = backbone.new_cache(min(max(cells, double), most))
        if old is not None and kept:
            old.rollback(kept)
            copy_cells(old, self.cache, [layer.window for layer in backbone.spec.layers])
