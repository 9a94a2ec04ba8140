// Tests the comparison itself, on declarations that agree and on declarations that differ in one point.

#include "test/cuda_abi/same.h"

#include <array>
#include <cstdint>

#include "gtest/gtest.h"

namespace ours {
enum Kind : int { kZero };
struct Handle;  // defined only on the other side
struct Options {
  size_t size;
  int a;
};
struct Copy {
  int64_t bytes;
  const void* from;
};
}  // namespace ours

namespace theirs {
typedef enum { ZERO } kind_t;
struct handle_st {
  int inside;
};
struct options {
  size_t size;
  int a, b;
  const char* c;
};
struct copy_st {
  long long bytes;
  const void* from;
};
struct packed_st {
  char bytes[16];
};
}  // namespace theirs

namespace lockstep::cuda_abi {

template <>
inline constexpr bool kMayBeShorter<ours::Options> = true;

namespace {

TEST(SameTest, WhatACallerCannotTellApart) {
  EXPECT_TRUE((Same<uint64_t, unsigned long long>()));
  EXPECT_TRUE((Same<ours::Kind, theirs::kind_t>()));
  EXPECT_TRUE((Same<ours::Handle*, theirs::handle_st*>()));
  EXPECT_TRUE((Same<ours::Copy, theirs::copy_st>()));
  EXPECT_TRUE((Same<ours::Options*, theirs::options*>()));
  EXPECT_TRUE((Same<std::array<char, 128>, char[128]>()));
  EXPECT_TRUE((Same<int (*)(ours::Handle**, size_t), theirs::kind_t (*)(theirs::handle_st**, unsigned long)>()));
}

TEST(SameTest, OneDifference) {
  EXPECT_FALSE((Same<int*, size_t*>()));                   // the pointees have different sizes
  EXPECT_FALSE((Same<int, float>()));                      // passed in other registers
  EXPECT_FALSE((Same<uint64_t, void*>()));                 // another kind
  EXPECT_FALSE((Same<int**, int*>()));                     // one level of pointers less
  EXPECT_FALSE((Same<void*, const void*>()));              // const on one side only
  EXPECT_FALSE((Same<ours::Copy, theirs::packed_st>()));   // another alignment
  EXPECT_FALSE((Same<theirs::options, ours::Options>()));  // longer than the vendor's
  EXPECT_FALSE((Same<ours::Copy, theirs::options>()));     // shorter, and not allowed to be
  EXPECT_FALSE((Same<int (*)(int), int (*)(int, int)>()));
  EXPECT_FALSE((Same<int (*)(int, size_t), int (*)(size_t, int)>()));
  EXPECT_FALSE((Same<void (*)(int), int (*)(int)>()));
  EXPECT_FALSE((Same<int (*)(void (*)(int)), int (*)(void (*)(size_t))>()));
}

}  // namespace
}  // namespace lockstep::cuda_abi
