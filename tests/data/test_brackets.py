"""Gold bracket pairs by hand: which opener matches, and what the simple rules would say."""

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from andrea_jax.data import Tokenizer, bracket_windows
from andrea_jax.data.brackets import gold_pairs, token_pairs
from andrea_jax.data.tokenizer import BYTE_CHARACTERS, imported, train_bpe

#       0123456789...       openers 1 ( 3 [ 6 ( 11 { 15 (    closers 5 ] 8 ) 17 ) 18 } 19 )
LINE = "f(a[b](c), {d: (e)})"
PAIRS = {(1, 19), (3, 5), (6, 8), (11, 18), (15, 17)}


def places(text: str) -> list[tuple[int, int]]:
    pairs = gold_pairs(text)
    return list(zip(pairs.opener.tolist(), pairs.closer.tolist(), strict=True))


def trimmed(row: np.ndarray) -> list[int]:
    return [int(position) for position in row if position >= 0]


@pytest.fixture
def windows(dataset_of):
    return bracket_windows(dataset_of({"t.py": "x"}, {"h.py": LINE}), seq_len=21, n=5, seed=0)


def test_the_hand_case_has_its_five_pairs():
    assert set(places(LINE)) == PAIRS


def test_positions_in_a_window_count_its_bos(windows):
    assert windows.tokens.tolist() == [[0, *(byte + 1 for byte in LINE.encode())]]
    assert set(zip(windows.opener.tolist(), windows.closer.tolist(), strict=True)) == {(a + 1, b + 1) for a, b in PAIRS}
    assert (windows.sequence == 0).all() and windows.n == 5 and windows.reason == ""


@pytest.mark.parametrize(
    ("closer", "opener", "depth", "nearest", "nearest_same_type", "openers", "same_type", "unclosed"),
    [
        (6, 4, 2, 4, 4, [2, 4], [4], [2, 4]),
        (9, 7, 2, 7, 7, [2, 4, 7], [2, 7], [2, 7]),
        (18, 16, 3, 16, 16, [2, 4, 7, 12, 16], [2, 7, 16], [2, 12, 16]),
        (19, 12, 2, 16, 12, [2, 4, 7, 12, 16], [12], [2, 12]),  # hard: "(" is nearer than the matching "{"
        (20, 2, 1, 16, 16, [2, 4, 7, 12, 16], [2, 7, 16], [2]),  # hardest: even the nearest "(" is closed
    ],
)
def test_each_closer_carries_its_match_and_what_the_rules_say(
    windows, closer, opener, depth, nearest, nearest_same_type, openers, same_type, unclosed
):
    row = windows.closer.tolist().index(closer)
    found = (windows.opener[row], windows.depth[row], windows.nearest[row], windows.nearest_same_type[row])
    assert found == (opener, depth, nearest, nearest_same_type)
    assert windows.distance[row] == closer - opener
    assert trimmed(windows.openers[row]) == openers
    assert trimmed(windows.same_type[row]) == same_type
    assert trimmed(windows.unclosed[row]) == unclosed
    assert windows.hard[row] == (closer in (19, 20))
    assert windows.hardest[row] == (closer == 20)


def test_every_position_knows_its_innermost_unclosed_opener(windows):
    #     BOS f ( a [ b ] ( c ) , _ { d : _ ( e ) } )
    row = [-1, -1, -1, 2, 2, 4, 2, 2, 7, 2, 2, 2, 2, 12, 12, 12, 12, 16, 12, 2, -1]
    assert windows.innermost.dtype == np.int32 and windows.innermost.tolist() == [row]


