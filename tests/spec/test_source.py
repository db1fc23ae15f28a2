"""YAML is read as YAML 1.2, strictly, and every key knows its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegen.proto.errors import InputError
from tracegen.spec.source import assign, dump, merge, parse, parse_override, read_file


def read(text: str) -> dict[str, Any]:
    return parse(text, "s.yaml").data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e15", 10**15),
        ("1.0e15", 1e15),
        ("1.0e+15", 1e15),
        ("1_000", 1000),
        ("40e6", 40_000_000),
        ("8", 8),
        ("8.0", 8.0),
        (".5", 0.5),
        ("-3", -3),
        ("0x10", 16),
        ("0o17", 15),
        ("0", 0),
        ("0.25", 0.25),
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("'8'", "8"),
        ('"true"', "true"),
        ("400 GB/s", "400 GB/s"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_k17_scalars_as_yaml_1_2_means_them(text: str, value: object) -> None:
    found = read(f"key: {text}")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["010", "-010", "007", "01.5", "00"])
def test_k16_leading_zeros_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=rf"s\.yaml:2: {text} has leading zeros; write"):
        read(f"a: 1\nkey: {text}")


def test_k18_duplicate_keys_are_refused_with_both_lines() -> None:
    with pytest.raises(InputError, match=r"s\.yaml:4 split\.tp: written on line 2 and again on line 4; keep one"):
        read("split:\n  tp: 8\n  pp: 1\n  tp: 2\n")


def test_k18_merge_keys_still_work() -> None:
    source = parse("a: &a {tp: 8, pp: 4}\nb:\n  <<: *a\n  tp: 2\nc:\n  <<: [*a, {dp: 3, pp: 9}]\n", "s.yaml")
    assert source.data["b"] == {"tp": 2, "pp": 4}
    assert source.data["c"] == {"tp": 8, "pp": 4, "dp": 3}  # the first of several wins
    assert source.place("b", "tp") == "s.yaml:4"
    assert source.place("b", "pp") == "s.yaml:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "s.yaml: is empty"),
        ("# only a comment\n", "s.yaml: is empty"),
        ("- 1\n- 2\n", "s.yaml:1: is a list"),
        ("hello", "s.yaml:1: is text"),
        ("a: b: c", "s.yaml:1: is no YAML"),
        ("a: 1\nb: [1,", "s.yaml:2: is no YAML"),
        ("a: 1\n\tb: 2", "s.yaml:2: is no YAML"),
        ("a: 1\n---\nb: 1\n", "s.yaml:2: is no YAML"),
        ("a: *missing", "s.yaml:1: is no YAML"),
        ("a: &a [*a]", "refers to itself"),
        ("a: &a {<<: *a}", "refers to itself"),
        ("a: !!python/object:os.system {}", "s.yaml:1: tag"),
        ("a: !mine 3", "s.yaml:1: tag !mine"),
        ("? [1]\n: 2", "s.yaml:1: a key must be text"),
        ("a: {<<: 3}", "s.yaml:1: << takes a mapping"),
    ],
)
def test_text_that_is_no_spec_is_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_laughing_bomb_is_refused() -> None:
    text = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
    )
    with pytest.raises(InputError, match="too large"):
        read(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe\x00\x80", "not UTF-8"), (b"a: \x00", "zero byte"), (b"\x89PNG\r\n\x1a\n\x00", "not UTF-8")],
)
def test_a_binary_file_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_file(file, "x.yaml")


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^x.yaml: no such file \({tmp_path}/x.yaml\)$"):
        read_file(tmp_path / "x.yaml", "x.yaml")
    with pytest.raises(InputError, match=r"^here: is a folder"):
        read_file(tmp_path, "here")


def test_places_reach_into_lists_and_fall_back_to_the_key_above() -> None:
    source = parse("a:\n  - {x: 1}\n  - x: 2\n    y: 3\n", "s.yaml")
    assert source.place("a", 1, "y") == "s.yaml:4"
    assert source.place("a", 1, "z") == "s.yaml:3"
    assert source.place("q") == "s.yaml:1"


def test_an_override_makes_mappings_on_the_way_and_names_itself() -> None:
    source = parse("a: {b: 1, c: [1, {d: 2}]}\n", "s.yaml")
    for text, path in (("a.b=3", ("a", "b")), ("a.c.1.d=7", ("a", "c", 1, "d")), ("x.y.z={k: 1}", ("x", "y", "z"))):
        given_path, value = parse_override(text)
        assert given_path == path
        source = assign(source, given_path, value)
        assert source.place(*path) == f"--set {text}"
    assert source.data == {"a": {"b": 3, "c": [1, {"d": 7}]}, "x": {"y": {"z": {"k": 1}}}}
    assert source.place("a", "c") == "s.yaml:1"


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".a=1", "a.=1"])
def test_an_override_that_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write key=value"):
        parse_override(text)


@pytest.mark.parametrize(("text", "said"), [("a.b.c=1", "a.b is a number"), ("a.l.5=1", "a.l is a list of 2")])
def test_an_override_below_what_has_no_such_key_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        assign(parse("a: {b: 1, l: [1, 2]}", "s.yaml"), *parse_override(text))


def test_merge_goes_key_by_key_and_keeps_places() -> None:
    base = parse("a: {b: 1, c: 2}\nd: [1, 2]\n", "base.yaml")
    over = parse("\n\na: {c: 3}\nd: [9]\n", "over.yaml")
    merged = merge(base, over)
    assert merged.data == {"a": {"b": 1, "c": 3}, "d": [9]}
    assert merged.place("a", "b") == "base.yaml:1"
    assert merged.place("a", "c") == "over.yaml:3"
    assert merged.place("d", 0) == "over.yaml:4"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85\xa0"), max_size=12)
    | st.sampled_from(["010", "1e5", "true", "null", "<<", "1_0", "~", "", "0x1F", "450000000000.0 B/s"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("uvwxyz"), plain, min_size=1, max_size=4))
def test_what_is_dumped_reads_back_equal(document: dict[str, Any]) -> None:
    assert read(dump(document)) == document
    assert list(read(dump(document))) == list(document)
