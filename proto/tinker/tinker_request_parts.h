// Members of Tinker's bodies that several of them have. Every body, and every object in it, is checked for fields that
// nobody here knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "proto/json/json.h"

namespace lorad::proto::tinker {

inline constexpr size_t kIdBytesMax = 256;

using Names = std::span<const std::string_view>;

Error not_there(std::string_view field, std::string_view what);
// Empty where it is not there.
Result<std::string> text_of(const JsonValue& body, std::string_view member, size_t bytes_max = kIdBytesMax);
Result<std::string> needed_text(const JsonValue& body, std::string_view member, size_t bytes_max = kIdBytesMax);
Result<uint64_t> sequence_of(const JsonValue& body, std::string_view member);

// kUnsupportedParameter with the name of a field that is none of these; nulls are as good as absent.
Status check_fields(const JsonValue& body, Names known);
// Those of these fields that say something, which changes nothing here.
std::vector<std::string> fields_without_effect(const JsonValue& body, Names fields);

}  // namespace lorad::proto::tinker
