// A notice as bytes, for processes that one mpirun has started. The bytes are the same for every transport.

#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "runtime/comm/host/control_block.h"
#include "runtime/comm/network/links.h"

namespace lockstep {

struct NoticeMessage {
  int32_t kind = 0;
  int32_t rank = 0;
  int32_t code = 0;  // absl::StatusCode
  char text[kMessageBytes] = {};

  static MessageBuffer Of(const Links::Notice& notice) {
    NoticeMessage message{.kind = static_cast<int32_t>(notice.kind),
                          .rank = notice.rank,
                          .code = static_cast<int32_t>(notice.status.code())};
    CopyText(std::string_view(notice.status.message().data(), notice.status.message().size()), message.text,
             kMessageBytes);
    auto buffer = std::make_shared<MessageBytes>(sizeof(message));
    std::memcpy(buffer->data(), &message, sizeof(message));
    return buffer;
  }

  Links::Notice From(int from_rank) {
    text[kMessageBytes - 1] = '\0';
    return {.kind = static_cast<Links::Notice::Kind>(kind),
            .rank = rank,
            .from = from_rank,
            .status = absl::Status(static_cast<absl::StatusCode>(code), text)};
  }
};

}  // namespace lockstep
