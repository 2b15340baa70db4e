"""All of the packaging stands in pyproject.toml; this file only mends the four folder links where an unpacker lost them.

`dmlc/passes` and its three siblings are links to the folders beside `dmlc`. Unpackers that know no links (pip's own for zip files,
Windows without developer mode) leave a text file holding the target instead.
"""

import shutil
from pathlib import Path

from setuptools import setup


def mend_links(root: Path) -> None:
    for name in ("passes", "kernels", "models", "tools"):
        link = root / "dmlc" / name
        if link.is_dir():
            continue
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(Path("..") / name, target_is_directory=True)
        except OSError:
            shutil.copytree(root / name, link)


mend_links(Path(__file__).resolve().parent)
setup()
