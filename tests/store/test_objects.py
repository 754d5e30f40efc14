"""Keys: what every store, file system and URL takes without escaping, and nothing else."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import BadKey
from headwater.core.limits import KEY_MAX_BYTES, KEY_MAX_SEGMENTS, KEY_SEGMENT_MAX_BYTES
from headwater.store import check_key, check_prefix
from headwater.store.objects import RESERVED_SEGMENT

ALPHABET = string.ascii_letters + string.digits + "._=-"
segments = st.text(ALPHABET, min_size=1, max_size=20).filter(lambda s: s not in (".", ".."))
keys = st.lists(segments, min_size=1, max_size=6).map("/".join)


@given(keys)
def test_segments_of_the_alphabet_make_a_key(key: str) -> None:
    if key.split("/")[0] == RESERVED_SEGMENT:
        return
    assert check_key(key) == key


@given(keys, st.characters(exclude_characters=ALPHABET + "/"), st.integers(0, 200))
def test_any_other_character_is_refused_and_named(key: str, wrong: str, place: int) -> None:
    place %= len(key) + 1
    with pytest.raises(BadKey) as refused:
        check_key(key[:place] + wrong + key[place:])
    assert repr(wrong) in str(refused.value)


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "../a"])
def test_empty_and_dotted_segments_are_refused(key: str) -> None:
    with pytest.raises(BadKey, match="segment"):
        check_key(key)


@pytest.mark.parametrize("key", ["a b", "a\nb", "a\\b", "a%2Fb", "é", "a~", "a#b", "a?b", "١"])
def test_what_would_need_escaping_is_refused(key: str) -> None:
    with pytest.raises(BadKey, match="keys are made of"):
        check_key(key)


@pytest.mark.parametrize("key", ["...", ".a", "a.", "..a", "=", "-", "_", "date=2026-01-01/x.y"])
def test_dots_dashes_and_equal_signs_are_fine_inside(key: str) -> None:
    assert check_key(key) == key


def test_a_segment_has_a_longest_length() -> None:
    longest = "s" * KEY_SEGMENT_MAX_BYTES
    assert check_key(f"a/{longest}") == f"a/{longest}"
    with pytest.raises(BadKey, match="KEY_SEGMENT_MAX_BYTES"):
        check_key(f"a/{longest}s")


def test_a_key_has_a_longest_length() -> None:
    longest = "/".join(["s" * 99] * (KEY_MAX_BYTES // 100 + 1))[: KEY_MAX_BYTES - 1] + "t"
    assert len(check_key(longest)) == KEY_MAX_BYTES
    with pytest.raises(BadKey, match="KEY_MAX_BYTES"):
        check_key(longest + "t")


def test_a_key_has_a_largest_number_of_segments() -> None:
    deepest = "/".join("a" * KEY_MAX_SEGMENTS)
    assert check_key(deepest) == deepest
    with pytest.raises(BadKey, match="KEY_MAX_SEGMENTS"):
        check_key(deepest + "/a")


def test_the_reserved_folder_is_refused_at_the_top_only() -> None:
    for key in (RESERVED_SEGMENT, f"{RESERVED_SEGMENT}/tmp/x"):
        with pytest.raises(BadKey, match="reserved"):
            check_key(key)
    assert check_key(f"a/{RESERVED_SEGMENT}")


def test_a_prefix_is_a_folder() -> None:
    assert check_prefix("") == ""
    assert check_prefix("a/b") == check_prefix("a/b/") == "a/b/"


@pytest.mark.parametrize("prefix", ["/", "//", "a//", "/a", "..", RESERVED_SEGMENT, "a b"])
def test_a_prefix_obeys_the_rules_of_keys(prefix: str) -> None:
    with pytest.raises(BadKey):
        check_prefix(prefix)


@pytest.mark.parametrize(
    "key", ["räume/水.batch", "a b/c", "a%20b", "a~b#c", "a+b/c&d;e:f@g,h$", "x" * 1024]
)
def test_a_key_that_other_software_chose_is_taken_as_it_is(key: str) -> None:
    assert check_key(key, foreign=True) == key


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "../a", "a/../../b", ".", ".headwater/locks/00", "a\nb", "x" * 1025],
)
def test_a_foreign_key_leads_nowhere_else(key: str) -> None:
    with pytest.raises(BadKey):
        check_key(key, foreign=True)
