#include "runtime/comm/mpi/mpi_links.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/comm/network/notice_message.h"

namespace lockstep {
namespace {

constexpr int kMpiNoticeTag = 32000;
constexpr int kTags = 1 << 15;  // of one channel
constexpr absl::Duration kShortestNap = absl::Microseconds(50);
constexpr absl::Duration kLongestNap = absl::Milliseconds(1);

// A state of the process, like MPI itself.
std::atomic<int>& LiveLinks() {
  static std::atomic<int> count{0};
  return count;
}

// Transfers that were abandoned before MPI completed them, and the memory that MPI may still read or write. A state of
// the process, like MPI itself, and never destroyed: at the end of a failed job, MPI may never complete them.
class GivenUp {
 public:
  static GivenUp& Get() {
    static GivenUp& given_up = *new GivenUp;
    return given_up;
  }
  void Add(MpiRequest request, std::shared_ptr<void> memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    transfers_.emplace_back(request, std::move(memory));
  }
  // Frees completed transfers. Requires that MPI is not finalised.
  void Sweep() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(transfers_, [](auto& transfer) {
      int complete = 0;
      return Mpi().Test(&transfer.first, &complete, Mpi().no_status()) == kMpiSuccess && complete;
    });
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<MpiRequest, std::shared_ptr<void>>> transfers_;
};

class MpiTransfer final : public LinkRequest {
 public:
  MpiTransfer(MpiRequest request, MessageBuffer buffer, bool receives)
      : request_(request), buffer_(std::move(buffer)), receives_(receives) {}
  ~MpiTransfer() override {
    if (request_ == Mpi().request_null) return;
    if (receives_) Mpi().Cancel(&request_);
    GivenUp::Get().Add(request_, std::move(buffer_));
  }

  absl::StatusOr<bool> Test() override {
    int complete = 0, bytes = 0, error = kMpiSuccess;
    MpiReceived status;
    const int code = Mpi().Test(&request_, &complete, &status);
    if (code != kMpiSuccess) Mpi().Error_class(code, &error);
    if (receives_ && error == Mpi().err_truncate) return WrongSize() << "a longer one";
    RETURN_IF_ERROR(MpiStatus(code, "MPI_Test"));
    if (!complete || !receives_) return complete != 0;
    Mpi().Get_count(&status, Mpi().byte, &bytes);
    if (static_cast<size_t>(bytes) != buffer_->size()) return WrongSize() << "one of " << bytes;
    return true;
  }

 private:
  ErrorStream WrongSize() const {
    return ErrorStream(absl::StatusCode::kOutOfRange)
           << "expected a message of " << buffer_->size() << " bytes, received ";
  }

  MpiRequest request_;
  MessageBuffer buffer_;
  const bool receives_;
};

class MpiLinks final : public Links {
 public:
  // `ranks`: the ranks' numbers in `comm`.
  MpiLinks(MpiComm comm, std::vector<int> ranks, uint32_t channel, std::vector<int> group_begins)
      : comm_(comm), ranks_(std::move(ranks)), channel_(channel), group_begins_(std::move(group_begins)) {
    ++LiveLinks();
  }
  ~MpiLinks() override {
    GivenUp::Get().Sweep();
    --LiveLinks();
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, MessageBuffer buffer) override {
    MpiRequest request = Mpi().request_null;
    const int code = Mpi().Isend(buffer->data(), static_cast<int>(buffer->size()), Mpi().byte, ranks_[to_rank],
                                 TagOf(tag), comm_, &request);
    RETURN_IF_ERROR(MpiStatus(code, "MPI_Isend"));
    return std::make_unique<MpiTransfer>(request, std::move(buffer), false);
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, MessageBuffer buffer) override {
    MpiRequest request = Mpi().request_null;
    const int code = Mpi().Irecv(buffer->data(), static_cast<int>(buffer->size()), Mpi().byte, ranks_[from_rank],
                                 TagOf(tag), comm_, &request);
    RETURN_IF_ERROR(MpiStatus(code, "MPI_Irecv"));
    return std::make_unique<MpiTransfer>(request, std::move(buffer), true);
  }

