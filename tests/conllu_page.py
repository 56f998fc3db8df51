"""Three annotated sentences in two documents, written by hand."""

from pathlib import Path

PAGE = """\
# newdoc id = a
1 Ann _ PROPN _ _ 2 nsubj _ _
2 met _ VERB _ _ 0 root _ _
3 Bob _ PROPN _ _ 2 obj _ SpaceAfter=No
4 . _ PUNCT _ _ 2 punct _ _

1 Ann _ PROPN _ _ 4 nsubj:pass _ _
2-3 didn't _ _ _ _ _ _ _ _
2 did _ AUX _ _ 4 aux _ _
3 n't _ PART _ _ 4 advmod _ _
4 smile _ VERB _ _ 0 root _ SpaceAfter=No
4.1 smile _ VERB _ _ _ _ 0:root _
5 . _ PUNCT _ _ 4 punct _ _

# newdoc id = b
1 The _ DET _ _ 2 det _ _
2 dog _ NOUN _ _ 3 nsubj _ _
3 met _ VERB _ _ 0 root _ _
4 Zoë _ PROPN _ _ 3 obj _ SpaceAfter=No
5 . _ PUNCT _ _ 3 punct _ _
"""


def write(folder: Path, page: str) -> Path:
    """The page as a file, with tabs for the spaces between columns."""
    path = folder / "page.conllu"
    path.write_text("\n".join("\t".join(line.split(" ")) if line[:1].isdigit() else line for line in page.split("\n")))
    return path
