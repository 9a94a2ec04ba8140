#include "runtime/comm/world/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A socket that is bound to a port of its own. The port is below those that Linux gives to connections by itself, so
// that no connection of another process takes it once the socket is closed.
class Port {
 public:
  Port() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    constexpr int kFirst = 12000, kLast = 32000;
    static std::mt19937 random{std::random_device()()};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int bound = 0;
    do {
      number_ = static_cast<uint16_t>(std::uniform_int_distribution<int>(kFirst, kLast)(random));
      address.sin_port = htons(number_);
      bound = bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    } while (bound != 0 && errno == EADDRINUSE);
    EXPECT_EQ(bound, 0);
  }
  ~Port() { close(socket_); }
  int socket() const { return socket_; }
  uint16_t number() const { return number_; }

 private:
  static int socket(int family, int type, int protocol) { return ::socket(family, type, protocol); }
  int socket_;
  uint16_t number_ = 0;
};

uint16_t FreePort() { return Port().number(); }

std::vector<Rendezvous> Places(int size) {
  const uint16_t port = FreePort();
  std::vector<Rendezvous> places;
  for (int rank = 0; rank < size; ++rank)
    places.push_back({.rank = rank, .size = size, .host = "127.0.0.1", .port = port, .job = "job"});
  return places;
}

using Body = std::function<absl::Status(Introduction&)>;

