// The fake driver follows CUDA's rules, detects calls that break them, and runs late.

#include "test/fake_cuda/fake_driver.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test/fake_cuda/load.h"

namespace lockstep::cuda {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CUresult Code(int result) { return static_cast<CUresult>(result); }
void Rest(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// Appends a letter to a text in the host's memory. The letter is the first parameter, the text's address the second.
void Append(void** parameters, const FakeLaunch&) {
  char letter;
  std::string* text;
  std::memcpy(&letter, parameters[0], 1);
  std::memcpy(&text, parameters[1], sizeof(text));
  *text += letter;
}

class Fake : public testing::Test {
 protected:
  void SetUp() override { Make({}); }
  void TearDown() override {
    End();
    EXPECT_THAT(driver().leaks(), IsEmpty());
    if (!misused_) {
      EXPECT_THAT(driver().misuse(), IsEmpty());
    }
  }

  void Make(const FakeDriver::Options& options) {
    if (fake_ != nullptr) End();
    fake_ = std::make_unique<LoadedFakeDriver>(LoadFakeDriver(options));
    CUcontext context = nullptr;
    EXPECT_EQ(api().DevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(api().CtxSetCurrent(context), CUDA_SUCCESS);
    for (CUstream* stream : {&a_, &b_}) {
      EXPECT_EQ(api().StreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    }
    for (CUevent* event : {&x_, &y_}) EXPECT_EQ(api().EventCreate(event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    std::ostringstream image;
    image << "lockstep-fake-kernels\nappend " << std::hex << reinterpret_cast<uintptr_t>(Append) << " 1 8\n";
    EXPECT_EQ(api().ModuleLoadDataEx(&module_, image.str().c_str(), 0, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(api().ModuleGetFunction(&append_, module_, "append"), CUDA_SUCCESS);
  }
  void End() {
    (void)api().ModuleUnload(module_);
    for (CUevent event : {x_, y_}) (void)api().EventDestroy(event);
    for (CUstream stream : {a_, b_}) (void)api().StreamDestroy(stream);
    EXPECT_EQ(api().DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }

  const DriverApi& api() const { return fake_->api; }
  FakeDriver& driver() const { return fake_->driver; }

  CUdeviceptr Allocate(size_t bytes) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(api().MemAlloc(&memory, bytes), CUDA_SUCCESS);
    return memory;
  }
  CUresult Launch(CUstream stream, char letter, std::string* text) {
    void* parameters[] = {&letter, &text};
    const CUresult result = api().LaunchKernel(append_, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
    letter = '?';  // the parameters were copied at the launch
    return result;
  }
  CUresult Signal(CUevent event, CUstream from, CUstream to) {
    const CUresult result = api().EventRecord(event, from);
    return result == CUDA_SUCCESS ? api().StreamWaitEvent(to, event, 0) : result;
  }

  std::unique_ptr<LoadedFakeDriver> fake_;
  CUstream a_ = nullptr, b_ = nullptr;
  CUevent x_ = nullptr, y_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction append_ = nullptr;
  bool misused_ = false;
};

// --- Streams ------------------------------------------------------------------------------------------------------

TEST_F(Fake, ALazyStreamDoesNothingUnasked) {
  Make({.pace = FakeDriver::Pace::kLazy});
  std::string text;
  EXPECT_EQ(Launch(a_, 'a', &text), CUDA_SUCCESS);
  EXPECT_EQ(Signal(x_, a_, b_), CUDA_SUCCESS);
  EXPECT_EQ(Launch(a_, 'c', &text), CUDA_SUCCESS);
  EXPECT_EQ(Launch(b_, 'b', &text), CUDA_SUCCESS);
  Rest(5);
  EXPECT_EQ(text, "");
  EXPECT_EQ(api().StreamSynchronize(b_), CUDA_SUCCESS);  // a runs only up to the event
  EXPECT_EQ(text, "ab");
  while (api().StreamQuery(a_) == CUDA_ERROR_NOT_READY) Rest(1);
  EXPECT_EQ(text, "abc");
}

TEST_F(Fake, StreamsRunOutOfStep) {
  std::set<std::string> seen;
  for (int round = 0; round < 100 && seen.size() < 2; ++round) {
    std::atomic<int> order{0};
    int of_b = 0;
    const auto first = [](void* data) { static_cast<std::atomic<int>*>(data)->store(1); };
    struct Two {
      std::atomic<int>& order;
      int& of_b;
    } two{order, of_b};
    const auto second = [](void* data) { static_cast<Two*>(data)->of_b = static_cast<Two*>(data)->order; };
    EXPECT_EQ(api().LaunchHostFunc(a_, first, &order), CUDA_SUCCESS);
    EXPECT_EQ(api().LaunchHostFunc(b_, second, &two), CUDA_SUCCESS);
    EXPECT_EQ(api().StreamSynchronize(a_), CUDA_SUCCESS);
    EXPECT_EQ(api().StreamSynchronize(b_), CUDA_SUCCESS);
    seen.insert(of_b == 1 ? "after" : "before");
  }
  EXPECT_EQ(seen.size(), 2u) << "one stream was always ahead";
}

TEST_F(Fake, ALaunchIntoAFullQueueBlocks) {
  Make({.queue = 64});
  std::atomic<bool> go{false};
  const auto wait = [](void* data) {
    while (!*static_cast<std::atomic<bool>*>(data)) Rest(1);
  };
  EXPECT_EQ(api().LaunchHostFunc(a_, wait, &go), CUDA_SUCCESS);
  std::string text;
  for (int i = 0; i < 63; ++i) EXPECT_EQ(Launch(a_, 'x', &text), CUDA_SUCCESS);
  EXPECT_FALSE(go);
  std::thread other([&go] {
    Rest(30);
    go = true;
  });
  EXPECT_EQ(Launch(a_, 'x', &text), CUDA_SUCCESS);
  EXPECT_TRUE(go);
  other.join();
  EXPECT_EQ(api().StreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(text, std::string(64, 'x'));
}

TEST_F(Fake, EventsOrderStreams) {
  for (const auto pace : {FakeDriver::Pace::kRandom, FakeDriver::Pace::kLazy}) {
    Make({.pace = pace});
    for (int round = 0; round < 30; ++round) {
      std::string text;
      EXPECT_EQ(Launch(a_, '1', &text), CUDA_SUCCESS);
      EXPECT_EQ(Signal(x_, a_, b_), CUDA_SUCCESS);
      EXPECT_EQ(Launch(b_, '2', &text), CUDA_SUCCESS);
      EXPECT_EQ(Signal(x_, b_, a_), CUDA_SUCCESS);  // recorded again; the first wait is for the first recording
      EXPECT_EQ(Launch(a_, '3', &text), CUDA_SUCCESS);
      EXPECT_EQ(api().EventRecord(y_, a_), CUDA_SUCCESS);
      EXPECT_EQ(api().EventSynchronize(y_), CUDA_SUCCESS);
      EXPECT_EQ(text, "123");
    }
  }
}

TEST_F(Fake, FunctionsOfAContextRunOneByOne) {
  struct Count {
    std::atomic<int> now{0}, most{0};
  } count;
  const auto function = [](void* data) {
    auto& c = *static_cast<Count*>(data);
    const int now = ++c.now;
    if (now > c.most) c.most = now;
    Rest(1);
    --c.now;
  };
  for (int i = 0; i < 5; ++i) {
    for (CUstream stream : {a_, b_}) EXPECT_EQ(api().LaunchHostFunc(stream, function, &count), CUDA_SUCCESS);
  }
  for (CUstream stream : {a_, b_}) EXPECT_EQ(api().StreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(count.most, 1);
}

TEST_F(Fake, MemoryIsTheDevicesAlone) {
  const CUdeviceptr memory = Allocate(8);
  void* pinned = nullptr;
  ASSERT_EQ(api().MemHostAlloc(&pinned, 8, 0), CUDA_SUCCESS);
  EXPECT_EQ(api().MemsetD8Async(memory, 3, 4, a_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemcpyDtoDAsync(memory + 4, memory + 2, 2, a_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemcpyDtoHAsync(pinned, memory, 8, a_), CUDA_SUCCESS);
  EXPECT_EQ(api().StreamSynchronize(a_), CUDA_SUCCESS);
  const char expected[8] = {3, 3, 3, 3, 3, 3, static_cast<char>(0xcd), static_cast<char>(0xcd)};
  EXPECT_EQ(std::memcmp(pinned, expected, 8), 0);
  EXPECT_EQ(std::memcmp(driver().Find(memory, 8), expected, 8), 0);
  EXPECT_EQ(driver().Find(memory, 9), nullptr);
  EXPECT_DEATH((void)*reinterpret_cast<volatile char*>(memory), "");
  EXPECT_EQ(api().MemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(api().MemFree(memory), CUDA_SUCCESS);
}

TEST_F(Fake, MemoryRunsOut) {
  Make({.bytes = 1000});
  const CUdeviceptr memory = Allocate(600);
  CUdeviceptr more = 0;
  EXPECT_EQ(api().MemAlloc(&more, 401), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free = 0, total = 0;
  EXPECT_EQ(api().MemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 400u);
  EXPECT_EQ(total, 1000u);
  EXPECT_EQ(api().MemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(api().MemAlloc(&more, 1000), CUDA_SUCCESS);
  EXPECT_EQ(api().MemFree(more), CUDA_SUCCESS);
}

TEST_F(Fake, CallsAreNotedAndFail) {
  driver().FailCall("cuMemAlloc", 2, CUDA_ERROR_UNKNOWN);
  const CUdeviceptr memory = Allocate(16);
  CUdeviceptr other = 0;
  EXPECT_EQ(api().MemAlloc(&other, 16), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(api().MemsetD8Async(memory, 0, 16, b_), CUDA_SUCCESS);
  std::string text;
  EXPECT_EQ(Launch(a_, 'a', &text), CUDA_SUCCESS);
  EXPECT_EQ(api().StreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(api().StreamSynchronize(b_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemFree(memory), CUDA_SUCCESS);
  const std::vector<std::string> calls = driver().calls();
  EXPECT_THAT(std::vector<std::string>(calls.end() - 7, calls.end()),
              ElementsAre("cuMemAlloc 16", "cuMemAlloc 16", "cuMemsetD8Async 16 stream 2",
                          "cuLaunchKernel append grid 1x1x1 block 32x1x1 shared 0 stream 1",
                          "cuStreamSynchronize stream 1", "cuStreamSynchronize stream 2", "cuMemFree"));
}

TEST_F(Fake, LeaksAreNoted) {
  (void)Allocate(16);
  End();
  EXPECT_THAT(driver().leaks(), ElementsAre("16 bytes"));
  fake_.reset();
  Make({});
}

TEST_F(Fake, GraphsAreLeaksToo) {
  ASSERT_EQ(api().StreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(api().StreamEndCapture(a_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(api().GraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  End();
  EXPECT_THAT(driver().leaks(), ElementsAre("1 graphs", "1 executable graphs"));
  fake_.reset();
  Make({});
}

TEST_F(Fake, PtxIsKept) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  const char ptx[] = ".version 8.8\n.target sm_90\n.visible .entry loop(.param .u64 a) { ret; }\n";
  ASSERT_EQ(api().ModuleLoadDataEx(&module, ptx, 0, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(api().ModuleGetFunction(&function, module, "loops"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(api().ModuleGetFunction(&function, module, "loop"), CUDA_SUCCESS);
  EXPECT_EQ(api().LaunchKernel(function, 132, 2, 1, 256, 1, 1, 64, a_, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(api().StreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_THAT(driver().calls(), Contains("cuLaunchKernel loop grid 132x2x1 block 256x1x1 shared 64 stream 1"));
  EXPECT_EQ(api().ModuleUnload(module), CUDA_SUCCESS);
}

// --- Graphs -------------------------------------------------------------------------------------------------------

// a: 1, then b: 2 beside a: 3 4, then a: 5.
TEST_F(Fake, ACaptureOfTwoStreamsIsAGraph) {
  std::string text;
  ASSERT_EQ(api().StreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(Launch(a_, '1', &text), CUDA_SUCCESS);
  EXPECT_EQ(Signal(x_, a_, b_), CUDA_SUCCESS);
  EXPECT_EQ(Launch(b_, '2', &text), CUDA_SUCCESS);
  EXPECT_EQ(Launch(a_, '3', &text), CUDA_SUCCESS);
  EXPECT_EQ(Launch(a_, '4', &text), CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(api().StreamIsCapturing(b_, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(Signal(y_, b_, a_), CUDA_SUCCESS);
  EXPECT_EQ(Launch(a_, '5', &text), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(api().StreamEndCapture(a_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(api().GraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(api().GraphDestroy(graph), CUDA_SUCCESS);
  Rest(2);
  EXPECT_EQ(text, "") << "a captured launch does not run during the capture";
  std::set<std::string> seen;
  for (int launch = 0; launch < 40; ++launch) {
    EXPECT_EQ(api().GraphLaunch(executable, launch % 2 == 0 ? a_ : b_), CUDA_SUCCESS);
    EXPECT_EQ(api().StreamSynchronize(launch % 2 == 0 ? a_ : b_), CUDA_SUCCESS);
    seen.insert(text);
    text.clear();
  }
  EXPECT_THAT(seen, ElementsAre("12345", "13245", "13425"));
  EXPECT_EQ(api().GraphExecDestroy(executable), CUDA_SUCCESS);
}

// --- What CUDA forbids --------------------------------------------------------------------------------------------

class FakeMisuse : public Fake {
 protected:
  // Expects that `call` returns `result` and that the fake reports `text`.
  void Expect(CUresult result, const std::string& text, const std::function<CUresult()>& call) {
    misused_ = true;
    EXPECT_EQ(call(), result) << text;
    EXPECT_THAT(driver().misuse(), Contains(HasSubstr(text)));
  }
  // The same within a capture of a_, which is then invalid.
  void ExpectInCapture(CUresult result, const std::string& text, const std::function<CUresult()>& call) {
    ASSERT_EQ(api().StreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    Expect(result, text, call);
    CUgraph graph = nullptr;
    EXPECT_EQ(api().StreamEndCapture(a_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << text;
    EXPECT_EQ(graph, nullptr);
  }
};

TEST_F(FakeMisuse, OfMemory) {
  const CUdeviceptr memory = Allocate(64);
  char host[64] = {};
  const auto host_address = reinterpret_cast<CUdeviceptr>(host);
  Expect(CUDA_ERROR_INVALID_VALUE, "byte 1 of a piece of 64 bytes",
         [&] { return api().MemcpyHtoDAsync(memory + 1, host, 64, a_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "not an address on a GPU",
         [&] { return api().MemcpyHtoDAsync(host_address, host, 8, a_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "cuMemcpyDtoHAsync of 65 bytes",
         [&] { return api().MemcpyDtoHAsync(host, memory, 65, a_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "cuMemcpyDtoDAsync of 33 bytes",
         [&] { return api().MemcpyDtoDAsync(memory, memory + 32, 33, a_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "cuMemsetD8Async of 65 bytes",
         [&] { return api().MemsetD8Async(memory, 0, 65, a_); });
  Expect(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost", [&] { return api().MemFreeHost(host); });
  Expect(CUDA_ERROR_INVALID_VALUE, "cuMemFree of", [&] { return api().MemFree(memory + 8); });
  EXPECT_EQ(api().MemFree(memory), CUDA_SUCCESS);
  Expect(CUDA_ERROR_INVALID_VALUE, "64 freed bytes", [&] { return api().MemFree(memory); });
  Expect(CUDA_ERROR_INVALID_VALUE, "64 freed bytes", [&] { return api().MemcpyHtoDAsync(memory, host, 8, a_); });
}

TEST_F(FakeMisuse, FreedWhileItIsUsed) {
  Make({.pace = FakeDriver::Pace::kLazy});
  const CUdeviceptr memory = Allocate(64);
  EXPECT_EQ(api().MemsetD8Async(memory, 0, 64, a_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemFree(memory), CUDA_SUCCESS);
  Expect(CUDA_ERROR_ILLEGAL_ADDRESS, "64 freed bytes", [&] { return api().StreamSynchronize(a_); });
  CUdeviceptr more = 0;
  EXPECT_EQ(api().MemAlloc(&more, 1), CUDA_ERROR_ILLEGAL_ADDRESS) << "the context is broken";
}

TEST_F(FakeMisuse, PinnedMemoryFreedWhileItIsUsed) {
  Make({.pace = FakeDriver::Pace::kLazy});
  const CUdeviceptr memory = Allocate(64);
  void* pinned = nullptr;
  ASSERT_EQ(api().MemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(api().MemcpyHtoDAsync(memory, pinned, 64, a_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemFreeHost(pinned), CUDA_SUCCESS);
  Expect(CUDA_ERROR_ILLEGAL_ADDRESS, "pinned memory", [&] { return api().StreamSynchronize(a_); });
}

TEST_F(FakeMisuse, OfCaptures) {
  const CUdeviceptr memory = Allocate(64);
  char host[64] = {};
  CUdeviceptr more = 0;
  ExpectInCapture(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuMemAlloc while a stream captures",
                  [&] { return api().MemAlloc(&more, 8); });
  ExpectInCapture(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamSynchronize while",
                  [&] { return api().StreamSynchronize(b_); });
  ExpectInCapture(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamQuery of a stream that captures",
                  [&] { return api().StreamQuery(a_); });
  ExpectInCapture(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not pinned",
                  [&] { return api().MemcpyHtoDAsync(memory, host, 8, a_); });
  EXPECT_EQ(api().EventRecord(x_, b_), CUDA_SUCCESS);
  ExpectInCapture(Code(905), "recorded outside", [&] { return api().StreamWaitEvent(a_, x_, 0); });
  // Work of b_ that the origin never waits for.
  ASSERT_EQ(api().StreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(Signal(x_, a_, b_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemsetD8Async(memory, 0, 8, b_), CUDA_SUCCESS);
  Expect(Code(907), "captured event", [&] { return api().EventQuery(x_); });
  CUgraph graph = nullptr;
  Expect(Code(904), "never waited for", [&] { return api().StreamEndCapture(a_, &graph); });
  Expect(CUDA_ERROR_INVALID_VALUE, "no capture began", [&] { return api().StreamEndCapture(a_, &graph); });
  // Afterwards the streams work as before.
  EXPECT_EQ(api().MemsetD8Async(memory, 0, 8, b_), CUDA_SUCCESS);
  EXPECT_EQ(api().StreamSynchronize(b_), CUDA_SUCCESS);
  EXPECT_EQ(api().MemFree(memory), CUDA_SUCCESS);
}

TEST_F(FakeMisuse, OfHandlesSizesAndThreads) {
  std::string text;
  Expect(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernel with a handle that is not a stream",
         [&] { return Launch(nullptr, 'a', &text); });
  Expect(CUDA_ERROR_INVALID_HANDLE, "cuGraphExecDestroy with a handle that is not",
         [&] { return api().GraphExecDestroy(nullptr); });
  Expect(CUDA_ERROR_INVALID_VALUE, "block 1025x1x1 shared 0 stream 1: impossible sizes",
         [&] { return api().LaunchKernel(append_, 1, 1, 1, 1025, 1, 1, 0, a_, nullptr, nullptr); });
  Expect(CUDA_ERROR_INVALID_VALUE, "impossible sizes",
         [&] { return api().LaunchKernel(append_, 0, 1, 1, 32, 1, 1, 0, a_, nullptr, nullptr); });
  Expect(CUDA_ERROR_INVALID_VALUE, "shared 49153 stream 1: impossible sizes",
         [&] { return api().LaunchKernel(append_, 1, 1, 1, 32, 1, 1, 49153, a_, nullptr, nullptr); });
  Expect(CUDA_ERROR_INVALID_CONTEXT, "a thread without a context", [&] {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] { result = Launch(a_, 'a', &text); }).join();
    return result;
  });
  CUmodule module = nullptr;
  Expect(CUDA_ERROR_INVALID_PTX, "neither PTX",
         [&] { return api().ModuleLoadDataEx(&module, "junk", 0, nullptr, nullptr); });
  struct InFunction {
    const DriverApi& api;
    CUstream stream;
    CUresult result = CUDA_SUCCESS;
  } in{api(), a_};
  EXPECT_EQ(api().LaunchHostFunc(
                a_,
                [](void* data) {
                  auto& f = *static_cast<InFunction*>(data);
                  f.result = f.api.StreamQuery(f.stream);
                },
                &in),
            CUDA_SUCCESS);
  EXPECT_EQ(api().StreamSynchronize(a_), CUDA_SUCCESS);
  Expect(Code(800), "in a function of the host", [&] { return in.result; });
}

// Also where a later handle could have the same address.
TEST_F(FakeMisuse, HandlesThatWereDestroyedEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // streams are threads
  const auto churn = [this] {
    for (int i = 0; i < 100; ++i) {
      CUstream stream = nullptr;
      CUevent event = nullptr;
      EXPECT_EQ(api().StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
      EXPECT_EQ(api().EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    }
  };
  EXPECT_EQ(api().StreamDestroy(a_), CUDA_SUCCESS);
  EXPECT_EQ(api().EventDestroy(x_), CUDA_SUCCESS);
  EXPECT_DEATH((churn(), api().StreamQuery(a_)), "cuStreamQuery of a stream that was destroyed");
  EXPECT_DEATH((churn(), api().EventQuery(x_)), "cuEventQuery of an event that was destroyed");
  EXPECT_DEATH((churn(), api().StreamWaitEvent(b_, x_, 0)), "cuStreamWaitEvent of an event that was destroyed");
  EXPECT_DEATH(api().StreamDestroy(a_), "cuStreamDestroy of a stream that was destroyed");
  EXPECT_DEATH(driver().Enqueue(a_, "a library's work", [] { return CUDA_SUCCESS; }), "of a stream that was destroyed");
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(api().StreamBeginCapture(b_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(api().StreamEndCapture(b_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(api().GraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().GraphDestroy(graph), CUDA_SUCCESS);
  ASSERT_EQ(api().GraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_DEATH(api().GraphLaunch(executable, b_), "cuGraphLaunch of an executable graph that was destroyed");
  EXPECT_DEATH(api().GraphDestroy(graph), "cuGraphDestroy of a graph that was destroyed");
  ASSERT_EQ(api().ModuleUnload(module_), CUDA_SUCCESS);
  std::string text;
  EXPECT_DEATH(Launch(b_, 'a', &text), "cuLaunchKernel of a function that was destroyed");
  // Releasing a context destroys everything in it.
  CUcontext context = nullptr;
  ASSERT_EQ(api().StreamDestroy(b_), CUDA_SUCCESS);
  ASSERT_EQ(api().EventDestroy(y_), CUDA_SUCCESS);
  ASSERT_EQ(api().DevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  ASSERT_EQ(api().DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  Expect(Code(709), "cuCtxSetCurrent of a context that was released", [&] { return api().CtxSetCurrent(context); });
  CUdeviceptr memory = 0;
  Expect(Code(709), "a thread whose context was released", [&] { return api().MemAlloc(&memory, 8); });
  fake_.reset();
  Make({});
}

TEST_F(FakeMisuse, AKernelThatTouchesWhatItMustNot) {
  const auto touch = [](void** parameters, const FakeLaunch& launch) {
    CUdeviceptr address;
    std::memcpy(&address, parameters[0], sizeof(address));
    EXPECT_EQ(launch.find(address, 8), nullptr);
  };
  const FakeKernel kernel = touch;
  std::ostringstream image;
  image << "lockstep-fake-kernels\ntouch " << std::hex << reinterpret_cast<uintptr_t>(kernel) << " 8\n";
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(api().ModuleLoadDataEx(&module, image.str().c_str(), 0, nullptr, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(api().ModuleGetFunction(&function, module, "touch"), CUDA_SUCCESS);
  CUdeviceptr address = Allocate(64) + 60;
  void* parameters[] = {&address};
  EXPECT_EQ(api().LaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, a_, parameters, nullptr), CUDA_SUCCESS);
  Expect(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel touches 8 bytes at", [&] { return api().StreamSynchronize(a_); });
}

}  // namespace
}  // namespace lockstep::cuda
