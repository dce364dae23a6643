"""Kinds of task about numbers: sums, products, sequences, the largest and the smallest.

Place in the flow: a table of `Kind`, gathered in `kinds/__init__.py`.
"""

from __future__ import annotations

from random import Random

from swarm.micro.recipe.kinds.base import NUMBERS, Item, Kind, draw_number, draw_numbers, list_item
from swarm.micro.recipe.words import NUMBER_WORDS

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
    """Two or three operations on small numbers."""
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


def _total(rng: Random) -> Item:
    numbers = [draw_number(rng, 20) for _ in range(rng.randint(2, 4))]
    return list_item([str(number) for number in numbers], str(sum(numbers)), rng)


def _largest(rng: Random) -> Item:
    numbers = draw_numbers(rng, 2, 6)
    return list_item([str(number) for number in numbers], str(max(numbers)), rng)


def _smallest(rng: Random) -> Item:
    numbers = draw_numbers(rng, 2, 6)
    return list_item([str(number) for number in numbers], str(min(numbers)), rng)


def _larger(rng: Random) -> Item:
    left, right = draw_numbers(rng, 2, 2)
    return Item(f"{left} and {right}", str(max(left, right)), _pair(left, right))


def _smaller(rng: Random) -> Item:
    left, right = draw_numbers(rng, 2, 2)
    return Item(f"{left} and {right}", str(min(left, right)), _pair(left, right))


def _missing_term(rng: Random) -> Item:
    left, right = rng.randint(0, 20), rng.randint(0, 20)
    unknown = rng.choice(("x", "y", "n", "?", "_"))
    first = [unknown, str(right)] if rng.random() < 0.5 else [str(right), unknown]
    if rng.random() < 0.6:
        return Item(f"{' + '.join(first)} = {left + right}", str(left), {"x": unknown})
    return Item(f"{unknown} - {right} = {left}", str(left + right), {"x": unknown})


def _next_number(rng: Random) -> Item:
    """A sequence that grows by the same step each time, or doubles."""
    start, step = rng.randint(0, 20), rng.choice((1, 1, 2, 2, 3, 4, 5, 10, -1, -2))
    count = rng.randint(3, 5)
    if rng.random() < 0.15:
        first = rng.randint(1, 5)
        numbers = [first * 2**place for place in range(count + 1)]
    else:
        numbers = [start + step * place for place in range(count + 1)]
    return list_item([str(number) for number in numbers[:-1]], str(numbers[-1]), rng)


def _after_number(rng: Random) -> Item:
    number = draw_number(rng)
    return Item(str(number), str(number + 1))


def _before_number(rng: Random) -> Item:
    number = 1 + draw_number(rng)
    return Item(str(number), str(number - 1))


def _double(rng: Random) -> Item:
    number = draw_number(rng, 50)
    return Item(str(number), str(2 * number))


def _half(rng: Random) -> Item:
    number = draw_number(rng, 50)
    return Item(str(2 * number), str(number))


def _count_above(rng: Random) -> Item:
    numbers, limit = draw_numbers(rng, 3, 6), draw_number(rng, 60)
    count = sum(number > limit for number in numbers)
    return list_item([str(number) for number in numbers], str(count), rng, {"a": str(limit)})


def _filter_above(rng: Random) -> Item:
    numbers = draw_numbers(rng, 3, 6)
    limit = rng.choice(numbers)
    kept = tuple(str(number) for number in numbers if number > limit) or ("none",)
    return list_item([str(number) for number in numbers], kept, rng, {"a": str(limit)})


def _filter_below(rng: Random) -> Item:
    numbers = draw_numbers(rng, 3, 6)
    limit = rng.choice(numbers)
    kept = tuple(str(number) for number in numbers if number < limit) or ("none",)
    return list_item([str(number) for number in numbers], kept, rng, {"a": str(limit)})


def _filter_even(rng: Random) -> Item:
    numbers = draw_numbers(rng, 3, 6)
    odd = rng.randint(0, 1)
    kept = tuple(str(number) for number in numbers if number % 2 == odd) or ("none",)
    return list_item([str(number) for number in numbers], kept, rng, {"k": ("even", "odd")[odd]})


