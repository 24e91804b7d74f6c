"""Language models with adapters: load a model, add a LoRA adapter or continue an existing one, and make a Problem.

The adapters are trained in single precision, over a frozen model in its own precision. Everything that takes a Problem
then works for fine-tuning: retraining, merging, gradients, baselines.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from whence.errors import DataWarning, InputError, brief, some_of
from whence.hf.classes import as_examples, classes_of, classified, head_of, is_classifier, padded_by
from whence.hf.completions import Classes, Completions, TokenLoss, checkpointed
from whence.hf.frozen import last_blocks
from whence.hf.sources import Source
from whence.hf.tokens import Rows, cut_in_words, padded, tokenize
from whence.icl.language import CAUSAL, context_of, import_transformers, load_pretrained
from whence.icl.prompts import Template
from whence.models.memory import free_bytes, make_room, out_of_memory
from whence.models.problem import Problem

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Groups = dict[str, tuple[dict[str, Tensor], Tensor]]  # examples by name, as a Problem takes them
PRECISIONS = ("float32", "bfloat16", "float16", "auto")
KEPT = 0.25  # of free memory, that what frozen blocks give may take
FEWEST = 4  # examples at once, below which blocks run again in the backward pass


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model of transformers with adapters to train, and its tokenizer.

    Attributes
    ----------
    model : peft.PeftModel
    tokenizer : tokenizer of transformers
    classes : tuple of str
        Labels of a sequence classifier; none for a language model.
    checkpointing : bool or None
        As given to `load`.
    """

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    classes: tuple[str, ...] = ()
    checkpointing: bool | None = None

    @property
    def context(self) -> int:
        """Tokens that the model reads at most; a classifier may count positions from another number than 0."""
        most = context_of(self.model.config)
        return min(most, self.tokenizer.model_max_length) if self.classes else most

    def __repr__(self) -> str:
        values = list(self.model.parameters())
        trained = sum(value.numel() for value in values if value.requires_grad)
        return f"Adapted: {trained:,} of {sum(value.numel() for value in values):,} parameters trained"


def load(
    path: str | os.PathLike[str],
    *,
    rank: int = 8,
    modules: Sequence[str] = (),
    layers: int | None = None,
    alpha: float | None = None,
    adapter: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    checkpointing: bool | None = None,
    seed: int = 0,
) -> Adapted:
    """Load a causal language model or a sequence classifier, and give it an adapter.

    Parameters
    ----------
    path : path
        Folder written by ``save_pretrained``, or a GGUF file. Nothing is downloaded, and no code in it is run.
    rank : int
        Of the adapters.
    modules : sequence of str
        Endings of the names of layers to adapt, such as ``q_proj``; by default all linear layers but the last.
    layers : int, optional
        Adapt only this many blocks, the last ones. What the blocks below make of the examples is then computed once and
        kept, if memory allows, which makes everything faster in proportion. By default all blocks.
    alpha : float, optional
        Strength of the adapters, whose products are multiplied by alpha / rank; by default twice the rank.
    adapter : path, optional
        Folder of an adapter to continue training; by default a new adapter.
    device : str or device, optional
        By default CUDA, if available.
    dtype : dtype or str, optional
        Of the frozen model; by default bfloat16 on CUDA and float32 on a CPU. A CPU that multiplies bfloat16 natively
        is two to three times as fast with it.
    checkpointing : bool, optional
        Whether blocks of the model run again in the backward pass, which takes a third more time and far less memory;
        by default if fewer than four examples would fit into memory.
    seed : int
        For the initial weights of a new adapter.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise InputError(f"must be a whole number, 1 or more. Got {rank!r} instead.", parameter="rank", of="hf.load")
    _import_peft()
    where = torch.device(device) if device is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if isinstance(dtype, str) and dtype not in PRECISIONS:
        raise InputError(
            f"must be one of {', '.join(PRECISIONS)}. Got {dtype!r} instead.", parameter="dtype", of="hf.load"
        )
    kept = dtype if dtype is not None else torch.bfloat16 if where.type == "cuda" else torch.float32
    kind = "AutoModelForSequenceClassification" if is_classifier(Path(path)) else CAUSAL
    model, tokenizer = load_pretrained(path, device=where, dtype=kept, kind=kind)
    return adapt(
        model, tokenizer, rank=rank, modules=modules, layers=layers, alpha=alpha, adapter=adapter,
        checkpointing=checkpointing, seed=seed,
    )  # fmt: skip


def adapt(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    rank: int = 8,
    modules: Sequence[str] = (),
    layers: int | None = None,
    alpha: float | None = None,
    adapter: str | os.PathLike[str] | None = None,
    checkpointing: bool | None = None,
    seed: int = 0,
) -> Adapted:
    """Add an adapter to a loaded model of transformers, as `load` does; the model is changed in place."""
    peft = _import_peft()
    if adapter is not None and (modules or layers is not None):
        raise InputError(
            "An adapter that is continued has its own layers: give {adapter}, or {modules} and {layers}, not both.",
            adapter=None, modules=None, layers=None,
        )  # fmt: skip
    classes = classes_of(model)
    if classes:
        padded_by(model, tokenizer)
    model.requires_grad_(False)
    if checkpointing:
        checkpointed(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by names that are about to change
        warnings.filterwarnings("ignore", module="peft")  # and tells of what it puts right by itself
        if adapter is not None:
            return Adapted(_in_single(_continued(model, adapter)), tokenizer, classes, checkpointing)
        options = peft.LoraConfig(
            r=rank,
            lora_alpha=2 * rank if alpha is None else alpha,
            target_modules=list(modules) or ("all-linear" if layers is None else _linear_names(model)),
            exclude_modules=head_of(model) if classes else None,
            layers_to_transform=None if layers is None else last_blocks(model, layers),
            task_type="SEQ_CLS" if classes else "CAUSAL_LM",
        )
        return Adapted(_in_single(_begun(model, options, modules, seed)), tokenizer, classes, checkpointing)


def _in_single(model: PeftModel) -> PeftModel:
    """The model, with trained layers in single precision at least: peft leaves heads in that of the model."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            for value in layer.parameters(recurse=False):
                if value.requires_grad:
                    value.data = value.data.to(torch.promote_types(value.dtype, torch.float32))
    return model


