"""The settings of an executable: numbers that may change between calls, and the schedules that they follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from .._base import checks
from .._base.errors import NoSuchSetting
from .._base.names import meant

if TYPE_CHECKING:
    from .._lockstep import Executable

_SPELLINGS = {"lr": "learning_rate"}


class Settings(MutableMapping[str, float]):
    """The settings of an executable by name. All ranks assign the same values.

    A setting is assigned a number, or a function of the step, which is evaluated in every call from then on. Reading a
    setting returns the value in the last call, or the number that was assigned since then.

    Example:
      >>> exe.settings["optimizer/learning_rate"]
      0.1
      >>> exe.settings["optimizer/learning_rate"] = 0.01  # or exe.set(learning_rate=0.01), or exe.set(lr=0.01)

    With groups of parameters, each group has its own setting, whose name is not a valid keyword:
    `exe.set(**{"optimizer/b*/learning_rate": 0.1})`.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    def __getitem__(self, name: str) -> float:
        return self._executable._setting(self._known(name))

    def __setitem__(self, name: str, value: float | Callable[[int], float]) -> None:
        known = self._known(name)
        if callable(value):
            self._executable._schedules[known] = value
            return
        self._executable._set(known, checks.number(f"setting {known}", value))
        self._executable._schedules.pop(known, None)

    def __delitem__(self, name: str) -> None:
        raise TypeError("the settings of an executable cannot be removed")

    def _known(self, name: str) -> str:
        names = self._executable._setting_names()
        if isinstance(name, str) and name in names:
            return name
        option = _SPELLINGS.get(name, name) if isinstance(name, str) else None
        found = [each for each in names if each.rpartition("/")[2] == option]
        if len(found) == 1:
            return found[0]
        shown = str(name).encode(errors="backslashreplace").decode()  # for lone surrogates
        if found:
            one = max(found, key=lambda each: each.count("/"))  # the setting of a group, if there are groups
            form = f'exe.set(**{{"{one}": 0.1}}) or exe.settings["{one}"] = 0.1'
            raise NoSuchSetting(f"several settings are called {shown}: {', '.join(found)}; say which, as in {form}")
        raise NoSuchSetting(f"there is no setting {shown}{meant(name, names)} There are: {', '.join(names) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._executable._setting_names())

    def __len__(self) -> int:
        return len(self._executable._setting_names())

    def __repr__(self) -> str:
        return f"<lockstep settings {dict(self)}>"


def set_by_keyword(executable: Executable, values: Mapping[str, Any]) -> None:
    """Assigns all values, or none if a name or a number is wrong."""
    settings = Settings(executable)
    for name, value in values.items():
        known = settings._known(name)
        if not callable(value):
            executable._check_setting(known, checks.number(f"setting {known}", value))
    for name, value in values.items():
        settings[name] = value
