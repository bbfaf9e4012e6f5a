"""Paths of files: what is one, and what lies above and below it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidName
from leasehold.files.model import LONGEST_PATH, ancestors, below, check_directory, check_path, only

PARTS = st.text(
    st.characters(blacklist_categories=("C", "Z"), blacklist_characters="/"), min_size=1, max_size=5
).filter(lambda part: part not in {".", ".."})
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@pytest.mark.parametrize("path", ["/a", "/a/b.c", "/with space/ü", "/...", "/a" * 512])
def test_a_good_path_is_returned_as_it_is(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "begin with a slash"),
        ("a/b", "begin with a slash"),
        ("/", "empty part"),
        ("/a/", "slash at its end"),
        ("/a//b", "empty part"),
        ("/a/./b", "is . or .."),
        ("/a/..", "is . or .."),
        ("/a\nb", "can not be shown"),
        ("/a\x00", "can not be shown"),
        ("/\ud800", "can not be shown"),
        ("/" + "a" * LONGEST_PATH, "1025 characters"),
        ("/" + "😀" * 600, "2048 bytes"),
        (None, "must be text"),
        (b"/a", "must be text"),
    ],
)
def test_a_bad_path_is_refused_with_how_to_write_it(path: object, words: str) -> None:
    with pytest.raises(InvalidName, match="such as /logs/today") as refused:
        check_path(path)
    assert words in str(refused.value)


@pytest.mark.parametrize(("path", "bare"), [("/", "/"), ("/a", "/a"), ("/a/", "/a")])
def test_a_directory_may_end_with_a_slash(path: str, bare: str) -> None:
    assert check_directory(path) == bare


@pytest.mark.parametrize("path", ["", "a", "//", "/a//", "/../", None])
def test_a_bad_directory_is_refused(path: object) -> None:
    with pytest.raises(InvalidName, match="is no directory"):
        check_directory(path)


def test_ancestors_go_up_and_leave_out_the_root() -> None:
    assert ancestors("/a/b/c") == ["/a/b", "/a"]
    assert ancestors("/a") == []


@given(PATHS, PATHS)
def test_the_range_below_a_directory_holds_what_lies_below_it_and_nothing_else(
    directory: str, path: str
) -> None:
    low, high = below(directory)
    assert (low <= path < high) == path.startswith(f"{directory}/")
    assert low <= directory + path < high
    assert below("/")[0] <= path < below("/")[1]


@given(PATHS, PATHS)
def test_the_range_of_one_path_holds_it_alone(one: str, other: str) -> None:
    low, high = only(one)
    assert low <= one < high
    assert (low <= other < high) == (other == one)
    assert not low <= one + other < high
