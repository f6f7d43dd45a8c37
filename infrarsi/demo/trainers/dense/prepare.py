"""Write data/train.bin and data/val.bin: byte tokens (uint8) from the Python standard library of this interpreter.

The text is on every machine already, so nothing is downloaded. Files are read in sorted order: the same Python
installation always gives the same bytes.
"""

import argparse
import sysconfig
from pathlib import Path


def source_files(root):
    """Every .py file of the standard library, sorted, without tests and installed packages."""
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    paths = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    return [path for path in paths if not skipped.intersection(path.relative_to(root).parts)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--megabytes", type=float, default=6.0, help="stop after this much text")
    parser.add_argument("--val_fraction", type=float, default=0.05)
    args = parser.parse_args()

    root = Path(sysconfig.get_paths()["stdlib"])
    limit = int(args.megabytes * 1e6)
    text = bytearray()
    for path in source_files(root):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    del text[limit:]

    split = int(len(text) * (1.0 - args.val_fraction))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "train.bin").write_bytes(text[:split])
    (args.out / "val.bin").write_bytes(text[split:])
    print(f"{args.out}/train.bin: {split:,} tokens, {args.out}/val.bin: {len(text) - split:,} tokens, 256 symbols")


if __name__ == "__main__":
    main()
