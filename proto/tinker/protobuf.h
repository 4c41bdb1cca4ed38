// The wire format of protocol buffers, as far as messages of training need it: fields of known numbers, without groups.
// Reading is bounded by the text itself: nothing is copied, lengths are checked before they are used. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

struct ProtoField {
    uint32_t number = 0;
    bool is_bytes = false;   // else a number
    uint64_t value = 0;      // varint, or the bits of a fixed number
    std::string_view bytes;  // a text, bytes, or a message
};

// One message; `bytes` outlives the reader. One thread.
class ProtoReader {
  public:
    // `name` begins the messages of errors.
    ProtoReader(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}
    // The next field; nothing at the end. kInvalidRequest: cut, a number of more than 64 bits, a group.
    Result<std::optional<ProtoField>> next();
    // An error about the field.
    Error error(const ProtoField& field, std::string_view what) const;

  private:
    Result<uint64_t> varint();
    Error broken(std::string_view what) const;

    std::string_view bytes_;
    std::string_view name_;
    size_t at_ = 0;
};

// Appends fields to a message. One thread.
class ProtoWriter {
  public:
    ProtoWriter& number(uint32_t field, uint64_t value);
    ProtoWriter& number_f64(uint32_t field, double value);
    ProtoWriter& bytes(uint32_t field, std::string_view value);
    std::string take() { return std::move(out_); }

  private:
    void varint(uint64_t value);
    std::string out_;
};

}  // namespace lorad::proto
