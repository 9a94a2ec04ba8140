// What a process does at its end, whichever way it ends: by exit(), or by _exit() because other threads still work with
// what exit() would destroy. Any thread.

#pragma once

namespace lockstep {

// At exit(), in the place that std::atexit would give it; once.
void AtProcessEnd(void (*action)());

// What AtProcessEnd was told and what has not been done, the latest first. For who ends the process by _exit().
void DoAllOfProcessEnd();

}  // namespace lockstep
