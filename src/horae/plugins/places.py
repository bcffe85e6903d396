"""Objects from outside, by their place: `./mine.py:MyPolicy` in a file, `package.module:MyPolicy` in a module."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from horae.core.errors import UserError, did_you_mean

#: A path that ends in .py, or the name of a module; a colon; a name in it.
_PLACE = re.compile(r"(?P<where>[^:=,]*\.py|[A-Za-z_]\w*(?:\.\w+)*):(?P<name>[A-Za-z_]\w*)", re.ASCII)


class CannotLoad(UserError):
    """An object from outside that cannot be loaded."""


@dataclass(frozen=True)
class ObjectPlace:
    """Where an object is: a file or a module, and the object's name there."""

    where: str
    name: str

    @property
    def is_file(self) -> bool:
        """Whether `where` is a path, not the name of a module."""
        return self.where.endswith(".py")

    def __str__(self) -> str:
        return f"{self.where}:{self.name}"

    def absolute(self) -> ObjectPlace:
        """The same place for a process with another working folder."""
        return ObjectPlace(str(Path(self.where).resolve()), self.name) if self.is_file else self

    def sha256(self) -> str:
        """Hash of the file's or the module's own content. None of it is run; the packages around a module are."""
        return hashlib.sha256(self._source().read_bytes()).hexdigest()

    def load(self) -> Any:
        """The object. Running the file or the module is up to its author; what goes wrong is one sentence."""
        module = self._run_file() if self.is_file else self._import()
        if not hasattr(module, self.name):
            public = [name for name in vars(module) if not name.startswith("_")]
            raise CannotLoad(f"{self.where} has no {self.name!r}.{did_you_mean(self.name, public)} Check the name.")
        return getattr(module, self.name)

    def _source(self) -> Path:
        if self.is_file:
            _check_file(Path(self.where))
            return Path(self.where)
        try:
            spec = importlib.util.find_spec(self.where)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise CannotLoad(_no_module(self.where))
        if not spec.has_location or spec.origin is None:
            raise CannotLoad(f"Module {self.where} has no file of its own: name one that has.")
        return Path(spec.origin)

    def _run_file(self) -> ModuleType:
        path = Path(self.where)
        _check_file(path)
        source = path.read_bytes()
        name = f"horae_outside_{path.stem}_{hashlib.sha256(str(path.resolve()).encode() + source).hexdigest()[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        module = ModuleType(name)
        module.__file__ = str(path)
        # Dataclasses look their module up; a file that fails leaves none behind.
        sys.modules[name] = module
        try:
            exec(compile(source, str(path), "exec"), module.__dict__)
        except BaseException as error:
            del sys.modules[name]
            if not isinstance(error, Exception | SystemExit):
                raise
            raise CannotLoad(f"{path} cannot be loaded: {_in_words(error, path)}. Correct it and try again.") from error
        _send_by_value(module)
        return module

    def _import(self) -> ModuleType:
        try:
            return importlib.import_module(self.where)
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
            if missing and (self.where == missing or self.where.startswith(f"{missing}.")):
                raise CannotLoad(_no_module(self.where)) from None
            raise CannotLoad(f"Module {self.where} cannot be loaded: {_in_words(error)}.") from error


def place_of(text: str) -> ObjectPlace | None:
    """The place that a text names; None for a text that is no place."""
    found = _PLACE.fullmatch(text)
    return ObjectPlace(found["where"], found["name"]) if found else None


def _check_file(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise CannotLoad(f"There is no file {path}; check the path.") from None
    except OSError as error:
        raise CannotLoad(f"The file {path} cannot be read ({error.strerror}); check it.") from None


def _no_module(name: str) -> str:
    return f"No module is called {name!r}: install it, put its folder on PYTHONPATH, or name a file such as ./mine.py."


def _in_words(error: BaseException, path: Path | None = None) -> str:
    """What went wrong and, of a file, on which line."""
    line = error.lineno if isinstance(error, SyntaxError) else _line(error, path)
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"


def _line(error: BaseException, path: Path | None) -> int | None:
    """The last line of a file that an error passed."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _send_by_value(module: ModuleType) -> None:
    """Worker processes cannot import the module by its name: its classes travel whole."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
