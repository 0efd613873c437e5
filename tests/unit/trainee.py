"""A backbone of a few numbers for training tests: everything the trainer reads, nothing native.

D 32, V 96, G 1 KV head of size 16. The next token follows from the last two: it can be learned.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from drafthead.backbone.handle import Pass

D, V, G, H, LAYERS, EOS = 32, 96, 1, 16, 3, 1


class TinyCache:
    """Tokens, and K and V laid out as the engine lays them out: keys in blocks of 16 positions."""

    rollback_floor = 0

    def __init__(self, capacity):
        self.capacity = capacity
        self.tokens = []
        cells = -(-capacity // 16) * 16
        self.keys = np.full((LAYERS, G, cells // 16, H, 16), 99, np.float16)
        self.values = np.full((LAYERS, G, cells, H), 99, np.float16)

    @property
    def length(self):
        return len(self.tokens)

    def rollback(self, length):
        del self.tokens[length:]

    def append(self, token):
        place = len(self.tokens)
        for layer in range(LAYERS):
            key, value = kv_of(token, place, layer)
            self.keys[layer, :, place // 16, :, place % 16] = key
            self.values[layer, :, place] = value
        self.tokens.append(token)

    def key_view(self, layer):
        return self.keys[layer]

    def value_view(self, layer):
        return self.values[layer]


def kv_of(token, place, layer):
    """K and V of one position of one layer, (G, H) each."""
    rng = np.random.default_rng((token, place, layer))
    return rng.normal(size=(2, G, H)).astype(np.float16)


class TinyBackbone:
    """What regen, features and trainer ask of a backbone; counts the rows it was fed."""

    name, fingerprint, tokenizer_fingerprint, threads = "tiny", "f" * 64, "t" * 64, 1

    def __init__(self, ends=True):
        self.spec = SimpleNamespace(
            architecture="llama", d_model=D, vocab_size=V, n_kv_heads=G, head_dim=H,
            n_layers=LAYERS, rms_eps=1e-5, rope_base=1e4, context_length=4096,
        )  # fmt: skip
        self.native = self
        self.table = np.random.default_rng(7).normal(size=(V, D)).astype(np.float32)
        self.ends = ends
        self.widths = []

    def next_token(self, before, last):
        choice = (5 * last + 3 * before + 7) % V
        return choice if self.ends or choice != EOS else 2

    def logits(self, before, last):
        """(V,) with the next token ahead of the others."""
        logits_V = np.random.default_rng((before, last)).normal(size=V).astype(np.float32)
        logits_V[self.next_token(before, last)] = 5
        return logits_V

    def embed(self, tokens):
        return self.table[tokens]

    def output_rows(self, tokens):
        return self.table[tokens]

    def new_cache(self, capacity):
        return TinyCache(capacity)

    def forward(self, segments, *, rows="all", want="tokens", taps=()):
        self.widths.append(sum(len(segment.tokens) for segment in segments))
        hidden, chosen, logits = [], [], []
        for cache, tokens in segments:
            for index, token in enumerate(tokens):
                before = cache.tokens[-1] if cache.tokens else 0
                cache.append(token)
                if rows == "all" or index == len(tokens) - 1:
                    chosen.append(self.next_token(before, token))
                    state = self.table[chosen[-1]]
                    hidden.append(np.concatenate([state, *(state * (2 + tap) for tap in taps)]))
                    logits.append(self.logits(before, token))
        kept = np.array(logits) if want == "logits" else None
        return Pass(np.array(hidden), np.array(chosen, np.int32), kept)


def greedy(backbone, prompt, max_tokens):
    """The backbone's own answer, one token at a time, by the definition."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        before = tokens[-2] if len(tokens) > 1 else 0
        tokens.append(backbone.next_token(before, tokens[-1]))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]