def _continued(model: PreTrainedModel, adapter: str | os.PathLike[str]) -> PeftModel:
    """The model with an existing adapter."""
    if not (Path(adapter) / "adapter_config.json").exists():
        raise InputError(f"{adapter}: there is no adapter_config.json in it. Give the folder of a peft adapter.")
    try:
        made: PeftModel = _import_peft().PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    except Exception as error:
        raise InputError(f"{adapter}: the adapter does not go with the model ({error}).") from error
    if not made.active_peft_config.peft_type == "LORA":
        raise InputError(f"{adapter}: the adapter must be of LoRA. Got {made.active_peft_config.peft_type}.")
    return made


def _begun(model: PreTrainedModel, options: LoraConfig, modules: Sequence[str], seed: int) -> PeftModel:
    """The model with a new adapter."""
    names = _linear_names(model)
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            made: PeftModel = _import_peft().get_peft_model(model, options)
        except ValueError as error:
            if modules and not any(name.split(".")[-1] in modules for name in names):
                why = f"No layer of the model is named {some_of(modules)}"
            else:
                why = f"The model cannot be given adapters ({brief(error)}). Name layers with {{modules}}"
            raise InputError(f"{why}. There are: {some_of(names, 12)}.", modules=None) from error
        return made


def _linear_names(model: PreTrainedModel) -> list[str]:
    """Endings of the names of linear layers, apart from the output layer."""
    kinds = (nn.Linear, import_transformers().pytorch_utils.Conv1D)  # the latter is what GPT-2 has
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    layers = [name for name, layer in model.named_modules() if isinstance(layer, kinds) and layer is not head]
    return list(dict.fromkeys(name.split(".")[-1] for name in layers))


