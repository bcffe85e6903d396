"""The one error that a user is meant to read, and how its sentence is worded."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """The user's mistake, told in one sentence that says what to do next.

    Everything else that escapes is a bug of ours. A misbehaving cluster is
    neither: it is an event.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the nearest known word, whatever its case, with a space before it; nothing if none is near."""
    names = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


#: What pydantic says, and how people say it; longer phrases come first.
_PLAIN = {
    "Value error, ": "",
    "Input should be a valid string, unable to parse raw data as a unicode string": "it has characters that cannot "
    "be passed to a program",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    ", got a number with a fractional part": "",
    "Input should be a valid integer": "it must be a whole number",
    "Input should be a valid list": "it must be a list",
    "Input should be a valid tuple": "it must be a list",
    "Input should be a valid number": "it must be a number",
    "Input should be a valid string": "it must be text",
    "Input should be a valid dictionary": "it must be a map",
    "Input should be greater than or equal to": "it must be at least",
    "Input should be less than or equal to": "it must be at most",
    "Input should be": "it must be",
    "List should have": "it must have",
    "Tuple should have": "it must have",
    "String should have": "it must have",
    "Dictionary should have": "it must have",
    "Value should have": "it must have",
    " after validation": "",
    "Field required": "it is missing",
    "Extra inputs are not permitted": "it is not known here",
}


def in_plain_words(message: str) -> str:
    """What a validator of types says, as a part of a sentence for people."""
    message = re.sub(r" or instance of \w+", "", message)
    for phrase, plain in _PLAIN.items():
        message = message.replace(phrase, plain)
    # Names of our classes mean nothing to whoever wrote the file.
    return re.sub(r" or instance of \w+", "", message)