def test_empty_pairs_and_those_with_a_bracket_outside_the_window_are_innermost_too(dataset_of):
    #       0123456789012345   openers 1 ( 3 ( 8 [ 11 (   closers 4 ) 13 ) 14 ] 15 ); "( )" at 11 holds a space
    text = "f(g(), x[1,( )])"
    innermost = [-1, -1, 1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 11, 8, 1, -1]  # of each byte, by hand
    windows = bracket_windows(dataset_of({"t.py": "x"}, {"h.py": text}), seq_len=10, n=9, seed=0)
    assert windows.n == 1  # "[1,( )]": "(g...)" does not fit into 9 tokens, the two others are empty
    start = text.index(bytes(int(i) - 1 for i in windows.tokens[0, 1:]).decode())
    assert 0 < start < 9
    expected = [-1] + [i - start + 1 if i >= start else -1 for i in innermost[start : start + 9]]
    assert windows.innermost.tolist() == [expected]


def test_a_pair_scored_in_another_window_is_innermost_in_this_one_as_well(dataset_of):
    text = "".join(f"f(a[{i}], b)\n" for i in range(10))  # 11 bytes a line: ( at 1, [ at 3, ] at 5, ) at 9
    line = [-1, -1, 1, 1, 3, 1, 1, 1, 1, -1, -1]
    windows = bracket_windows(dataset_of({"t.py": "x"}, {"h.py": text}), seq_len=16, n=99, seed=2)
    assert windows.n == 20
    scored = set(zip(windows.sequence.tolist(), windows.opener.tolist(), strict=True))
    elsewhere = 0
    for i, (tokens, innermost) in enumerate(zip(windows.tokens.tolist(), windows.innermost.tolist(), strict=True)):
        start = text.index(bytes(token - 1 for token in tokens[1:]).decode())
        whole = [11 * (p // 11) + line[p % 11] if line[p % 11] >= 0 else -1 for p in range(start, start + 15)]
        expected = [-1] + [p - start + 1 if p >= start else -1 for p in whole]
        assert innermost == expected
        elsewhere += len({(i, opener) for opener in expected if opener >= 0} - scored)
    assert elsewhere > 0


def test_brackets_in_strings_and_comments_do_not_count():
    assert places("a = '(' + f(b)  # [\n") == [(11, 13)]
    assert places("'''\n(\n''' + k(v)\n") == [(13, 15)]
    assert places("x = f'{a[0]} (b)' + g(h)\n") == [(21, 23)]
    assert places("x = f'{f\"{b(c)}\"}' + [d]\n") == [(21, 23)]


def test_positions_are_bytes_whatever_the_characters_and_line_ends():
    text = "é = 'ü(' ; f('é',\r\n [é])\n"
    encoded = text.encode()
    for opener, closer in places(text):
        assert chr(encoded[opener]) + chr(encoded[closer]) in ("()", "[]")
    assert len(places(text)) == 2


@pytest.mark.parametrize("text", ["x = )\n", "x = (]\n", "f([)]\n"])
def test_a_bracket_that_closes_nothing_is_no_python(text):
    with pytest.raises(SyntaxError):
        gold_pairs(text)


def test_empty_pairs_are_no_targets_but_their_openers_are_candidates(dataset_of):
    text = "g(a(), [\n])"  # openers 1, 3, 7; only "g(...)" is not empty
    windows = bracket_windows(dataset_of({"t.py": "x"}, {"h.py": text}), seq_len=len(text) + 1, n=5, seed=0)
    assert windows.opener.tolist() == [2] and windows.closer.tolist() == [11]
    assert trimmed(windows.openers[0]) == [2, 4, 8]


def test_bpe_positions_point_at_the_same_brackets_as_bytes(dataset_of):
    text = "\n".join(f"value_{i} = call(first[{i}], {{'né': (second, {i})}}) + other((first))" for i in range(30))
    tokenizer = train_bpe([text], 300)
    documents = dataset_of({"t.py": "x"}, {"h.py": text}, tokenizer).heldout
    pairs = token_pairs(documents, 0)
    ids = documents.document(0).tolist()
    assert len(pairs.opener) == 30 * 6
    assert len(ids) < 0.6 * len(text)  # so that the positions of tokens are not those of bytes
    starts = np.cumsum([0, *(len(tokenizer.token_bytes[i]) for i in ids)])
    assert list(zip(starts[pairs.opener].tolist(), starts[pairs.closer].tolist(), strict=True)) == places(text)


def merging(*merges: tuple[str, str]) -> Tokenizer:
    """A byte-level BPE with these merges and no rule for brackets, as other people's vocabularies are."""
    vocab = {"<|endoftext|>": 0} | {character: 1 + byte for byte, character in enumerate(BYTE_CHARACTERS)}
    vocab |= {left + right: 257 + i for i, (left, right) in enumerate(merges)}
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return imported(bpe, 0)


def test_where_tokens_hold_brackets_a_pair_is_scored_unless_another_bracket_shares_its_tokens(dataset_of):
    tokenizer = merging(("(", "["), (")", ":"), ("Ġ", "("))
    text = "f([(a)])\nif (c): d\n"  # tokens f ([ ( a ) ] ) ⏎ i f ·( c ): · d ⏎
    dataset = dataset_of({"t.py": "x"}, {"h.py": text}, tokenizer)
    spelled = " ".join(tokenizer.pieces(dataset.heldout.document(0).tolist()))
    assert spelled == "f ([ ( a ) ] ) ⏎ i f ·( c ): · d ⏎"
    windows = bracket_windows(dataset, seq_len=17, n=5, seed=0)
    assert windows.opener.tolist() == [3, 11] and windows.closer.tolist() == [5, 13]  # BOS is position 0
    assert windows.depth.tolist() == [3, 1]
    assert [trimmed(row) for row in windows.openers] == [[2, 3], [2, 3, 11]]  # "([" is one candidate
    assert [trimmed(row) for row in windows.same_type] == [[2, 3], [2, 3, 11]]
    assert [trimmed(row) for row in windows.unclosed] == [[2, 3], [11]]
    row = [-1, -1, -1, 2, 3, 2, 2, -1, -1, -1, -1, -1, 11, -1, -1, -1, -1]
    assert windows.innermost.tolist() == [row]


def test_every_pair_that_fits_is_scored_exactly_once(dataset_of):
    text = (
        "\n".join(f"call_{i}(first[{i}], (second, {{{i}: [third]}}), other(fourth[0:{i}]))" for i in range(40)) + "\n"
    )
    dataset = dataset_of({"t.py": "x"}, {"h.py": text})
    windows = bracket_windows(dataset, seq_len=32, n=10_000, seed=1)
    pairs = token_pairs(dataset.heldout, 0)
    fitting = pairs.closer - pairs.opener < 31
    assert windows.n == fitting.sum() < len(fitting)
    spelled = windows.tokens[windows.sequence, windows.opener], windows.tokens[windows.sequence, windows.closer]
    assert {(chr(a - 1), chr(b - 1)) for a, b in zip(*spelled, strict=True)} == {("(", ")"), ("[", "]"), ("{", "}")}
    assert windows.closer.max() < 32 and windows.opener.min() > 0
    some = bracket_windows(dataset, seq_len=32, n=7, seed=1)
    assert some.tokens.shape == (7, 32) and set(some.sequence.tolist()) == set(range(7))


def test_a_corpus_without_python_gives_no_window_and_says_why(dataset_of):
    windows = bracket_windows(dataset_of({"a.txt": "x"}, {"b.txt": "f(x)", "c.txt": "y"}), seq_len=4, n=5, seed=0)
    assert (
        windows.n == 0 and windows.tokens.shape == windows.innermost.shape == (0, 4) and windows.hardest.shape == (0,)
    )
    assert "none of the 2 held-out documents is Python" in windows.reason


def test_python_that_does_not_tokenize_is_left_out(dataset_of):
    windows = bracket_windows(dataset_of({"t.py": "x"}, {"bad.py": "f(x))", "good.py": "g([1])"}), 7, n=5, seed=0)
    assert windows.n == 2 and windows.tokens.tolist() == [[0, *(byte + 1 for byte in b"g([1])")]]
