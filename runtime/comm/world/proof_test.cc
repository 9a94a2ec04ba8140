#include "runtime/comm/world/proof.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::string Hex(const Proof& proof) {
  std::string text;
  for (const uint8_t byte : proof) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// The test cases 1 to 4, 6 and 7 of RFC 4231. Its case 5 truncates the result.
TEST(Proof, IsHmacSha256OfRfc4231) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char byte = 1; byte <= 25; ++byte) counting += byte;
  EXPECT_EQ(Hex(HmacSha256(counting, std::string(50, '\xcd'))),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                           "This is a test using a larger than block-size key and a larger than block-size data. The "
                           "key needs to be hashed before being used by the HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Proof, EachByteCounts) {
  const Proof proof = HmacSha256("key", "message");
  EXPECT_TRUE(ProofsMatch(proof, Proof(proof)));
  for (size_t i = 0; i < proof.size(); ++i) {
    Proof other = proof;
    other[i] ^= 1;
    EXPECT_FALSE(ProofsMatch(proof, other)) << i;
  }
  EXPECT_NE(*FreshNonce(), *FreshNonce());
}

class Secret : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("LOCKSTEP_SECRET");
    unsetenv("LOCKSTEP_SECRET_FILE");
  }
  void TearDown() override { SetUp(); }

  // Names a file with this content and mode.
  std::string SetFile(const std::string& content, mode_t mode) {
    const std::string path = testing::TempDir() + "secret" + std::to_string(getpid());
    std::remove(path.c_str());
    std::ofstream(path) << content;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    setenv("LOCKSTEP_SECRET_FILE", path.c_str(), 1);
    return path;
  }
  static std::string Error() { return std::string(SecretOfEnvironment().status().message()); }
};

TEST_F(Secret, ComesFromTheEnvironmentOrAFile) {
  EXPECT_EQ(*SecretOfEnvironment(), "");
  setenv("LOCKSTEP_SECRET", " a word\n", 1);
  EXPECT_EQ(*SecretOfEnvironment(), " a word\n");
  unsetenv("LOCKSTEP_SECRET");
  SetFile("a word\n", 0600);
  EXPECT_EQ(*SecretOfEnvironment(), "a word");
  SetFile(std::string(4096, 'x') + "\n", 0400);
  EXPECT_EQ(SecretOfEnvironment()->size(), 4096U);
}

TEST_F(Secret, ErrorsNameTheVariableAndTheFile) {
  setenv("LOCKSTEP_SECRET", "", 1);
  EXPECT_THAT(Error(), HasSubstr("LOCKSTEP_SECRET is set, but its secret is empty"));
  const std::string path = SetFile("\n", 0600);
  EXPECT_THAT(Error(), HasSubstr("LOCKSTEP_SECRET and LOCKSTEP_SECRET_FILE are both set"));
  unsetenv("LOCKSTEP_SECRET");
  EXPECT_THAT(Error(), HasSubstr("LOCKSTEP_SECRET_FILE is set, but its secret is empty"));
  SetFile(std::string(5000, 'x'), 0600);
  EXPECT_THAT(Error(), HasSubstr("longer than 4096 bytes"));
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    SetFile("a word", mode);
    EXPECT_THAT(Error(), HasSubstr("the file " + path + " is open to other users: chmod 600 " + path));
  }
  if (geteuid() == 0) {
    SetFile("a word", 0600);
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    EXPECT_THAT(Error(), HasSubstr("belongs to user 65534, not to this user, 0"));
  }
  std::remove(path.c_str());
  EXPECT_THAT(Error(), HasSubstr("the file " + path + " cannot be read: No such file"));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(Error(), HasSubstr("is no regular file"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace lockstep
