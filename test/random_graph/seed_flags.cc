#include "test/random_graph/seed_flags.h"

#include <charconv>
#include <cstdio>
#include <string_view>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

bool ParseFlag(std::string_view argument, std::string_view name, uint64_t& value) {
  if (!argument.starts_with(name)) return false;
  argument.remove_prefix(name.size());
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), value);
  return error == std::errc() && end == argument.data() + argument.size();
}

}  // namespace

int RunTestsOfSeeds(int argc, char** argv, uint64_t& num_graphs, uint64_t& first_seed) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (ParseFlag(argv[i], "--graphs=", num_graphs) || ParseFlag(argv[i], "--first_seed=", first_seed)) continue;
    std::fprintf(stderr, "%s: unknown flag; there are --graphs=N and --first_seed=N\n", argv[i]);
    return 1;
  }
  return RUN_ALL_TESTS();
}

}  // namespace lockstep
