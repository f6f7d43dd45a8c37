"""State maps on paper: what a line says, and every map that is no exact partition of the contract's parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.contract.statemap import layouts, parse
from infrarsi.errors import ContractError
from infrarsi.records import Assignment, Parameter

QKV = "State-Map: blocks.*.attn.qkv.weight = blocks.*.attn.{query,key,value}.weight; dim 0\n"
PARTS = ("query", "key", "value")
PARAMETERS = (
    *(Parameter(f"blocks.{n}.attn.{part}.weight", (4, 8), "float32") for n in range(2) for part in PARTS),
    *(Parameter(f"blocks.{n}.attn.{part}.bias", (4,), "float32") for n in range(2) for part in PARTS),
    Parameter("blocks.0.mlp.weight", (4, 2), "float32"),
    Parameter("head.weight", (6, 8), "bfloat16"),
    Parameter("frozen.weight", (4, 8), "float32", trainable=False),
    Parameter("scale", (), "float32"),
)


def refused(text):
    with pytest.raises(ContractError) as caught:
        layouts(parse(text), PARAMETERS)
    assert caught.value.code == "state-map" and caught.value.hint
    return caught.value.why


def line(text):
    return f"State-Map: {text}\n"


def test_stars_and_braces_name_a_layout_for_each_block():
    text = f"Subject: fuse\n\n{QKV}{QKV.replace('weight', 'bias').replace('State-Map', 'state-map')}\n"
    found = layouts(parse(text), PARAMETERS)
    assert [x.new for x in found] == [f"blocks.{n}.attn.qkv.{k}" for k in ("weight", "bias") for n in range(2)]
    assert found[0].pieces == tuple((f"blocks.0.attn.{part}.weight", (4, 8)) for part in PARTS)
    assert found[3].order() == {
        "new": "blocks.1.attn.qkv.bias",
        "dim": 0,
        "dtype": "float32",
        "pieces": [[f"blocks.1.attn.{part}.bias", [4]] for part in PARTS],
    }


def test_the_order_is_the_lines_order_and_spaces_do_not_matter():
    text = line("both=blocks.0.attn.value.weight ,blocks.0.attn.{ key }.weight;dim 1")
    (found,) = layouts(parse(text), PARAMETERS)
    assert [name for name, _ in found.pieces] == ["blocks.0.attn.value.weight", "blocks.0.attn.key.weight"]
    assert found.dim == 1


def test_parts_may_differ_in_the_dimension_that_they_follow_one_another_along():
    (found,) = layouts(parse(line("wide = blocks.0.attn.key.weight, blocks.0.mlp.weight; dim 1")), PARAMETERS)
    assert [shape for _, shape in found.pieces] == [(4, 8), (4, 2)]


def test_an_entry_is_a_launch_setting():
    (entry,) = parse(QKV)
    assert entry == Assignment("state_map", "blocks.*.attn.qkv.weight", "blocks.*.attn.{query,key,value}.weight; dim 0")
    others = (Assignment("flag", "--a", 1), Assignment("state_map", "taken.away", None))
    assert layouts((*others, entry), PARAMETERS) == layouts((entry,), PARAMETERS)
    assert layouts(others, PARAMETERS) == layouts((), ()) == parse("no map here") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("qkv", "has no = sign"),
        ("qkv = a, b", "is not an entry"),
        ("qkv = a, b; dim x", "is not an entry"),
        ("q v = a; dim 0", "is not an entry"),
        ("qkv = ; dim 0", "is not an entry"),
        ("qkv = a,, b; dim 0", "holds no list of names"),
        ("qkv = a}, b; dim 0", "holds no list of names"),
        ("blocks.*.qkv = blocks.*.*.q; dim 0", "differ in their number of *"),
        ("qkv = nothing; dim 0", "has no parameter nothing"),
        ("b.*.qkv = b.*.query; dim 0", "has no parameter b.*.query"),
        ("blocks.*.x = blocks.*.attn.key.weight, blocks.*.mlp.weight; dim 1", "has no parameter blocks.1.mlp.weight"),
        ("x = blocks.0.attn.{key,key}.weight; dim 0", "blocks.0.attn.key.weight is used 2 times"),
        ("x = blocks.0.attn.key.weight; dim 2", "has no dimension 2"),
        ("x = scale; dim 0", "has no dimension 0"),
        ("x = blocks.0.attn.key.weight, blocks.0.mlp.weight; dim 0", "differ beside dimension 0"),
        ("x = blocks.0.attn.key.weight, blocks.0.attn.key.bias; dim 0", "differ beside dimension 0"),
        ("x = blocks.0.attn.key.weight, head.weight; dim 0", "differ in type"),
        ("x = blocks.0.attn.key.weight, frozen.weight; dim 0", "only one of them is trained"),
        ("head.weight = blocks.0.attn.{key,value}.weight; dim 0", "must have a name of its own"),
    ],
)
def test_what_is_no_partition_is_refused_in_plain_words(text, why):
    assert why in refused(line(text))


def test_two_lines_may_not_share_a_part_or_a_name():
    assert "is used 2 times" in refused(QKV + line("x = blocks.1.attn.key.weight; dim 0"))
    twice = line("x = blocks.0.attn.key.weight; dim 0") + line("x = blocks.1.attn.key.weight; dim 0")
    assert "x is used 2 times" in refused(twice)


@given(st.permutations(PARAMETERS[:6]), st.integers(1, 6))
def test_whatever_is_fused_is_covered_once(order, count):
    """Law: the pieces of a map that is accepted are the names that it lists, each once."""
    names = [p.name for p in order[:count]]
    (found,) = layouts(parse(line(f"new = {', '.join(names)}; dim 1")), PARAMETERS)
    assert [name for name, _ in found.pieces] == names
