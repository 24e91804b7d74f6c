"""A causal language model of Hugging Face: the logits of label words after a prompt, from tokens or from embeddings.

The only part that knows how such models are loaded and called. Prompts of a batch end together, so
that the last place is that of the label word in all of them; padding is masked, and not counted in positions.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.errors import InputError, brief, counted, needed, some_of
from whence.gradients.store import fingerprint
from whence.icl.prompts import Tokens
from whence.models.memory import Chunks

CAUSAL = "AutoModelForCausalLM"
# Nothing is downloaded, and no code that comes with a model is run, nor asked about.
_CLOSED = {"local_files_only": True, "trust_remote_code": False}


class LanguageModel:
    """A causal language model and its tokenizer.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Its parameters are frozen, and it is set to behave as in use.
    tokenizer : transformers tokenizer
    batch_size : int
        Prompts at once; halved whenever memory runs out.
    share_prefix : bool
        Whether demonstrations are read once for all queries that follow them, by the model's cache. False for models
        whose cache cannot be shared.

    Attributes
    ----------
    context : int
        Tokens that a prompt may have, as the model's configuration says.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 64, share_prefix: bool = True) -> None:
        self.model: nn.Module = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.config = model.config
        self._embeddings: nn.Module = model.get_input_embeddings()
        self._accepts = set(inspect.signature(model.forward).parameters)
        self._chunks = Chunks(batch_size)
        self.share_prefix = share_prefix and "past_key_values" in self._accepts

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str = "auto",
        batch_size: int = 64,
    ) -> LanguageModel:
        """Load a model and its tokenizer from a folder, or from a GGUF file.

        Parameters
        ----------
        path : path
            Folder as ``save_pretrained`` writes it, or a file ``*.gguf``. Nothing is downloaded, and no code in the
            folder is run: weights are read as safetensors, or as plain tensors.
        device : str or device, optional
            CUDA where there is one, if not given.
        dtype : dtype or str
            "auto": as stored.
        batch_size : int
        """
        model, tokenizer = load_pretrained(path, device=device, dtype=dtype)
        return cls(model, tokenizer, batch_size=batch_size)

    @property
    def batch_size(self) -> int:
        """Prompts at once."""
        return self._chunks.size

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def context(self) -> int:
        """Tokens that a prompt may have."""
        return context_of(self.config)

    @property
    def start(self) -> list[int]:
        """Special tokens that the tokenizer puts before a text."""
        return start_of(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without special ones."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def digest(self) -> str:
        """What tells this model from others: every number of it."""
        return fingerprint(self.model.state_dict().values())

    def embed(self, tokens: Tokens) -> Tensor:
        """Embeddings (…, d) of tokens."""
        embeddings: Tensor = self._embeddings(torch.as_tensor(tokens, device=self.device))
        return embeddings

    def check_length(self, n_tokens: int, shots: int) -> None:
        """Refuse prompts with more tokens than fit into the context."""
        if n_tokens > self.context:
            raise InputError(
                f"The longest prompt of {counted(shots, 'demonstration')} has {n_tokens} tokens, and the model reads "
                f"at most {self.context}. Use fewer shots, or leave the longest demonstrations out."
            )

    def logits(self, embeds: Tensor, mask: Tensor, label_tokens: Tokens) -> Tensor:
        """Logits (b, C) of label words (C,), after prompts (b, n, d) that end together.

        The mask (b, n) is 1 where there is a token; positions are counted over those.
        """
        return _words(self._embedded(embeds, mask, 1), label_tokens)

    def likelihoods_of(self, embeds: Tensor, mask: Tensor, endings: Sequence[Tokens]) -> Tensor:
        """Log-likelihood (b,) of an ending each, after prompts that end together with all of it but its last token."""
        longest = max(len(ending) for ending in endings)
        return likelihoods_in(self._embedded(embeds, mask, longest), endings)

    def _embedded(self, embeds: Tensor, mask: Tensor, keep: int) -> Tensor:
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        return self._last(keep, inputs_embeds=embeds, attention_mask=mask, position_ids=positions)

    def after(self, prefix: Tokens, queries: Sequence[Tokens], label_tokens: Tokens) -> Tensor:
        """Logits (Q, C) of label words after each query, all of which follow the same prefix.

        With ``share_prefix``, the prefix is read once, and what the model keeps of it is shared by all queries.
        """
        return self._following(prefix, queries, 1, lambda logits, part: _words(logits, label_tokens))

    def likelihoods(self, prefix: Tokens, queries: Sequence[Tokens], endings: Sequence[Tokens]) -> Tensor:
        """Log-likelihoods (P,) of endings, each after its query, all of which follow the same prefix."""
        rows = [np.concatenate([query, ending[:-1]]) for query, ending in zip(queries, endings, strict=True)]
        longest = max(len(ending) for ending in endings)
        return self._following(prefix, rows, longest, lambda logits, part: likelihoods_in(logits, endings[part]))

    def generate(self, prefix: Tokens, queries: Sequence[Tokens], most: int) -> list[str]:
        """Greedy continuation of each query, of at most this many tokens."""
        rows = [np.concatenate([prefix, query]) for query in queries]
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        generate: Any = self.model.generate
        how = {"max_new_tokens": most, "do_sample": False, "pad_token_id": 0 if pad is None else pad}
        found: list[str] = []

        def some(part: slice) -> list[str]:
            tokens, mask = (torch.as_tensor(array, device=self.device) for array in end_together(rows[part]))
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of settings for sampling, which a model may come with
                added = generate(input_ids=tokens, attention_mask=mask, **how)[:, tokens.shape[1] :]
            return list(self.tokenizer.batch_decode(added, skip_special_tokens=True))

        for texts in self._chunks.run(len(rows), some):
            found += texts
        return found

    def _following(
        self, prefix: Tokens, rows: Sequence[Tokens], keep: int, read: Callable[[Tensor, slice], Tensor]
    ) -> Tensor:
        """What ``read`` makes of the last ``keep`` logits (b, keep, V) of rows that follow the same prefix."""
        with torch.inference_mode():
            kept = None
            if len(prefix) and self.share_prefix:
                tokens = torch.as_tensor(prefix, device=self.device)[None]
                kept = getattr(self._call(input_ids=tokens, use_cache=True), "past_key_values", None)
            if kept is None or not hasattr(kept, "batch_repeat_interleave"):
                kept, rows = None, [np.concatenate([prefix, query]) for query in rows]
            every = list(rows)
            return torch.cat(
                self._chunks.run(len(every), lambda part: read(self._queries(kept, prefix, every[part], keep), part))
            )

    def _queries(self, kept: Any, prefix: Tokens, queries: Sequence[Tokens], keep: int) -> Tensor:
        tokens, mask = (torch.as_tensor(array, device=self.device) for array in end_together(queries))
        known = 0 if kept is None else len(prefix)
        positions = known + (mask.cumsum(1) - 1).clamp_min(0)
        more: dict[str, Any] = {}
        if kept is not None:
            more["past_key_values"] = copy.deepcopy(kept)
            more["past_key_values"].batch_repeat_interleave(len(queries))
            mask = torch.cat([mask.new_ones(len(queries), known), mask], dim=1)
        return self._last(keep, input_ids=tokens, attention_mask=mask, position_ids=positions, **more)

    def _last(self, keep: int, **given: Any) -> Tensor:
        logits: Tensor = self._call(**given, logits_to_keep=keep).logits[:, -keep:]
        return logits

    def _call(self, **given: Any) -> Any:
        """Call the model with what it has parameters for."""
        return self.model(**{name: value for name, value in given.items() if name in self._accepts})


def load_pretrained(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str = "auto",
    kind: str = CAUSAL,
) -> tuple[Any, Any]:
    """Model, by the class ``kind`` of transformers, and tokenizer of a folder or a file; see `LanguageModel.load`."""
    place = Path(path)
    transformers = import_transformers()
    if not place.exists():
        raise InputError(f"{place}: there is no such folder. Give the folder of a model, or a GGUF file.")
    if place.is_file() and place.suffix != ".gguf":
        raise InputError(f"{place}: this is no GGUF file. Give one, or the folder that save_pretrained wrote.")
    if place.is_file() and importlib.util.find_spec("gguf") is None:
        raise InputError(f'{place}: GGUF files need gguf: pip install "whence[hf]".')
    folder, more = (str(place.parent), {"gguf_file": place.name}) if place.is_file() else (str(place), {})
    if not more:
        _refuse_two_parts(place)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_CLOSED, **more)
    except Exception as error:  # transformers raises half a dozen kinds
        raise InputError(
            f"{place}: there is no tokenizer that could be loaded. Save it next to the model, with "
            f"tokenizer.save_pretrained(folder). ({brief(error)})"
        ) from error
    where = _device(device)
    # Fused attention lacks some derivatives on a processor.
    attention = {"attn_implementation": "eager"} if where.type == "cpu" else {}
    try:
        model, info = getattr(transformers, kind).from_pretrained(
            folder, **_CLOSED, weights_only=True, dtype=dtype, output_loading_info=True, **attention, **more
        )
    except Exception as error:
        raise InputError(f"{place}: the model cannot be loaded ({brief(error)}).") from error
    if lacking := sorted({*info["missing_keys"]} & {name for name, _ in model.named_parameters()}):
        raise InputError(
            f"{place}: it has no weights for {some_of(lacking, 3)}, which a {type(model).__name__} needs. Give a model "
            "that was saved with all its layers."
        )
    if kind == CAUSAL and _sees_later_tokens(model):
        raise InputError(
            f"{place}: a {type(model).__name__} as this one is sees the tokens that it should predict. Give a causal "
            "language model."
        )
    return model.to(where), tokenizer


