"""Order and choice of demonstrations: a surrogate that knows where they stand; prompts beside what they must beat."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from language_models import examples, tiny, transformers
from whence import InputError
from whence.icl import (
    AnchoredPrompts,
    OrderSurrogate,
    Prompted,
    best_order,
    explain,
    judge,
    nearest,
    sentence_vectors,
)
from whence.icl.order import slot_kernels


def prompts_of(n, n_demos, shots, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(n_demos, shots, replace=False) for _ in range(n)])


def correlation(surrogate, train, judge, truth):
    surrogate.fit(train, truth(train))
    return spearmanr(surrogate.predict(judge), truth(judge))[0]


# ---- the kernel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_slots", [1, 2, 5])
def test_slot_kernels_are_kernels(n_slots):
    for kernel in slot_kernels(n_slots).values():
        np.testing.assert_array_equal(kernel, kernel.T)
        assert np.linalg.eigvalsh(kernel).min() > -1e-12


@pytest.mark.parametrize("name", slot_kernels(3))
@pytest.mark.parametrize("share", [0.0, 0.7])
def test_features_are_those_of_the_kernel(name, share):
    """Inner products are Σ κ(i, j) over slots of the same demonstration, and of the same group."""
    groups = list("xxyyx")
    surrogate = OrderSurrogate(5, groups=groups)
    rows = np.array([[0, 1, 2], [2, 1, 0], [4, -1, 3], [1, 1, 1]])
    kappa = slot_kernels(3)[name]
    features = surrogate._features(rows, name, share)
    for a, u in enumerate(rows):
        for b, v in enumerate(rows):
            pairs = [(i, j, k, m) for i, k in enumerate(u) for j, m in enumerate(v) if min(k, m) >= 0]
            expected = sum(kappa[i, j] * ((k == m) + share * (groups[k] == groups[m])) for i, j, k, m in pairs)
            assert features[a] @ features[b] == pytest.approx(expected, abs=1e-9)


def test_without_order_permutations_are_alike():
    train = prompts_of(30, 6, 3)
    surrogate = OrderSurrogate(6, ordered=False).fit(train, np.random.default_rng(0).normal(size=30))
    orders = np.array(list(permutations([0, 3, 5])))
    assert np.ptp(surrogate.predict(orders)) < 1e-9
    assert surrogate.slots_ == "blind"


def test_order_is_learned_where_it_matters():
    """Later demonstrations count more: what a blind surrogate cannot see."""
    effect, weight = np.random.default_rng(1).normal(size=12), np.array([0.0, 0.5, 2.0])
    train, held_out = prompts_of(120, 12, 3), prompts_of(100, 12, 3, seed=1)

    def truth(rows):
        return effect[rows] @ weight

    knows, blind = (correlation(OrderSurrogate(12, ordered=o), train, held_out, truth) for o in (True, False))
    assert knows > 0.95
    assert blind < 0.8


def test_groups_share_what_their_order_does():
    """The label of the last demonstration decides: with few prompts, only labels can show it."""
    labels = np.arange(40) % 2
    train, held_out = prompts_of(25, 40, 3), prompts_of(100, 40, 3, seed=1)

    def truth(rows):
        return labels[rows] @ np.array([0.1, 0.3, 1.0])

    with_groups = correlation(OrderSurrogate(40, groups=labels), train, held_out, truth)
    without = correlation(OrderSurrogate(40), train, held_out, truth)
    assert with_groups > 0.9
    assert without < 0.6


def test_order_is_not_invented_where_it_does_not_matter():
    effect = np.random.default_rng(2).normal(size=10)
    train, held_out = prompts_of(80, 10, 3), prompts_of(100, 10, 3, seed=1)
    knows, blind = (
        correlation(OrderSurrogate(10, ordered=o), train, held_out, lambda rows: effect[rows].sum(1))
        for o in (True, False)
    )
    assert knows > blind - 0.02


def test_intervals_hold_what_they_promise():
    rng = np.random.default_rng(3)
    effect = rng.normal(size=10)
    train, held_out = prompts_of(100, 10, 3), prompts_of(200, 10, 3, seed=1)
    surrogate = OrderSurrogate(10).fit(train, effect[train].sum(1) + 0.3 * rng.normal(size=100))
    mean, std = surrogate.predict(held_out, return_std=True)
    new = effect[held_out].sum(1) + 0.3 * rng.normal(size=200)
    assert 0.83 < (np.abs(new - mean) < 1.645 * std).mean() < 0.96


def test_several_outcomes_at_once():
    train = prompts_of(40, 6, 2)
    Y = np.random.default_rng(0).normal(size=(40, 3))
    assert OrderSurrogate(6).fit(train, Y).predict(train[:4]).shape == (4, 3)


@pytest.mark.parametrize(
    ("prompts", "values", "message"),
    [
        ([[0, 6]] * 3, [1.0, 2, 3], "from 0 to 5, or −1"),
        ([[0.5, 1]] * 3, [1.0, 2, 3], "rows of places"),
        ([[0, 1]] * 2, [1.0, 2], "at least three prompts"),
        ([[0, 1]] * 3, [1.0, 2, np.nan], "a finite outcome for each"),
    ],
)
def test_prompts_that_cannot_be(prompts, values, message):
    with pytest.raises(InputError, match=message):
        OrderSurrogate(6).fit(prompts, values)


def test_prompts_of_another_length_are_refused():
    surrogate = OrderSurrogate(6).fit(prompts_of(10, 6, 2), np.arange(10.0))
    with pytest.raises(InputError, match=r"must have 2 slots, as in the fit\. Got 3"):
        surrogate.predict([[0, 1, 2]])


# ---- the best order --------------------------------------------------------------------------------------


def test_the_best_order_of_a_few_is_the_best_of_all():
    cost = np.random.default_rng(0).normal(size=(4, 8))

    def loss(prompts):
        return [cost[np.arange(4), prompt].sum() for prompt in prompts]

    found, value, how = best_order(loss, [1, 3, 4, 6])
    assert value == pytest.approx(min(loss([np.array(o) for o in permutations([1, 3, 4, 6])])))
    assert loss([found])[0] == value
    assert how == "all 24 orders tried"


def test_the_best_order_of_many_is_found_by_swaps():
    def loss(prompts):
        return [np.abs(np.asarray(prompt) - np.arange(9)).sum() for prompt in prompts]

    found, value, how = best_order(loss, range(8, -1, -1))
    assert (found.tolist(), value) == (list(range(9)), 0.0)
    assert "swaps" in how


# ---- choice ----------------------------------------------------------------------------------------------


def test_explanations_are_the_extremes_of_the_effects():
    language, prompts = tiny(8)
    estimate = AnchoredPrompts(language, prompts)
    told = explain(estimate, 2, 1, top=2)
    scores = estimate.effects(2)[:, 1]
    order = np.argsort(-scores)
    assert [each["demo"] for each in told] == [prompts.names[k] for k in (*order[:2], *order[-2:])]
    assert [each["score"] for each in told] == pytest.approx(scores[[*order[:2], *order[-2:]]].tolist())
    assert len(explain(estimate, 2, 0, top=9)) == 8
    with pytest.raises(InputError, match=r"no query 5\. They are counted from 0 to 4"):
        explain(estimate, 2, 5)


def test_neighbours_by_cosine():
    rng = np.random.default_rng(0)
    demos, queries = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    for query, found in zip(queries, nearest(demos, 5 * queries, 3), strict=True):
        cosine = [demo @ query / np.linalg.norm(demo) / np.linalg.norm(query) for demo in demos]
        assert found.tolist() == np.argsort(cosine)[-3:].tolist()


def test_sentence_vectors_do_not_depend_on_the_batch():
    torch.manual_seed(0)
    config = {"vocab_size": 17, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 16, "initializer_range": 0.5}  # fmt: skip
    encoder = transformers.BertModel(transformers.BertConfig(**config, attn_implementation="eager")).eval()
    tokenizer = tiny()[0].tokenizer
    texts = [example.text for example in examples(5)]
    together = sentence_vectors(encoder, tokenizer, texts)
    alone = np.concatenate([sentence_vectors(encoder, tokenizer, [text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1)
    assert not np.allclose(together[0], together[1])


def test_chosen_prompts_are_judged_beside_others():
    language, prompts = tiny()
    truth = Prompted(language, prompts)
    own = [[0, 1], [2, 3], [0, 1], [5, 4], [1, 2]]
    judged = judge(truth, {"mine": [2, 0], "same": [2, 0]}, shots=2, neighbours=own, n_random=3)
    frame = judged.to_frame().set_index("prompt")
    values = truth.values([[2, 0]])
    assert list(frame.index) == ["mine", "same", "random (3 prompts)", "no demonstration", "nearest to each query"]
    assert frame.loc["mine", "loss"] == pytest.approx(values["loss"].mean())
    assert frame.loc["mine", "accuracy"] == pytest.approx(values["accuracy"].mean())
    assert frame.loc["same", ["more_loss", "low", "high"]].tolist() == [0, 0, 0]
    zero = truth.values([[]])["loss"].mean()
    assert frame.loc["no demonstration", "more_loss"] == pytest.approx(zero - values["loss"].mean())
    assert (frame["low"] <= frame["more_loss"]).all()
    assert (frame["more_loss"] <= frame["high"]).all()
    assert frame.loc["nearest to each query", "loss"] == pytest.approx(truth.each(own)["loss"].mean())
    with pytest.raises(InputError, match="at least one prompt to judge"):
        judge(truth, {}, shots=2)