// Meets with each place in a thread of its own, after 50 ms for each number in `late` (by place). Then calls `body`.
// Returns the outcomes.
std::vector<absl::Status> MeetAll(const std::vector<Rendezvous>& places, absl::Duration limit, const Body& body = {},
                                  std::vector<int> late = {}) {
  std::vector<absl::Status> outcomes(places.size());
  std::vector<std::thread> threads;
  late.resize(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    threads.emplace_back([&, i] {
      absl::SleepFor(absl::Milliseconds(50 * late[i]));
      const auto introduction = Meet(places[i], limit);
      outcomes[i] = introduction.status();
      if (introduction.ok() && body) outcomes[i] = body(**introduction);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TEST(Rendezvous, RanksExchangeFactsInAnyOrderOfTheirArrival) {
  for (const auto& late : {std::vector<int>{0, 1, 2}, {3, 0, 1}, {1, 4, 0}}) {
    const auto outcomes = MeetAll(
        Places(3), absl::Seconds(20),
        [](Introduction& ranks) -> absl::Status {
          for (int64_t round = 0; round < 3; ++round) {
            ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherFacts(ranks, 10 * round + ranks.rank()));
            EXPECT_THAT(all, ElementsAre(10 * round, 10 * round + 1, 10 * round + 2));
            ASSIGN_OR_RETURN(const std::vector<char> letters,
                             GatherFacts(ranks, static_cast<char>('a' + ranks.rank())));
            EXPECT_THAT(letters, ElementsAre('a', 'b', 'c'));
          }
          return absl::OkStatus();
        },
        late);
    for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
  }
}

TEST(Rendezvous, RanksThatDoNotComeAreNamedOnAllOthers) {
  std::vector<Rendezvous> places = Places(4);
  places.erase(places.begin() + 3);
  places.erase(places.begin() + 1);
  for (const absl::Status& outcome : MeetAll(places, absl::Milliseconds(700))) {
    EXPECT_EQ(outcome.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(outcome.message()), HasSubstr("of 4 ranks, rank 1, rank 3 did not come to 127.0.0.1:"));
  }
}

TEST(Rendezvous, WithoutRank0TheOthersSayWhereItShouldBe) {
  std::vector<Rendezvous> places = Places(2);
  places.erase(places.begin());
  const absl::Status outcome = MeetAll(places, absl::Milliseconds(500))[0];
  EXPECT_EQ(outcome.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcome.message()),
              AllOf(HasSubstr("rank 1 has not met rank 0 at 127.0.0.1:" + std::to_string(places[0].port)),
                    HasSubstr("Connection refused")));
}

TEST(Rendezvous, AHostWithoutAnAddressIsNamed) {
  std::vector<Rendezvous> places = {{.rank = 1, .size = 2, .host = "no-such-host.invalid", .port = 1}};
  EXPECT_THAT(std::string(MeetAll(places, absl::Milliseconds(300))[0].message()),
              HasSubstr("the host 'no-such-host.invalid' of rank 0 (MASTER_ADDR) has no address"));
}

TEST(Rendezvous, APortThatIsTakenIsNamed) {
  const Port port;
  ASSERT_EQ(listen(port.socket(), 1), 0);
  std::vector<Rendezvous> places = {{.rank = 0, .size = 2, .host = "127.0.0.1", .port = port.number()}};
  const absl::Status outcome = MeetAll(places, absl::Seconds(20))[0];
  EXPECT_EQ(outcome.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(outcome.message()),
              HasSubstr("rank 0 cannot listen at port " + std::to_string(port.number())));
}

// Returns the outcomes of two ranks, and of a process that meets them at their port.
std::vector<absl::Status> WithAnother(Rendezvous (*change)(Rendezvous)) {
  std::vector<Rendezvous> places = Places(2);
  places.push_back(change(places[1]));
  return MeetAll(places, absl::Seconds(20), {}, {0, 6, 0});
}

TEST(Rendezvous, OthersAreTurnedAwayByName) {
  const std::vector<absl::Status> of_job = WithAnother([](Rendezvous place) { return place.job = "other", place; });
  EXPECT_TRUE(of_job[0].ok() && of_job[1].ok()) << of_job[0] << of_job[1];
  EXPECT_THAT(std::string(of_job[2].message()),
              AllOf(HasSubstr("belongs to job 'other'"), HasSubstr("to job 'job': two jobs meet at port")));
  const std::vector<absl::Status> of_size = WithAnother([](Rendezvous place) { return place.size = 5, place; });
  EXPECT_TRUE(of_size[0].ok() && of_size[1].ok()) << of_size[0] << of_size[1];
  EXPECT_THAT(std::string(of_size[2].message()), HasSubstr("expects 5 ranks"));
}

TEST(Rendezvous, OnlyOneProcessIsARank) {
  std::vector<Rendezvous> places = Places(3);
  places.push_back(places[1]);
  const std::vector<absl::Status> outcomes = MeetAll(places, absl::Seconds(20), {}, {0, 0, 6, 3});
  for (int rank : {0, 1, 2}) EXPECT_TRUE(outcomes[rank].ok()) << outcomes[rank];
  EXPECT_THAT(std::string(outcomes[3].message()), HasSubstr("is rank 1, which another process is already"));
}

// Receives `bytes` bytes, or what comes before the end.
std::string ReceiveBytes(int connection, size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t got = recv(connection, text.data(), bytes, MSG_WAITALL);
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

void SendBytes(int connection, const std::string& text) {
  EXPECT_EQ(send(connection, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

int ConnectTo(uint16_t port) {
  const int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  for (int i = 0; i < 100 && connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0; ++i)
    absl::SleepFor(absl::Milliseconds(10));
  return connection;
}

void ConnectAndSay(uint16_t port, const std::string& text) {
  const int connection = ConnectTo(port);
  SendBytes(connection, text);
  absl::SleepFor(absl::Seconds(1));
  close(connection);
}

TEST(Rendezvous, StrangersAreIgnored) {
  const std::vector<Rendezvous> places = Places(2);
  std::thread browser([&] { ConnectAndSay(places[0].port, "GET / HTTP/1.1\r\n\r\n"); });
  std::thread silent([&] { ConnectAndSay(places[0].port, "LOCK"); });
  for (const absl::Status& outcome : MeetAll(places, absl::Seconds(20), {}, {0, 10}))
    EXPECT_TRUE(outcome.ok()) << outcome;
  browser.join();
  silent.join();
}

TEST(Rendezvous, WhatListensThereIsNoLockstep) {
  const Port port;
  ASSERT_EQ(listen(port.socket(), 1), 0);
  std::thread server([&] {
    const int connection = accept(port.socket(), nullptr, nullptr);
    EXPECT_EQ(send(connection, "SSH-2.0-OpenSSH\r\n", 17, MSG_NOSIGNAL), 17);
    absl::SleepFor(absl::Milliseconds(200));
    close(connection);
  });
  std::vector<Rendezvous> places = {{.rank = 1, .size = 2, .host = "127.0.0.1", .port = port.number()}};
  EXPECT_THAT(std::string(MeetAll(places, absl::Seconds(20))[0].message()), HasSubstr("is no rank 0 of Lockstep"));
  server.join();
}

std::vector<Rendezvous> PlacesByFile(int size) {
  std::vector<Rendezvous> places = Places(size);
  for (Rendezvous& place : places) {
    place.port = 0;
    place.file = testing::TempDir() + "place" + std::to_string(getpid());
  }
  return places;
}

TEST(Rendezvous, RanksMeetByAFile) {
  const std::vector<Rendezvous> places = PlacesByFile(3);
  for (const char* before : {"", "127.0.0.1:1\nanother job\n", "127.0.0.1:1\njob\n", "127.0.0.1", "no place\njob\n"}) {
    for (const auto& late : {std::vector<int>{0, 1, 2}, {3, 0, 1}}) {
      if (before[0] != '\0') std::ofstream(places[0].file) << before;
      for (const absl::Status& outcome :
           MeetAll(places, absl::Seconds(20), [](Introduction& ranks) { return GatherFacts(ranks, 1).status(); }, late))
        EXPECT_TRUE(outcome.ok()) << outcome;
      EXPECT_FALSE(std::ifstream(places[0].file).good()) << "the file is left";
    }
  }
}

TEST(Rendezvous, ErrorsNameTheFile) {
  std::vector<Rendezvous> places = PlacesByFile(2);
  const auto error = [&](int rank) {
    return std::string(MeetAll({places[static_cast<size_t>(rank)]}, absl::Milliseconds(300))[0].message());
  };
  EXPECT_THAT(error(1), AllOf(HasSubstr("rank 1 has not met rank 0 at the place that rank 0 writes into "),
                              HasSubstr("the file " + places[1].file + " is not there")));
  std::ofstream(places[0].file) << "127.0.0.1:1\nyesterday\n";
  EXPECT_THAT(error(1), HasSubstr("is of job 'yesterday', not of 'job'"));
  std::ofstream(places[0].file) << "no place\njob\n";
  EXPECT_THAT(error(1), HasSubstr("begins with 'no place', not with HOST:PORT"));
  places[0].file = "/no/such/folder/place";
  EXPECT_THAT(error(0), HasSubstr("cannot write where it listens into /no/such/folder/place"));
}

TEST(Rendezvous, RanksWithTheSameSecretMeet) {
  std::vector<Rendezvous> places = Places(3);
  for (Rendezvous& place : places) place.secret = "a word";
  for (const absl::Status& outcome :
       MeetAll(places, absl::Seconds(20), [](Introduction& ranks) { return GatherFacts(ranks, 1).status(); }))
    EXPECT_TRUE(outcome.ok()) << outcome;
}

// Returns the outcomes of two ranks with `secret`, and of a process with `other` that would be rank 1.
std::vector<absl::Status> WithSecrets(const char* secret, const char* other) {
  std::vector<Rendezvous> places = Places(2);
  for (Rendezvous& place : places) place.secret = secret;
  places.push_back(places[1]);
  places[2].secret = other;
  return MeetAll(places, absl::Seconds(20), {}, {0, 6, 0});
}

TEST(Rendezvous, OtherSecretsAreTurnedAwayWithoutHarm) {
  struct {
    const char *secret, *other, *message;
  } const cases[] = {{"a word", "another", " has another secret than rank 0 on host "},
                     {"a word", "", " has a secret, and rank 1 has none: LOCKSTEP_SECRET, or "},
                     {"", "a word", "rank 1 has a secret, and rank 0 at 127.0.0.1:"}};
  for (const auto& [secret, other, message] : cases) {
    const std::vector<absl::Status> outcomes = WithSecrets(secret, other);
    EXPECT_TRUE(outcomes[0].ok() && outcomes[1].ok()) << outcomes[0] << outcomes[1];
    EXPECT_EQ(outcomes[2].code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(outcomes[2].message()), HasSubstr(message));
  }
}

TEST(Rendezvous, Rank0NamesAtItsDeadlineWhomItTurnedAway) {
  struct {
    const char *secret, *other, *message;
  } const cases[] = {{"a word", "another", "; turned away: process [0-9]+ on host .* has another secret than rank 0"},
                     {"a word", "", "; turned away: rank 0 on host .* has a secret, and process .* has none"},
                     {"", "a word", "; turned away: process .* has a secret, and rank 0 on host .* has none"}};
  for (const auto& [secret, other, message] : cases) {
    std::vector<Rendezvous> places = Places(2);
    places[0].secret = secret;
    places[1].secret = other;
    const absl::Status outcome = MeetAll(places, absl::Milliseconds(700))[0];
    EXPECT_EQ(outcome.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(outcome.message()), ContainsRegex(message));
  }
}

// A stranger that does not know the secret gives itself out for rank 0, with a challenge that it has chosen. It sends
// rank 1's proof back as its own, and to the true rank 0 as if it were rank 1.
TEST(Rendezvous, ProofsCannotBeSentAgain) {
  constexpr size_t kChallengeBytes = 48, kHelloBytes = 220, kVerdictBytes = 528, kProofBytes = 32;
  std::vector<Rendezvous> places = Places(2);
  for (Rendezvous& place : places) place.secret = "a word";
  const Port port;
  ASSERT_EQ(listen(port.socket(), 1), 0);
  std::string hello;
  std::thread stranger([&] {
    const int connection = accept(port.socket(), nullptr, nullptr);
    SendBytes(connection, std::string("LOCKSTEP\2\0\0\0\1\0\0\0", 16) + std::string(32, 'n'));
    hello = ReceiveBytes(connection, kHelloBytes);
    std::string verdict("LOCKSTEP\0\0\0\0\40\0\0\0", 16);
    verdict.resize(kVerdictBytes, '\0');
    SendBytes(connection, verdict + hello.substr(kHelloBytes - kProofBytes));
    absl::SleepFor(absl::Milliseconds(200));
    close(connection);
  });
  Rendezvous misled = places[1];
  misled.port = port.number();
  const absl::Status outcome = MeetAll({misled}, absl::Seconds(20))[0];
  EXPECT_EQ(outcome.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(outcome.message()), HasSubstr(" does not know the secret of rank 1"));
  stranger.join();
  ASSERT_EQ(hello.size(), kHelloBytes);
  std::string verdict;
  std::thread again([&] {
    const int connection = ConnectTo(places[0].port);
    EXPECT_EQ(ReceiveBytes(connection, kChallengeBytes).size(), kChallengeBytes);
    SendBytes(connection, hello);
    verdict = ReceiveBytes(connection, kVerdictBytes);
    close(connection);
  });
  for (const absl::Status& each : MeetAll(places, absl::Seconds(20), {}, {0, 10})) EXPECT_TRUE(each.ok()) << each;
  again.join();
  EXPECT_THAT(verdict, HasSubstr(" has another secret than rank 0"));
}

TEST(Rendezvous, ARankThatLeavesIsNamed) {
  for (int gone : {0, 1, 2}) {
    const auto outcomes = MeetAll(Places(3), absl::Seconds(20), [&](Introduction& ranks) -> absl::Status {
      if (ranks.rank() == gone) return absl::OkStatus();
      return GatherFacts(ranks, 1).status();
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == gone) continue;
      EXPECT_THAT(std::string(outcomes[rank].message()), HasSubstr("rank " + std::to_string(gone)));
    }
  }
}

TEST(Rendezvous, ARankThatDoesNotAnswerIsNamed) {
  const auto outcomes = MeetAll(Places(3), absl::Milliseconds(500), [&](Introduction& ranks) -> absl::Status {
    if (ranks.rank() == 2) return absl::SleepFor(absl::Seconds(2)), absl::OkStatus();
    return GatherFacts(ranks, 1).status();
  });
  EXPECT_EQ(outcomes[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcomes[0].message()), HasSubstr("rank 2 on host "));
  EXPECT_FALSE(outcomes[1].ok());
}

class Environment : public testing::Test {
 protected:
  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "LOCKSTEP_SECRET",
                                           "LOCKSTEP_SECRET_FILE",
                                           "LOCKSTEP_RENDEZVOUS_FILE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "PMIX_RANK",
                                           "PMI_RANK",
                                           "SLURM_PROCID",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_STEP_ID",
                                           "SLURM_JOB_ID",
                                           "SLURM_STEP_NODELIST"};
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static void Set(std::vector<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) setenv(name, value, 1);
  }
};

TEST_F(Environment, SaysWhereRanksMeet) {
  EXPECT_EQ(*RendezvousOfEnvironment(), std::nullopt);
  Set({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h0"}, {"MASTER_PORT", "29500"}});
  const auto place = RendezvousOfEnvironment();
  ASSERT_TRUE(place.ok() && place->has_value()) << place.status();
  EXPECT_EQ((*place)->rank, 2);
  EXPECT_EQ((*place)->size, 4);
  EXPECT_EQ((*place)->host, "h0");
  EXPECT_EQ((*place)->port, 29500);
  EXPECT_EQ((*place)->job, "");
  EXPECT_EQ((*place)->secret, "");
  Set({{"LOCKSTEP_SECRET", "a word"}});
  EXPECT_EQ((*RendezvousOfEnvironment())->secret, "a word");
  Set({{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "run"}, {"TORCHELASTIC_RESTART_COUNT", "3"}});
  EXPECT_EQ((*RendezvousOfEnvironment())->port, 29501);
  EXPECT_EQ((*RendezvousOfEnvironment())->job, "run/3");
}

TEST_F(Environment, IsThatOfATaskOfSlurm) {
  Set({{"SLURM_PROCID", "2"}, {"SLURM_JOB_ID", "70001"}, {"SLURM_STEP_NODELIST", "n[07-09,12],login"}});
  EXPECT_EQ(*RendezvousOfEnvironment(), std::nullopt) << "a batch script is no task";
  Set({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_ID", "3"}});
  const auto place = RendezvousOfEnvironment();
  ASSERT_TRUE(place.ok() && place->has_value()) << place.status();
  EXPECT_EQ((*place)->rank, 2);
  EXPECT_EQ((*place)->size, 4);
  EXPECT_EQ((*place)->host, "n07");
  EXPECT_EQ((*place)->port, 61440 + (70001 + 3) % 4096);
  EXPECT_EQ((*place)->job, "Slurm's 70001.3");
  Set({{"MASTER_ADDR", "h0"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ((*RendezvousOfEnvironment())->host, "h0");
  EXPECT_EQ((*RendezvousOfEnvironment())->port, 29500);
  for (const char* of_mpi : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    Set({{of_mpi, "2"}});
    EXPECT_EQ(*RendezvousOfEnvironment(), std::nullopt);
    unsetenv(of_mpi);
  }
  Set({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ((*RendezvousOfEnvironment())->rank, 1) << "which is that of what srun's task has started";
}

TEST(FirstOfNodes, ExpandsTheFirstName) {
  EXPECT_EQ(FirstOfNodes("vm"), "vm");
  EXPECT_EQ(FirstOfNodes("a,b"), "a");
  EXPECT_EQ(FirstOfNodes("n[3]"), "n3");
  EXPECT_EQ(FirstOfNodes("n[007-120,130]-ib,m"), "n007-ib");
  EXPECT_EQ(FirstOfNodes("rack[2,5]n[10-12]"), "rack2n10");
  EXPECT_EQ(FirstOfNodes("n["), "n");
  EXPECT_EQ(FirstOfNodes(""), "");
}

TEST_F(Environment, NamesAFile) {
  Set({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_RENDEZVOUS_FILE", "/shared/place"}, {"MASTER_PORT", "7"}});
  const auto place = RendezvousOfEnvironment();
  ASSERT_TRUE(place.ok() && place->has_value()) << place.status();
  EXPECT_EQ((*place)->file, "/shared/place");
  EXPECT_EQ((*place)->host, "");
  EXPECT_EQ((*place)->port, 0);
}

TEST_F(Environment, NamesWhatIsWrong) {
  const auto error = [] { return std::string(RendezvousOfEnvironment().status().message()); };
  Set({{"RANK", "0"}});
  EXPECT_THAT(error(), HasSubstr("WORLD_SIZE is not set"));
  Set({{"WORLD_SIZE", "two"}});
  EXPECT_THAT(error(), HasSubstr("WORLD_SIZE is 'two', expected a number from 1 to 65536"));
  Set({{"WORLD_SIZE", "2"}, {"RANK", "2"}});
  EXPECT_THAT(error(), HasSubstr("RANK is '2', expected a number from 0 to 1"));
  Set({{"RANK", "1"}});
  EXPECT_THAT(error(), HasSubstr("MASTER_ADDR is not set"));
  Set({{"MASTER_ADDR", "h0"}});
  EXPECT_THAT(error(), HasSubstr("MASTER_PORT is not set"));
  Set({{"MASTER_PORT", "65536"}});
  EXPECT_THAT(error(), HasSubstr("MASTER_PORT is '65536', expected a number from 1 to 65535"));
  Set({{"MASTER_PORT", "29500"}, {"LOCKSTEP_SECRET", ""}});
  EXPECT_THAT(error(), HasSubstr("LOCKSTEP_SECRET is set, but its secret is empty"));
}

}  // namespace
}  // namespace lockstep
