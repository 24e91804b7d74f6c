"""In-context learning: prompts as tokens, true outcomes, and estimates against models that are exactly linear."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

import whence
from language_models import LinearInEmbeddings, examples, tiny, tiny_model, tiny_tokenizer, transformers
from whence import InputError
from whence.icl import AnchoredPrompts, Example, LanguageModel, Prompted, Prompts, Template, read_examples
from whence.icl.estimate import align
from whence.icl.language import import_transformers
from whence.icl.outcomes import margins, values_of

PROMPTS = [[], [2], [0, 3], [3, 0], [1, 2, 5], [4, 4]]


def by_hand(language, prompts, sequence):
    """Logits (Q, C) of label words by the plainest call there is: one prompt at a time, no mask, no padding."""
    found = []
    for query in prompts.query_tokens:
        tokens = np.concatenate([prompts.head, *(prompts.demo_tokens[k] for k in sequence), query])
        with torch.no_grad():
            logits = language.model(input_ids=torch.as_tensor(tokens)[None]).logits[0, -1]
        found.append(logits[prompts.label_tokens].numpy())
    return np.array(found)


# ---- prompts ---------------------------------------------------------------------------------------------


def test_a_prompt_is_the_tokens_of_its_text():
    language, prompts = tiny()
    text = prompts.text([3, 0])
    assert text == "".join(f"Text: {prompts.demos[k].text}\nLabel: {prompts.demos[k].label}\n\n" for k in (3, 0))
    assert prompts.prefix([3, 0]).tolist() == [1, *language.encode(text)]
    assert prompts.query_tokens[0].tolist() == language.encode(f"Text: {prompts.queries[0].text}\nLabel:")


def test_label_words_stand_for_labels():
    language, _ = tiny()
    demos = [Example("good", "1", "a"), Example("bad", "0", "b")]
    prompts = Prompts.of(language.encode, demos, demos, words={"1": "yes", "0": "no"})
    assert language.tokenizer.convert_ids_to_tokens(prompts.label_tokens.tolist()) == ["yes", "no"]
    assert prompts.answers.tolist() == [0, 1]
    assert "Label: yes" in prompts.text([0])


def test_instruction_and_special_tokens_come_first():
    language, _ = tiny()
    prompts = Prompts.of(
        language.encode, examples(2), examples(1), template=Template(instruction="very good "), start=[1]
    )
    assert prompts.head.tolist() == [1, *language.encode("very good")]
    assert prompts.text([0]).startswith("very good Text:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{text} is", "must have {text} and {label} in it, once each"),
        ("{label}: {text}", "must have {text} before {label}"),
        ("{text}{text}{label}", "once each"),
    ],
)
def test_templates_that_cannot_be(text, message):
    with pytest.raises(InputError, match=message):
        Template(text)


def test_braces_in_texts_are_only_text():
    assert Template().query("a {label} {x}") == "Text: a {label} {x}\nLabel:"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"yes": "unheard", "no": "unseen"}, "'unheard' and 'unseen' are the same token"),
        ({"yes": "yes"}, "no label word for no"),
    ],
)
def test_label_words_that_cannot_be(words, message):
    language, _ = tiny()
    with pytest.raises(InputError, match=message):
        Prompts.of(language.encode, examples(2), examples(2), words=words)


def test_one_label_is_nothing_to_tell_apart():
    language, _ = tiny()
    with pytest.raises(InputError, match="at least two labels"):
        Prompts.of(language.encode, examples(2, labels=("yes",)), examples(1, labels=("yes",)))
    with pytest.raises(InputError, match="at least one demonstration"):
        Prompts.of(language.encode, [], examples(2))


def test_other_queries_of_the_same_demonstrations():
    language, prompts = tiny()
    others = examples(3, seed=9)
    again = Prompts.of(language.encode, prompts.demos, others, start=[1])
    asked = prompts.asking(others)
    assert [row.tolist() for row in asked.query_tokens] == [row.tolist() for row in again.query_tokens]
    assert asked.answers.tolist() == again.answers.tolist()
    with pytest.raises(InputError, match="unknown labels: maybe"):
        prompts.asking([Example("good", "maybe", "x")])


# ---- files -----------------------------------------------------------------------------------------------


def test_files_of_examples(tmp_path):
    path = tmp_path / "demos.jsonl"
    path.write_text('{"text": "good", "label": 1}\n\n{"text": "bad", "label": 0, "id": "second"}\n')
    assert read_examples(path) == [Example("good", "1", "d1"), Example("bad", "0", "second")]
    path.write_text('{"sentence": "good", "mood": "up"}')
    assert read_examples(path, text="sentence", label="mood") == [Example("good", "up", "d1")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qa.csv", 'id,Question,Answer\na,"where, then?",here\nb,who?,me\n'),
        ("qa.tsv", "id\tinput\toutput\na\twhere, then?\there\nb\twho?\tme\n"),
        ("qa.json", '[{"id": "a", "prompt": "where, then?", "completion": "here"},'
                    ' {"id": "b", "prompt": "who?", "completion": "me"}]'),
        ("chat.jsonl", "\n".join(
            f'{{"id": "{name}", "messages": [{{"role": "user", "content": "{question}"}},'
            f' {{"role": "assistant", "content": "{answer}"}}]}}'
            for name, question, answer in [("a", "where, then?", "here"), ("b", "who?", "me")]
        )),
    ],
)  # fmt: skip
def test_examples_as_people_keep_them(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_examples(tmp_path / name)
    assert found == [Example("where, then?", "here", "a"), Example("who?", "me", "b")]
    assert [str(warning.message).startswith(f"{name}: fields taken: ") for warning in caught] == [True] * (
        not name.startswith("chat")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ('{"text": "good"}', "line 1: there is no field 'label'"),
        ('{"text": "good", "label": 1}\n{"text": "good", "label": null}', "line 2: the field 'label' is empty"),
        ('{"text": " ", "label": 1}', "line 1: the field 'text' is empty"),
        ('{"text": "good", "lable": 1}', "Did you mean 'lable'"),
        ('{"text": ["good"], "label": 1}', "'text' must be text or a number"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "must be a turn of the user and one of the assistant"),
        ('"good"', "must be an object with its fields. Got str"),
        ("text,label", "line 1: this is not JSON"),
        ('{"text": "a", "label": 1, "id": 7}\n{"text": "b", "label": 1, "id": 7}', "ids must differ. .*: 7"),
    ],
)
def test_files_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "demos.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_examples(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_examples(tmp_path / "none.jsonl")
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xe9")
    with pytest.raises(InputError, match="not text in UTF-8"):
        read_examples(tmp_path / "latin")


# ---- models ----------------------------------------------------------------------------------------------


def test_models_load_from_folders(tmp_path):
    tiny_model(dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no tokenizer that could be loaded\. Save it next to the model"):
        LanguageModel.load(tmp_path, device="cpu")
    tiny_tokenizer().save_pretrained(tmp_path)
    language = LanguageModel.load(tmp_path, device="cpu")
    assert (language.context, language.start) == (64, [])
    assert language.encode("good film") == tiny_tokenizer()("good film").input_ids


def test_models_that_cannot_be_loaded(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="there is no such folder"):
        LanguageModel.load(tmp_path / "none")
    for name, sentence in (("model.safetensors", "this is no GGUF file"), ("model.gguf", "GGUF files need gguf: pip")):
        (tmp_path / name).touch()
        monkeypatch.setitem(sys.modules, "gguf", None)
        with pytest.raises(InputError, match=sentence):
            LanguageModel.load(tmp_path / name)
    with pytest.raises(InputError, match=r"there is no config\.json in it"):
        LanguageModel.load(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InputError, match="the model cannot be loaded"):
        LanguageModel.load(tmp_path, device="cpu")


def other_models():
    """Models that load as if they were causal language models, and what is said of each."""
    small = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bart = {"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}  # fmt: skip
    return {
        "masked": (transformers.BertForMaskedLM(transformers.BertConfig(**small)), "sees the tokens that it should"),
        "seq2seq": (transformers.BartForConditionalGeneration(transformers.BartConfig(**bart)), "has an encoder and a"),
        "headless": (tiny_model(dtype=torch.float32).model, "no weights for lm_head.weight, which a LlamaForCausalLM"),
    }


@pytest.mark.parametrize("name", ["masked", "seq2seq", "headless"])
def test_models_that_are_no_causal_ones_are_refused(tmp_path, name):
    model, sentence = other_models()[name]
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=sentence):
        LanguageModel.load(tmp_path, device="cpu")


def test_a_torchvision_that_cannot_be_imported_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('operator does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    import_transformers()
    assert importlib.util.find_spec("torchvision") is None


@pytest.mark.parametrize("device", ["cuda:77", "granite"])
def test_devices_that_are_not_there(tmp_path, device):
    tiny_model(dtype=torch.float32).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"The device '{device}' cannot be used here"):
        LanguageModel.load(tmp_path, device=device)


def test_special_tokens_that_open_a_text_are_found():
    from tokenizers.processors import TemplateProcessing

    language, _ = tiny()
    assert language.start == []
    language.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 1)]
    )
    assert language.start == [1]


def test_prompts_longer_than_the_context_are_refused():
    language, prompts = tiny(6, length=8)
    with pytest.raises(
        InputError, match=r"longest prompt of 6 demonstrations has .* tokens, and the model reads at most 64"
    ):
        Prompted(language, prompts).margins([range(6)])
    with pytest.raises(InputError, match="Use fewer shots"):
        AnchoredPrompts(language, prompts).margins([range(6)])
    with pytest.raises(InputError, match="longest prompt of 7"):
        Prompted(language, prompts).margins([[0] * 7])


# ---- truth -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_true_prompts_are_those_of_the_plainest_loop(kind):
    language, prompts = tiny(kind=kind, batch_size=2)
    expected = np.array([by_hand(language, prompts, sequence) for sequence in PROMPTS])
    # Label words are returned in single precision.
    np.testing.assert_allclose(Prompted(language, prompts).logits(PROMPTS), expected, atol=1e-5)
    assert np.ptp(expected[1:, 0, 0]) > 0.01, "prompts differ"


def test_true_prompts_without_a_cache():
    language, prompts = tiny(share_prefix=False)
    expected = np.array([by_hand(language, prompts, sequence) for sequence in PROMPTS])
    np.testing.assert_allclose(Prompted(language, prompts).logits(PROMPTS), expected, atol=1e-5)


def test_prompts_of_single_queries():
    language, prompts = tiny()
    truth = Prompted(language, prompts)
    own = [[0, 1], [2, 3], [0, 1], [5], []]
    expected = [truth.margins([sequence])[0, query] for query, sequence in enumerate(own)]
    np.testing.assert_allclose(truth.each(own)["margin"], expected, atol=1e-6)
    with pytest.raises(InputError, match="one prompt for each of 5 queries"):
        truth.each(own[:2])


def test_metrics_from_logits():
    """Loss is the cross-entropy over label words, and accuracy that of the most likely one."""
    rng = np.random.default_rng(0)
    logits, answers = rng.normal(size=(4, 6, 3)), rng.integers(3, size=6)
    found = values_of(margins(logits, answers), logits, answers)
    expected = -log_softmax(logits, axis=-1)[:, np.arange(6), answers]
    np.testing.assert_allclose(found["loss"], expected, atol=1e-12)
    np.testing.assert_array_equal(found["accuracy"], logits.argmax(-1) == answers)
    # Of three words, the right one may lead without having more than half of the probability.
    assert ((found["margin"] < 0) & (found["accuracy"] == 1)).any()
    two = logits[..., :2]
    pair = margins(two, answers % 2)
    np.testing.assert_array_equal(values_of(pair, None, answers % 2)["accuracy"], two.argmax(-1) == answers % 2)


def test_accuracy_of_three_labels_takes_all_logits():
    language, prompts = tiny(labels=("no", "yes", "maybe"))
    with pytest.raises(InputError, match="accuracy of more than two labels needs all logits"):
        AnchoredPrompts(language, prompts, metrics="accuracy")
    estimate = AnchoredPrompts(language, prompts, metrics="accuracy", outputs="logits", anchors=[[0, 1]])
    expected = (by_hand(language, prompts, [0, 1]).argmax(-1) == prompts.answers).mean()
    assert estimate([1, 1, 0, 0, 0, 0])["accuracy"] == pytest.approx(expected)


def test_true_outcomes_can_be_measured_and_taken_up_again(tmp_path):
    language, prompts = tiny()
    truth = Prompted(language, prompts, metrics=["loss", "accuracy"])
    runs = whence.measure(truth, whence.FixedSize(2), 6, path=tmp_path / "run", progress=False)
    more = whence.measure(truth, whence.FixedSize(2), 9, path=tmp_path / "run", progress=False)
    np.testing.assert_array_equal(more.values[:6], runs.values)
    assert runs.task_names == prompts.names
    assert runs.maximize == (False, True)
    for row, values in zip(more.subsets, more.values, strict=True):
        margin = margins(by_hand(language, prompts, np.flatnonzero(row)), prompts.answers)
        np.testing.assert_allclose(values, [np.log1p(np.exp(-margin)).mean(), (margin > 0).mean()], atol=1e-5)


def test_a_run_folder_of_other_prompts_or_another_model_is_refused(tmp_path):
    language, prompts = tiny()

    def measured(truth):
        whence.measure(truth, whence.FixedSize(2), 3, path=tmp_path / "run", progress=False)

    measured(Prompted(language, prompts))
    measured(Prompted(*tiny()))
    other = LanguageModel(tiny_model(seed=1), tiny_tokenizer())
    asked = prompts.asking(examples(5, seed=7))
    for truth in (Prompted(other, prompts), Prompted(language, asked), Prompted(language, prompts, order="random")):
        with pytest.raises(InputError, match="this run was begun with something else: "):
            measured(truth)


def test_outcomes_per_query():
    language, prompts = tiny()
    each = Prompted(language, prompts, metrics=["loss", "margin"], per_query=True)
    runs = whence.measure(each, [[1, 0, 0, 0, 0, 1]], progress=False)
    assert runs.target_names[:2] == ("loss[0]", "loss[1]")
    assert runs.maximize == (False,) * 5 + (True,) * 5
    assert Prompted(language, prompts)(["d1", "d6"])["loss"] == pytest.approx(runs.values[0, :5].mean())


def test_random_order_is_drawn_by_the_seed():
    language, prompts = tiny()
    truth = Prompted(language, prompts, order="random")
    drawn = [tuple(truth.sequences([[1, 1, 0, 1, 0, 1]], [seed])[0].tolist()) for seed in (*range(20), 0)]
    assert drawn[0] == drawn[-1]
    assert len(set(drawn)) > 5
    assert {tuple(sorted(row)) for row in drawn} == {(0, 1, 3, 5)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, p: Prompted(m, p, metrics="los"), "no metric 'los'. Did you mean 'loss'"),
        (lambda m, p: Prompted(m, p, order="best"), "must be 'listed' or 'random'"),
        (lambda m, p: Prompted(m, p).margins([[6]]), "places of its demonstrations, from 0 to 5"),
        (lambda m, p: Prompted(m, p).margins([[0.5]]), "places of its demonstrations"),
        (lambda m, p: Prompted(m, p)([0.5, 0, 0, 0, 0, 1]), "subsets must be 0 or 1"),
        (lambda m, p: AnchoredPrompts(m, p, anchors="men"), "must be a number, 'mean', or prompts"),
        (lambda m, p: AnchoredPrompts(m, p, anchors=0), "must be an integer of at least 1. Got 0"),
        (lambda m, p: AnchoredPrompts(m, p, anchors=[[0], [0, 1]]), "all of the same length"),
        (lambda m, p: AnchoredPrompts(m, p, anchors=[[0, 1]]).margins([[0]]), "have 2 demonstrations, so there are no"),
        (lambda m, p: AnchoredPrompts(m, p, outputs="logit"), "must be 'margin' or 'logits'. Got 'logit'"),
        (lambda m, p: AnchoredPrompts(m, p).logits([[0]]), "Only margins were estimated"),
        (lambda m, p: AnchoredPrompts(m, p, outputs="logits").effects(1), "Effects are those on margins"),
        (lambda m, p: AnchoredPrompts(m, p, slot_tokens=0), "width of at least one token"),
    ],
)
def test_what_cannot_be_asked_for(make, message):
    with pytest.raises(InputError, match=message):
        make(*tiny())


# ---- estimates -------------------------------------------------------------------------------------------


def linear(n_demos=6, n_queries=4, **options):
    language = LanguageModel(LinearInEmbeddings(), tiny_tokenizer())
    demos, queries = examples(n_demos, 3), examples(n_queries, seed=1, prefix="q")
    return language, Prompts.of(language.encode, demos, queries, start=[1], **options)


@pytest.mark.parametrize("anchors", [1, 3, "mean", [[0, 1], [2, 2]]])
@pytest.mark.parametrize("outputs", ["margin", "logits"])
def test_estimates_are_exact_where_the_model_is_linear_in_its_embeddings(anchors, outputs):
    language, prompts = linear()
    estimate = AnchoredPrompts(language, prompts, anchors=anchors, outputs=outputs)
    sequences = [[0, 1], [1, 0], [3, 5], [4, 4]]
    truth = Prompted(language, prompts)
    np.testing.assert_allclose(estimate.margins(sequences), truth.margins(sequences), atol=1e-4)
    if outputs == "logits":
        np.testing.assert_allclose(estimate.logits(sequences), truth.logits(sequences), atol=1e-4)


def test_estimates_of_prompts_of_different_sizes():
    language, prompts = linear()
    sequences = [[], [3], [1, 0, 4], [2, 5], [0]]
    estimated = AnchoredPrompts(language, prompts, anchors=2).margins(sequences)
    np.testing.assert_allclose(estimated, Prompted(language, prompts).margins(sequences), atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_anchor_itself_is_estimated_exactly(kind):
    """Whatever the lengths of the demonstrations: padding in slots is masked, and has no position."""
    language, prompts = tiny(kind=kind)
    anchor = [4, 0, 3]
    assert len({len(tokens) for tokens in prompts.demo_tokens}) > 2
    estimate = AnchoredPrompts(language, prompts, anchors=[anchor], outputs="logits")
    np.testing.assert_allclose(estimate.logits([anchor])[0], by_hand(language, prompts, anchor), atol=1e-5)


def test_changes_are_directional_derivatives():
    """The change of a slot is the derivative of the margin towards the demonstration, by finite differences."""
    language, prompts = tiny(length=3)
    anchor, other, step = [2, 0], [2, 5], 1e-4
    estimate = AnchoredPrompts(language, prompts, anchors=[anchor])
    start, end = (
        torch.cat([language.embed(np.concatenate([prompts.prefix(row), prompts.query_tokens[1]]))])
        for row in (anchor, other)
    )
    values = []
    for way in (-step, step):
        embeds = (start + way * (end - start))[None]
        logits = language.logits(embeds, torch.ones(embeds.shape[:2], dtype=torch.long), prompts.label_tokens)
        values.append(margins(logits.double().numpy(), prompts.answers[1:2])[0])
    slope = (values[1] - values[0]) / (2 * step)
    changed = estimate.margins([other])[0, 1] - estimate.margins([anchor])[0, 1]
    assert changed == pytest.approx(slope, abs=5e-3 * max(1, abs(slope)))
    assert abs(slope) > 0.01


def test_where_a_demonstration_is_too_short_the_anchor_stays():
    """Two demonstrations that differ in length by two words of text: the estimate replaces what both have."""
    language = LanguageModel(LinearInEmbeddings(), tiny_tokenizer())
    demos = [Example("good film very fun", "yes", "long"), Example("dull plot", "no", "short")]
    mixed = Example("good film dull plot", "no", "mixed")
    queries = examples(3, seed=1)
    prompts = Prompts.of(language.encode, demos, queries)
    estimated = AnchoredPrompts(language, prompts, anchors=[[0]]).margins([[1]])
    truth = Prompted(language, Prompts.of(language.encode, [mixed], queries)).margins([[0]])
    np.testing.assert_allclose(estimated, truth, atol=1e-4)


def test_several_anchors_are_averaged():
    language, prompts = tiny()
    sequences = [[0, 1], [5, 2]]
    alone = [AnchoredPrompts(language, prompts, anchors=[anchor]).margins(sequences) for anchor in ([0, 3], [4, 1])]
    both = AnchoredPrompts(language, prompts, anchors=[[0, 3], [4, 1]]).margins(sequences)
    np.testing.assert_allclose(both, np.mean(alone, axis=0), atol=1e-5)


def test_random_anchors_are_drawn_by_the_seed():
    language, prompts = tiny()
    first, again, other = (AnchoredPrompts(language, prompts, seed=seed).margins([[0, 1]]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_batches_change_nothing():
    small, large = (tiny(batch_size=size) for size in (1, 64))
    estimates = [AnchoredPrompts(*made, anchors=2).margins(PROMPTS) for made in (small, large)]
    np.testing.assert_allclose(*estimates, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    """Estimates in lower precision are near those in double; bfloat16 has three digits."""
    exact = AnchoredPrompts(*tiny(), anchors=3).margins(PROMPTS)
    found = AnchoredPrompts(*tiny(dtype=dtype), anchors=3).margins(PROMPTS)
    np.testing.assert_allclose(found, exact, atol=1e-4 if dtype == torch.float32 else 0.1 * np.abs(exact).max())


def test_three_labels_take_one_backward_pass():
    language, prompts = tiny(labels=("no", "yes", "maybe"))
    margin, logits = (
        AnchoredPrompts(language, prompts, anchors=[[1, 2]], outputs=kind).margins([[1, 2]])
        for kind in ("margin", "logits")
    )
    np.testing.assert_allclose(margin, logits, atol=1e-5)
    np.testing.assert_allclose(margin, Prompted(language, prompts).margins([[1, 2]]), atol=1e-5)


def test_effects_are_those_of_single_slots():
    language, prompts = tiny()
    estimate = AnchoredPrompts(language, prompts, anchors=2)
    effects = estimate.effects(2)
    np.testing.assert_allclose(effects.sum(0), 0, atol=1e-6)
    filled = np.array([[estimate.margins([[k, 0]]), estimate.margins([[0, k]])] for k in range(6)])[:, :, 0]
    expected = filled.mean(1) - filled.mean((0, 1))
    np.testing.assert_allclose(effects, expected, atol=1e-5)


def test_a_hundred_thousand_prompts_are_looked_up():
    language, prompts = tiny()
    estimate = AnchoredPrompts(language, prompts)
    sequences = np.random.default_rng(0).integers(6, size=(100_000, 3))
    found = estimate.margins(sequences)
    np.testing.assert_allclose(found[::9999], estimate.margins(sequences[::9999]), atol=1e-9)


def test_estimates_and_true_prompts_are_fused():
    """Estimates of all prompts and a few true ones: the table of either is the same kind."""
    language, prompts = tiny()
    estimate, truth = AnchoredPrompts(language, prompts), Prompted(language, prompts)
    cheap = whence.measure(estimate, whence.FixedSize(3), 20, progress=False)
    true = whence.measure(truth, whence.FixedSize(3), 8, seed=1, progress=False)
    assert cheap.target_names == true.target_names == ("loss",)
    assert dict(cheap.provenance)["outcomes"] == "first order in embeddings"
    model = whence.fit(true, estimates=cheap)
    assert np.isfinite(model.predict(whence.FixedSize(3).draw(6, 4))).all()


# ---- slots -----------------------------------------------------------------------------------------------


def test_slots_begin_and_end_together():
    rows = [np.array([7, 8, 1, 9]), np.array([7, 8, 2, 3, 4, 9]), np.array([7, 8, 5, 6, 9])]
    tokens, has = align(rows)
    assert tokens.shape == (3, 6)
    for row, mine, own in zip(rows, tokens, has, strict=True):
        assert mine[own].tolist() == row.tolist()
    assert (tokens[:, :2] == [7, 8]).all()
    assert (tokens[:, -1] == 9).all()
    cut, _ = align(rows, width=4)
    assert cut.tolist() == [[7, 8, 1, 9], [7, 8, 4, 9], [7, 8, 6, 9]]


def test_slots_of_one_demonstration_and_of_single_tokens():
    assert align([np.array([1, 2])])[0].tolist() == [[1, 2]]
    assert align([np.array([1]), np.array([2])])[0].tolist() == [[1], [2]]
    assert align([np.array([1, 2, 3]), np.array([3])])[0].tolist() == [[1, 2, 3], [0, 0, 3]]
