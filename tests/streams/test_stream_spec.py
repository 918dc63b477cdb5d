"""A stream from a line of text, a TOML table or Python is the same stream."""

import tomllib
from typing import Literal, get_args, get_origin

import pytest
import torch

import onepass
from onepass import Blurry, ClassIncremental, InputError, LongTail, OnepassError, UnknownNameError
from onepass.streams import STREAMS, make_stream, parse_stream
from onepass.streams.classes import Tasks

SPECS = {
    "class-incremental": (
        "class-incremental",
        "",
        lambda data: ClassIncremental(data, 5, 10, "natural", 3, True),
    ),
    "class-incremental:tasks=2,batch=7,class_order=shuffled,boundaries=false": (
        "class-incremental",
        'tasks = 2\nbatch = 7\nclass_order = "shuffled"\nboundaries = false',
        lambda data: ClassIncremental(data, 2, 7, "shuffled", 3, False),
    ),
    "long-tail:tasks=10": (
        "long-tail",
        "tasks = 10",
        lambda data: LongTail(data, rho=100, tasks=10, seed=3),
    ),
    "long-tail:rho=12.5,class_order=natural": (
        "long-tail",
        'rho = 12.5\nclass_order = "natural"',
        lambda data: LongTail(data, rho=12.5, seed=3),
    ),
    "blurry:n=30,m=2.5,batch=3": (
        "blurry",
        "n = 30\nm = 2.5\nbatch = 3",
        lambda data: Blurry(data, n=30, m=2.5, batch=3, seed=3),
    ),
    "blurry:tasks=5,boundaries=true": (
        "blurry",
        "tasks = 5\nboundaries = true",
        lambda data: Blurry(data, n=50, m=10, seed=3),
    ),
}


@pytest.fixture(scope="module")
def data():
    return onepass.load("digits")


def same(first, second):
    """Returns whether two streams are of one class and bring the same samples in the same order."""
    return (
        type(first) is type(second)
        and first.spec == second.spec
        and len(first) == len(second)
        and all(torch.equal(first.indices(i), second.indices(i)) for i in range(len(first)))
    )


@pytest.mark.parametrize("text", SPECS)
def test_a_line_of_text_makes_the_same_stream_as_python(data, text):
    _, _, build = SPECS[text]
    assert same(make_stream(data, parse_stream(text), seed=3), build(data))


@pytest.mark.parametrize("text", SPECS)
def test_a_toml_table_makes_the_same_stream_as_the_text(data, text):
    name, toml, _ = SPECS[text]
    table = tomllib.loads(f'stream = "{name}"\n{toml}')
    assert table == parse_stream(text)
    assert same(make_stream(data, table, seed=3), make_stream(data, parse_stream(text), seed=3))


@pytest.mark.parametrize("text", SPECS)
def test_a_table_written_out_is_read_back(text):
    table = parse_stream(text)
    pairs = ",".join(f"{key}={value}" for key, value in table.items() if key != "stream")
    assert parse_stream(f"{table['stream']}:{pairs}") == table


