"""What a head is: the fields of its config.json, typed and checked.

Field names follow the Gemma 4 assistant checkpoints where the meaning is the same; everything else
lives in the block `frozen_mtp`, which foreign loaders ignore.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from drafthead.errors import HeadError
from drafthead.heads.blocks import INT8, KINDS, BlockKind

FORMAT_VERSION = 1
MIN_CONFIDENCE = 0.4  # of heads that do not say; docs/decisions.md compares thresholds
HIDDEN_TAP = "post_final_norm"
DRAFT_POSITION = "bonus"
NO_ATTENTION = -1  # in kv_layers
MAX_LAYERS = 64
MAX_MARKOV_RANK, MARKOV_STEP, MAX_POSITIONS = 256, 32, 16
GROUP = 16  # the draft vocabulary is made of whole, aligned groups of this many token ids


def read_layers(kv_layers: Sequence[int]) -> tuple[int, ...]:
    """Leave out the layers without attention."""
    return tuple(layer for layer in kv_layers if layer != NO_ATTENTION)


@dataclass(frozen=True)
class TargetId:
    """The backbone that a head was trained for; `name` is for people, the fingerprints decide."""

    name: str
    architecture: str
    fingerprint: str
    tokenizer_fingerprint: str


@dataclass(frozen=True)
class HeadConfig:
    """Sizes of a head and the backbone it belongs to.

    kv_layers: the backbone layer whose K and V each head layer reads; its length is the number of
    head layers, and -1 stands for a layer without attention.  d_model, head_dim, n_kv_heads,
    rms_eps and rope_base are the backbone's own.
    attention_bias, qk_norm: whether the queries have a bias, and a norm of each query head, as the
    backbone's queries have.  markov_rank: of the bias that the token before gives to scores; 0 is
    none.  taps: backbone layers whose output it reads beside the last hidden state.  positions: how
    many tokens one pass drafts; 1 is a recurrent head, which drafts any number.  prompt_tokens:
    whether it may draft tokens outside its draft vocabulary that the text so far holds.
    min_confidence: a draft ends where the product of its confidences falls below this.
    calibration: a temperature and a shift for each draft step, from confidences to acceptance
    (calibration.py); none where it was never fitted.
    quantization: how the matrices are held, a name of blocks.KINDS.
    training: a record of how the head came to be, for people.
    """

    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    kv_layers: tuple[int, ...]
    rms_eps: float
    rope_base: float
    trained_steps: int
    target: TargetId
    attention_bias: bool = False
    qk_norm: bool = False
    markov_rank: int = 0
    taps: tuple[int, ...] = ()
    positions: int = 1
    prompt_tokens: bool = False
    min_confidence: float = MIN_CONFIDENCE
    calibration: tuple[tuple[float, float], ...] = ()
    quantization: str = INT8.name
    training: Mapping[str, object] = field(default_factory=dict)

    @property
    def n_layers(self) -> int:
        """Layers of the head."""
        return len(self.kv_layers)

    @property
    def read_layers(self) -> tuple[int, ...]:
        """Backbone layers whose K and V it reads, one for each of its layers with attention."""
        return read_layers(self.kv_layers)

    @property
    def longest_draft(self) -> int | None:
        """Tokens that one draft can hold; None for a recurrent head, which drafts any number."""
        return self.positions if self.positions > 1 else None

    @property
    def blocks(self) -> BlockKind:
        """How the matrices are held."""
        return KINDS[self.quantization]

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name and shape (N, K) of every matrix."""
        width = self.n_heads * self.head_dim
        inputs = (2 + len(self.taps)) * self.d_model
        shapes = {"pre_projection.weight": (self.d_model, inputs)}
        if self.markov_rank:
            bias = (self.draft_vocab_size, self.markov_rank)
            shapes |= {"markov.previous.weight": bias, "markov.next.weight": bias}
        for index, read in enumerate(self.kv_layers):
            layer = f"model.layers.{index}."
            if read != NO_ATTENTION:
                shapes[layer + "self_attn.q_proj.weight"] = (width, self.d_model)
                shapes[layer + "self_attn.o_proj.weight"] = (self.d_model, width)
            shapes[layer + "mlp.gate_proj.weight"] = (self.d_ff, self.d_model)
            shapes[layer + "mlp.up_proj.weight"] = (self.d_ff, self.d_model)
            shapes[layer + "mlp.down_proj.weight"] = (self.d_model, self.d_ff)
        return shapes

    def vectors(self) -> dict[str, int]:
        """Name and size of every norm weight, bias and position embedding."""
        names = ["embedding_norm.weight", "hidden_norm.weight", "model.norm.weight"]
        names += [f"tap_norms.{index}.weight" for index in range(len(self.taps))]
        names += [f"position_embeddings.{index}" for index in range(self.positions - 1)]
        sizes = dict.fromkeys(names, self.d_model)
        for index, read in enumerate(self.kv_layers):
            layer = f"model.layers.{index}."
            sizes[layer + "pre_feedforward_layernorm.weight"] = self.d_model
            if read == NO_ATTENTION:
                continue
            sizes[layer + "input_layernorm.weight"] = self.d_model
            if self.attention_bias:
                sizes[layer + "self_attn.q_proj.bias"] = self.n_heads * self.head_dim
            if self.qk_norm:
                sizes[layer + "self_attn.q_norm.weight"] = self.head_dim
        return sizes

    def to_json(self) -> dict[str, object]:
        """The content of config.json."""
        return {
            "model_type": "frozen_mtp",
            "architectures": ["FrozenMtpForCausalLM"],
            "backbone_hidden_size": self.d_model,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_ff,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "attention_bias": self.attention_bias,
            "use_qk_norm": self.qk_norm,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_base,
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": True,
            "frozen_mtp": {
                "format_version": FORMAT_VERSION,
                "target": vars(self.target),
                "kv_layers": list(self.kv_layers),
                "hidden_tap": HIDDEN_TAP,
                "taps": list(self.taps),
                "positions": self.positions,
                "markov_rank": self.markov_rank,
                "draft_position": DRAFT_POSITION,
                "draft_vocab_size": self.draft_vocab_size,
                "draft_prompt_tokens": self.prompt_tokens,
                "min_confidence": self.min_confidence,
                "calibration": [list(pair) for pair in self.calibration],
                "trained_steps": self.trained_steps,
                "quantization": self.quantization,
                "training": dict(self.training),
            },
        }

    @classmethod
    def from_json(cls, content: object) -> HeadConfig:
        """Read and check the content of a config.json.

        Raises:
            HeadError: a field is missing, of another type, out of range, or asks for a head of
                another kind or version; the field is named.
        """
        top = _Fields(content, "")
        top.equal("model_type", "frozen_mtp")
        block = _Fields(top.get("frozen_mtp", dict), "frozen_mtp.")
        block.equal("format_version", FORMAT_VERSION)
        block.equal("hidden_tap", HIDDEN_TAP)
        block.equal("draft_position", DRAFT_POSITION)
        target = _Fields(block.get("target", dict), "frozen_mtp.target.")
        config = cls(
            d_model=top.size("hidden_size"),
            d_ff=top.size("intermediate_size"),
            n_heads=top.size("num_attention_heads"),
            n_kv_heads=top.size("num_key_value_heads"),
            head_dim=top.size("head_dim"),
            vocab_size=top.size("vocab_size"),
            draft_vocab_size=block.size("draft_vocab_size"),
            kv_layers=block.layers("kv_layers", lowest=NO_ATTENTION),
            rms_eps=top.positive("rms_norm_eps"),
            rope_base=top.positive("rope_theta"),
            trained_steps=block.size("trained_steps"),
            attention_bias=top.flag("attention_bias"),
            qk_norm=top.flag("use_qk_norm"),
            markov_rank=block.optional("markov_rank", 0, MAX_MARKOV_RANK, 0),
            taps=block.layers("taps", lowest=0) if block.content.get("taps") else (),
            quantization=block.choice("quantization", KINDS),
            min_confidence=block.share("min_confidence", MIN_CONFIDENCE),
            calibration=block.calibration("calibration"),
            prompt_tokens=block.flag("draft_prompt_tokens"),
            positions=block.optional("positions", 1, MAX_POSITIONS, 1),
            target=TargetId(*(str(target.get(name, str)) for name in TargetId.__annotations__)),
            training=_Fields(block.get("training", dict), "frozen_mtp.training.").content,
        )
        top.equal("num_hidden_layers", config.n_layers)
        top.equal("backbone_hidden_size", config.d_model)
        if config.draft_vocab_size > config.vocab_size or config.draft_vocab_size % GROUP:
            raise HeadError(
                f"config.json, frozen_mtp.draft_vocab_size: expected a multiple of {GROUP} of at "
                f"most {config.vocab_size}, found {config.draft_vocab_size}."
            )
        if config.markov_rank % MARKOV_STEP:
            raise HeadError(
                f"config.json, frozen_mtp.markov_rank: expected a multiple of {MARKOV_STEP}, found "
                f"{config.markov_rank}."
            )
        return config


