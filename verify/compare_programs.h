// Compares a program of many ranks with the program that it was made of, in exact arithmetic: one of one rank, or one
// that was placed already.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"
#include "verify/exact_interpreter.h"

namespace lockstep::verify {

// The results of one program for random inputs, with which others are compared. Inputs are random numbers, and random
// integers in the range that the ops which use them as positions or classes allow.
//
// Thread-compatible.
class Reference {
 public:
  // Runs `program`: on one rank, or if it is placed or local, on all ranks of its mesh, which get parts of the same
  // inputs. `seed` chooses inputs and random functions. An error names an op that has no meaning in exact arithmetic.
  static absl::StatusOr<Reference> Of(const Graph& program, uint64_t seed = 1);

  // Runs `program`, which was made of the reference by passes: without a mesh, placed or local. Each rank gets its part
  // of the reference's inputs, and zeros for states that only `program` has. Returns an error if a result on some rank
  // is not that rank's part of the reference's result, or not that of the same rank of a placed reference. It names the
  // first value of `program` that differs from the value of the same name, the node that computed it, the ranks, and
  // the nodes that compute it from equal values, at most twelve of each program:
  //
  //   state w on all 4 ranks differs from that of one rank; the first value that does is the result of all_reduce %dw.1
  //   on all 4 ranks
  //     each rank computes
  //       %dw.1 = all_reduce %dw {axis=data, kind=mean} : f32[6,4]
  //     one rank computes
  //       %dw = matmul %x, %dz {transpose_a=true} : f32[6,4]
  absl::Status Check(const Graph& program);

  // Runs `program`, in which the pass quantize-wire was the last to run, with random residuals and random rounding.
  // Returns an error if what the ranks receive of a gradient and what they keep of it in residuals is not its sum and
  // what they had kept. It names the state of the gradient:
  //
  //   the int8 wire loses a part of the gradient of w on rank 1: what is received and kept is not what was sent
  absl::Status CheckResiduals(const Graph& program);

  // Returns the assumptions of all comparisons so far.
  const Assumptions& assumptions() const { return assumptions_; }

 private:
  explicit Reference(Graph program) : program_(std::make_unique<Graph>(std::move(program))) {}

  // For each input of `program`, of local types, the ranks' parts of the reference's input. `unknown` makes the tensor
  // of a rank for an input that the reference does not have.
  std::vector<RankTensors> InputsOf(const Graph& program,
                                    const std::function<ExactTensor(const Input&, int64_t rank)>& unknown) const;
  // The part of the message that follows "; ", with that; empty if no value of a name differs.
  std::string FirstDifference(const Graph& program, const ExactValues& values) const;

  std::unique_ptr<Graph> program_;
  std::vector<ExactTensor> inputs_;
  ExactValues values_;
  Assumptions assumptions_;
};

// Runs `passes` on `graph`, of one rank or placed, as passes::RunPasses does, and compares the result with the graph as
// it was. If they differ, or a pass fails, the passes run once more to find the first after which they differ, which
// the error names. After quantize-wire, CheckResiduals is another comparison. What a pass that changes the meaning
// makes is not compared; later programs are compared with it. Adds to `assumptions`, which may be null.
absl::Status RunPassesChecked(const std::vector<passes::Pass>& passes, Graph& graph,
                              const passes::PassDebug& debug = {}, uint64_t seed = 1,
                              Assumptions* assumptions = nullptr);

}  // namespace lockstep::verify