def _refuse_two_parts(place: Path) -> None:
    """Refuse a folder of an encoder-decoder, and one without a configuration."""
    file = place / "config.json"
    if not file.exists():
        raise InputError(f"{place}: there is no config.json in it. Give the folder that save_pretrained wrote.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: this is not JSON ({error}).") from error
    if isinstance(config, dict) and config.get("is_encoder_decoder"):
        kind = next(iter(config.get("architectures") or ()), "model")
        raise InputError(
            f"{place}: this {kind} has an encoder and a decoder, which is not supported. Give a causal language model."
        )


@torch.no_grad()
def _sees_later_tokens(model: Any) -> bool:
    """Whether what is predicted first depends on tokens that come later."""
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=model.device)
    try:
        one, other = model.eval()(input_ids=ids).logits[:, 0].float()
    except Exception:  # a vocabulary or an input of another kind, which is not judged here
        return False
    return not torch.allclose(one, other, rtol=0, atol=1e-3 * float(one.std()))


def start_of(tokenizer: Any) -> list[int]:
    """Special tokens that a tokenizer puts before a text."""
    plain, full = (list(tokenizer("x", add_special_tokens=special).input_ids) for special in (False, True))
    places = range(len(full) - len(plain) + 1)
    return next((full[:at] for at in places if full[at : at + len(plain)] == plain), [])


