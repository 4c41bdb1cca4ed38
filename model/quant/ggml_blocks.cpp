// Compiled without fused operations (CMakeLists.txt): a product is rounded before it is added to.
#include "model/quant/ggml_blocks.h"

#include <bit>
#include <cstring>

#include "model/files/safetensors.h"
#include "proto/base/check.h"

namespace lorad::model {
namespace {

constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Doubled values of e2m1, whose scale is halved.
constexpr float kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

using Bytes = const uint8_t*;

float half_at(Bytes at) { return widen(DType::kF16, reinterpret_cast<const std::byte*>(at)); }

uint32_t word_at(Bytes at) {
    uint32_t word = 0;
    std::memcpy(&word, at, sizeof word);
    return word;
}

// 16 bytes are 32 codes of 4 bits: the low halves first. `high` has a fifth bit for each.
template <bool kHasFifth>
uint32_t code_of_32(Bytes codes, uint32_t high, uint32_t i) {
    const uint32_t low = i < 16 ? codes[i] & 15u : codes[i - 16] >> 4;
    return kHasFifth ? low | ((high >> i & 1u) << 4) : low;
}

void decode_q4_0(Bytes block, float* out) {
    const float d = half_at(block);
    for (uint32_t i = 0; i < 32; ++i)
        out[i] = d * static_cast<float>(static_cast<int>(code_of_32<false>(block + 2, 0, i)) - 8);
}
void decode_q4_1(Bytes block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    for (uint32_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code_of_32<false>(block + 4, 0, i)) + m;
}
void decode_q5_0(Bytes block, float* out) {
    const float d = half_at(block);
    const uint32_t high = word_at(block + 2);
    for (uint32_t i = 0; i < 32; ++i)
        out[i] = d * static_cast<float>(static_cast<int>(code_of_32<true>(block + 6, high, i)) - 16);
}
void decode_q5_1(Bytes block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const uint32_t high = word_at(block + 4);
    for (uint32_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(code_of_32<true>(block + 8, high, i)) + m;
}
void decode_q8_0(Bytes block, float* out) {
    const float d = half_at(block);
    for (uint32_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}
void decode_iq4_nl(Bytes block, float* out) {
    const float d = half_at(block);
    for (uint32_t i = 0; i < 32; ++i) out[i] = d * kIq4Values[code_of_32<false>(block + 2, 0, i)];
}
void decode_mxfp4(Bytes block, float* out) {
    // 2^(e - 128), of which the two smallest are subnormal.
    const uint32_t e = block[0];
    const float d = std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (uint32_t i = 0; i < 32; ++i) out[i] = d * kMxfp4Values[code_of_32<false>(block + 1, 0, i)];
}

void decode_q3_k(Bytes block, float* out) {
    const Bytes high = block, codes = block + 32, scales = block + 96;
    const float d = half_at(block + 108);
    for (uint32_t i = 0; i < 256; ++i) {
        const uint32_t half = i / 128, turn = i / 32, l = i % 32, s = i / 16;
        const uint32_t scale =
            (s < 8 ? scales[s] & 15u : scales[s - 8] >> 4) | ((scales[8 + s % 4] >> (2 * (s / 4)) & 3u) << 4);
        const int code =
            static_cast<int>(codes[32 * half + l] >> (2 * (turn % 4)) & 3u) - ((high[l] >> turn & 1u) != 0 ? 0 : 4);
        out[i] = d * static_cast<float>(static_cast<int>(scale) - 32) * static_cast<float>(code);
    }
}

// Scale and minimum of a sub-block of 32 of Q4_K and Q5_K, 6 bits each.
struct ScaleAndMinimum {
    uint32_t scale, minimum;
};
ScaleAndMinimum scale_and_minimum(Bytes b, uint32_t s) {
    if (s < 4) return {b[s] & 63u, b[s + 4] & 63u};
    return {(b[s + 4] & 15u) | (b[s - 4] >> 6) << 4, static_cast<uint32_t>(b[s + 4] >> 4) | (b[s] >> 6) << 4};
}

template <bool kHasFifth>
void decode_q45_k(Bytes block, float* out) {
    const float d = half_at(block), dmin = half_at(block + 2);
    const Bytes high = block + 16, codes = block + (kHasFifth ? 48 : 16);
    for (uint32_t s = 0; s < 8; ++s) {
        const ScaleAndMinimum of = scale_and_minimum(block + 4, s);
        const float scale = d * static_cast<float>(of.scale), minimum = dmin * static_cast<float>(of.minimum);
        for (uint32_t l = 0; l < 32; ++l) {
            uint32_t code = codes[32 * (s / 2) + l] >> (4 * (s % 2)) & 15u;
            if (kHasFifth) code |= (high[l] >> s & 1u) << 4;
            out[32 * s + l] = scale * static_cast<float>(code) - minimum;
        }
    }
}

void decode_q6_k(Bytes block, float* out) {
    const float d = half_at(block + 208);
    for (uint32_t i = 0; i < 256; ++i) {
        const uint32_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const uint32_t low = block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15u;
        const uint32_t high = block[128 + 32 * half + l] >> (2 * quarter) & 3u;
        const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
        out[i] = scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    }
}

void decode_iq4_xs(Bytes block, float* out) {
    const float d = half_at(block);
    const uint32_t scales_high = block[2] | static_cast<uint32_t>(block[3]) << 8;
    for (uint32_t s = 0; s < 8; ++s) {
        const uint32_t low = block[4 + s / 2] >> (4 * (s % 2)) & 15u;
        const uint32_t scale = low | (scales_high >> (2 * s) & 3u) << 4;
        const float dl = d * static_cast<float>(static_cast<int>(scale) - 32);
        for (uint32_t i = 0; i < 32; ++i)
            out[32 * s + i] = dl * kIq4Values[code_of_32<false>(block + 8 + 16 * s, 0, i)];
    }
}

void decode_plain(GgmlType type, std::span<const std::byte> numbers, std::span<float> out) {
    if (type == GgmlType::kF32) {
        std::memcpy(out.data(), numbers.data(), numbers.size());
        return;
    }
    const DType dtype = type == GgmlType::kF16 ? DType::kF16 : DType::kBF16;
    for (size_t i = 0; i < out.size(); ++i) out[i] = widen(dtype, numbers.data() + 2 * i);
}

using DecodeBlock = void (*)(Bytes block, float* out);

DecodeBlock decoder_of(GgmlType type) {
    switch (type) {
        case GgmlType::kQ4_0: return decode_q4_0;
        case GgmlType::kQ4_1: return decode_q4_1;
        case GgmlType::kQ5_0: return decode_q5_0;
        case GgmlType::kQ5_1: return decode_q5_1;
        case GgmlType::kQ8_0: return decode_q8_0;
        case GgmlType::kQ3_K: return decode_q3_k;
        case GgmlType::kQ4_K: return decode_q45_k<false>;
        case GgmlType::kQ5_K: return decode_q45_k<true>;
        case GgmlType::kQ6_K: return decode_q6_k;
        case GgmlType::kIQ4_NL: return decode_iq4_nl;
        case GgmlType::kIQ4_XS: return decode_iq4_xs;
        case GgmlType::kMXFP4: return decode_mxfp4;
        case GgmlType::kF32:
        case GgmlType::kF16:
        case GgmlType::kBF16: break;
    }
    CHECK(false);
}

}  // namespace

void decode_ggml(GgmlType type, std::span<const std::byte> blocks, std::span<float> out) {
    const GgmlTypeInfo& info = info_of(type);
    CHECK(blocks.size() % info.block_bytes == 0 && blocks.size() / info.block_bytes * info.block_numbers == out.size());
    if (is_plain(type)) return decode_plain(type, blocks, out);
    const DecodeBlock decode = decoder_of(type);
    const auto* at = reinterpret_cast<Bytes>(blocks.data());
    for (size_t i = 0; i < out.size(); i += info.block_numbers, at += info.block_bytes) decode(at, out.data() + i);
}

}  // namespace lorad::model
