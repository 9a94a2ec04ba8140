#include "runtime/comm/mpi_links.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/comm/control_block.h"

namespace lockstep {
namespace {

constexpr int kNoticeTag = 32000;

// Of the process, as MPI itself is.
std::atomic<int>& LiveLinks() {
  static std::atomic<int> count{0};
  return count;
}

// A notice as it travels.
struct NoticeMessage {
  int32_t rank = 0;
  int32_t code = 0;  // absl::StatusCode
  char text[kMessageBytes] = {};
};

class MpiRequest final : public LinkRequest {
 public:
  MpiRequest(MPI_Request request, bool receives) : request_(request), receives_(receives) {}
  ~MpiRequest() override {
    if (request_ == MPI_REQUEST_NULL) return;
    if (receives_) MPI_Cancel(&request_);
    MPI_Request_free(&request_);
  }

  absl::StatusOr<bool> Test() override {
    int complete = 0;
    RETURN_IF_ERROR(MpiStatus(MPI_Test(&request_, &complete, MPI_STATUS_IGNORE), "MPI_Test"));
    return complete != 0;
  }

 private:
  MPI_Request request_;
  const bool receives_;
};

class MpiLinks final : public Links {
 public:
  MpiLinks(MPI_Comm comm, int rank, std::vector<int> group_begins)
      : comm_(comm), rank_(rank), group_begins_(std::move(group_begins)) {
    ++LiveLinks();
  }
  ~MpiLinks() override { --LiveLinks(); }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Send(int to_rank, int tag, const std::byte* data,
                                                    size_t bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to_rank, tag, comm_, &request);
    RETURN_IF_ERROR(MpiStatus(code, "MPI_Isend"));
    return std::make_unique<MpiRequest>(request, false);
  }

  absl::StatusOr<std::unique_ptr<LinkRequest>> Receive(int from_rank, int tag, std::byte* data, size_t bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from_rank, tag, comm_, &request);
    RETURN_IF_ERROR(MpiStatus(code, "MPI_Irecv"));
    return std::make_unique<MpiRequest>(request, true);
  }

  void SendNotice(const Notice& notice) override {
    // Not freed before MPI is done with it, which at the end of a failed job may be never.
    NoticeMessage* message = new NoticeMessage{.rank = notice.rank, .code = static_cast<int32_t>(notice.status.code())};
    CopyText(std::string_view(notice.status.message().data(), notice.status.message().size()), message->text,
             kMessageBytes);
    for (int first : group_begins_) {
      if (first == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(message, sizeof(*message), MPI_BYTE, first, kNoticeTag, comm_, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }

  std::optional<Notice> PollNotice() override {
    int there = 0;
    MPI_Message handle;
    MPI_Status status;
    if (MPI_Improbe(MPI_ANY_SOURCE, kNoticeTag, comm_, &there, &handle, &status) != MPI_SUCCESS || !there)
      return std::nullopt;
    NoticeMessage message;
    if (MPI_Mrecv(&message, sizeof(message), MPI_BYTE, &handle, &status) != MPI_SUCCESS) return std::nullopt;
    return Notice{.rank = message.rank,
                  .status = absl::Status(static_cast<absl::StatusCode>(message.code), message.text)};
  }

  const std::vector<int>& group_begins() const override { return group_begins_; }

 private:
  const MPI_Comm comm_;
  const int rank_;
  const std::vector<int> group_begins_;
};

}  // namespace

absl::Status MpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return ErrorStream(absl::StatusCode::kUnavailable) << call << ": " << text;
}

std::unique_ptr<Links> CreateMpiLinks(MPI_Comm comm, int rank, std::vector<int> group_begins) {
  return std::make_unique<MpiLinks>(comm, rank, std::move(group_begins));
}

int LiveMpiLinks() { return LiveLinks().load(); }

}  // namespace lockstep
