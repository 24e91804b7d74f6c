"""Labels of several words, open answers, chat templates, and labels in doubt: each held against a way of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from browser import PATIENCE, launched
from language_models import VOCABULARY, InContextLearner, examples, tiny, tiny_model, tiny_tokenizer
from whence.cli import app
from whence.errors import InputError
from whence.icl import (
    AnchoredPrompts,
    Example,
    LanguageModel,
    Prompted,
    Prompts,
    Template,
    chat_template,
    doubts,
    recommend,
)

MANY = ("very good", "good", "not good", "bad")


def language(**options):
    return LanguageModel(tiny_model(dtype=torch.float64), tiny_tokenizer(), **options)


def log_likelihood(model, prefix, ending):
    """Of the tokens of an ending, by the model alone, one after the other."""
    total = 0.0
    for at, token in enumerate(ending):
        tokens = torch.tensor([[*prefix, *ending[:at]]])
        total += float(model.model(input_ids=tokens).logits[0, -1].log_softmax(-1)[token])
    return total


# ---- labels of several tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("share_prefix", [True, False])
def test_labels_of_several_tokens_have_the_likelihood_of_all_of_them(share_prefix):
    model = language(share_prefix=share_prefix)
    demos, queries = examples(5, labels=MANY), examples(4, seed=1, prefix="q", labels=MANY)
    prompts = Prompts.of(model.encode, demos, queries, start=[1])
    assert prompts.label_tokens is None
    found = Prompted(model, prompts).logits([[0, 3], [2]])
    words = list(prompts.words)
    for row, sequence in enumerate(([0, 3], [2])):
        for q in range(4):
            prefix = [*prompts.prefix(sequence), *prompts.query_tokens[q]]
            for c, word in enumerate(words):
                expected = log_likelihood(model, prefix, model.encode(word))
                assert found[row, q, c] == pytest.approx(expected, abs=1e-5)
    values = Prompted(model, prompts).values([[0, 3]])
    right = found[0, np.arange(4), prompts.answers]
    total = torch.tensor(found[0]).logsumexp(-1).numpy()
    np.testing.assert_allclose(values["loss"][0], total - right, rtol=1e-5)
    np.testing.assert_array_equal(values["accuracy"][0], found[0].argmax(-1) == prompts.answers)


def test_estimates_are_exact_at_their_anchor_for_labels_of_several_tokens_and_open_answers():
    model = language()
    demos, queries = examples(5, length=3, labels=MANY), examples(4, seed=1, prefix="q", labels=MANY)
    for options in ({}, {"open": True}):
        prompts = Prompts.of(model.encode, demos, queries, start=[1], **options)
        sequence = [[1, 4]]
        estimate = AnchoredPrompts(model, prompts, anchors=sequence)
        truth = Prompted(model, prompts)
        np.testing.assert_allclose(estimate.values(sequence)["loss"], truth.values(sequence)["loss"], rtol=1e-4)


# ---- open answers ------------------------------------------------------------------------------------------


def open_prompts(model, n_demos=5, n_queries=4):
    rng = np.random.default_rng(0)

    def make(n, name):
        texts = [" ".join(rng.choice(VOCABULARY[7:], 3)) for _ in range(n)]
        answers = [" ".join(rng.choice(VOCABULARY[7:], k % 3 + 1)) for k in range(n)]
        return [Example(t, a, f"{name}{k}") for k, (t, a) in enumerate(zip(texts, answers, strict=True))]

    return Prompts.of(model.encode, make(n_demos, "d"), make(n_queries, "q"), start=[1], open=True)


def test_the_loss_of_an_open_answer_is_that_of_its_tokens():
    model = language()
    prompts = open_prompts(model)
    found = Prompted(model, prompts).values([[0, 3]])["loss"][0]
    for q, query in enumerate(prompts.queries):
        ending = model.encode(query.label)
        prefix = [*prompts.prefix([0, 3]), *prompts.query_tokens[q]]
        assert found[q] == pytest.approx(-log_likelihood(model, prefix, ending) / len(ending), rel=1e-5)


def test_generated_answers_are_the_likeliest_tokens_and_scored():
    model = language()
    prompts = open_prompts(model)
    texts = model.generate(prompts.prefix([0, 3]), prompts.query_tokens, 4)
    for q, text in enumerate(texts):
        tokens = [*prompts.prefix([0, 3]), *prompts.query_tokens[q]]
        expected = []
        for _ in range(4):
            expected.append(int(model.model(input_ids=torch.tensor([tokens + expected])).logits[0, -1].argmax()))
        assert text == model.tokenizer.decode(expected, skip_special_tokens=True)
    seen = []

    def first_word(generated, answer):
        seen.append((generated, answer))
        return generated.split(" ")[0] == answer.split(" ")[0]

    found = Prompted(model, prompts, metrics=["loss", "accuracy"], scorer=first_word).values([[0, 3]])["accuracy"]
    assert found[0].tolist() == [float(g.split(" ")[0] == a.split(" ")[0]) for g, a in seen]
    assert [answer for _, answer in seen] == [query.label for query in prompts.queries]
    same = [Example(q.text, Prompts.cut(prompts, t), q.name) for q, t in zip(prompts.queries, texts, strict=True)]
    exact = Prompted(model, prompts.asking([q for q in same if q.label]), metrics=["loss", "accuracy"])
    answers = model.generate(prompts.prefix([0, 3]), exact.prompts.query_tokens, 2 * 4 + 8)
    expected = [float(prompts.cut(t) == q.label) for t, q in zip(answers, exact.prompts.queries, strict=True)]
    assert exact.values([[0, 3]])["accuracy"][0].tolist() == expected
    with pytest.raises(InputError, match="Only the loss of open answers can be estimated"):
        AnchoredPrompts(model, prompts, metrics="accuracy")
    with pytest.raises(InputError, match="no other label"):
        doubts(Prompted(model, prompts), shots=2)


def test_an_answer_ends_where_the_template_goes_on():
    prompts = open_prompts(language())
    assert prompts.cut(" Paris\n\nText: more") == "Paris"
    chat = Prompts.of(encode, prompts.demos, prompts.queries, template=Template("Q {text} A {label}<end>"), open=True)
    assert chat.cut("two\nlines<end>Q") == "two\nlines"


# ---- chat --------------------------------------------------------------------------------------------------

TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("instruction", ["", "Be brief."])
def test_a_chat_prompt_is_what_the_chat_template_writes(instruction):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TURNS
    template = chat_template(tokenizer, "Review: {text}", instruction)
    demos = [Example("fine film", "good", "a"), Example("dull plot", "bad", "b")]
    messages = [{"role": "system", "content": instruction}] if instruction else []
    for demo in demos:
        messages += [
            {"role": "user", "content": f"Review: {demo.text}"},
            {"role": "assistant", "content": demo.label},
        ]
    messages.append({"role": "user", "content": "Review: very fun"})
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    written = template.instruction + "".join(template.demonstration(d.text, d.label) for d in demos)
    assert written + template.query("very fun") == expected


def test_what_is_no_row_of_turns_is_refused():
    tokenizer = tiny_tokenizer()
    with pytest.raises(InputError, match="has no chat template"):
        chat_template(tokenizer)
    tokenizer.chat_template = "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(InputError, match="does not write each turn by itself"):
        chat_template(tokenizer)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="cannot write these turns"):
        chat_template(tokenizer)
    tokenizer.chat_template = TURNS
    with pytest.raises(InputError, match=r"must have \{text\} in it"):
        chat_template(tokenizer, "Review:")


# ---- labels in doubt ---------------------------------------------------------------------------------------

GOOD, BAD, NEUTRAL = ([f"{kind}{i}" for i in range(n)] for kind, n in (("good", 8), ("bad", 8), ("plain", 12)))
WORDS = {word: place for place, word in enumerate(["Text:", "Label:", "yes", "no", *GOOD, *BAD, *NEUTRAL])}


def encode(text):
    return [WORDS.get(word, 99) for word in text.split()]


def planted(seed, n_wrong=3, **options):
    """Thirty candidates, of which some have the wrong label, and a model that learns in context."""
    rng = np.random.default_rng(seed)
    wrong = set(rng.choice(30, n_wrong, replace=False).tolist())
    demos = []
    for k in range(30):
        own, other = (GOOD, BAD) if k % 2 else (BAD, GOOD)
        words = [*rng.choice(own, 2), *rng.choice(other, rng.integers(2)), *rng.choice(NEUTRAL, 3)]
        label = ("yes" if k % 2 else "no") if k not in wrong else ("no" if k % 2 else "yes")
        demos.append(Example(" ".join(rng.permutation(words)), label, f"d{k + 1}"))
    meaning = {WORDS[word]: 1.0 for word in GOOD} | {WORDS[word]: -1.0 for word in BAD}
    prompts = Prompts.of(encode, demos, demos[:2], words={"yes": "yes", "no": "no"})
    return Prompted(InContextLearner(encode, meaning, **options), prompts), {f"d{k + 1}" for k in wrong}


@pytest.mark.parametrize(  # the figures of docs/tutorials/icl.md
    ("seeds", "n_wrong", "expected"),
    [(range(20), 3, (55, 1)), (range(100, 140), 3, (114, 4)), (range(20), 10, (128, 0))],
)
def test_mislabelled_demonstrations_are_found_where_they_are(seeds, n_wrong, expected):
    found = false = 0
    for seed in seeds:
        truth, wrong = planted(seed, n_wrong)
        named = set(doubts(truth, shots=4, seed=seed).doubtful)
        found, false = found + len(named & wrong), false + len(named - wrong)
    assert (found, false) == pytest.approx(expected, abs=2)  # rounding may tip a label that is at the limit


def test_doubts_are_the_calibrated_margins_after_prompts_of_others():
    truth, _ = planted(1)
    found = doubts(truth, shots=4, n_prompts=6, seed=3)
    asked = Prompted(truth.model, truth.prompts.asking(truth.prompts.demos))
    rng = np.random.default_rng(3)
    each = [[] for _ in range(30)]
    labels = np.array([list(truth.prompts.words).index(demo.label) for demo in truth.prompts.demos])
    for sequence in [rng.choice(30, 4, replace=False) for _ in range(6)]:
        scores = asked.logits([sequence])[0]
        others = [k for k in range(30) if k not in sequence]
        means = [np.mean([scores[k] for k in others if labels[k] == label], axis=0) for label in (0, 1)]
        fair = scores - np.mean(means, axis=0)
        for k in others:
            each[k].append(fair[k, labels[k]] - fair[k, 1 - labels[k]])
    np.testing.assert_allclose(found.margin, [np.mean(values) for values in each], rtol=1e-9)
    expected = [np.std(values, ddof=1) / len(values) ** 0.5 for values in each]
    np.testing.assert_allclose(found.std_error, expected, rtol=1e-9)


def test_where_no_label_is_wrong_hardly_any_is_doubted():
    assert sum(len(doubts(planted(seed, 0)[0], shots=4, seed=seed).doubtful) for seed in range(5)) <= 4


def test_a_model_that_knows_nothing_doubts_nothing():
    found = doubts(planted(0, known=0.0, noise=50.0)[0], shots=4)
    assert not found.knows
    assert found.doubtful == []
    with pytest.raises(InputError, match="from 1 to 29"):
        doubts(planted(0)[0], shots=30)


# ---- the whole way -----------------------------------------------------------------------------------------


def lines(rows):
    return "\n".join(json.dumps({"text": e.text, "label": e.label}) for e in rows)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_model(dtype=torch.float32).save_pretrained("model")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %} Label: {{ m.content }}\n{% else %}Text: {{ m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %} Label:{% endif %}"
    )
    tokenizer.save_pretrained("model")
    return tmp_path


def icl(*options):
    small = ["--shots", "2", "--true", "6", "-n", "20", "--anchors", "1"]
    return CliRunner().invoke(
        app, ["icl", "model", "--demos", "demos.jsonl", "--queries", "queries.jsonl", *small, *options]
    )


@pytest.mark.slow
def test_open_answers_with_a_scorer_of_ones_own(place):
    prompts = open_prompts(language(), 6, 8)
    (place / "demos.jsonl").write_text(lines(prompts.demos))
    (place / "queries.jsonl").write_text(lines(prompts.queries))
    (place / "mine.py").write_text("def half(generated, answer):\n    return 0.5\n")
    refused = icl()
    assert refused.exit_code == 2
    assert "give --open" in refused.stderr
    found = json.loads(icl("--open", "--scorer", "mine.py:half", "--json").stdout)
    assert [row["accuracy"] for row in found["judged"]] == [0.5] * len(found["judged"])
    assert found["doubts"] == []
    shown = icl("--open")
    assert shown.exit_code == 0, shown.output
    assert " score " in shown.stdout
    assert "likelihood per token of the answer" in shown.stdout


def test_many_labels_in_a_chat(place):
    (place / "demos.jsonl").write_text(lines(examples(8, labels=MANY)))
    (place / "queries.jsonl").write_text(lines(examples(12, seed=1, labels=MANY)))
    result = icl("--chat", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["chosen"]["prompt"].count("Text:") == 2
    assert len(found["doubts"]) == 8


@pytest.mark.slow
def test_the_page_shows_the_prompt_its_demonstrations_and_every_query(place):
    demos = [Example(f"{e.text} <b>film</b>", e.label, e.name) for e in examples(8)]
    (place / "demos.jsonl").write_text(lines(demos))
    (place / "queries.jsonl").write_text(lines(examples(12, seed=1)))
    result = icl("--json", "--report", "page.html")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    with launched() as browser:
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.goto((place / "page.html").as_uri())
        assert page.inner_text("h1") == "Which of 8 demonstrations to show"
        assert page.inner_text("#prompt pre").strip() == found["chosen"]["prompt"].strip()
        rows = page.locator("#demonstrations tbody tr")
        assert rows.count() == 8
        shown = {row.split("\t")[0].removeprefix("● "): row for row in rows.all_inner_texts()}
        for demo in demos:
            assert demo.text in shown[demo.name]
        assert {name for name, row in shown.items() if row.startswith("●")} == set(found["chosen"]["demonstrations"])
        judged = page.locator("#held-out > .scroll tbody tr").all_inner_texts()
        assert [row.split("\t")[0] for row in judged] == [row["prompt"] for row in found["judged"]]
        assert f"{found['judged'][0]['loss']:.3f}" in judged[0]
        assert page.locator("#held-out details tbody tr").count() == found["held_out_queries"]
        assert page.locator("#queries details").count() == found["queries"]
        first = page.locator("#queries details").first
        first.locator("summary").click()
        assert found["explained"][0]["demonstrations"][0]["text"] in first.inner_text()


def test_recommend_says_what_it_doubts():
    model, prompts = tiny(8, 6)
    found = recommend(model, prompts, prompts.queries[:3], shots=2, n_true=4, n_estimates=10, anchors=1)
    assert found.doubts is not None
    assert set(found.doubts.to_frame()["name"]) == set(prompts.names)
    np.testing.assert_allclose(found.answers["loss"], found.judged.loss["chosen"])
