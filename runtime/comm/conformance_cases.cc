#include "runtime/comm/conformance_cases.h"

#include <utility>

#include "runtime/comm/conformance_support.h"

namespace lockstep {

std::vector<ConformanceCase> ConformanceCases() {
  std::vector<ConformanceCase> all;
  for (const auto& part : {CollectiveCases, SplitCases, FailureCases}) {
    for (ConformanceCase& test : part()) all.push_back(std::move(test));
  }
  return all;
}

std::vector<ConformanceCase> SleepingCases() {
  std::vector<ConformanceCase> all = ConformanceCases();
  std::erase_if(all, [](const ConformanceCase& test) { return !test.sleeps; });
  return all;
}

}  // namespace lockstep
