"""A file that appears complete or not at all, whenever the process or the machine stops. Of one process: any thread."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from .errors import Error

_SUFFIX = ".lockstep-part"
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}  # of a file system that has none


def write(path: str, content: Callable[[BinaryIO], None]) -> None:
    """Makes the file `path` of what `content` writes to the file that it gets.

    That is a hidden one beside it, which is on the disk before it takes the name; the name is on the disk when this returns.
    Until then, and after an exception, an old file stays as it was. What killed writers left in the folder is removed: a hidden
    file of ours which nobody has locked. So there is at most one for each file that is being written.

    Raises:
      OSError: of the file system; or what `content` raised.
      Error: somebody else is writing to `path`.
    """
    folder, name = os.path.split(os.path.realpath(path))  # a link stays one
    path = os.path.join(folder, name)
    folder = folder or "."
    _remove_abandoned(folder)
    temporary = os.path.join(folder, f".{name}{_SUFFIX}")
    with _locked(temporary) as file:
        try:
            file.truncate(0)
            content(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    _sync_folder(folder)


def make_folder(path: str) -> None:
    """Makes the folder and those above it that there are not, with their names on the disk."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    _sync_folder(above)


@contextmanager
def _locked(path: str) -> Iterator[BinaryIO]:
    """The file `path`, which is made if need be, open and locked: it has this name until the lock is gone, or its owner renames it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "r+b") as file:
            try:
                _lock_patiently(descriptor)
            except BlockingIOError:
                raise Error("another process or thread is writing this file") from None
            if _is_named(descriptor, path):
                yield file
                return
        # Who had the lock has given the file its name, or removed it, since it was opened here.


def _lock_patiently(descriptor: int) -> None:
    """Waits a moment: who looks for files of killed writers locks each for as long as that takes."""
    for _ in range(100):
        with suppress(BlockingIOError):
            _lock(descriptor)
            return
        time.sleep(0.01)
    _lock(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether the file system has locks; BlockingIOError if somebody else has this one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _is_named(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: str) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(".") and entry.name.endswith(_SUFFIX)]
    for name in names:
        path = os.path.join(folder, name)
        with suppress(OSError):  # somebody writes it, or has removed it; it is not ours to remove
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
                if is_file and _lock(descriptor) and _is_named(descriptor, path):
                    os.unlink(path)
            finally:
                os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot, and needs none
            raise
    finally:
        os.close(descriptor)
