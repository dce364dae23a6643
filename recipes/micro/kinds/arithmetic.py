"""Kinds of task about numbers: sums, products, sequences, the largest and the smallest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import gt, lt
from random import Random

from recipes.micro.kinds.base import (
    NUMBERS,
    Answer,
    Item,
    Kind,
    about,
    about_list,
    as_texts,
    draw_number,
    draw_numbers,
    list_item,
)
from recipes.micro.words import NUMBER_WORDS

SUM = ("sum", "expression", "calculation")


def _written(left: int, operator: str, right: int, rng: Random) -> str:
    blank = " " if rng.random() < 0.6 else ""
    return f"{left}{blank}{operator}{blank}{right}"


def _pair(left: int, right: int) -> dict[str, str]:
    return {"a": str(left), "b": str(right)}


def _add(rng: Random) -> Item:
    left, right = draw_number(rng), draw_number(rng)
    return Item(_written(left, "+", right, rng), str(left + right), _pair(left, right))


def _subtract(rng: Random) -> Item:
    left, right = draw_number(rng), draw_number(rng)
    if rng.random() < 0.8:
        left, right = max(left, right), min(left, right)
    return Item(_written(left, "-", right, rng), str(left - right), _pair(left, right))


def _multiply(rng: Random) -> Item:
    left, right = rng.randint(0, 10), rng.randint(0, 10)
    if rng.random() < 0.1:
        left = rng.randint(11, 30)
    return Item(_written(left, rng.choice("**x"), right, rng), str(left * right), _pair(left, right))


def _divide(rng: Random) -> Item:
    right, result = rng.randint(1, 10), rng.randint(0, 10)
    return Item(_written(right * result, "/", right, rng), str(result), _pair(right * result, right))


def _expression(rng: Random) -> Item:
    """Draw two or three operations on small numbers."""
    terms = [rng.randint(0, 9 if rng.random() < 0.7 else 30) for _ in range(rng.randint(3, 4))]
    text, total = str(terms[0]), terms[0]
    blank = rng.choice((" ", "", " "))
    for term in terms[1:]:
        sign = rng.choice("++-")
        text += f"{blank}{sign}{blank}{term}"
        total += term if sign == "+" else -term
    return Item(text, str(total))


def _expression_with_product(rng: Random) -> Item:
    left, right, more = rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 9)
    text, value = rng.choice(
        (
            (f"{left} * {right} + {more}", left * right + more),
            (f"{more} + {left} * {right}", left * right + more),
            (f"({left} + {right}) * {more}", (left + right) * more),
            (f"{left} * {right} - {more}", left * right - more),
        )
    )
    return Item(text, str(value))


def _one_of_two(choose: Callable[[Sequence[int]], int]) -> Callable[[Random], Item]:
    def item(rng: Random) -> Item:
        numbers = draw_numbers(rng, 2, 2)
        return Item(f"{numbers[0]} and {numbers[1]}", str(choose(numbers)), _pair(*numbers))

    return item


def _missing_term(rng: Random) -> Item:
    left, right = rng.randint(0, 20), rng.randint(0, 20)
    unknown = rng.choice(("x", "y", "n", "?", "_"))
    first = [unknown, str(right)] if rng.random() < 0.5 else [str(right), unknown]
    if rng.random() < 0.6:
        return Item(f"{' + '.join(first)} = {left + right}", str(left), {"x": unknown})
    return Item(f"{unknown} - {right} = {left}", str(left + right), {"x": unknown})


def _next_number(rng: Random) -> Item:
    """Draw a sequence that grows by the same step each time, or doubles."""
    start, step = rng.randint(0, 20), rng.choice((1, 1, 2, 2, 3, 4, 5, 10, -1, -2))
    count = rng.randint(3, 5)
    if rng.random() < 0.15:
        first = rng.randint(1, 5)
        numbers = [first * 2**place for place in range(count + 1)]
    else:
        numbers = [start + step * place for place in range(count + 1)]
    return list_item(as_texts(numbers[:-1]), str(numbers[-1]), rng)


def _count_above(rng: Random) -> Item:
    numbers, limit = draw_numbers(rng, 3, 6), draw_number(rng, 60)
    count = sum(number > limit for number in numbers)
    return list_item(as_texts(numbers), str(count), rng, {"a": str(limit)})


def _filtered(is_kept: Callable[[int, int], bool]) -> Callable[[Random], Item]:
    """Return a function that draws a question for the numbers of a list that compare so with one of them."""

    def item(rng: Random) -> Item:
        numbers = draw_numbers(rng, 3, 6)
        limit = rng.choice(numbers)
        kept = as_texts(number for number in numbers if is_kept(number, limit)) or ("none",)
        return list_item(as_texts(numbers), kept, rng, {"a": str(limit)})

    return item


def _by_parity(answer: Callable[[Sequence[int]], Answer], fewest: int) -> Callable[[Random], Item]:
    """Return a function that draws a question about the even numbers of a list, or the odd ones."""

    def item(rng: Random) -> Item:
        numbers = draw_numbers(rng, fewest, 6)
        odd = rng.randint(0, 1)
        kept = [number for number in numbers if number % 2 == odd]
        return list_item(as_texts(numbers), answer(kept), rng, {"k": ("even", "odd")[odd]})

    return item


def _remainder(rng: Random) -> Item:
    number, divisor = rng.randint(0, 30), rng.randint(2, 6)
    return Item(f"{number} % {divisor}", str(number % divisor), _pair(number, divisor))


def _any_between(rng: Random) -> Item:
    low = draw_number(rng, 50)
    high = low + rng.randint(2, 20)
    return Item(f"{low} and {high}", str(rng.randint(low, high)), _pair(low, high))


def _range(rng: Random) -> Item:
    low = rng.randint(0, 30)
    numbers = tuple(str(number) for number in range(low, low + rng.randint(3, 7)))
    return Item(f"{numbers[0]} to {numbers[-1]}", numbers, {"a": numbers[0], "b": numbers[-1]})


def _addends(rng: Random) -> list[int]:
    return [draw_number(rng, 20) for _ in range(rng.randint(2, 4))]


def _digits(rng: Random) -> list[int]:
    return [rng.randint(0, 9) for _ in range(rng.randint(3, 5))]


def _below_twenty(rng: Random) -> list[int]:
    return rng.sample(range(20), rng.randint(2, 4))


def _number_word(rng: Random) -> str:
    return NUMBER_WORDS[rng.randrange(len(NUMBER_WORDS))]


KINDS: tuple[Kind, ...] = (
    Kind("add", SUM, _add),
    Kind("subtract", SUM, _subtract),
    Kind("multiply", ("product", "expression"), _multiply),
    Kind("divide", ("expression",), _divide),
    Kind("expression", SUM, _expression),
    Kind("expression with product", ("expression", "calculation"), _expression_with_product),
    Kind("total", NUMBERS, about_list(_addends, lambda numbers: str(sum(numbers)))),
    Kind("largest", NUMBERS, about_list(draw_numbers, lambda numbers: str(max(numbers)))),
    Kind("smallest", NUMBERS, about_list(draw_numbers, lambda numbers: str(min(numbers)))),
    Kind("larger", ("numbers", "two numbers"), _one_of_two(max)),
    Kind("smaller", ("numbers", "two numbers"), _one_of_two(min)),
    Kind("missing term", ("equation",), _missing_term),
    Kind("next number", ("sequence", "numbers", "list"), _next_number),
    Kind("after number", ("number",), about(draw_number, lambda number: str(number + 1))),
    Kind("before number", ("number",), about(lambda rng: 1 + draw_number(rng), lambda number: str(number - 1))),
    Kind("double", ("number",), about(lambda rng: draw_number(rng, 50), lambda number: str(2 * number))),
    Kind("half", ("number",), about(lambda rng: 2 * draw_number(rng, 50), lambda number: str(number // 2))),
    Kind("count above", NUMBERS, _count_above),
    Kind("filter above", NUMBERS, _filtered(gt)),
    Kind("filter below", NUMBERS, _filtered(lt)),
    Kind("filter even", NUMBERS, _by_parity(lambda kept: as_texts(kept) or ("none",), 3)),
    Kind("count even", NUMBERS, _by_parity(lambda kept: str(len(kept)), 2)),
    Kind("remainder", ("expression",), _remainder),
    Kind("digits of word", ("number", "word"), about(_number_word, lambda word: str(NUMBER_WORDS.index(word)))),
    Kind(
        "word of digits",
        ("number",),
        about(lambda rng: rng.randrange(len(NUMBER_WORDS)), lambda number: NUMBER_WORDS[number]),
    ),
    Kind(
        "count digits",
        ("number",),
        about(lambda rng: str(rng.randint(1, 10 ** rng.randint(1, 7))), lambda number: str(len(number))),
    ),
    Kind(
        "sum of digits",
        ("number",),
        about(lambda rng: str(rng.randint(10, 999)), lambda number: str(sum(map(int, number)))),
    ),
    Kind("any between", ("two numbers",), _any_between),
    Kind("range", ("range",), _range),
)

HELD_OUT: tuple[Kind, ...] = (
    Kind(
        "second largest",
        NUMBERS,
        about_list(lambda rng: draw_numbers(rng, 3, 5), lambda numbers: str(sorted(numbers)[-2])),
    ),
    Kind("spread", NUMBERS, about_list(_below_twenty, lambda numbers: str(max(numbers) - min(numbers)))),
    Kind("ends added", NUMBERS, about_list(_digits, lambda numbers: str(numbers[0] + numbers[-1]))),
)
