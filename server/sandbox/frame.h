// Messages between the daemon and its helpers, over a socket: a kind and some texts, with their lengths before them.
// One thread at a time for each socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lorad::server::sandbox {

struct Frame {
    uint32_t kind = 0;
    std::vector<std::string> fields;
};

using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // nothing: as long as it takes

// kGone: the other side has ended, or says what is no frame. kTooLarge: nothing was sent.
enum class Transfer : uint8_t { kDone, kGone, kLate, kTooLarge };

// The text of a frame, all of it.
inline constexpr uint32_t kFrameBytesMax = 256u << 20;
inline constexpr uint32_t kFrameFieldsMax = 64;

Transfer write_frame(int socket, const Frame& frame, Deadline deadline = {});
Transfer read_frame(int socket, Frame& frame, Deadline deadline = {});

// Numbers as fields.
std::string number_field(uint64_t number);
uint64_t field_number(const std::string& field);  // 0 for what is no number

}  // namespace lorad::server::sandbox
