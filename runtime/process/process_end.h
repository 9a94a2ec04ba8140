// Actions at the end of a process, with exit(), or with _exit() if other threads still use objects that exit() would
// destroy. Any thread.

#pragma once

namespace lockstep {

// Registers an action for exit(), in the order of std::atexit. It is done once.
void AtProcessEnd(void (*action)());

// Does the remaining actions, the latest first. For callers that end the process with _exit().
void RunProcessEndActions();

}  // namespace lockstep
