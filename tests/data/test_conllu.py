"""CoNLL-U: what a file says of its words, and where those lie among a tokenizer's tokens."""

from pathlib import Path

import numpy as np
import pytest
from conllu_page import PAGE, write

from andrea_jax.data import annotated
from andrea_jax.data.annotated_windows import AnnotatedWindows, windows
from andrea_jax.data.tokenizer import Tokenizer, byte_tokenizer, train_bpe
from andrea_jax.errors import UserError


def placed(folder: Path, tokenizer: Tokenizer, seq_len: int, n: int = 9) -> AnnotatedWindows:
    return windows(annotated.read(write(folder, PAGE)), tokenizer, seq_len, n)


def test_words_tags_heads_and_untyped_names_are_read_document_by_document(tmp_path: Path):
    found = annotated.read(write(tmp_path, PAGE))
    assert found.named_by == "runs of PROPN" and [len(document) for document in found.documents] == [2, 1]
    first, second = found.documents[0]
    assert first.text == "Ann met Bob." and first.spans == [(0, 3), (4, 7), (8, 11), (11, 12)]
    assert first.heads == [1, -1, 1, 1] and first.names == [(0, 0), (2, 2)]
    assert second.tags == ["PROPN", "AUX", "PART", "VERB", "PUNCT"] and second.relations[0] == "nsubj"


def test_words_of_a_multiword_token_share_it_where_they_do_not_spell_it_and_empty_nodes_are_no_text(tmp_path: Path):
    second = annotated.read(write(tmp_path, PAGE)).documents[0][1]
    assert second.text == "Ann didn't smile." and second.spans[1:3] == [(4, 7), (7, 10)]
    page = "1-2 du _ _ _ _ _ _ _ _\n1 de _ ADP _ _ 0 case _ _\n2 le _ DET _ _ 1 det _ _\n3 x _ X _ _ 1 x _ _\n"
    (((sentence,),)) = annotated.read(write(tmp_path, page)).documents
    assert sentence.text == "du x" and sentence.spans == [(0, 2), (0, 2), (3, 4)]


def test_what_is_between_words_and_sentences_is_a_space_or_what_spaces_after_says(tmp_path: Path):
    page = "1 Ann _ PROPN _ _ 0 root _ SpacesAfter=\\s\\s\n2 é _ X _ _ 1 x _ SpacesAfter=\\n\n\n"
    page += "1 Bob _ PROPN _ _ 0 root _ SpaceAfter=No\n\n1 Cy _ PROPN _ _ 0 root _ _\n"
    ((first, second, third),) = annotated.read(write(tmp_path, page)).documents
    assert [(x.text, x.after) for x in (first, second, third)] == [("Ann  é", "\n"), ("Bob", " "), ("Cy", " ")]
    found = windows(annotated.read(write(tmp_path, page)), byte_tokenizer(), 19, 1)
    assert bytes((found.tokens[0, 1:15] - 1).tolist()).decode() == "Ann  é\nBob Cy"
    assert found.names.tolist() == [[0, 1, 3], [0, 9, 11], [0, 13, 14]]


def names(folder: Path, values: list[str], tag: str = "PROPN") -> list[tuple[int, int]]:
    rows = [f"{i} w{i} _ {tag} _ _ 0 root _ {value}" for i, value in enumerate(values, start=1)]
    ((sentence,),) = annotated.read(write(folder, "\n".join(rows) + "\n")).documents
    return sentence.names


