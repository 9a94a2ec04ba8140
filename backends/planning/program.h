// The form between a graph and an executable: a list of instructions over storages. A storage is a place for one value
// in one memory layout. An instruction is a kernel, a copy or a collective that reads and writes storages. Backends
// make programs (program_builder.h); later stages schedule them, place the storages in buffers and turn the
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
#include "runtime/execution/work.h"

namespace lockstep {

struct Storage {
  enum class Kind : uint8_t { kInput, kState, kSetting, kConstant, kTemporary };
  Kind kind = Kind::kTemporary;
  std::string name;    // of the value, without the '%'
  std::string layout;  // empty: dense row-major
  DType dtype = DType::kF32;
  Shape shape = {};  // of the value
  uint64_t bytes = 0;
  int index = -1;  // among the program's inputs, states, settings or constants
  // The storage whose bytes this one shares: for a reshape, or for the result of an in-place collective. A state that
  // is a part of another one (SharedState) is some of its bytes.
  int alias_of = -1;

  // The location of a temporary that is not in the arena. At most one of bucket, state and result is set, and only on a
  // storage that is not an alias.
  int bucket = -1;  // at bucket_offset of this bucket, the memory that one collective reads or writes
  uint64_t bucket_offset = 0;
  int state = -1;   // the next value of this state, in the state's buffer
  int result = -1;  // in the buffer of this result

  // Returns true for a temporary with its own bytes whose location is not fixed yet.
  bool InArena() const { return kind == Kind::kTemporary && alias_of < 0 && bucket < 0 && state < 0 && result < 0; }
};

struct Instruction {
  enum class Kind : uint8_t { kKernel, kCopy, kCollective, kStart, kWait, kPush, kPull, kStartPull, kWaitPull };
  Kind kind = Kind::kKernel;
  std::string source;
  std::vector<int> reads, writes;  // storages
  Kernel kernel;                   // of a kKernel
  Work work;                       // of its node
  std::vector<uint64_t> read;      // the bytes of each of `reads` that it needs, in their order; of kernels and copies
  bool is_loop = false;            // its node, or all in it, is elementwise, a movement, a reduction or a generator
  // (write, read) positions: the write may use the bytes of the read, which is not needed afterwards.
  std::vector<std::pair<int, int>> may_overwrite;
  CollectiveInfo collective;  // kCollective becomes kStart and kWait when it is scheduled
  int served = -1;          // of pushes and pulls: position in Program::served; kPull becomes kStartPull and kWaitPull
  bool may_refuse = false;  // may end the call before later instructions run, if the caller's data is wrong
                            // (refusals.h)

  Instruction WithoutRun() const {  // see Kernel
    return {kind,    source,        reads,      writes, kernel.WithoutRun(), work, read,
            is_loop, may_overwrite, collective, served, may_refuse};
  }
};

struct ProgramOutput {
  std::string name;
  int storage = -1;
  int state = -1;  // the state whose next value it is; -1: a result
  int info = -1;   // for a result, its index in Program::results
};

// A state of which ranks have one copy (share_states.h).
struct SharedState {
  int axis = -1;     // mesh position of the axis along which ranks share it; -1: each rank has its own
  int part_of = -1;  // the state of which this one is the rank's part, which is a separate state; -1: it is a whole
                     // state
};

struct Program {
  std::string name;
  Mesh mesh;
  std::vector<Storage> storages;
  std::vector<Instruction> instructions;
  std::vector<Tensor> constants;
  std::vector<ValueInfo> inputs, states, results;  // their buffers are not known yet
  std::vector<ValueInfo> states_elsewhere;         // in a program of parts: the states that only other ranks have
  std::vector<SharedState> shared;                 // by state; empty if no state is shared
  std::vector<std::string> served;                 // states that parameter servers update, each by one push and pull
  std::vector<SettingInfo> settings;
  std::vector<ProgramOutput> outputs;  // results and next values, in the graph's order
  // By bucket: mesh position of the axis that registers its memory, or of the lane, whose numbers follow the axes'.
  std::vector<int> bucket_axes;
  std::string parts_along;  // as in Executable, like the lanes
  std::vector<Lane> lanes;
  int num_collectives = 0;
  Preparation prepare;                        // the backend's work when the program is loaded; null: nothing
  std::unique_ptr<CombinedRun> combined_run;  // the backend's way to run all steps at once; null if it has none

  int AddStorage(Storage storage) {
    storages.push_back(std::move(storage));
    return static_cast<int>(storages.size()) - 1;
  }
  // Returns a copy of `source` to a new temporary like `target`, which is added. The caller places the instruction.
  Instruction CopyTo(Storage target, int source);
  // The bytes that loops hold for the constants of their bodies.
  uint64_t KernelsConstantBytes() const;
  // Returns the state, or the one that it is a part of.
  int WholeOf(int state) const {
    const int whole = shared.empty() ? -1 : shared[static_cast<size_t>(state)].part_of;
    return whole < 0 ? state : whole;
  }
  Storage& storage(int id) { return storages[static_cast<size_t>(id)]; }
  const Storage& storage(int id) const { return storages[static_cast<size_t>(id)]; }
  // Returns the storage that owns the bytes of `id`.
  int Root(int id) const {
    while (storage(id).alias_of >= 0) id = storage(id).alias_of;
    return id;
  }
};

// Positions of the instructions that access the bytes of a storage, by root; -1 if there is none.
struct Lifetime {
  int first_write = -1, last_write = -1, last_read = -1;
  int begin() const { return first_write; }
  int end() const { return last_read > last_write ? last_read : last_write; }
};
std::vector<Lifetime> Lifetimes(const Program& program);

}  // namespace lockstep
