"""Language models with adapters as problems: losses, accuracy, stacked adapters, what goes on, classifiers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import whence
from finetuning import save_model, texts, tiny_adapted, tiny_model, tiny_prepared, tiny_problem, tokenizer
from whence.errors import DataWarning, InputError
from whence.hf import adapt, adapters, load, mixing, plan_of, prepare, sources_of, spending
from whence.hf.completions import Completions, TokenLoss
from whence.hf.spending import GRADEX, MERGED, SCORES
from whence.models.stack import Stack

SUBSETS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def moved(problem, m, seed=0, size=0.2):
    """Stacked adapters that are not at their start."""
    generator = torch.Generator().manual_seed(seed)
    start = Stack(problem, batched=False).start(m)
    return {name: value + size * torch.randn(value.shape, generator=generator) for name, value in start.items()}


def test_the_loss_is_the_mean_likelihood_of_trained_tokens():
    prepared = tiny_prepared()
    problem = prepared.problem(accuracy=True)
    model = prepared.adapted.model
    rows = prepared.targets[0].rows
    expected, right = [], []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.ids])).logits[0].detach()
        places, tokens = torch.tensor(row.places), torch.tensor(row.ids)
        expected.append(float(cross_entropy(logits[places - 1], tokens[places])))
        right.append(bool((logits[places - 1].argmax(-1) == tokens[places]).all()))
    found = Stack(problem, batched=False).evaluate(
        {name: value[None] for name, value in problem.start.items()}, problem.targets, problem.metrics
    )
    np.testing.assert_allclose(found["loss"][0], expected, rtol=1e-5)
    np.testing.assert_array_equal(found["accuracy"][0], right)
    assert problem.maximize == ("accuracy",)


def test_slope_and_curvature_are_those_of_the_loss():
    loss, labels = TokenLoss(), torch.ones(3)
    outputs = torch.tensor([[-2.0, 1.0], [0.5, -1.0], [3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    losses, slope = loss.with_slope(outputs, labels)
    (expected,) = torch.autograd.grad(loss(outputs, labels).sum(), outputs, create_graph=True)
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(losses, loss(outputs, labels))
    root = loss.root(outputs.detach(), labels)
    second = torch.func.vmap(torch.func.hessian(lambda one: loss(one[None], labels[:1])[0]))(outputs.detach())
    torch.testing.assert_close(root @ root.mT, second)


def test_padding_and_other_rows_change_nothing():
    module = Completions(tiny_adapted().model)
    ids, places = torch.tensor([[2, 8, 3, 4]]), torch.tensor([[2, 3]])
    alone = module(ids, places)
    beside = module(
        torch.tensor([[2, 8, 3, 4, 0, 0, 0], [2, 8, 9, 10, 11, 3, 5]]), torch.tensor([[2, 3, -1], [1, 5, 6]])
    )
    torch.testing.assert_close(alone[0], beside[0])


@pytest.mark.parametrize("batch_size", [4, None])
def test_adapters_side_by_side_are_those_trained_one_at_a_time(batch_size):
    problem = tiny_problem(accuracy=True, dtype=torch.float64)
    recipe = whence.Recipe(steps=6, lr=0.02, batch_size=batch_size, clip=1.0, schedule="linear", warmup=2)
    together = whence.Retrain(problem, recipe, batched=True).batch(SUBSETS, [3, 4, 5])
    alone = [whence.Retrain(problem, recipe, batched=False)(subset, 3 + at) for at, subset in enumerate(SUBSETS)]
    for name, values in together.items():
        np.testing.assert_allclose(values, [each[name] for each in alone], rtol=1e-6)


def test_a_model_that_draws_random_numbers_is_run_alone():
    model = tiny_model()
    model.config.attention_dropout = 0.5
    for block in model.model.layers:
        block.self_attn.attention_dropout = 0.5
    rows = [{**row, "source": "a"} for row in texts(6, 0)]
    problem = prepare(adapt(model, tokenizer()), sources_of(rows), sources_of(rows)).problem()
    with pytest.raises(InputError, match=r"the model draws random numbers in training \(dropout\)"):
        whence.Retrain(problem, whence.Recipe(steps=2), batched=True)
    assert not Stack(problem, batched=False).steady
    assert Stack(tiny_problem(), batched=False).steady


def test_stacked_outputs_are_those_of_each_adapter():
    problem = tiny_problem(accuracy=True)
    state = moved(problem, 4)
    inputs = problem.targets.inputs
    together, alone = (Stack(problem, batched).outputs(state, inputs) for batched in (True, False))
    assert not torch.equal(together[0], together[1])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_frozen_model_is_run_once_for_all_adapters():
    problem, calls = tiny_problem(), []
    stack, state = Stack(problem, batched=True), moved(problem, 8)
    head = problem.output_fn.module.model.get_output_embeddings()
    head.register_forward_hook(lambda *_: calls.append(1))
    stack.outputs(state, problem.targets.inputs)
    assert len(calls) == 1


def test_a_frozen_model_in_half_precision_has_adapters_in_single():
    problem = tiny_problem(dtype=torch.bfloat16)
    assert {value.dtype for value in problem.start.values()} == {torch.float32}
    assert problem.output_fn.module.model.dtype == torch.bfloat16
    recipe = whence.Recipe(steps=4, lr=0.01, batch_size=4)
    for make in (partial(whence.Retrain, recipe=recipe, batched=True), partial(whence.GradEx, rank=8)):
        half, single = (make(each).batch(SUBSETS, [0] * 3)["loss"] for each in (problem, tiny_problem()))
        assert not np.array_equal(half, single)
        np.testing.assert_allclose(half, single, rtol=0.05)


def test_an_adapter_is_continued(tmp_path):
    first = tiny_adapted(rank=2)
    with torch.no_grad():
        for name, value in first.model.named_parameters():
            if value.requires_grad:
                value += 0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    first.model.save_pretrained(tmp_path / "adapter")
    second = tiny_adapted(adapter=tmp_path / "adapter")
    ids, places = torch.tensor([[2, 8, 3, 4]]), torch.tensor([[2, 3]])
    assert any(value.requires_grad for value in second.model.parameters())
    torch.testing.assert_close(Completions(first.model)(ids, places), Completions(second.model)(ids, places))


def test_a_folder_is_loaded_and_only_named_layers_are_adapted(tmp_path):
    adapted = load(save_model(tmp_path), rank=2, modules=["q_proj", "v_proj"], device="cpu")
    names = [name for name, value in adapted.model.named_parameters() if value.requires_grad]
    assert len(names) == 8
    assert all("q_proj" in name or "v_proj" in name for name in names)
    assert adapted.context == 64


def test_adapters_of_one_seed_are_the_same_and_leave_random_numbers_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    starts = [adapt(model, tokenizer(), seed=seed) for model, seed in zip(tiny_models(3), (0, 0, 1), strict=True)]
    assert torch.equal(torch.get_rng_state(), before)
    sums = [float(sum(v.detach().double().abs().sum() for v in made.model.parameters())) for made in starts]
    assert sums[0] == sums[1] != sums[2]


def tiny_models(n):
    with torch.random.fork_rng():
        return [tiny_model() for _ in range(n)]


def classifier():
    from language_models import TINY, transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**TINY, attn_implementation="eager", num_labels=2, pad_token_id=0,
                                      id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})  # fmt: skip
    made = transformers.LlamaForSequenceClassification(config)
    words = tokenizer()
    words.pad_token = "<unk>"
    return made, words


def test_a_sequence_classifier_is_fine_tuned():
    rows = [{**row, "source": f"s{k}"} for k in range(2) for row in texts(8, k)]
    prepared = prepare(adapt(*classifier()), sources_of(rows), sources_of(rows[:4]))
    problem = prepared.problem(accuracy=True)
    recipe = whence.Recipe(steps=15, lr=0.02, batch_size=8)
    together = whence.Retrain(problem, recipe, batched=True).batch(SUBSETS, [0, 1, 2])
    alone = [whence.Retrain(problem, recipe, batched=False)(subset, at) for at, subset in enumerate(SUBSETS)]
    np.testing.assert_allclose(together["loss"], [each["loss"] for each in alone], rtol=1e-3)
    empty = whence.Retrain(problem, recipe, batched=False)([0, 0], 0)
    assert together["loss"][2] < empty["loss"]


def classifiers(kind, **more):
    """Classifiers of three classes, most of which do not know the token that examples are padded with."""
    from language_models import TINY, transformers

    torch.manual_seed(0)
    small = {"vocab_size": TINY["vocab_size"], "num_labels": 3, **more}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    of = {
        "llama": lambda: transformers.LlamaConfig(**small, **sizes),
        "gpt2": lambda: transformers.GPT2Config(**small, n_embd=16, n_layer=2, n_head=2),
        "bert": lambda: transformers.BertConfig(**small, **sizes),
        "distilbert": lambda: transformers.DistilBertConfig(**small, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    }
    config = of[kind]()
    config._attn_implementation = "eager"
    return transformers.AutoModelForSequenceClassification.from_config(config)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "distilbert"])
def test_classifiers_of_all_kinds_give_what_each_example_gives_alone(kind):
    """Padding is not taken for the end of a text, whatever token the configuration or the tokenizer pads with."""
    model, words = classifiers(kind), tokenizer()
    words.pad_token = "film"  # not the first token, which is what other padding has
    rows = [{"text": text, "label": at, "source": "s"} for at, text in enumerate(["good", "bad plot a", "fun very"])]
    expected = []
    for row in rows:
        logits = model.eval()(input_ids=torch.tensor([words(row["text"]).input_ids])).logits.detach()
        expected.append(float(cross_entropy(logits, torch.tensor([row["label"]]))))
    prepared = prepare(adapt(model, words, rank=2), sources_of(rows), sources_of(rows), per_query=True)
    problem = prepared.problem()
    stack = Stack(problem, batched=False)
    np.testing.assert_allclose(stack.outcomes(stack.start(1))["loss"][0], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "distilbert"])
def test_heads_are_trained_in_single_precision_too(kind):
    made = adapt(classifiers(kind).bfloat16(), padding(), rank=2).model
    trained = {name: value for name, value in made.named_parameters() if value.requires_grad}
    assert any("lora" not in name for name in trained)
    assert {value.dtype for value in trained.values()} == {torch.float32}
    assert {value.dtype for value in made.parameters() if not value.requires_grad} == {torch.bfloat16}


def padding():
    made = tokenizer()
    made.pad_token = "<unk>"
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: (classifiers("bert", num_labels=1), padding()), "is made for one number"),
        (lambda: (classifiers("bert", problem_type="multi_label_classification"), padding()), "for multi label class"),
        (lambda: (classifiers("llama"), tokenizer()), "no token to pad with"),
    ],
)
def test_classifiers_that_cannot_be_trained_here_are_refused(made, message):
    with pytest.raises(InputError, match=message):
        adapt(*made())


def test_long_texts_of_classifiers_keep_the_tokens_at_their_end():
    """Those that a tokenizer puts there, such as [SEP], which the model expects."""
    from tokenizers.processors import TemplateProcessing

    words = padding()
    words.backend_tokenizer.post_processor = TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 1)])
    given = sources_of([{"text": "good bad film plot", "label": 1, "source": "s"}])
    with pytest.warns(DataWarning, match="2 examples had more than 3 tokens"):
        found = prepare(adapt(classifiers("bert"), words), given, given, max_length=3)
    assert words.convert_ids_to_tokens(found.tasks[0].rows[0].ids) == ["good", "bad", "<s>"]


@pytest.mark.parametrize(
    ("row", "message"),
    [({"text": "good", "label": "perhaps"}, "the label must be one of no, yes. Got 'perhaps'"),
     ({"text": "good"}, "a sequence classifier learns from 'text' and 'label'")],
)  # fmt: skip
def test_classifiers_refuse_what_has_no_label(row, message):
    given = sources_of([{**row, "source": "s"}])
    with pytest.raises(InputError, match=message):
        prepare(adapt(*classifier()), given, given)


def test_memory_that_runs_out_costs_no_step(monkeypatch):
    """Batches that are too large are halved; the training is the same."""
    problem = tiny_problem(dtype=torch.float64)
    recipe = whence.Recipe(steps=3, lr=0.02, batch_size=8)
    expected = whence.Retrain(problem, recipe, batched=False)([1, 1], 0)
    module = problem.train_fn.module
    forward, sizes = module.forward, []

    def limited(input_ids, places):
        sizes.append(len(input_ids))
        if len(input_ids) > 3 and torch.is_grad_enabled():
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return forward(input_ids, places)

    monkeypatch.setattr(module, "forward", limited)
    found = whence.Retrain(problem, recipe, batched=False)([1, 1], 0)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    assert sizes.count(8) == 1  # later steps begin with what fits


def test_a_budget_buys_estimates_with_at_most_half_of_it():
    problem, recipe = tiny_problem(n_tasks=4), whence.Recipe(steps=50, lr=0.01, batch_size=8)
    plans = {budget: plan_of(problem, recipe, budget) for budget in (3, 3.7, 4, 5, 20)}
    assert set(plans[20].prices) == {GRADEX}
    assert set(plans[3.7].prices) == {SCORES}  # for which GradEx is too expensive
    assert plans[3].prices == {}
    for budget, plan in plans.items():
        assert sum(plan.prices.values()) <= budget / 2
        assert plan.n_true >= 3
        assert plan.total <= budget
        assert plan.total > budget - 1 or plan.n_true == 15  # all subsets
    with pytest.raises(InputError, match="'budget' parameter of finetune must be at least 3"):
        plan_of(problem, recipe, 2)


def test_a_plan_leaves_out_what_a_model_has_no_gradients_for(monkeypatch):
    problem, recipe = tiny_problem(n_tasks=4), whence.Recipe(steps=50, lr=0.01, batch_size=8)

    def refusing(*given, **how):
        raise InputError("The model is not deterministic.")

    monkeypatch.setattr(spending, "GradEx", refusing)
    assert set(plan_of(problem, recipe, 20).prices) == {SCORES, MERGED}


def test_the_price_of_gradex_is_that_of_its_passes(monkeypatch):
    """Counted where examples enter the model: three for one that is trained on or whose gradient is taken."""
    monkeypatch.setattr(spending, "RANK", 16)
    problem, recipe, passes = tiny_problem(n_tasks=4, n=60), whence.Recipe(steps=50, lr=0.01, batch_size=8), []
    price = plan_of(problem, recipe, 20).prices[GRADEX] * (50 * 8 * 3 + len(problem.targets))
    for module in {problem.train_fn.module, problem.output_fn.module}:
        module.register_forward_pre_hook(
            lambda module, given, named: passes.append(len(named["input_ids"])), with_kwargs=True
        )
    whence.GradEx.along(problem, recipe, rank=16, projection="auto").batch(np.eye(4))
    assert 3 * sum(passes) == pytest.approx(price, rel=0.15)  # it looks at a few examples besides


def test_a_plan_has_no_more_true_runs_than_there_are_subsets():
    problem, recipe = tiny_problem(n_tasks=2), whence.Recipe(steps=50, lr=0.01, batch_size=8)
    assert plan_of(problem, recipe, 20).n_true == 3
    assert plan_of(problem, recipe, 20, weights=True).n_true > 10


@pytest.mark.parametrize(("tokens", "expected"), [(None, ["a", "b"]), (2, ["a"]), (0.5, ["c"])])
def test_the_best_run_is_chosen_if_more_is_expected_of_it(monkeypatch, tokens, expected):
    rows = whence.Exhaustive().draw(3)
    runs = whence.Outcomes(rows, 3 - 2.0 * rows[:, 0] - rows[:, 1] + rows[:, 2], ["a", "b", "c"], ["loss"])

    def disappointing(model, *, include=(), **how):
        found = whence.select(model, include=include, **how)
        return found if len(include) else replace(found, subset=np.array([0.0, 0, 1]), tasks=("c",), expected=[2.5])

    monkeypatch.setattr(mixing, "select", disappointing)
    costs = {"a": 2.0, "b": 2.0, "c": 0.0}
    chosen = mixing._chosen(whence.fit(runs), "loss", None if tokens is None else costs, tokens, 0)
    assert [*chosen.tasks] == expected


def test_the_same_model_is_used_by_every_problem_of_it():
    prepared = tiny_prepared()
    one, two = prepared.problem(), prepared.problem(accuracy=True)
    name = next(name for name in one.output_fn.fixed if "embed_tokens" in name)
    assert one.output_fn.fixed[name].data_ptr() == two.output_fn.fixed[name].data_ptr()


@pytest.mark.parametrize("batched", [False, True])
def test_blocks_that_run_again_take_less_memory_for_the_same_training(batched):
    recipe = whence.Recipe(steps=4, lr=0.02, batch_size=4)
    plain, again = (tiny_problem(checkpointing=given, dtype=torch.float64) for given in (False, True))
    assert again.bytes_per_row < 0.6 * plain.bytes_per_row
    losses = [whence.Retrain(p, recipe, batched=batched, batch_size=4)([1, 1], 0)["loss"] for p in (plain, again)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_blocks_run_again_where_memory_asks_for_it(monkeypatch):
    plain, always = (tiny_problem(checkpointing=given).bytes_per_row for given in (False, True))
    assert tiny_problem().bytes_per_row == plain
    for n, expected in ((4, plain), (3.9, always)):
        monkeypatch.setattr(adapters, "free_bytes", lambda device, n=n: n * plain)
        prepared = tiny_prepared()
        assert prepared.problem().bytes_per_row == expected
        assert prepared.problem().bytes_per_row == expected  # and not once more for each problem
    assert tiny_problem(checkpointing=False).bytes_per_row == plain


def test_a_model_that_does_not_fit_as_it_is_runs_its_blocks_again(monkeypatch):
    always, make = tiny_problem(checkpointing=True).bytes_per_row, adapters.Problem
    attempts = []

    def short_of_memory(*args, **kwargs):
        attempts.append(args)
        if len(attempts) == 1:
            raise torch.cuda.OutOfMemoryError
        return make(*args, **kwargs)

    monkeypatch.setattr(adapters, "Problem", short_of_memory)
    assert tiny_prepared().problem().bytes_per_row == always


@pytest.mark.slow
def test_two_processes_make_the_same_runs():
    problem, recipe = tiny_problem(accuracy=True), whence.Recipe(steps=3, lr=0.02, batch_size=4)
    retrain = whence.Retrain(problem, recipe, batched=False)
    how = {"tasks": problem.task_names, "progress": False}
    here = whence.measure(retrain, SUBSETS, engine="inline", **how)
    there = whence.measure(retrain, SUBSETS, jobs=2, **how)
    np.testing.assert_allclose(there.values, here.values, rtol=1e-5)
