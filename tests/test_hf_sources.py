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
        (['{"text": "x", "label": NaN}'], "'label' must be text. Got float"),
        (['{"text": "fine \\ud83d\\ude00"}', '{"text": "\\ud83d"}'], r"line 2: \\ud83d is half of a character"),
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


def letters():
    """A tokenizer with a token per character, so that what is trained can be read."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    from language_models import transformers

    signs = ["<unk>", "\n", *map(chr, range(32, 127))]
    made = Tokenizer(models.WordLevel({sign: at for at, sign in enumerate(signs)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def pairs():
    """A tokenizer that joins a space with the letter after it, so that tokens cross the borders of turns."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    from language_models import transformers

    signs = ["<unk>", "\n", *map(chr, range(32, 127)), *(f" {chr(at)}" for at in range(33, 127))]
    made = Tokenizer(models.WordLevel({sign: at for at, sign in enumerate(signs)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r" [^\s]|[\s\S]"), "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}[system]be kind[end]\n{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content }}[end]\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
# As Qwen3 has it: the answer to the last question has room for thoughts, and earlier ones have not.
THOUGHTS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.index0 > ns.last"
    " %}<think></think>{% endif %}{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
# As DeepSeek-R1 has it: the prompt begins thoughts that are not in the chat.
PROMPTS_THOUGHTS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
)
LAST_TWO = "{% for m in messages[-2:] %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
STRIPPED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ASKS_WITH_A_SPACE = (
    "{% for m in messages %}{{ m.role.upper() }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
# No prompt for an answer, so that the model has to write all that comes after the question.
ONLY_IN_TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turns') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
)
ASKED = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1 "},
         {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]  # fmt: skip
SYSTEM = [{"role": "system", "content": "sys"}]
GREETING = [{"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        (DEFAULT_SYSTEM, ASKED, "a1 [end]\n|a2[end]\n"),
        (DEFAULT_SYSTEM, SYSTEM + ASKED, "a1 [end]\n|a2[end]\n"),
        (DEFAULT_SYSTEM, GREETING + ASKED, "hello[end]\n|a1 [end]\n|a2[end]\n"),
        (THOUGHTS, ASKED, "a1 [end]|<think></think>a2[end]"),
        (PROMPTS_THOUGHTS, ASKED, "a1 [end]|a2[end]"),
        (LAST_TWO, ASKED, "a2[end]"),
        (STRIPPED, ASKED, "a1\n|a2\n"),
        (ONLY_IN_TURNS, ASKED, "[assistant]a1 [end]|[assistant]a2[end]"),
    ],
)
def test_exactly_the_turns_of_the_assistant_are_trained(template, turns, expected):
    """Whatever a template writes around turns, or leaves out; the expected texts are written by hand."""
    made = letters()
    made.chat_template = template
    (row,) = tokenize(source({"messages": turns}), made, limit=1000).rows
    signs = made.convert_ids_to_tokens(row.ids)
    parts = ["" if at - 1 in row.places else "|" for at in row.places]
    assert "".join(part + signs[at] for part, at in zip(parts, row.places, strict=True)).lstrip("|") == expected
    assert "".join(signs) == made.apply_chat_template(turns, tokenize=False)


def test_tokens_that_cross_the_border_of_an_answer_are_trained_where_they_begin_it():
    made = pairs()
    made.chat_template = ASKS_WITH_A_SPACE
    (row,) = tokenize(source({"messages": ASKED}), made, limit=1000).rows
    signs = made.convert_ids_to_tokens(row.ids)
    assert [signs[at] for at in row.places] == [" a", "1", " ", "\n", " a", "2", "\n"]


def test_only_answers_of_a_completion_of_turns_are_trained():
    made = letters()
    made.chat_template = DEFAULT_SYSTEM
    (row,) = tokenize(source({"prompt": ASKED[:1], "completion": ASKED[1:]}), made, limit=1000).rows
    signs = made.convert_ids_to_tokens(row.ids)
    assert "".join(signs[at] for at in row.places) == "a1 [end]\na2[end]\n"
    with pytest.raises(InputError, match="row 0: the last turn must be of the role 'assistant'"):
        source({"prompt": ASKED[:1], "completion": ASKED[2:3]})


def test_chats_need_a_template():
    with pytest.raises(InputError, match=r"no chat template to write turns with. Give 'prompt' and 'completion'"):
        trained(ROWS["messages"])


def test_long_examples_keep_their_answer_and_are_counted():
    row = {"prompt": "a the very not film", "completion": "yes no"}
    assert trained(row, limit=4) == (["yes", "no", "maybe"], ["film", "yes", "no", "maybe"])
    assert trained(row, limit=3) == (["yes", "no"], ["film", "yes", "no"])
    with pytest.warns(DataWarning, match=r"^1 example had more than 5 tokens and was cut: 1 of 1 in s\.$"):
        prepare(tiny_adapted(), [source(row)], [source(ROWS["completion"])], max_length=5)
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


def test_what_all_targets_have_is_no_leak():
    """An instruction in front of all examples does not make them alike; a copy is found all the same."""
    words = [f"w{n}" for n in range(200)]
    questions = [" ".join(words[at : at + 4]) for at in range(0, 80, 4)]
    instruction = " ".join(words[100:150])

    def asking(question, system="be brief"):
        return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}, *CHAT[1:]]}

    targets = [source(*[asking(f"{instruction} {each}") for each in questions[:10]], name="val")]
    assert find_leaks([source(*[asking(f"{instruction} {each}") for each in questions[10:]])], targets) == []
    copied = asking(f"{instruction} {questions[3]}", system="be long, and take your time for it all")
    (leak,) = find_leaks([source(copied)], targets)
    assert (leak.target_place, leak.similarity) == ("row 3", 1.0)


def test_texts_without_spaces_can_be_nearly_the_same():
    one = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u6211\u4eec\u4e00\u8d77\u53bb\u516c\u56ed\u6563\u6b65"
    (leak,) = find_leaks([source({"text": one})], [source({"text": one[:-1] + "\u8dd1"}, name="val")])
    assert leak.similarity == pytest.approx((len(one) - 3) / (len(one) - 1))


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
    with pytest.raises(InputError, match="An adapter that is continued has its own layers: give 'adapter', or"):
        tiny_adapted(adapter=tmp_path, layers=1)
    with pytest.raises(InputError, match=r"there is no adapter_config.json"):
        tiny_adapted(adapter=tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}), encoding="utf-8")
    with pytest.raises(InputError, match="the adapter does not go with the model"):
        tiny_adapted(adapter=tmp_path)
