#include "proto/tinker/protobuf.h"

#include <bit>
#include <cstring>

#include "proto/base/format.h"

namespace lorad::proto {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

}  // namespace

Error ProtoReader::broken(std::string_view what) const {
    return make_error(ErrorCode::kInvalidRequest, format("{}: byte {}: {}", name_, at_, what));
}

Error ProtoReader::error(const ProtoField& field, std::string_view what) const {
    return make_error(ErrorCode::kInvalidRequest, format("{}: field {}: {}", name_, field.number, what));
}

Result<uint64_t> ProtoReader::varint() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
        if (at_ == bytes_.size()) return broken("the message is cut");
        const auto byte = static_cast<uint8_t>(bytes_[at_++]);
        if (shift == 63 && byte > 1) break;
        value |= uint64_t{byte & 0x7fu} << shift;
        if (byte < 0x80) return value;
    }
    return broken("a number of more than 64 bits");
}

Result<std::optional<ProtoField>> ProtoReader::next() {
    if (at_ == bytes_.size()) return std::optional<ProtoField>();
    TRY_ASSIGN(const uint64_t tag, varint());
    ProtoField field;
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return broken("no number of a field");
    field.number = static_cast<uint32_t>(tag >> 3);
    const auto fixed = [&](size_t n) -> Status {
        if (bytes_.size() - at_ < n) return broken("the message is cut");
        std::memcpy(&field.value, bytes_.data() + at_, n);
        at_ += n;
        return ok_status();
    };
    switch (tag & 7) {
        case kVarint: {
            TRY_ASSIGN(field.value, varint());
            break;
        }
        case kFixed64: TRY(fixed(8)); break;
        case kFixed32: TRY(fixed(4)); break;
        case kBytes: {
            TRY_ASSIGN(const uint64_t n, varint());
            if (n > bytes_.size() - at_) return broken("the message is cut");
            field.is_bytes = true;
            field.bytes = bytes_.substr(at_, static_cast<size_t>(n));
            at_ += static_cast<size_t>(n);
            break;
        }
        default: return broken(format("wire type {}: expected 0, 1, 2 or 5", tag & 7));
    }
    return std::optional(field);
}

void ProtoWriter::varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(static_cast<uint8_t>(value | 0x80)));
    out_.push_back(static_cast<char>(static_cast<uint8_t>(value)));
}

ProtoWriter& ProtoWriter::number(uint32_t field, uint64_t value) {
    varint(uint64_t{field} << 3 | kVarint);
    varint(value);
    return *this;
}

ProtoWriter& ProtoWriter::number_f64(uint32_t field, double value) {
    varint(uint64_t{field} << 3 | kFixed64);
    const auto bits = std::bit_cast<uint64_t>(value);
    out_.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    return *this;
}

ProtoWriter& ProtoWriter::bytes(uint32_t field, std::string_view value) {
    varint(uint64_t{field} << 3 | kBytes);
    varint(value.size());
    out_.append(value);
    return *this;
}

}  // namespace lorad::proto
