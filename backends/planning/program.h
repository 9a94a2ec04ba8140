// The form between a graph and an executable: a list of instructions over storages. A storage is a place for one value
// in one memory layout; an instruction is a kernel, a copy or a collective that reads and writes storages. Backends
// make programs (program_builder.h), and what follows schedules them, places the storages in buffers and turns the
// instructions into steps.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "runtime/execution/executable.h"
#include "runtime/execution/steps.h"

namespace lockstep {

struct Storage {
  enum class Kind : uint8_t { kInput, kState, kSetting, kConstant, kTemporary };
  Kind kind = Kind::kTemporary;
  std::string name;    // of the value, without the '%'
  std::string layout;  // empty: dense row-major
  DType dtype = DType::kF32;
  uint64_t bytes = 0;
  int index = -1;  // among the program's inputs, states, settings or constants
  // These are the bytes of another storage: a reshape, or the result of an in-place collective. A state that is a part
  // of another one (SharedState) is some of its bytes.
  int alias_of = -1;

  // Where a temporary lies, if not in the arena. At most one of the three is set, and only on a storage that is no
  // alias.
  int bucket = -1;  // at bucket_offset of this bucket, what a collective takes or gives at once
  uint64_t bucket_offset = 0;
  int state = -1;   // it is the next value of this state, and lies in its buffer
  int result = -1;  // in the buffer of this result

  // Whether it is a temporary with bytes of its own, that may still be placed anywhere.
  bool InArena() const { return kind == Kind::kTemporary && alias_of < 0 && bucket < 0 && state < 0 && result < 0; }
};

struct Instruction {
  enum class Kind : uint8_t { kKernel, kCopy, kCollective, kStart, kWait, kPush, kPull, kStartPull, kWaitPull };
  Kind kind = Kind::kKernel;
  std::string source;
  std::vector<int> reads, writes;  // storages
  Kernel kernel;                   // of a kKernel
  double flops = 0;                // as FlopsOf counts them, of its node
  // (write, read) positions: that write may lie in the bytes of that read, which is not needed afterwards.
  std::vector<std::pair<int, int>> may_overwrite;
  CollectiveInfo collective;  // kCollective becomes kStart and kWait when it is scheduled
  int served = -1;          // of pushes and pulls: position in Program::served; kPull becomes kStartPull and kWaitPull
  bool may_refuse = false;  // it ends the call, before any later one runs, if the caller's data is wrong (refusals.h)

  Instruction WithoutRun() const {  // see Kernel
    return {kind, source, reads, writes, kernel.WithoutRun(), flops, may_overwrite, collective, served, may_refuse};
  }
};

struct ProgramOutput {
  std::string name;
  int storage = -1;
  int state = -1;  // it is the next value of this state; -1: a result
  int info = -1;   // otherwise its place in Program::results
};

// Of a state that ranks have one copy of (share_states.h).
struct SharedState {
  int axis = -1;     // position in the mesh of the axis along which they are; -1: each rank has its own
  int part_of = -1;  // it is this rank's part of that state, which counts as one by itself; -1: it is a whole
};

struct Program {
  std::string name;
  Mesh mesh;
  std::vector<Storage> storages;
  std::vector<Instruction> instructions;
  std::vector<Tensor> constants;
  std::vector<ValueInfo> inputs, states, results;  // buffers are not known yet
  std::vector<ValueInfo> states_elsewhere;         // of a program of parts: those that other ranks alone have
  std::vector<SharedState> shared;                 // by state; empty: none is
  std::vector<std::string> served;                 // states that parameter servers update, each by one push and pull
  std::vector<SettingInfo> settings;
  std::vector<ProgramOutput> outputs;  // results and next values, in the graph's order
  // By bucket: position in the mesh of the axis that registers its memory, or of the lane, behind the axes.
  std::vector<int> bucket_axes;
  std::string parts_along;  // as in Executable, and the lanes likewise
  std::vector<Lane> lanes;
  int num_collectives = 0;
  Preparation prepare;              // what the backend does when the program is loaded; null: nothing
  std::unique_ptr<WholeRun> whole;  // the backend's way to run all steps at once; null: it has none

  int AddStorage(Storage storage) {
    storages.push_back(std::move(storage));
    return static_cast<int>(storages.size()) - 1;
  }
  // The copy of `source` to a new temporary like `target`, which is added; the instruction is for the caller to place.
  Instruction CopyTo(Storage target, int source);
  // What loops hold for the constants of their bodies.
  uint64_t KernelsConstantBytes() const;
  // The state, or the one of which it is a part.
  int WholeOf(int state) const {
    const int whole = shared.empty() ? -1 : shared[static_cast<size_t>(state)].part_of;
    return whole < 0 ? state : whole;
  }
  Storage& storage(int id) { return storages[static_cast<size_t>(id)]; }
  const Storage& storage(int id) const { return storages[static_cast<size_t>(id)]; }
  // The storage whose bytes `id` is.
  int Root(int id) const {
    while (storage(id).alias_of >= 0) id = storage(id).alias_of;
    return id;
  }
};

// Positions of the instructions that touch the bytes of a storage, by root; -1 where there is none.
struct Lifetime {
  int first_write = -1, last_write = -1, last_read = -1;
  int begin() const { return first_write; }
  int end() const { return last_read > last_write ? last_read : last_write; }
};
std::vector<Lifetime> Lifetimes(const Program& program);

}  // namespace lockstep