  // MPI moves data only when it is asked for completion, and cannot say when to ask again.
  void Progress(absl::Duration limit) override {
    if (limit <= absl::ZeroDuration()) {
      nap_ = kShortestNap;
      return;
    }
    absl::SleepFor(std::min(limit, nap_));
    nap_ = std::min(nap_ * 2, kLongestNap);
  }
  absl::Status Lost(int) const override { return absl::OkStatus(); }

  void SendNotice(int to_rank, const Notice& notice) override {
    // the request is destroyed at once: no one waits for it
    (void)Send(to_rank, kMpiNoticeTag, NoticeMessage::Of(notice));
  }

  std::optional<Notice> PollNotice() override {
    int there = 0;
    MpiMessage handle{};
    MpiReceived status;
    if (Mpi().Improbe(Mpi().any_source, TagOf(kMpiNoticeTag), comm_, &there, &handle, &status) != kMpiSuccess ||
        !there) {
      GivenUp::Get().Sweep();
      return std::nullopt;
    }
    NoticeMessage message;
    if (Mpi().Mrecv(&message, sizeof(message), Mpi().byte, &handle, &status) != kMpiSuccess) return std::nullopt;
    return message.From(
        static_cast<int>(std::find(ranks_.begin(), ranks_.end(), status.words[Mpi().source_word]) - ranks_.begin()));
  }

  absl::StatusOr<std::unique_ptr<Links>> Among(const std::vector<int>& ranks, uint32_t channel,
                                               std::vector<int> group_begins) const override {
    int* largest = nullptr;  // the largest tag that MPI accepts
    int known = 0;
    RETURN_IF_ERROR(MpiStatus(Mpi().Comm_get_attr(comm_, Mpi().tag_ub, &largest, &known), "MPI_Comm_get_attr"));
    if (!known || channel > static_cast<uint32_t>(*largest - kTags) / kTags) {
      return ErrorStream(absl::StatusCode::kResourceExhausted)
             << "MPI's tags (at most " << (known ? *largest : 0) << ") do not suffice for communicator number "
             << channel << " that is split from another";
    }
    std::vector<int> in_comm;
    for (int each : ranks) in_comm.push_back(ranks_[each]);
    return std::make_unique<MpiLinks>(comm_, std::move(in_comm), channel, std::move(group_begins));
  }

  const std::vector<int>& group_begins() const override { return group_begins_; }

 private:
  int TagOf(int tag) const { return static_cast<int>(channel_) * kTags + tag; }

  const MpiComm comm_;
  const std::vector<int> ranks_;
  const uint32_t channel_;
  const std::vector<int> group_begins_;
  absl::Duration nap_ = kShortestNap;  // grows, because many ranks on few cores would otherwise mostly wake up and poll
};

}  // namespace

absl::Status MpiStatus(int code, const char* call) {
  if (code == kMpiSuccess) return absl::OkStatus();
  std::string text(kMpiTextBytes, '\0');
  int length = 0;
  Mpi().Error_string(code, text.data(), &length);
  text.resize(static_cast<size_t>(length));
  return ErrorStream(absl::StatusCode::kUnavailable) << call << ": " << text;
}

void KeepUntilDone(MpiRequest request, std::shared_ptr<void> memory) { GivenUp::Get().Add(request, std::move(memory)); }

std::unique_ptr<Links> CreateMpiLinks(MpiComm comm, std::vector<int> group_begins) {
  int size = 0;
  Mpi().Comm_size(comm, &size);
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<MpiLinks>(comm, std::move(ranks), 0, std::move(group_begins));
}

int LiveMpiLinks() { return LiveLinks().load(); }

}  // namespace lockstep
