"""Synthetic probe sequences stay inside the ids that the corpus uses."""

import numpy as np
import pytest

from andrea_jax.data import random_tokens, repeated_blocks
from andrea_jax.errors import UserError

IDS = np.array([2, 3, 5, 7, 11, 13, 17], np.int32)


def test_a_repeated_block_is_bos_and_distinct_ids_tiled():
    sequences = repeated_blocks(IDS, period=5, copies=3, n=11, seed=0)
    assert sequences.shape == (11, 16) and sequences.dtype == np.int32
    assert (sequences[:, 0] == 0).all()
    blocks = sequences[:, 1:].reshape(11, 3, 5)
    assert (blocks == blocks[:, :1]).all()
    assert all(len(set(block.tolist())) == 5 for block in blocks[:, 0])
    assert set(sequences[:, 1:].ravel().tolist()) == set(IDS.tolist())
    assert len({tuple(block.tolist()) for block in blocks[:, 0]}) == 11


def test_more_distinct_ids_than_there_are_is_an_error():
    with pytest.raises(UserError, match=r"8 distinct tokens .* only 7 ids"):
        repeated_blocks(IDS, period=8, copies=2, n=1, seed=0)


def test_random_tokens_are_bos_and_the_given_ids():
    sequences = random_tokens(IDS, seq_len=13, n=17, seed=1)
    assert sequences.shape == (17, 13) and sequences.dtype == np.int32
    assert (sequences[:, 0] == 0).all()
    assert set(sequences[:, 1:].ravel().tolist()) == set(IDS.tolist())


def test_the_same_seed_gives_the_same_sequences():
    for make in (lambda seed: repeated_blocks(IDS, 5, 2, 7, seed), lambda seed: random_tokens(IDS, 13, 7, seed)):
        np.testing.assert_array_equal(make(4), make(4))
        assert (make(4) != make(5)).any()


def test_frequent_ids_are_those_seen_often_enough_in_training_text_and_never_bos(dataset_of):
    texts = {f"{i}": "ab" for i in range(20)} | {"c": "c" * 19, "d": "d" * 20}
    dataset = dataset_of(texts, {"h": "e" * 50})
    assert dataset.frequent_ids.tolist() == [1 + ord(letter) for letter in "abd"]
