"""The settings of an executable: numbers that may change between calls, such as the learning rate, or schedules of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from .._base import checks
from .._base.errors import NoSuchSetting
from .._base.names import suggest

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

    With groups of parameters each has its own: `exe.settings["optimizer/b*/learning_rate"] = 0.1` sets that of one group, and
    `exe.set(learning_rate=0.1)` those of all.
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
        found = self._all_known(name)
        if len(found) == 1:
            return found[0]
        one = max(found, key=lambda each: each.count("/"))  # a group's, if there are groups
        raise NoSuchSetting(
            f'several settings are called {name}: {", ".join(found)}; give the full name, as in exe.settings["{one}"] = 0.1, or set all, as in '
            f"exe.set({name}=0.1)"
        )

    def _all_known(self, name: str) -> list[str]:
        """Returns the setting of this full name, or the settings of all groups whose last part is this name."""
        names = self._executable._setting_names()
        if isinstance(name, str) and name in names:
            return [name]
        option = _SPELLINGS.get(name, name) if isinstance(name, str) else None
        found = [each for each in names if each.rpartition("/")[2] == option]
        if not found:
            shown = str(name).encode(errors="backslashreplace").decode()  # of a lone surrogate
            raise NoSuchSetting(
                f"there is no setting {shown}{suggest(name, names)} There are: {', '.join(names) or 'none'}"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._executable._setting_names())

    def __len__(self) -> int:
        return len(self._executable._setting_names())

    def __repr__(self) -> str:
        return f"<lockstep settings {dict(self)}>"


def set_by_keyword(executable: Executable, values: Mapping[str, Any]) -> None:
    """Assigns settings by name; a name that several groups have is assigned in each of them.

    Assigns none of them if a name or a number is wrong.
    """
    settings = Settings(executable)
    assigned = [(known, value) for name, value in values.items() for known in settings._all_known(name)]
    for known, value in assigned:
        if not callable(value):
            executable._check_setting(known, checks.number(f"setting {known}", value))
    for known, value in assigned:
        settings[known] = value
