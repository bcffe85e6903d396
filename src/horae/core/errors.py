"""`UserError`, the error that a user is meant to read, and helpers that word its sentence."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake of the user, in one sentence that says what to do next.

    Any other exception that escapes is a bug of Horae. Trouble in the cluster is
    neither: it is an event.
    """


#: Longest word that may be a misspelt name: comparing takes the square of its length.
_LONGEST_WORD = 100


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A hint at the most similar name, whatever its case, with a space before it; empty if no name is similar."""
    if len(word) > _LONGEST_WORD:
        return ""
    by_lower_case = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), by_lower_case, n=1)
    return f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""


#: Phrases of pydantic's messages, and the plain words for them; longer phrases come first.
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
    """A message of pydantic as a part of a sentence for people."""
    message = re.sub(r" or instance of \w+", "", message)
    for phrase, plain in _PLAIN.items():
        message = message.replace(phrase, plain)
    # Names of Horae's classes mean nothing to the author of the file.
    return re.sub(r" or instance of \w+", "", message)
