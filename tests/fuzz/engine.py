"""One run of the fuzzer, in a separate process because `atheris.Fuzz` never returns.

`python -m tests.fuzz.engine TARGET [libFuzzer options] DIRECTORY`; it is started by `python -m tests.fuzz`.
"""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["turnspan"]):
    from . import targets

from .cases import seeds
from .mutations import mutated

TARGETS = {"lines": targets.check_lines, "path": targets.check_path}


def main() -> None:
    """Fuzz one target until an exception, whose input is saved."""
    name, *options = sys.argv[1:]
    others = seeds()

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        return mutated(
            data, max_size, seed, others, lambda piece: bytes(atheris.Mutate(piece, max(1, len(piece) + 64)))
        )

    def cross(one: bytes, two: bytes, max_size: int, seed: int) -> bytes:
        return mutated(one, max_size, random.Random(seed).getrandbits(32), [two] if two else others)

    check = TARGETS[name]
    atheris.Setup(
        [sys.argv[0], *options], lambda data: check(data) and None, custom_mutator=mutate, custom_crossover=cross
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