def test_names_come_from_misc_where_it_has_them(tmp_path: Path):
    assert names(tmp_path, ["NE=B-PER", "NE=I-PER", "NE=B-PER", "NE=O", "_", "NE=LOC"]) == [(0, 1), (2, 2), (5, 5)]
    nested = ["Entity=(e1-person-1(e2-place-1)", "_", "Entity=e1)", "Entity=(e3-object)"]
    assert names(tmp_path, nested) == [(0, 0), (3, 3)]  # the smallest that hold a PROPN
    assert names(tmp_path, nested, tag="NOUN") == []  # mentions, but no names


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("1 a _ X _ _ 0 root _\n", "line 1: 9 columns"),
        ("1 a _ X _ _ 0 root _ _\n3 b _ X _ _ 1 x _ _\n", 'line 2: ID is "3" where word 2'),
        ("1 a _ X _ _ up root _ _\n", 'line 1: HEAD is "up"'),
        ("1 a _ X _ _ 7 root _ _\n", "1 words, and word 1 has HEAD 7"),
        ("2-3 ab _ _ _ _ _ _ _ _\n1 a _ X _ _ 0 root _ _\n", "should begin with word 1"),
        ("1-2 ab _ _ _ _ _ _ _ _\n1 a _ X _ _ 0 root _ _\n", "ends within a multiword token"),
        ("# only this\n", "no sentence"),
    ],
)
def test_what_is_no_conllu_is_refused_with_file_and_line(tmp_path: Path, page: str, said: str):
    with pytest.raises(UserError, match=r"page\.conllu") as error:
        annotated.read(write(tmp_path, page))
    assert said in str(error.value)


def test_a_file_that_is_missing_or_no_utf8_is_refused(tmp_path: Path):
    (tmp_path / "latin").write_bytes(b"1\tZo\xeb\n")
    for name in ("latin", "missing"):
        with pytest.raises(UserError, match=name):
            annotated.read(tmp_path / name)


def test_a_word_lies_on_the_tokens_that_overlap_it_after_bos(tmp_path: Path):
    found = placed(tmp_path, byte_tokenizer(), seq_len=37)
    words = found.words
    assert found.length.tolist() == [31, 18] and found.tokens[:, 0].tolist() == [0, 0]  # ë has two bytes
    assert words.first.tolist() == [1, 5, 9, 12, 14, 18, 21, 25, 30, 1, 5, 9, 13, 17]
    assert words.last.tolist() == [3, 7, 11, 12, 16, 20, 23, 29, 30, 3, 7, 11, 16, 17]
    assert words.head.tolist() == [1, -1, 1, 1, 7, 7, 7, -1, 7, 10, 11, -1, 11, 11]
    assert found.names.tolist() == [[0, 1, 3], [0, 9, 11], [0, 14, 16], [1, 13, 16]]
    assert found.surface.tolist() == ["Ann", "Bob", "Ann", "Zoë"]


def test_a_merged_token_with_its_space_belongs_to_the_word(tmp_path: Path):
    tokenizer = train_bpe([" met met met met Ann"] * 3, 257 + 3)
    assert b" met" in tokenizer.token_bytes
    found = placed(tmp_path, tokenizer, seq_len=37)
    places = zip(found.words.sequence, found.words.first, found.words.last, strict=True)
    text = [tokenizer.decode(found.tokens[i, a : b + 1].tolist()) for i, a, b in places]
    assert text == ["Ann", " met", "Bob", ".", "Ann", "did", "n't", "smile", ".", "The", "dog", " met", "Zoë", "."]


def test_windows_begin_with_a_sentence_and_stay_in_their_document(tmp_path: Path):
    found = placed(tmp_path, byte_tokenizer(), seq_len=17)
    text = [byte_tokenizer().decode(row[:n].tolist()) for row, n in zip(found.tokens, found.length, strict=True)]
    assert text == ["Ann met Bob. Ann", " Ann didn't smil", "The dog met Zoë"]
    assert (found.words.form == "smile").sum() == 0 and (found.words.form == "didn't").sum() == 0
    assert (found.words.head[found.words.sequence == 1] == -1).all()  # their head is cut off
    few = placed(tmp_path, byte_tokenizer(), seq_len=17, n=2)
    np.testing.assert_array_equal(few.tokens, found.tokens[[0, 2]])
    with pytest.raises(UserError, match="no word"):
        placed(tmp_path, byte_tokenizer(), seq_len=2, n=1)
