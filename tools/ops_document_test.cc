// Checks that docs/ops.md agrees with the definitions of the ops. `make docs` writes it.

#include "tools/ops_document.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace lockstep {
namespace {

TEST(OpsDocument, IsUpToDate) {
  std::ifstream file("docs/ops.md");
  ASSERT_TRUE(file) << "docs/ops.md is missing";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), OpsDocument()) << "run: make docs";
}

}  // namespace
}  // namespace lockstep