def a_value(annotation):
    """Returns a value that is not the default in any stream."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)[-1]
    return {Tasks: 2, int: 7, float: 3.5, bool: False}[annotation]


@pytest.mark.parametrize("name", STREAMS.names())
def test_every_argument_of_a_stream_can_be_given_as_text(data, name):
    said = {key: a_value(annotation) for key, annotation in STREAMS[name].arguments.items()}
    text = f"{name}:" + ",".join(f"{key}={value}" for key, value in said.items())
    assert parse_stream(text) == {"stream": name, **said}
    made = make_stream(data, parse_stream(text), seed=3)
    assert made.spec == {"stream": name, **said}
    assert made.derived["seed"] == 3
    assert len(made.tasks) == 2


@pytest.mark.parametrize("name", STREAMS.names())
def test_missing_arguments_keep_their_defaults(data, name):
    assert parse_stream(name) == parse_stream(f"{name}:") == {"stream": name}
    assert same(make_stream(data, {"stream": name}, seed=0), STREAMS[name].make(data))


def test_a_table_without_a_name_is_class_incremental(data):
    assert same(make_stream(data, {"tasks": 2}, seed=3), ClassIncremental(data, tasks=2, seed=3))


def test_spaces_do_not_matter():
    spaced = parse_stream(" long-tail : rho = 100 , class_order = shuffled ")
    assert spaced == parse_stream("long-tail:rho=100,class_order=shuffled")


def test_a_table_is_not_changed_by_making_it(data):
    table = {"stream": "long-tail", "rho": 10}
    make_stream(data, table, seed=0)
    assert table == {"stream": "long-tail", "rho": 10}


def test_the_seed_is_not_in_the_text_but_decides(data):
    first, again, other = (
        make_stream(data, parse_stream("long-tail"), seed=seed) for seed in (0, 0, 1)
    )
    assert same(first, again)
    assert not same(first, other)
    with pytest.raises(UnknownNameError, match="'seed'"):
        parse_stream("long-tail:seed=3")


# ---- errors name the wrong word and the nearest valid one


@pytest.mark.parametrize(
    ("name", "near"), [("longtail", "long-tail"), ("class_incremental", "class-incremental"),
                       ("blury", "blurry")]
)  # fmt: skip
def test_an_unknown_stream_is_answered_with_the_nearest(data, name, near):
    said = rf"unknown stream '{name}'\. Did you mean '{near}'\? Valid: blurry, class-incremental"
    with pytest.raises(UnknownNameError, match=said):
        parse_stream(f"{name}:tasks=2")
    with pytest.raises(UnknownNameError, match=said):
        make_stream(data, {"stream": name}, seed=0)


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("long-tail:roh=10", "roh", "rho"),
        ("blurry:task=2", "task", "tasks"),
        ("class-incremental:order=shuffled", "order", "class_order"),
        ("long-tail:boundary=false", "boundary", "boundaries"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(data, text, key, near):
    name = text.partition(":")[0]
    said = f"unknown key of stream '{name}' '{key}'. Did you mean '{near}'"
    with pytest.raises(UnknownNameError) as caught:
        parse_stream(text)
    assert said in str(caught.value)
    with pytest.raises(UnknownNameError) as caught:
        make_stream(data, {"stream": name, key: 1}, seed=0)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["class-incremental:rho=10", "long-tail:n=50", "blurry:rho=3"])
def test_a_key_of_another_stream_is_unknown(text):
    with pytest.raises(UnknownNameError, match="unknown key"):
        parse_stream(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("long-tail:rho=many", "rho must be a number, not 'many'"),
        ("long-tail:rho=", "rho must be a number"),
        ("long-tail:rho=true", "rho must be a number"),
        ("long-tail:rho=nan", "rho must be a number"),
        ("blurry:tasks=2.5", "tasks must be a whole number"),
        ("blurry:tasks=[[0]]", "tasks must be a whole number"),
        ("blurry:batch=ten", "batch must be a whole number"),
        ("blurry:boundaries=maybe", "boundaries must be true or false"),
        ("blurry:boundaries=0", "boundaries must be true or false"),
        ("blurry:class_order=random", "class_order must be natural or shuffled"),
        ("blurry:n", "'n' is not KEY=VALUE"),
        ("blurry:50", "'50' is not KEY=VALUE"),
    ],
)
def test_a_bad_value_is_named(text, said):
    with pytest.raises(InputError) as caught:
        parse_stream(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ['rho = "100"', "rho = true", "rho = nan", "rho = inf", "rho = 0.5", "tasks = 2.0", "tasks = 0",
     "batch = 0", 'boundaries = "false"', "boundaries = 0",
     'class_order = "random"', "class_order = 1", "batch = 2024-01-01"],
)  # fmt: skip
def test_a_bad_value_of_a_toml_table_is_named(data, line):
    table = tomllib.loads(f'stream = "long-tail"\n{line}')
    with pytest.raises(InputError, match=f"^{line.split()[0]} must"):
        make_stream(data, table, seed=0)


@pytest.mark.parametrize("line", ["stream = 3", 'stream = ["blurry"]', "[stream]\nname = 1"])
def test_a_name_that_is_not_text_is_refused(data, line):
    with pytest.raises(OnepassError):
        make_stream(data, tomllib.loads(line), seed=0)


@pytest.mark.parametrize("text", ["", ":", ":tasks=2"])
def test_a_line_without_a_name_is_refused(text):
    with pytest.raises(UnknownNameError, match="unknown stream ''"):
        parse_stream(text)


def test_a_key_given_twice_is_refused():
    with pytest.raises(InputError, match="rho"):
        parse_stream("long-tail:rho=10,rho=100")


def test_a_table_may_name_the_groups_of_classes(data):
    made = make_stream(data, tomllib.loads("tasks = [[1, 0], [2]]"), seed=0)
    assert made.tasks == [(1, 0), (2,)]


@pytest.mark.parametrize("text", ["long-tail:rho=5,tasks=2", "blurry:n=50,m=20,tasks=2"])
def test_a_streams_record_makes_it_again(data, text):
    first = make_stream(data, parse_stream(text), seed=4)
    again = make_stream(data, first.spec, seed=4)
    assert first.derived == again.derived
    assert [first.indices(i).tolist() for i in range(len(first))] == [
        again.indices(i).tolist() for i in range(len(again))
    ]


def test_common_arguments_have_the_same_default_in_all_streams():
    usual = STREAMS["class-incremental"].defaults
    for name in ("long-tail", "blurry"):
        assert usual.items() <= STREAMS[name].defaults.items()