MAX_SIZE = 1 << 22


class _Fields:
    """Reads typed fields of a JSON object and names the one that is wrong."""

    def __init__(self, content: object, where: str) -> None:
        if not isinstance(content, dict):
            raise HeadError("config.json: expected a JSON object.")
        self.content: dict[str, object] = content
        self._where = where

    def _fail(self, name: str, expected: str, found: object) -> HeadError:
        return HeadError(
            f"config.json, {self._where}{name}: expected {expected}, found {str(found)[:80]!r}."
        )

    def get(self, name: str, kind: type) -> object:
        value = self.content.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self._fail(name, kind.__name__, value)
        return value

    def equal(self, name: str, expected: object) -> None:
        value = self.content.get(name)
        if value != expected or isinstance(value, bool):
            raise self._fail(name, repr(expected), value)

    def choice(self, name: str, names: Collection[str]) -> str:
        """One of some names."""
        value = self.content.get(name)
        if not isinstance(value, str) or value not in names:
            raise self._fail(name, f"one of {', '.join(names)}", value)
        return value

    def share(self, name: str, default: float) -> float:
        """A number of 0 .. 1, or the default where it is not named."""
        value = self.content.get(name, default)
        if type(value) not in (int, float) or not 0.0 <= value <= 1.0:  # type: ignore[operator]
            raise self._fail(name, "a number of 0 .. 1", value)
        return float(value)  # type: ignore[arg-type]

    def flag(self, name: str) -> bool:
        """True or false; a head of the first days does not name it, which is false."""
        value = self.content.get(name, False)
        if not isinstance(value, bool):
            raise self._fail(name, "true or false", value)
        return value

    def size(self, name: str) -> int:
        value = self.content.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SIZE:
            raise self._fail(name, f"an integer of 1 .. {MAX_SIZE}", value)
        return value

    def optional(self, name: str, low: int, high: int, default: int) -> int:
        """An integer that heads of before do not name."""
        value = self.content.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._fail(name, f"an integer of {low} .. {high}", value)
        return value

    def positive(self, name: str) -> float:
        value = self.content.get(name)
        number = float(value) if type(value) in (int, float) else 0.0  # type: ignore[arg-type]
        if not 0.0 < number < 1e12:
            raise self._fail(name, "a positive number", value)
        return number

    def calibration(self, name: str) -> tuple[tuple[float, float], ...]:
        """Pairs of a temperature and a shift; none where it is not named."""
        pairs = self.content.get(name, [])
        if not isinstance(pairs, list) or not all(map(_is_calibration, pairs)):
            raise self._fail(name, "pairs of a temperature above 0 and a shift", pairs)
        return tuple((float(temperature), float(shift)) for temperature, shift in pairs)

    def layers(self, name: str, lowest: int) -> tuple[int, ...]:
        value = self.content.get(name)
        layers = value if isinstance(value, list) else []
        good = 0 < len(layers) <= MAX_LAYERS
        if not good or any(type(layer) is not int or layer < lowest for layer in layers):
            raise self._fail(name, "a list of layer numbers", value)
        return tuple(layers)


def _is_calibration(pair: object) -> bool:
    """A temperature of 0.05 to 20 and a shift of at most 20 either way."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    numbers = all(type(value) in (int, float) for value in pair)
    return numbers and 0.05 <= pair[0] <= 20.0 and abs(pair[1]) <= 20.0
