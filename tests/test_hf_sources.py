"""Sources as they are read: formats, what is refused and where, tokens and which of them are trained."""

import json
import warnings

import pytest

from finetuning import tiny_adapted, tokenizer, write_jsonl
from whence.errors import DataWarning, InputError
from whence.hf import Source, find_leaks, load, prepare, read_sources, sources_of, warn_of_leaks
from whence.hf.sources import Record
from whence.hf.tokens import tokenize
from whence.icl.prompts import Template

CHAT = [{"role": "user", "content": "good film"}, {"role": "assistant", "content": "yes"}]
ROWS = {
    "messages": {"messages": CHAT},
    "completion": {"prompt": "good film", "completion": " yes"},
    "label": {"text": "good film", "label": "yes"},
    "text": {"text": "good film"},
}


def source(*rows, name="s"):
    return sources_of([{**row, "source": name} for row in rows])[0]


def trained(row, **how):
    """The words of an example that are trained, and all of them."""
    chat = how.pop("chat", False)
    made = tokenizer(chat=chat)
    made.eos_token = "maybe"
    (found,) = tokenize(source(row), made, limit=how.pop("limit", 100), **how).rows
    words = made.convert_ids_to_tokens(found.ids)
    return [words[place] for place in found.places], words


@pytest.mark.parametrize("format_", ROWS)
def test_formats_are_known_by_their_fields(format_, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [ROWS[format_], {**ROWS[format_], "extra": 1}])
    (found,) = read_sources([tmp_path / "a.jsonl"])
    assert (found.name, found.format, len(found)) == ("a", format_, 2)
    assert found.records[1].place.endswith("a.jsonl, line 2")


