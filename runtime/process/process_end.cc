#include "runtime/process/process_end.h"

#include <cstdlib>
#include <mutex>
#include <vector>

namespace lockstep {
namespace {

struct Actions {
  std::mutex mutex;
  std::vector<void (*)()> left;
};

// Does the latest action. Returns false if none is left.
bool DoLatest(Actions& actions) {
  void (*action)() = nullptr;
  {
    const std::lock_guard<std::mutex> lock(actions.mutex);
    if (actions.left.empty()) return false;
    action = actions.left.back();
    actions.left.pop_back();
  }
  action();
  return true;
}

Actions& ActionsOfProcess() {
  static Actions* const actions = new Actions;  // never destroyed, because it is used when the process exits
  return *actions;
}

}  // namespace

void AtProcessEnd(void (*action)()) {
  Actions& actions = ActionsOfProcess();
  const std::lock_guard<std::mutex> lock(actions.mutex);
  actions.left.push_back(action);
  std::atexit([] { DoLatest(ActionsOfProcess()); });
}

void RunProcessEndActions() {
  while (DoLatest(ActionsOfProcess())) {
  }
}

}  // namespace lockstep
