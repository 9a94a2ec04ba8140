// The functions and constants of MPI that this project uses, in one table. The library is opened when MPI is first
// used, so that a process of one rank runs on machines without MPI. Three binary interfaces are known: that of Open MPI
// 4 and 5; that of MPICH, which Intel MPI, Cray MPICH and MVAPICH share (the MPICH ABI Compatibility Initiative); and
// the standard one of MPI 5.0. The table has no type of mpi.h: handles are as wide as those of any implementation, and
// what else differs between implementations is a member of the table. mpi_abi_test.cc compares it with the mpi.h of
// each. Names are MPI's, without their prefix: MPI_Comm_rank is Mpi().Comm_rank. Any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

// Handles. They are pointers in Open MPI and in the standard interface, and numbers of 32 bits in MPICH, which writes
// half of them. So they must be initialised before MPI writes to them.
enum class MpiComm : uintptr_t {};
enum class MpiRequest : uintptr_t {};
enum class MpiMessage : uintptr_t {};
enum class MpiDatatype : uintptr_t {};
enum class MpiErrhandler : uintptr_t {};

// An MPI_Status, whose members are at other places in other implementations. It is as large as the largest.
struct alignas(int64_t) MpiReceived {
  int32_t words[8] = {};
};

inline constexpr int kMpiSuccess = 0;
inline constexpr int kMpiThreadSingle = 0;
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

// Handles. Open MPI has them as addresses of the variables that are named here.
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
  int any_source = 0;
  int tag_ub = 0;
  int err_truncate = 0;
  int thread_multiple = 0;
  uintptr_t status_ignore = 0;
  int source_word = 0;  // the word of MpiReceived with the sender's rank

  // The argument for a status that is not wanted.
  MpiReceived* no_status() const { return reinterpret_cast<MpiReceived*>(status_ignore); }
};

// Loads the table from the first of `files` that can be opened and has all of its functions: paths, or names for the
// dynamic linker. The library says which interface it has. The error lists the files and their problems, and says how
// to install an MPI.
absl::StatusOr<MpiApi> LoadMpi(const std::vector<std::string>& files);

// Returns the files in which OpenMpi() looks for a library, best first. These are, of each interface, the name that the
// dynamic linker knows and the file of Python's packages openmpi and mpich in the environment that contains this
// module. An interface comes first if the process has already loaded its library, as mpi4py does, or otherwise if its
// mpirun has started this process. LOCKSTEP_MPI_LIBRARY, if it is set, is the only file.
std::vector<std::string> MpiFiles();

// Opens the library of this process: the first of MpiFiles(). After an error, the next call tries again.
absl::Status OpenMpi();

// Returns the table of this process. Requires that OpenMpi() has succeeded.
const MpiApi& Mpi();

}  // namespace lockstep
