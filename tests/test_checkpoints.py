"""Checkpoints and adapters that people have already, merged without training: by files, held against their weights."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import whence
from whence import DataWarning, InputError, Problem, Recipe, TaskVectors
from whence.icl import import_transformers

NAMES = ("code", "law", "news")
SUBSETS = np.array([[1.0, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0], [0.5, 0, 1.5]])
QUERIES = (torch.randn(9, 4, generator=torch.Generator().manual_seed(9)), torch.arange(9) % 3)


def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(model, seed):
    """A model after some steps on data of its own."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    inputs, labels = torch.randn(30, 4, generator=generator), torch.randint(3, (30,), generator=generator)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


MODELS = {name: trained(base(), seed) for seed, name in enumerate(NAMES)}


def averaged(subset):
    """Loss of the plain average of the checkpoints of a subset."""
    model, weights = base(), torch.tensor(subset) / max(sum(subset), 1e-9)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += sum(w * (MODELS[k].get_parameter(name) - value) for k, w in zip(NAMES, weights, strict=True))
        return float(nn.functional.cross_entropy(model(QUERIES[0]), QUERIES[1]))


EXPECTED = [averaged(subset.tolist()) for subset in SUBSETS]


def as_sharded(state, folder):
    folder.mkdir()
    files = {name: f"model-{i}.safetensors" for i, name in enumerate(state)}
    for name, file in files.items():
        save_file({name: state[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def as_folder(state, folder):
    folder.mkdir()
    save_file(state, folder / "model.safetensors")


FORMS = {
    "safetensors": (".safetensors", save_file),
    "torch": (".pt", torch.save),
    "of a trainer": (".ckpt", lambda state, path: torch.save({"epoch": 3, "state_dict": state}, path)),
    "of several devices": (".pt", lambda s, path: torch.save({f"module.{k}": v for k, v in s.items()}, path)),
    "half precision": (".pt", lambda s, path: torch.save({k: v.half() for k, v in s.items()}, path)),
    "folder": ("", as_folder),
    "parts": ("", as_sharded),
}


@pytest.mark.parametrize("form", FORMS)
def test_checkpoints_in_files_are_merged_as_their_average(form, tmp_path):
    suffix, save = FORMS[form]
    paths = {name: tmp_path / f"{name}{suffix}" for name in NAMES}
    for name, path in paths.items():
        save(MODELS[name].state_dict(), path)
    found = TaskVectors.from_checkpoints(paths, Problem(base(), list(NAMES), QUERIES))
    tolerance = 1e-3 if form == "half precision" else 1e-5
    np.testing.assert_allclose(found.batch(SUBSETS)["loss"], EXPECTED, rtol=tolerance)


def test_models_and_mappings_are_checkpoints_too_and_measured_like_any_estimate(tmp_path):
    problem = Problem(base(), list(NAMES), QUERIES)
    given = {"code": MODELS["code"], "law": MODELS["law"].state_dict(), "news": dict(MODELS["news"].named_parameters())}
    vectors = TaskVectors.from_checkpoints(given, problem)
    runs = whence.measure(vectors, SUBSETS, path=tmp_path / "run")
    np.testing.assert_allclose(runs.values[:, 0], EXPECTED, rtol=1e-5)
    assert runs.provenance["outcomes"] == "merged checkpoints"
    with pytest.raises(InputError, match="begun with something else: checkpoint of law"):
        whence.measure(
            TaskVectors.from_checkpoints({**given, "law": MODELS["code"]}, problem), SUBSETS, path=tmp_path / "run"
        )
    assert vectors.by("outputs").batch(SUBSETS[1:2])["loss"] == pytest.approx(EXPECTED[1:2], rel=1e-5)
    with pytest.raises(InputError, match="need no training"):
        vectors.train()


def test_with_examples_they_are_the_task_vectors_that_training_gives():
    tasks = {name: (torch.randn(n, 4), torch.arange(n) % 3) for name, n in zip(NAMES, (5, 8, 11), strict=True)}
    problem = Problem(base(), tasks, QUERIES)
    vectors = TaskVectors(problem, Recipe(steps=5, lr=0.01))
    made = [{k: problem.start[k] + delta[k] for k in delta} for delta in vectors.vectors.deltas]
    found = TaskVectors.from_checkpoints(dict(zip(NAMES, made, strict=True)), problem)
    assert found.weighting == "sample"
    np.testing.assert_allclose(found.batch(SUBSETS)["loss"], vectors.batch(SUBSETS)["loss"], rtol=1e-5)


def bad(change):
    state = {name: value.clone() for name, value in MODELS["law"].state_dict().items()}
    change(state)
    return state


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"law": bad(lambda s: s.pop("2.bias"))}, r"checkpoint of 'law' has no tensor '2\.bias'"),
        ({"law": {"2.weight_": torch.zeros(3)}}, r"has no tensor '0\.weight'. Did you mean '2\.weight_'"),
        (
            {"law": bad(lambda s: s.update({"2.bias": torch.zeros(7)}))},
            r"'2\.bias' of the checkpoint of 'law' must have shape \(3,\), as in the model\. Got \(7,\)",
        ),
        ({"law": bad(lambda s: s["0.bias"].fill_(torch.nan))}, r"'law' holds NaN or infinite numbers in '0\.bias'"),
        ({"law": "nowhere.safetensors"}, "no such file"),
        ({"law": "nowhere"}, "no such file"),
        ({"laws": MODELS["law"]}, r"must be a checkpoint for each task of the problem \(code, law, news\)"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused_by_the_name_of_the_tensor(given, text):
    wanted = {name: given.get(name, MODELS[name]) for name in NAMES} if "laws" not in given else given
    with pytest.raises(InputError, match=text):
        TaskVectors.from_checkpoints(wanted, Problem(base(), list(NAMES), QUERIES)).batch(SUBSETS)


class Loaded:
    """What no checkpoint may run."""

    def __reduce__(self):
        return print, ("run",)


def test_files_with_anything_but_tensors_are_refused(tmp_path, capsys):
    problem = Problem(base(), ["code"], QUERIES)
    torch.save({"model": Loaded()}, tmp_path / "code.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"not a file of tensors")
    (tmp_path / "empty").mkdir()
    torch.save([1, 2], tmp_path / "list.pt")
    for name, text in (
        ("code.pt", "holds more than tensors"),
        ("broken.safetensors", "cannot be read"),
        ("empty", "has neither adapter_config.json nor model.safetensors"),
        ("list.pt", "must hold tensors by name"),
    ):
        with pytest.raises(InputError, match=text):
            TaskVectors.from_checkpoints({"code": tmp_path / name}, problem).batch([[1]])
    assert "run" not in capsys.readouterr().out


def test_another_base_and_tensors_too_many_are_warned_of():
    problem = Problem(base(), ["code"], QUERIES)
    torch.manual_seed(5)
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.warns(DataWarning, match=r"little in common with the model \(correlation -?0.\d\d of '0.weight'\)"):
        TaskVectors.from_checkpoints({"code": other}, problem).batch([[1]])
    more = {**MODELS["code"].state_dict(), "head.weight": torch.zeros(1)}
    with pytest.warns(DataWarning, match="has 'head.weight', not in the model"):
        TaskVectors.from_checkpoints({"code": more}, problem).batch([[1]])


def test_names_without_examples_are_for_checkpoints_alone():
    problem = Problem(base(), list(NAMES), QUERIES)
    for method in (
        lambda: whence.Retrain(problem, Recipe(steps=1))([1, 0, 0], 0),
        lambda: TaskVectors(problem, Recipe(steps=1)).batch(SUBSETS),
        lambda: whence.GradEx(problem),
        lambda: whence.OneStep(problem).batch(SUBSETS),
    ):
        with pytest.raises(InputError, match="names without examples"):
            method()
    norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(InputError, match="batch normalisation"):
        TaskVectors.from_checkpoints({"a": norm}, Problem(norm, ["a"], QUERIES))


# ---- adapters --------------------------------------------------------------------------------------------

transformers = import_transformers()  # before peft, which imports it with whatever torchvision there is
IDS = torch.randint(3, 20, (6, 7), generator=torch.Generator().manual_seed(0))


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, attn_implementation="eager", tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def adapters(tmp_path, **options):
    """Folders of adapters as peft writes them, and the models that peft merges them into."""
    peft = pytest.importorskip("peft")
    folders, merged = {}, {}
    for seed, name in enumerate(("code", "law")):
        config = peft.LoraConfig(r=2 + seed, lora_alpha=6, target_modules=["q_proj", "down_proj"], **options)
        model = peft.get_peft_model(llama(), config)
        torch.manual_seed(seed)
        with torch.no_grad():
            for value in model.parameters():
                if value.requires_grad:
                    value += 0.3 * torch.randn_like(value)
        folders[name] = tmp_path / name
        model.save_pretrained(folders[name])
        merged[name] = model.merge_and_unload()
    return folders, merged


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"alpha_pattern": {"down_proj": 12}}], ids=str)
def test_adapters_of_peft_add_their_products_to_the_model(tmp_path, options):
    folders, merged = adapters(tmp_path, **options)
    problem = Problem(llama(), list(folders), ({"input_ids": IDS}, IDS), loss="next_token")
    found = TaskVectors.from_checkpoints(folders, problem).batch([[1, 0], [0, 1], [1, 1]])["loss"]
    both = llama()
    with torch.no_grad():
        for key, value in both.named_parameters():
            value.copy_((merged["code"].get_parameter(key) + merged["law"].get_parameter(key)) / 2)
        expected = [float(model(input_ids=IDS, labels=IDS).loss) for model in (*merged.values(), both)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_adapters_of_the_model_are_merged_as_products(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"])
    folders = {}
    for seed, name in enumerate(("code", "law")):
        model = peft.get_peft_model(llama(), config)
        torch.manual_seed(seed)
        with torch.no_grad():
            for _, value in model.named_parameters():
                value += 0.3 * torch.randn_like(value) * value.requires_grad
        folders[name] = tmp_path / name
        model.save_pretrained(folders[name])
    target = ({"input_ids": IDS}, IDS)
    on_base = Problem(llama(), list(folders), target, loss="next_token")
    on_adapter = Problem(peft.get_peft_model(llama(), config), list(folders), target, loss="next_token")
    assert on_adapter.n_trained < on_base.n_trained
    rows = [[1, 0], [0, 1], [1, 1], [1, 0.5]]
    by_weights, by_factors = (
        TaskVectors.from_checkpoints(folders, problem).batch(rows)["loss"] for problem in (on_base, on_adapter)
    )
    np.testing.assert_allclose(by_factors, by_weights, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peft_type": "IA3"}, "adapter of the kind IA3: only LoRA"),
        ({"use_dora": True}, "adapter of the kind DoRA"),
        ({"base_model_name_or_path": "other"}, "The adapters are of different models"),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(tmp_path, change, text):
    folders, _ = adapters(tmp_path)
    for name, more in (("code", {"base_model_name_or_path": "llama"}), ("law", change)):
        file = folders[name] / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "llama"} | more))
    problem = Problem(llama(), list(folders), ({"input_ids": IDS}, IDS), loss="next_token")
    with pytest.raises(InputError, match=text):
        TaskVectors.from_checkpoints(folders, problem).batch([[1, 1]])


def test_an_adapter_of_another_model_is_refused_by_its_tensor(tmp_path):
    folders, _ = adapters(tmp_path)
    problem = Problem(llama(), list(folders), ({"input_ids": IDS}, IDS), loss="next_token", params="*q_proj*")
    with pytest.raises(InputError, match=r"changes 'model\.layers\.0\.mlp\.down_proj\.weight', which is not a trained"):
        TaskVectors.from_checkpoints(folders, problem).batch([[1, 1]])