def context_of(config: Any) -> int:
    """Tokens that a model reads at most, as its configuration says."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    most = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(most) if most else 1 << 30


def import_transformers() -> Any:
    """The library of language models.

    It imports torchvision wherever it is installed, and one that was built for another PyTorch cannot be imported. That
    must not keep models of text from loading, so such a torchvision is treated as not installed.
    """
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision"):
        try:
            importlib.import_module("torchvision")
        except Exception:
            sys.modules["torchvision"] = None  # type: ignore[assignment]
    return needed("transformers", "Language models need transformers", "hf")


def likelihoods_in(logits: Tensor, endings: Sequence[Tokens]) -> Tensor:
    """Log-likelihood (b,) of each ending, from the logits (b, n, V) at the last places, where the endings end.

    >>> logits = torch.log(torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]))
    >>> likelihoods_in(logits, [np.array([0, 1])]).exp()
    tensor([0.3750])
    """
    width = logits.shape[1]
    tokens, counts = np.zeros((2, len(endings), width), dtype=np.int64)
    for row, ending in enumerate(endings):
        tokens[row, width - len(ending) :], counts[row, width - len(ending) :] = ending, 1
    which, where = (torch.as_tensor(array, device=logits.device) for array in (tokens, counts))
    logs = logits.float().log_softmax(-1).gather(-1, which[..., None])[..., 0]
    return torch.where(where > 0, logs, 0.0).sum(1)


def _words(logits: Tensor, label_tokens: Tokens) -> Tensor:
    """Logits (b, C) of label words at the last place."""
    return logits[:, -1, torch.as_tensor(label_tokens, device=logits.device)].float()


def end_together(rows: Sequence[Tokens]) -> tuple[Tokens, Tokens]:
    """Rows of at least two tokens, (b, n), that end together, and where there is a token.

    Padding comes after the first token of the shorter ones: what is masked may be anywhere, but a place from which
    nothing can be seen makes some attention kernels return NaN.

    >>> tokens, mask = end_together([np.array([5, 8]), np.array([6, 7, 8])])
    >>> tokens.tolist(), mask.tolist()
    ([[5, 0, 8], [6, 7, 8]], [[1, 0, 1], [1, 1, 1]])
    """
    width = max(len(row) for row in rows)
    tokens, mask = np.zeros((2, len(rows), width), dtype=np.int64)
    for at, row in enumerate(rows):
        rest = slice(width - len(row) + 1, None)
        tokens[at, 0], tokens[at, rest] = row[0], row[1:]
        mask[at, 0], mask[at, rest] = 1, 1
    return tokens, mask


def _device(given: str | torch.device | None) -> torch.device:
    """A device that is there."""
    try:
        found = torch.device(given if given is not None else "cuda" if torch.cuda.is_available() else "cpu")
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"The device '{given}' cannot be used here ({brief(error)}). Use 'cpu'.") from error
    return found
