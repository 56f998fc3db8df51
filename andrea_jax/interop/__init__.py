"""Other people's models: GPT-2 folders of Hugging Face, and ANDREA's `.bin` checkpoints, both ways. No torch.

    m, bos = gpt2.read_config(folder);  params = gpt2.read_params(folder, m, bos);  gpt2.write(m, params, folder)
    step, params, first, second = bin_file.read(path, m, MICROGPT);  bin_file.write(path, m, checkpoint, MICROGPT)

Files and `(config.Model, params)`, nothing else; `andrea_jax.exchange` makes runs of them, and files of runs.
"""

from andrea_jax.interop import bin_file, gpt2
from andrea_jax.interop.bin_file import MICROGPT, Checkpoint, Layout
from andrea_jax.interop.tokenizer_files import exchanged, read_tokenizer, write_tokenizer

__all__ = ["MICROGPT", "Checkpoint", "Layout", "bin_file", "exchanged", "gpt2", "read_tokenizer", "write_tokenizer"]
