// Looks at the values of one run of a program: the steps whose results or operands have a NaN or an infinity, and the
// step from which each such operand came. Used by backends/find_non_finite.h. One thread uses an object.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/find_non_finite.h"
#include "core/finite.h"
#include "core/status.h"
#include "runtime/execution/executor.h"

namespace lockstep {

// Where an operand came from: the number of the step that wrote it, or one of these.
inline constexpr int32_t kFromInput = -1;    // or from a state that the program does not update
inline constexpr int32_t kFromState = -2;    // a state that the program updates, with its value before the run
inline constexpr int32_t kFromProgram = -3;  // a constant or a setting

// What a step made on one rank.
struct StepFacts {
  bool has_nan = false, has_infinity = false;  // some result
  bool is_constant = false;                    // computed from constants and settings alone
  bool made_here = false;                      // some element of an elementwise op, whose operands there are finite

  bool is_finite() const { return !has_nan && !has_infinity; }
};

// An operand with a NaN or an infinity. Of an elementwise op, only if the result has one at the same element.
struct WrongOperand {
  int32_t step = 0, operand = 0;  // its position among the reads
  int32_t from = kFromProgram;
  bool has_nan = false, has_infinity = false;
};

// A result, or the next value of a state, with a NaN or an infinity, and the step that wrote it.
struct WrongEnd {
  std::string name;  // "result loss", "state w"
  int32_t step = 0;
  bool has_nan = false;
};

class ValueTrace final : public StepObserver {
 public:
  // The executor must outlive the object, whose steps it shows in one run.
  explicit ValueTrace(const Executor& executor);

  absl::Status Before(const StepInfo& step, size_t number, const StepContext& context) override;
  absl::Status After(const StepInfo& step, size_t number, const StepContext& context) override;

  const std::vector<StepFacts>& facts() const { return facts_; }              // by step
  const std::vector<WrongOperand>& wrong_operands() const { return wrong_; }  // a wait has those of its start
  std::vector<WrongEnd> wrong_ends() const;

  // Returns the step with its operands and its first result that is not finite.
  NonFinite Describe(size_t number) const;
  // Returns the first input, state or constant among the operands of the step that is not as it should be; with
  // `is_infinite`, the first that has an infinity.
  NonFinite DescribeGiven(size_t number, bool is_infinite = false) const;
  // Returns "sub %7, at onnx:/norm".
  std::string NameOf(size_t number) const;

 private:
  struct Values {
    std::vector<NonFinite::Operand> operands, results;
  };
  struct Written {
    int32_t step;
    uint64_t bytes;
    ElementCounts counts;
  };
  using Place = std::pair<int32_t, uint64_t>;  // buffer and offset

  absl::Status CompareElements(const StepInfo& step, size_t number, const StepContext& context);
  int32_t OriginOf(const BufferSlice& slice) const;
  void TakeOver(size_t start, size_t wait);
  const std::vector<StepOperand>& ReadsOf(size_t number) const;
  // Returns the bytes of a value in host memory, valid until the next call.
  absl::StatusOr<std::span<const std::byte>> BytesOf(const StepOperand& operand, const StepContext& context);

  const Executable& executable_;
  std::set<std::string> updated_;  // the states that the program updates
  std::vector<StepFacts> facts_;
  std::vector<WrongOperand> wrong_;
  std::vector<Values> values_;  // by step
  // By wrong operand of the present step, if that is elementwise: the elements that are not finite.
  std::vector<std::vector<bool>> elements_;
  std::map<int, size_t> starts_;      // by collective
  std::map<Place, Written> written_;  // the last value at each place
  std::vector<std::byte> copy_;       // of a value on a device
};

}  // namespace lockstep
