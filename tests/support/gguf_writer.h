// Writes GGUF files for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/rounding.h"

namespace lorad::testing {

// Fields and tensors of a GGUF file, version 3; every part can be spoilt.
struct GgufWriter {
    std::string fields, infos, data;
    uint64_t n_fields = 0, n_tensors = 0, alignment = 32;
    uint32_t version = 3;

    template <typename T>
    static void put(std::string& to, T value) {
        to.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    static void put_text(std::string& to, std::string_view text) {
        put<uint64_t>(to, text.size());
        to += text;
    }
    GgufWriter& text(std::string_view key, std::string_view value) {
        put_text(fields, key);
        put<uint32_t>(fields, 8);
        put_text(fields, value);
        ++n_fields;
        return *this;
    }
    template <typename T>
    GgufWriter& number(std::string_view key, uint32_t type, T value) {
        put_text(fields, key);
        put<uint32_t>(fields, type);
        put(fields, value);
        ++n_fields;
        return *this;
    }
    GgufWriter& array(std::string_view key, const std::vector<uint32_t>& values) {
        put_text(fields, key);
        put<uint32_t>(fields, 9);
        put<uint32_t>(fields, 4);
        put<uint64_t>(fields, values.size());
        for (const uint32_t value : values) put(fields, value);
        ++n_fields;
        return *this;
    }
    GgufWriter& flags(std::string_view key, const std::vector<bool>& values) {
        put_text(fields, key);
        put<uint32_t>(fields, 9);
        put<uint32_t>(fields, 7);
        put<uint64_t>(fields, values.size());
        for (const bool value : values) put<uint8_t>(fields, value);
        ++n_fields;
        return *this;
    }
    GgufWriter& texts(std::string_view key, const std::vector<std::string>& values) {
        put_text(fields, key);
        put<uint32_t>(fields, 9);
        put<uint32_t>(fields, 8);
        put<uint64_t>(fields, values.size());
        for (const std::string& value : values) put_text(fields, value);
        ++n_fields;
        return *this;
    }
    // `shape` slowest first.
    GgufWriter& tensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                       std::string_view bytes) {
        data.resize(round_up(data.size(), alignment));
        put_text(infos, name);
        put<uint32_t>(infos, static_cast<uint32_t>(shape.size()));
        for (size_t i = shape.size(); i-- > 0;) put<uint64_t>(infos, shape[i]);
        put<uint32_t>(infos, type);
        put<uint64_t>(infos, data.size());
        data += bytes;
        ++n_tensors;
        return *this;
    }
    std::string file() const {
        std::string out = "GGUF";
        put(out, version);
        put(out, n_tensors);
        put(out, n_fields);
        out += fields + infos;
        out.resize(round_up(out.size(), alignment));
        return out + data;
    }
};

}  // namespace lorad::testing