def _count_even(rng: Random) -> Item:
    numbers = draw_numbers(rng, 2, 6)
    odd = rng.randint(0, 1)
    count = sum(number % 2 == odd for number in numbers)
    return list_item([str(number) for number in numbers], str(count), rng, {"k": ("even", "odd")[odd]})


def _remainder(rng: Random) -> Item:
    number, divisor = rng.randint(0, 30), rng.randint(2, 6)
    return Item(f"{number} % {divisor}", str(number % divisor), _pair(number, divisor))


def _digits_of_word(rng: Random) -> Item:
    number = rng.randrange(len(NUMBER_WORDS))
    return Item(NUMBER_WORDS[number], str(number))


def _word_of_digits(rng: Random) -> Item:
    number = rng.randrange(len(NUMBER_WORDS))
    return Item(str(number), NUMBER_WORDS[number])


def _count_digits(rng: Random) -> Item:
    number = str(rng.randint(1, 10 ** rng.randint(1, 7)))
    return Item(number, str(len(number)))


def _sum_of_digits(rng: Random) -> Item:
    number = str(rng.randint(10, 999))
    return Item(number, str(sum(map(int, number))))


def _any_between(rng: Random) -> Item:
    low = draw_number(rng, 50)
    high = low + rng.randint(2, 20)
    return Item(f"{low} and {high}", str(rng.randint(low, high)), _pair(low, high))


def _range(rng: Random) -> Item:
    low = rng.randint(0, 30)
    numbers = tuple(str(number) for number in range(low, low + rng.randint(3, 7)))
    return Item(f"{numbers[0]} to {numbers[-1]}", numbers, {"a": numbers[0], "b": numbers[-1]})


def _second_largest(rng: Random) -> Item:
    numbers = draw_numbers(rng, 3, 5)
    return list_item([str(number) for number in numbers], str(sorted(numbers)[-2]), rng)


def _spread(rng: Random) -> Item:
    numbers = rng.sample(range(20), rng.randint(2, 4))
    return list_item([str(number) for number in numbers], str(max(numbers) - min(numbers)), rng)


def _ends_added(rng: Random) -> Item:
    numbers = [rng.randint(0, 9) for _ in range(rng.randint(3, 5))]
    return list_item([str(number) for number in numbers], str(numbers[0] + numbers[-1]), rng)


KINDS: tuple[Kind, ...] = (
    Kind("add", SUM, _add),
    Kind("subtract", SUM, _subtract),
    Kind("multiply", ("product", "expression"), _multiply),
    Kind("divide", ("expression",), _divide),
    Kind("expression", SUM, _expression),
    Kind("expression with product", ("expression", "calculation"), _expression_with_product),
    Kind("total", NUMBERS, _total),
    Kind("largest", NUMBERS, _largest),
    Kind("smallest", NUMBERS, _smallest),
    Kind("larger", ("numbers", "two numbers"), _larger),
    Kind("smaller", ("numbers", "two numbers"), _smaller),
    Kind("missing term", ("equation",), _missing_term),
    Kind("next number", ("sequence", "numbers", "list"), _next_number),
    Kind("after number", ("number",), _after_number),
    Kind("before number", ("number",), _before_number),
    Kind("double", ("number",), _double),
    Kind("half", ("number",), _half),
    Kind("count above", NUMBERS, _count_above),
    Kind("filter above", NUMBERS, _filter_above),
    Kind("filter below", NUMBERS, _filter_below),
    Kind("filter even", NUMBERS, _filter_even),
    Kind("count even", NUMBERS, _count_even),
    Kind("remainder", ("expression",), _remainder),
    Kind("digits of word", ("number", "word"), _digits_of_word),
    Kind("word of digits", ("number",), _word_of_digits),
    Kind("count digits", ("number",), _count_digits),
    Kind("sum of digits", ("number",), _sum_of_digits),
    Kind("any between", ("two numbers",), _any_between),
    Kind("range", ("range",), _range),
)

HELD_OUT: tuple[Kind, ...] = (
    Kind("second largest", NUMBERS, _second_largest),
    Kind("spread", NUMBERS, _spread),
    Kind("ends added", NUMBERS, _ends_added),
)
