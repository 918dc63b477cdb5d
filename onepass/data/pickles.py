"""Reads pickles of arrays as data: nothing that a pickle names is imported or called.

A pickle is a program. The programs accepted here may fill dicts and lists with text, numbers and
bytes, and may describe NumPy arrays. A call is only noted. An array is then made from its raw
bytes, after its description has been checked. NumPy's own constructors would accept any state from
a pickle and could read bytes as pointers.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from onepass.base.errors import DataError
from onepass.data.files import Array

Handler = Callable[[Any], None]  # carries out one opcode; its argument is the unpickler
SAFE_OPCODES = """
    PROTO FRAME STOP MARK PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT
    GLOBAL STACK_GLOBAL
"""
ALLOWED_NAMES = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),  # protocol 5
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # how Python 3 writes bytes for Python 2
}
WHOLE_NUMBERS = tuple(f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8))


class NotedName(NamedTuple):
    """A function or class that a pickle names; it is not imported."""

    name: str


class NotedCall:
    """A call that a pickle asks for, and the state that it would give to the result; neither is
    carried out."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None


def read_pickle(content: bytes) -> Any:
    """Returns the dicts, lists, numbers, text and bytes of a pickle; each array in it is a
    `NotedCall`. Raises a DataError for anything but data, and any exception for a damaged
    pickle."""
    return _DataUnpickler(content).load()


def decode_array(value: Any) -> Array:
    """Returns the integer array that a `NotedCall` describes. Raises a DataError, or any other
    exception, if it describes none."""
    if not isinstance(value, NotedCall) or value.name not in ("_reconstruct", "_frombuffer"):
        raise DataError("it has something else where an array belongs")
    if value.name == "_frombuffer":
        raw, described, shape, order = value.arguments
    else:
        # the arguments of ndarray.__setstate__: version, shape, dtype, Fortran order, bytes
        _, shape, described, by_columns, raw = value.state
        order = "F" if by_columns else "C"
    dtype = _integer_dtype(described)
    if not isinstance(raw, bytes) or type(shape) is not tuple or len(shape) > 4:
        raise DataError("an array has no bytes, or no shape of at most four dimensions")
    if any(type(size) is not int or not 0 <= size <= len(raw) for size in shape):
        raise DataError("an array's shape has a size that is no number, negative or too large")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise DataError(f"an array of {dtype} {shape} cannot have {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape(shape, order=order)


def _integer_dtype(described: Any) -> np.dtype[Any]:
    """Returns the integer dtype that a pickle describes. Raises a DataError, or any other
    exception, for a dtype with anything but a size and a byte order."""
    if not isinstance(described, NotedCall) or described.name != "dtype":
        raise DataError("an array's numbers are not described")
    name, *copying = described.arguments
    # the arguments of dtype.__setstate__: version, byte order, then subarray, names, fields,
    # itemsize, alignment and flags, which a plain integer type leaves at their defaults
    version, order, *others = described.state
    name, order = (text.decode() if isinstance(text, bytes) else text for text in (name, order))
    if name not in WHOLE_NUMBERS or copying != [False, True]:
        raise DataError("an array does not hold whole numbers")
    if version != 3 or order not in ("|", "<", ">") or others != [None, None, None, -1, -1, 0]:
        raise DataError("an array's numbers are described in an unknown way")
    return np.dtype(order + name)


class _HandlerTable(dict[int, Handler]):
    """The handler of each opcode. Looking up an opcode without one raises a DataError."""

    def __missing__(self, code: int) -> NoReturn:
        names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
        raise DataError(f"it has the opcode {names.get(chr(code), code)}, which is not data")


# derives from the unpickler written in Python; the one in C has no table of opcodes to replace
class _DataUnpickler(pickle._Unpickler):
    stack: list[Any]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._may_encode = len(content)  # characters that _codecs.encode may still turn into bytes

    def find_class(self, module: str, name: str) -> NotedName:
        if (module, name) not in ALLOWED_NAMES:
            raise DataError(f"it asks for {f'{module}.{name}'[:100]!r}, which is not data")
        return NotedName(name)

    def call(self) -> None:
        arguments, named = self.stack.pop(), self.stack.pop()
        if not isinstance(named, NotedName) or type(arguments) is not tuple:
            raise DataError("it calls something that is not a function")
        encode = named.name == "encode"
        self.stack.append(self._encoded(*arguments) if encode else NotedCall(named.name, arguments))

    def _encoded(self, text: str, encoding: str) -> bytes:
        """Returns bytes that Python 3 pickled for Python 2. Raises a DataError if their total
        exceeds the file: then it encodes the same text again and again to fill the RAM."""
        self._may_encode -= len(text)
        if self._may_encode < 0:
            raise DataError("it makes more bytes than the file has")
        return text.encode("latin1")

    def give_state(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], NotedCall):
            raise DataError("it gives a state to something that has none")
        self.stack[-1].state = state


def _with_text_keys(load: Handler, keys: slice) -> Handler:
    """Returns the handler `load`, preceded by a check that the dict keys at `keys` of the stack are
    text or bytes. Hashing a deeply nested tuple would crash the process."""

    def checked(reader: _DataUnpickler) -> None:
        if not all(isinstance(key, str | bytes) for key in reader.stack[keys]):
            raise DataError("it has a dict whose keys are not text")
        load(reader)

    return checked


def _make_handler_table() -> _HandlerTable:
    pythons: dict[int, Handler] = pickle._Unpickler.dispatch
    # keys on the stack: every second item since the mark, or the one below the last value
    every, last = slice(0, None, 2), slice(-2, -1)
    handlers = {name: pythons[getattr(pickle, name)[0]] for name in SAFE_OPCODES.split()}
    handlers |= {
        "DICT": _with_text_keys(pythons[pickle.DICT[0]], every),
        "SETITEMS": _with_text_keys(pythons[pickle.SETITEMS[0]], every),
        "SETITEM": _with_text_keys(pythons[pickle.SETITEM[0]], last),
        "BYTEARRAY8": handlers["BINBYTES8"],  # it allocates nothing before it has the bytes
        "REDUCE": _DataUnpickler.call,
        "BUILD": _DataUnpickler.give_state,
    }
    return _HandlerTable({getattr(pickle, name)[0]: handler for name, handler in handlers.items()})


_DataUnpickler.dispatch = _make_handler_table()
