"""The worlds of an elastic job, one after the other: which members are its ranks, and when a world is given up for the
next one.

Nothing here waits or communicates. stay.py tells what has happened, with the time, and sends the messages that
`take_messages` returns. A *member* is a process of the job, by a number that no other process of the job gets. A
*generation* is a world of some members. It is broken when one of them is lost, or when others can join.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

START_SECONDS = 60.0  # for the first members to come before a world is made of those that are there
RETURN_SECONDS = 5.0  # for members to leave a broken world before the next one is made without them
CALM_SECONDS = 1.0  # after that, without a further member coming
STUCK_SECONDS = 30.0  # for the others to fail too, after one has failed
BLAME_SECONDS = 3.0  # for the loss of a member to be noticed, after all members have failed
COMING, WAITING, RUNNING, FAILED, DONE = "coming", "waiting", "running", "failed", "done"

Message = dict[str, Any]


@dataclass
class Member:
    """A process of the job. `place` orders the ranks of a world, so that those of a host are neighbours."""

    number: int
    place: tuple[int, int]
    state: str = COMING
    step: int = -1  # the number of the step of its copy of the states; -1: it has none
    parts: bool = False  # its copy has only parts of some states
    shares: int = 0  # the number of ranks must divide this; 0: any number


@dataclass
class Generations:
    """The members of a job and the present world.

    Args:
      least: the smallest number of ranks with which the job continues.
      begin: the present time in seconds, as of all calls.
    """

    least: int
    begin: float
    members: dict[int, Member] = field(default_factory=dict)
    number: int = 0  # of the present generation, from 1; 0: there was none
    ranks: list[int] = field(default_factory=list)  # its members, by rank
    over: bool = False  # all ranks have returned
    blamed: set[int] = field(default_factory=set)  # members that end because of their own errors
    fruitless: int = 0  # the number of worlds since the last one that has completed a step
    _broken: bool = True
    _collects: bool = False  # the present world only collects parts of states
    _progressed: bool = False  # a rank of the present generation has completed a step
    _changed_at: float = 0.0
    _ready_at: float = 0.0
    _gathered: dict[int, dict[int, str]] = field(default_factory=dict)  # by call and rank
    _messages: list[tuple[int, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed_at = self._ready_at = self.begin

    def take_messages(self) -> list[tuple[int, Message]]:
        """Returns the messages that are to be sent, with the numbers of their members."""
        messages, self._messages = self._messages, []
        return messages

    def add(self, number: int, place: tuple[int, int]) -> None:
        """A member was started."""
        self.members[number] = Member(number, place)

    def lose(self, number: int, now: float, why: str) -> None:
        """A member has died, or is cut off. Does nothing for a member that is lost already."""
        if self.members.pop(number, None) is not None and number in self.ranks and not self.over:
            self._break(now, why)

    def hear(self, number: int, message: Message, now: float) -> None:
        """A member says something. Of messages about an earlier generation, only the wish for another one counts."""
        member, what = self.members.get(number), message["what"]
        if member is None:
            return
        is_present = message["generation"] == self.number and not self._broken
        if number in self.ranks and not self._broken and not is_present:
            return  # it has not heard of its new world yet
        if what == "ready" or (what in ("failed", "done") and not is_present):
            self._note(member, message)
            self._wait(member, now)
        elif what in ("failed", "done"):
            self._note(member, message)
            member.state = FAILED if what == "failed" else DONE
            self._changed_at = now
            self._end_if_done()
        elif is_present and what == "stepped":
            self._progressed, self.fruitless = True, 0
        elif is_present and what == "gather":
            self._gather(number, message)

    def tick(self, now: float) -> None:
        """Does what is due."""
        if self.over:
            return
        if not self._broken:
            self._judge(now)
            self._let_join(now)
        if self._broken and self._may_form(now):
            self._form(now)

    @property
    def is_broken(self) -> bool:
        """True if there is no present world."""
        return self._broken

    @property
    def collects(self) -> bool:
        """True if the present world only collects the parts of states, for the next one."""
        return self._collects

    @property
    def waiting(self) -> list[Member]:
        return [member for member in self.members.values() if member.state == WAITING]

    def size_of(self, members: list[Member]) -> int:
        """Returns the largest number of ranks that these members can be; 0 if they are too few."""
        shares = members[0].shares if members else 0
        sizes = (size for size in range(len(members), 0, -1) if shares % size == 0)
        size = next(sizes, 0)
        return size if size >= self.least else 0

    def _note(self, member: Member, message: Message) -> None:
        member.step, member.parts, member.shares = message["step"], message["parts"], message["shares"]

    def _wait(self, member: Member, now: float) -> None:
        if self.over:
            self._messages.append((member.number, {"what": "over"}))
            return
        member.state, self._ready_at = WAITING, now
        if member.number not in self.ranks or self._broken:
            return
        if not self._collects:
            self._break(now, f"member {member.number} has left the world")
        elif all(each.state == WAITING for each in self._present()):
            self._broken = True

    def _break(self, now: float, why: str) -> None:
        if self._broken:
            return
        self._broken, self._changed_at = True, now
        self._gathered.clear()
        for member in self._present():
            self._messages.append((member.number, {"what": "broken", "generation": self.number, "why": why}))
            if member.state == FAILED:  # it waits already
                member.state, self._ready_at = WAITING, now

    def _present(self) -> list[Member]:
        return [self.members[number] for number in self.ranks if number in self.members]

    def _end_if_done(self) -> None:
        if all(member.state == DONE for member in self._present()):
            self.over = True
            for member in (*self._present(), *self.waiting):
                self._messages.append((member.number, {"what": "over"}))

    def _judge(self, now: float) -> None:
        """Lets errors end their members if no loss of a member explains them. If members could not meet, or one is
        stuck, there is another world."""
        states = {member.state for member in self._present()}
        if FAILED not in states or now - self._changed_at <= BLAME_SECONDS:
            return
        if self._gathered:
            self._break(now, "a member could not meet the others")
        elif RUNNING in states and now - self._changed_at > STUCK_SECONDS:
            self._break(now, "a member does not leave a world that has failed")
        elif RUNNING not in states:
            for member in self._present():
                if member.state == FAILED:
                    self._messages.append((member.number, {"what": "stands", "generation": self.number}))
                    member.state = COMING  # until its end is noticed
                    self.blamed.add(member.number)

    def _let_join(self, now: float) -> None:
        """Breaks the world if a larger one can be made. A world that has not computed a step yet is left in peace, as
        it may still compile, and would not be ready for the larger one either."""
        joining = self.waiting
        if joining and self._progressed and self.size_of([*self._present(), *joining]) > len(self.ranks):
            names = ", ".join(f"{member.number}" for member in joining)
            self._break(now, f"member {names} can join")

    def _may_form(self, now: float) -> bool:
        if not self.waiting or self.size_of(self.waiting) == 0:
            return False
        awaited = self._present() if self.number > 0 else list(self.members.values())
        limit = RETURN_SECONDS if self.number > 0 else START_SECONDS
        is_late = now - self._changed_at > limit and now - self._ready_at > CALM_SECONDS
        return is_late or all(member.state == WAITING for member in awaited)

    def _form(self, now: float) -> None:
        """Makes the next world, of the members with the newest states; or a world of all members that have parts of
        them, as some of these may be no ranks afterwards."""
        newest = sorted(self.waiting, key=lambda member: (-member.step, member.place))
        with_parts = [member for member in newest if member.parts]
        self._collects = bool(with_parts)
        chosen = sorted(with_parts or newest[: self.size_of(newest)], key=lambda member: member.place)
        self.number, self.ranks = self.number + 1, [member.number for member in chosen]
        self._broken, self._progressed, self._changed_at = False, False, now
        self.fruitless += 1
        for rank, member in enumerate(chosen):
            member.state = RUNNING
            place = {"rank": rank, "size": len(chosen), "collects": self._collects}
            self._messages.append((member.number, {"what": "world", "generation": self.number, **place}))

    def _gather(self, number: int, message: Message) -> None:
        """Collects what each rank says in a call, and tells it all ranks when the last has said it."""
        said = self._gathered.setdefault(message["call"], {})
        said[self.ranks.index(number)] = message["bytes"]
        if len(said) == len(self.ranks):
            answer = {"what": "gathered", "generation": self.number, "call": message["call"]}
            everything = [said[rank] for rank in range(len(self.ranks))]
            self._messages += [(each, {**answer, "all": everything}) for each in self.ranks]
            del self._gathered[message["call"]]
