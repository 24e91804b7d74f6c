"""Sequence classifiers: which models are, texts with labels as their tokens and classes, and how these are padded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.errors import InputError, some_of
from whence.hf.sources import Source
from whence.hf.tokens import Row, Rows, padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CLASSIFIER = "ForSequenceClassification"


def is_classifier(place: Path) -> bool:
    """Whether the configuration in a folder is that of a sequence classifier."""
    file = place / "config.json"
    if not file.exists():
        return False
    try:
        names = json.loads(file.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: this is not JSON ({error}).") from error
    return any(str(name).endswith(CLASSIFIER) for name in names)


def classes_of(model: PreTrainedModel) -> tuple[str, ...]:
    """Labels of a sequence classifier; none for a language model."""
    if not type(model).__name__.endswith(CLASSIFIER):
        return ()
    config: Any = model.config  # its fields depend on the model
    if config.num_labels < 2 or config.problem_type in ("regression", "multi_label_classification"):
        kind = "one number" if config.num_labels < 2 else config.problem_type.replace("_", " ")
        raise InputError(
            f"The model must choose one of two or more classes, and this {type(model).__name__} is made for {kind}."
        )
    return tuple(str(config.id2label[at]) for at in range(config.num_labels))


def padded_by(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The same model, which knows the token that examples are padded with: some judge by the last one before those."""
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        known = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        config.pad_token_id = next((token for token in known if token is not None), None)
    if config.pad_token_id is None:
        raise InputError(
            "The tokenizer has no token to pad with, which a classifier needs: set tokenizer.pad_token, and save it."
        )
    return model


def head_of(model: PreTrainedModel) -> list[str]:
    """Names of linear layers above the language model, which are trained as they are."""
    inside = f"{model.base_model_prefix}."
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    return [name for name in linear if not name.startswith(inside)]


def classified(source: Source, tokenizer: PreTrainedTokenizerBase, classes: Sequence[str], limit: int) -> Rows:
    """Tokens of texts with labels; the place of a row is the number of its class."""
    if source.format != "label":
        raise InputError(f"{source.name}: a sequence classifier learns from 'text' and 'label', one of each per line.")
    known = {**{str(at): at for at in range(len(classes))}, **{name: at for at, name in enumerate(classes)}}
    rows, n_cut = [], 0
    for record in source.records:
        text, label = record.fields["text"], str(record.fields["label"])
        if label not in known:
            raise InputError(f"{record.place}: the label must be one of {some_of(classes)}. Got {label!r}.")
        ids = list(tokenizer(text).input_ids)
        if len(ids) > limit:
            n_cut, ids = n_cut + 1, list(tokenizer(text, truncation=True, max_length=limit).input_ids)
        rows.append(Row(ids, [known[label]]))
    return Rows(source.name, rows, n_cut)


def as_examples(groups: Sequence[Rows], pad: int) -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    """Examples of a classifier: the only place of a row is that of its class."""
    found = {}
    for rows, (inputs, _) in zip(groups, padded(groups).values(), strict=True):
        lengths = torch.tensor([len(row.ids) for row in rows.rows])
        mask = (torch.arange(inputs["input_ids"].shape[1]) < lengths[:, None]).long()
        ids = inputs["input_ids"] * mask + pad * (1 - mask)
        found[rows.name] = ({"input_ids": ids, "attention_mask": mask}, inputs["places"][:, 0])
    return found
