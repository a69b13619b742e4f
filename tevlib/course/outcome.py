"""What a check says of an answer: right, not right yet and why, or not answered yet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from tevlib.course.enumeration import NoAnswer

CLOSE = 0.005  # answers by hand may be rounded to two digits


class Wrong(ValueError):
    """An answer is not right; the message says where to look."""


@dataclass(frozen=True)
class Outcome:
    """Whether an exercise's answer is right (None: not answered yet), and what there is to say about it."""

    exercise: int
    right: bool | None
    says: str = ""

    def __repr__(self) -> str:
        mark = {True: "right", False: "not right yet", None: "not answered yet"}[self.right]
        return f"Exercise {self.exercise}: {mark}. {self.says}".rstrip()


def exercise(number: int) -> Callable:
    """A decorator that makes a check return an `Outcome`.

    The check itself returns what there is to say of a right answer, and raises `Wrong` or `NoAnswer` otherwise. Every
    ValueError counts as a wrong answer (a draw without weights, a prefix without its parent); other errors of the
    reader's own code pass through with their traceback.
    """

    def wrap(check: Callable[..., str]) -> Callable[..., Outcome]:
        @functools.wraps(check)
        def outcome(*answers: object) -> Outcome:
            try:
                return Outcome(number, True, check(*answers))
            except NoAnswer as still:
                return Outcome(number, None, str(still))
            except ValueError as wrong:
                return Outcome(number, False, str(wrong))

        return outcome

    return wrap


def score(outcomes: Sequence[Outcome]) -> str:
    """One line for each exercise, and how many are right."""
    right = sum(outcome.right is True for outcome in outcomes)
    return "\n".join([*map(repr, outcomes), f"{right} of {len(outcomes)} right"])


def given(answer: object, so_far: str = "") -> object:
    """`answer`, unless it is None or `...`: then NoAnswer with `so_far`, what is settled already."""
    if answer is None or answer is ...:
        raise NoAnswer(so_far)
    return answer


def number(answer: object, name: str) -> float:
    """`answer` as a float; NoAnswer where it is open, Wrong (with its `name`) where it is no number."""
    try:
        return float(given(answer))
    except (TypeError, ValueError):
        raise Wrong(f"`{name}` must be a number; got {answer!r}.") from None


def numbers(answer: object, n: int, name: str, so_far: str = "") -> list[float]:
    """`answer` as a list of `n` floats; NoAnswer where it or a part of it is open, Wrong where it is something else."""
    answer = given(answer, so_far)
    if isinstance(answer, Tensor):
        answer = answer.tolist()
    if not isinstance(answer, list | tuple) or len(answer) != n:
        raise Wrong(f"`{name}` must be a list of {n} numbers; got {answer!r}.")
    return [number(part, name) for part in answer]


def near(answer: Sequence[float] | float, value: Tensor | Sequence[float] | float) -> bool:
    """Whether two numbers, or two equally long rows of them, agree to about two digits after the point."""
    if isinstance(answer, float):
        return abs(answer - float(value)) <= CLOSE
    return all(abs(a - float(b)) <= CLOSE for a, b in zip(answer, value, strict=True))


def expect(condition: bool, says: str) -> None:
    """None; Wrong with what to look at where the condition does not hold."""
    if not condition:
        raise Wrong(says)