def test_a_column_names_the_sources(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "from": "web"}, {"text": "y", "from": "law"}])
    assert [found.name for found in read_sources([tmp_path / "a.jsonl"], column="from")] == ["web", "law"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"text": "x"', '{"text": "y"}'], "a.jsonl, line 1: this is not JSON"),
        (['{"text": "x"}', "3"], "line 2: there must be an object"),
        ([""], "there is nothing in it. Give one JSON object per line, with 'messages'"),
        (['{"question": "x"}'], "line 1: the fields must be 'messages', .* Got 'question'"),
        (['{"text": "x"}', '{"prompt": "x", "completion": "y"}'], "line 2: the fields are .* A source has one format"),
        (['{"text": ""}'], "'text' is empty"),
        (['{"text": 3}'], "'text' must be text. Got int"),
        (['{"messages": []}'], "'messages' is empty"),
        (['{"messages": "hello"}'], "'messages' must be a list of turns"),
        (['{"messages": [{"role": "user"}]}'], "must hold turns such as"),
        (['{"messages": [{"role": "user", "content": "x"}]}'], "the last turn must be of the role 'assistant'"),
        (['{"prompt": "x", "completion": [{"role": "assistant", "content": "x"}]}'], "both text, or both lists"),
    ],
)
def test_bad_lines_are_named_with_what_was_expected(lines, message, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_sources([tmp_path / "a.jsonl"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no rows"),
        ([{"text": "x"}], "row 0: there is no 'source'"),
        (["x"], "row 0: there must be a mapping"),
    ],
)
def test_bad_datasets_are_refused(rows, message):
    with pytest.raises(InputError, match=message):
        sources_of(rows)


def test_files_of_one_name_and_no_files_are_refused(tmp_path):
    (tmp_path / "b").mkdir()
    files = [write_jsonl(tmp_path / place, [{"text": "x"}]) for place in ("a.jsonl", "b/a.jsonl")]
    with pytest.raises(InputError, match="Given twice: a"):
        read_sources(files)
    with pytest.raises(InputError, match="no sources"):
        read_sources([])
    with pytest.raises(InputError, match="cannot be read"):
        read_sources([tmp_path / "none.jsonl"])


def test_prompts_are_not_trained():
    assert trained(ROWS["completion"])[0] == ["yes", "maybe"]
    assert trained(ROWS["text"])[0] == ["film", "maybe"]  # nothing comes before the first word
    assert trained(ROWS["label"], template=Template("Text: {text} Label: {label}"))[0] == ["yes"]


def test_turns_of_the_assistant_are_trained():
    answers, words = trained({"messages": [*CHAT, {"role": "user", "content": "dull"},
                                           {"role": "assistant", "content": "no"}]}, chat=True)  # fmt: skip
    assert words == [
        "Text:",
        "good",
        "film",
        "<s>",
        "Label:",
        "yes",
        "<s>",
        "Text:",
        "dull",
        "<s>",
        "Label:",
        "no",
        "<s>",
    ]
    assert answers == ["yes", "<s>", "no", "<s>"]
    assert trained({"prompt": CHAT[:1], "completion": CHAT[1:]}, chat=True)[0] == ["yes", "<s>"]


def test_chats_need_a_template():
    with pytest.raises(InputError, match=r"no chat template to write turns with. Give 'prompt' and 'completion'"):
        trained(ROWS["messages"])


def test_long_examples_keep_their_answer_and_are_counted():
    row = {"prompt": "a the very not film", "completion": "yes no"}
    assert trained(row, limit=4) == (["yes", "no", "maybe"], ["film", "yes", "no", "maybe"])
    assert trained(row, limit=3) == (["yes", "no"], ["film", "yes", "no"])
    adapted, given = tiny_adapted(), [source(row, ROWS["completion"])]
    with pytest.warns(DataWarning, match=r"2 examples had more than 5 tokens and were cut: 1 of 2 in s, 1 of 2 in s."):
        prepared = prepare(adapted, given, given, max_length=5)
    assert [rows.n_cut for rows in prepared.tasks] == [1]


def test_examples_of_similar_length_come_together():
    rows = [{"text": "film " * n} for n in (2, 5, 3)]
    prepared = prepare(tiny_adapted(), [source(*rows)], [source(*rows)], per_query=True)
    assert [len(row.ids) for row in prepared.tasks[0].rows] == [5, 3, 2]
    assert [len(row.ids) for row in prepared.targets[0].rows] == [2, 5, 3]  # each query is an outcome, in its order
    assert prepared.tokens == {"s": 10}


LONG = "one two three four five six seven eight nine ten eleven twelve"


@pytest.mark.parametrize(
    ("in_source", "similarity"),
    [(LONG, 1.0), (LONG.upper().replace(" ", "  "), 1.0), (f"{LONG} more", 10 / 11), ("other text it is", None)],
)
def test_targets_in_sources_are_found(in_source, similarity):
    sources = [source({"text": "nothing of it"}, {"text": in_source})]
    targets = [source({"text": LONG}, name="val")]
    found = find_leaks(sources, targets)
    assert [round(leak.similarity, 6) for leak in found] == ([] if similarity is None else [round(similarity, 6)])
    if found:
        assert (found[0].source_place, found[0].target_place) == ("row 1", "row 0")


def test_likeness_is_the_share_of_common_shingles():
    """Against sets of words in a row, made in another way, for many random texts."""
    import random

    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcd", k=draw.randint(3, 9))) for _ in range(40)]

    def shingles(text):
        words = text.split()
        return set(zip(words, words[1:], words[2:], strict=False))

    sources, targets = ([Source(n, "text", tuple(Record({"text": t}, t) for t in part))] for n, part in
                        (("s", texts[:20]), ("t", texts[20:])))  # fmt: skip
    found = {leak.target_place: leak.similarity for leak in find_leaks(sources, targets)}
    for text in texts[20:]:
        best = max(
            1.0 if other == text else len(shingles(text) & shingles(other)) / len(shingles(text) | shingles(other))
            for other in texts[:20]
        )
        assert found.get(text, 0.0) == pytest.approx(best if best >= 0.8 else 0.0)


def test_labels_do_not_hide_a_leak_and_it_is_said():
    sources = [source({"text": LONG, "label": "no"}, name="web")]
    leaks = find_leaks(sources, [source({"text": LONG, "label": "yes"}, name="val")])
    with pytest.warns(DataWarning, match="The source 'web' holds 1 example of the targets, .* row 0 is row 0"):
        warn_of_leaks(leaks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_leaks([])


def test_models_that_cannot_be_loaded_are_named(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        load(tmp_path / "none")
    with pytest.raises(InputError, match=r"there is no config.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="this is not JSON"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"'rank' parameter of hf.load must be a whole number"):
        load(tmp_path, rank=0)


def test_layers_that_are_not_there_are_named():
    with pytest.raises(InputError, match=r"No layer of the model is named queries. There are: q_proj, k_proj"):
        tiny_adapted(modules=["queries"])


def test_adapters_that_are_none_are_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no adapter_config.json"):
        tiny_adapted(adapter=tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}), encoding="utf-8")
    with pytest.raises(InputError, match="the adapter does not go with the model"):
        tiny_adapted(adapter=tmp_path)