@dataclass(frozen=True, eq=False)
class Prepared:
    """Sources and targets as tokens of a model, ready to make a Problem.

    Attributes
    ----------
    adapted : Adapted
    tasks, targets : list of Rows
        Longest first, except for targets with each query as an outcome.
    per_query : bool
    """

    adapted: Adapted
    tasks: list[Rows]
    targets: list[Rows]
    per_query: bool

    @property
    def tokens(self) -> dict[str, int]:
        """Number of tokens of each source."""
        return {rows.name: rows.n_tokens for rows in self.tasks}

    def problem(self, *, accuracy: bool = False) -> Problem:
        """The problem of training the adapters.

        Parameters
        ----------
        accuracy : bool
            Whether to measure the accuracy beside the loss: the share of examples all of whose trained tokens the model
            would write, or whose class it would choose.
        """
        if self.adapted.checkpointing is None and not self._fits(accuracy=accuracy):
            checkpointed(self.adapted.model)
        return self._problem(accuracy=accuracy)

    def _fits(self, *, accuracy: bool) -> bool:
        """Whether what a backward pass needs of a few examples fits into memory."""
        try:
            problem = self._problem(accuracy=accuracy)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            make_room()
            return False
        return FEWEST * problem.bytes_per_row <= free_bytes(problem.device)

    def _problem(self, *, accuracy: bool) -> Problem:
        metrics = ["loss", "accuracy"] if accuracy else ["loss"]
        tasks, targets = self._examples
        return Problem(
            Classes(self.adapted.model) if self.adapted.classes else Completions(self.adapted.model, lead=accuracy),
            tasks,
            targets,
            loss="cross_entropy" if self.adapted.classes else TokenLoss(),
            metrics=metrics,
            per_query=self.per_query,
        )

    @cached_property
    def _examples(self) -> tuple[Groups, Groups]:
        """Examples of tasks and of targets, with what frozen blocks make of them where that is worth keeping."""
        if self.adapted.classes:
            pad = self.adapted.model.config.get_text_config().pad_token_id
            return as_examples(self.tasks, pad), as_examples(self.targets, pad)
        tasks, targets = padded(self.tasks), padded(self.targets)
        model = Completions(self.adapted.model)
        if not _worth_keeping(model, tasks, targets):
            return tasks, targets
        return _with_states(model, tasks), _with_states(model, targets)


def _worth_keeping(model: Completions, *given: Groups) -> bool:
    """Whether frozen blocks lie below the adapters, what they give fits into memory, and starting there works."""
    if len(model.blocks) < 2:
        return False
    where = next(model.parameters()).device
    some = model.trimmed({name: value[:2].to(where) for name, value in next(iter(given[0].values()))[0].items()})
    try:
        with torch.no_grad():
            states = model.below(some["input_ids"])
            same = torch.allclose(model(**some, states=states), model(**some))
    except (TypeError, KeyError, AttributeError, RuntimeError):  # blocks of another make
        return False
    n_tokens = sum(inputs["input_ids"].numel() for groups in given for inputs, _ in groups.values())
    return same and n_tokens * states[0, 0].nbytes <= KEPT * free_bytes(where)


def _with_states(model: Completions, groups: Groups) -> Groups:
    """Examples with what the frozen blocks make of them."""
    where, size = next(model.parameters()).device, model.most_rows
    found = {}
    for name, (inputs, labels) in groups.items():
        parts = []
        for start in range(0, len(labels), size):
            some = {key: value[start : start + size].to(where) for key, value in inputs.items()}
            states = model.below(model.trimmed(some)["input_ids"])
            parts.append(pad(states, (0, 0, 0, some["input_ids"].shape[1] - states.shape[1])))
        found[name] = ({**inputs, "states": torch.cat(parts)}, labels)
    return found


def prepare(
    adapted: Adapted,
    sources: Sequence[Source],
    targets: Sequence[Source],
    *,
    template: Template | None = None,
    max_length: int | None = None,
    per_query: bool = False,
) -> Prepared:
    """Sources and targets as tokens; those that are too long are cut, and counted in a warning.

    Parameters
    ----------
    adapted : Adapted
        From `load`.
    sources, targets : sequence of Source
        From `read_sources` or `sources_of`.
    template : Template, optional
        How a text and its label are written for a language model.
    max_length : int, optional
        Tokens of an example, at most; as many as the model reads, up to 1024, if not given.
    per_query : bool
        Whether every example of a target is a separate outcome.
    """
    limit = min(adapted.context, 1024 if max_length is None else max_length)
    if limit < 2:
        raise InputError(f"must be at least 2. Got {max_length} instead.", parameter="max_length", of="hf.prepare")

    def tokens(source: Source) -> Rows:
        if adapted.classes:
            return classified(source, adapted.tokenizer, adapted.classes, limit)
        return tokenize(source, adapted.tokenizer, limit=limit, template=template)

    tasks, asked = [tokens(source) for source in sources], [tokens(target) for target in targets]
    if said := cut_in_words([*tasks, *asked], limit):
        warnings.warn(said, DataWarning, stacklevel=2)
    tasks = [rows.longest_first() for rows in tasks]
    return Prepared(adapted, tasks, asked if per_query else [rows.longest_first() for rows in asked], per_query)


def _import_peft() -> ModuleType:
    import_transformers()
    try:
        import peft
    except ImportError as error:
        raise InputError('Adapters need peft: pip install "whence[hf]".') from error
    return peft
