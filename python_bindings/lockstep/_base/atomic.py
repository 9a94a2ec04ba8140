"""Writes files that appear complete or not at all, even if the machine stops. Any thread may call."""

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
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}  # errors of a file system without locks


def write(path: str, content: Callable[[BinaryIO], None]) -> None:
    """Writes the file `path` by calling `content` with an open file.

    `content` writes to a hidden file in the same folder. That file is on the disk before it is renamed to `path`, and
    the name is on the disk when this returns. Until then, and after an exception, the old file is unchanged. Hidden
    files that killed writers left in the folder are removed: those of ours that nobody has locked. So there is at most
    one for each file that is being written.

    Raises:
      OSError: from the file system. Exceptions of `content` are passed on.
      Error: another process or thread is writing `path`.
    """
    folder, name = os.path.split(os.path.realpath(path))  # a symbolic link is kept
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
    """Makes the folder and its missing parents. Their names are on the disk when this returns."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    _sync_folder(above)


@contextmanager
def _locked(path: str) -> Iterator[BinaryIO]:
    """Opens, locks and if needed makes the file `path`, which keeps this name while it is locked or until we rename
    it."""
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
        # The previous owner of the lock renamed or removed the file after it was opened here.


def _lock_patiently(descriptor: int) -> None:
    """Retries for a second, because a process that looks for abandoned files holds each lock for a moment."""
    for _ in range(100):
        with suppress(BlockingIOError):
            _lock(descriptor)
            return
        time.sleep(0.01)
    _lock(descriptor)


def _lock(descriptor: int) -> bool:
    """Locks the file. Returns false if the file system has no locks. BlockingIOError: another process has the lock."""
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
        with suppress(OSError):  # it is being written, is already gone, or belongs to another user
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
        if error.errno != errno.EINVAL:  # EINVAL: a file system that cannot sync folders, and need not
            raise
    finally:
        os.close(descriptor)
