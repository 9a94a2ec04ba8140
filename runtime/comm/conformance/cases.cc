#include "runtime/comm/conformance/cases.h"

#include <utility>

#include "runtime/comm/conformance/support.h"

namespace lockstep {

std::vector<ConformanceCase> ConformanceCases() {
  std::vector<ConformanceCase> all;
  for (const auto& part : {CollectiveCases, SplitCases, FailureCases}) {
    for (ConformanceCase& test : part()) all.push_back(std::move(test));
  }
  return all;
}

std::vector<ConformanceCase> WaitingCases() {
  std::vector<ConformanceCase> cases = ConformanceCases();
  std::erase_if(cases, [](const ConformanceCase& test) { return !test.waits; });
  return cases;
}

std::vector<ConformanceCase> ComputingCases() {
  std::vector<ConformanceCase> cases = ConformanceCases();
  std::erase_if(cases, [](const ConformanceCase& test) { return test.waits; });
  return cases;
}

}  // namespace lockstep
