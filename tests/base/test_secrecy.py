"""No text holds a secret, however it was written back, and a text without any stays as it is."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.base import secrecy

KEY = 'sk-ab/+"0123456789\\xyz&'
secrets = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
words = st.text(max_size=60)


@pytest.mark.slow
@given(secrets, words, words)
@example("aaaaaaaab", "a" * 7, "")
def test_no_piece_of_a_long_secret_is_left(secret: str, before: str, after: str) -> None:
    left = secrecy.redact(before + secret + after, [secret]).replace(secrecy.GONE, "\n")
    assert not any(secret[i : i + 8] in left for i in range(len(secret) - 7))


@given(secrets, words)
def test_a_text_without_it_stays(secret: str, text: str) -> None:
    forms = "\n".join(secrecy._forms(secret))
    if not any(text[i : i + 8] in forms for i in range(len(text) - 7)):
        assert secrecy.redact(text, [secret]) == text


@pytest.mark.parametrize(
    "written",
    [KEY, json.dumps(KEY)[1:-1], json.dumps(KEY)[1:-1].replace("/", "\\/"), quote(KEY, safe=""), html.escape(KEY)],
)
def test_it_is_found_as_json_urls_and_html_write_it(written: str) -> None:
    assert secrecy.redact(f"<{written}>", [KEY]) == "<(hidden)>"


def test_what_is_cut_off_is_found_and_two_that_touch_are_one() -> None:
    assert secrecy.redact("key 0123456789", ["0123456789abcdef"]) == "key (hidden)"
    assert secrecy.redact("…6789abcdef!", ["0123456789abcdef"]) == "…(hidden)!"
    assert secrecy.redact("0123456789abcdefghijklmn", ["0123456789", "abcdefghijklmn"]) == "(hidden)"


def test_a_short_one_is_found_where_it_stands_alone() -> None:
    assert secrecy.redact('{"key": "on", "one": "on."}', ["on"]) == '{"key": "(hidden)", "one": "(hidden)."}'
    assert secrecy.redact("one connection", ["on"]) == "one connection"


def test_data_is_searched_to_its_names() -> None:
    data = {"sk-0123456789": ["x sk-0123456789", 5, None, {"y": "z"}]}
    assert secrecy.redact_all(data, ["sk-0123456789"]) == {"(hidden)": ["x (hidden)", 5, None, {"y": "z"}]}


def test_a_header_s_secret_is_what_follows_its_scheme() -> None:
    basic = base64.b64encode(b"me:pass:word").decode()
    assert list(secrecy.credentials("Bearer abc")) == ["abc"]
    assert list(secrecy.credentials(f"Basic {basic}")) == [basic, "pass:word"]
    assert list(secrecy.credentials("Basic ???")) == ["???"]
    assert list(secrecy.credentials("session=a b")) == ["session=a b"]


@pytest.mark.parametrize(
    "name", ["api_key", "OPENAI_API_KEY", "authToken", "password", "client-secret", "apikey", "Authorization"]
)
def test_a_field_of_this_name_is_a_secret(name: str) -> None:
    assert secrecy.shown({name: "x", "in": [{name: ["x"]}]}) == {name: "(not stored)", "in": [{name: ["(not stored)"]}]}


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "model", "keyboard", "stop", "token_ids", "tokenizer"])
def test_a_figure_or_another_name_is_none(name: str) -> None:
    assert secrecy.shown({name: 5}) == {name: 5}
    if name != "max_tokens":
        assert secrecy.shown({name: "x"}) == {name: "x"}


def test_only_a_whole_name_is_resolved() -> None:
    environ = {"A": "1"}
    assert [secrecy.resolved(text, environ, "") for text in ("env:A", "Basic env:A", "env:A or B", "an env:A b")] == [
        "1", "Basic 1", "env:A or B", "an env:A b",
    ]  # fmt: skip
