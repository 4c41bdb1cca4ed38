#include "model/quant/ggml_pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "proto/base/check.h"

namespace lorad::model {
namespace {

using BlockBytes = const uint8_t*;

// Low halves of 16 bytes first, then the high ones; `high` has a fifth bit for each.
void split_nibbles(BlockBytes from, uint32_t high, uint8_t* codes) {
    for (uint32_t i = 0; i < 16; ++i) {
        codes[i] = static_cast<uint8_t>((from[i] & 15u) | (high >> i & 1u) << 4);
        codes[i + 16] = static_cast<uint8_t>(from[i] >> 4 | (high >> (i + 16) & 1u) << 4);
    }
}

uint32_t block_word(BlockBytes at) {
    uint32_t word = 0;
    std::memcpy(&word, at, sizeof word);
    return word;
}

// `record`: of the brick that the block is in; `entry`: the block's number there, of those of 32.
using PackBlock = void (*)(BlockBytes block, uint32_t entry, uint8_t* codes, std::byte* record);

template <uint32_t kScaleBytes>
void pack_4(BlockBytes block, uint32_t entry, uint8_t* codes, std::byte* record) {
    std::memcpy(record + entry * kScaleBytes, block, kScaleBytes);
    split_nibbles(block + kScaleBytes, 0, codes);
}
void pack_mxfp4(BlockBytes block, uint32_t entry, uint8_t* codes, std::byte* record) {
    constexpr uint8_t kMinusZero = 8;
    pack_4<1>(block, entry, codes, record);
    std::replace(codes, codes + 32, kMinusZero, uint8_t{0});
}
template <uint32_t kScaleBytes>
void pack_5(BlockBytes block, uint32_t entry, uint8_t* codes, std::byte* record) {
    std::memcpy(record + entry * kScaleBytes, block, kScaleBytes);
    split_nibbles(block + kScaleBytes + 4, block_word(block + kScaleBytes), codes);
}
void pack_q8_0(BlockBytes block, uint32_t entry, uint8_t* codes, std::byte* record) {
    std::memcpy(record + entry * 2, block, 2);
    for (uint32_t i = 0; i < 32; ++i) codes[i] = block[2 + i] ^ 0x80u;
}

// d and dmin as they are; of the scales and minima of 6 bits first the low four of each, then the high two of both.
template <bool kHasFifth>
void pack_q45_k(BlockBytes block, uint32_t, uint8_t* codes, std::byte* record) {
    const BlockBytes b = block + 4, high = block + 16, from = block + (kHasFifth ? 48 : 16);
    std::array<uint32_t, 4> words = {block_word(block), 0, 0, 0};
    for (uint32_t s = 0; s < 8; ++s) {
        const uint32_t scale = s < 4 ? b[s] & 63u : (b[s + 4] & 15u) | static_cast<uint32_t>(b[s - 4] >> 6) << 4;
        const uint32_t minimum =
            s < 4 ? b[s + 4] & 63u : static_cast<uint32_t>(b[s + 4] >> 4) | static_cast<uint32_t>(b[s] >> 6) << 4;
        words[1] |= (scale & 15u) << (4 * s);
        words[2] |= (minimum & 15u) << (4 * s);
        words[3] |= (scale >> 4 | (minimum >> 4) << 2) << (4 * s);
        for (uint32_t l = 0; l < 32; ++l) {
            const uint32_t low = from[32 * (s / 2) + l] >> (4 * (s % 2)) & 15u;
            codes[32 * s + l] = static_cast<uint8_t>(kHasFifth ? low | (high[l] >> s & 1u) << 4 : low);
        }
    }
    std::memcpy(record, words.data(), sizeof words);
}

constexpr uint32_t kSixBitScales = 16;  // bytes of a record, in front of its f16

void pack_q6_k(BlockBytes block, uint32_t, uint8_t* codes, std::byte* record) {
    for (uint32_t i = 0; i < 256; ++i) {
        const uint32_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const uint32_t low = block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15u;
        codes[i] = static_cast<uint8_t>(low | (block[128 + 32 * half + l] >> (2 * quarter) & 3u) << 4);
    }
    std::memcpy(record, block + 192, kSixBitScales);
    std::memcpy(record + kSixBitScales, block + 208, 2);
}

void pack_q3_k(BlockBytes block, uint32_t, uint8_t* codes, std::byte* record) {
    const BlockBytes high = block, from = block + 32, scales = block + 96;
    for (uint32_t i = 0; i < 256; ++i) {
        const uint32_t half = i / 128, turn = i / 32, l = i % 32;
        const uint32_t low = from[32 * half + l] >> (2 * (turn % 4)) & 3u;
        codes[i] = static_cast<uint8_t>(32 + low - ((high[l] >> turn & 1u) != 0 ? 0 : 4));
    }
    for (uint32_t s = 0; s < kSixBitScales; ++s) {
        const uint32_t scale =
            (s < 8 ? scales[s] & 15u : scales[s - 8] >> 4) | ((scales[8 + s % 4] >> (2 * (s / 4)) & 3u) << 4);
        record[s] = static_cast<std::byte>(static_cast<uint8_t>(scale - 32));
    }
    std::memcpy(record + kSixBitScales, block + 108, 2);
}

void pack_iq4_xs(BlockBytes block, uint32_t, uint8_t* codes, std::byte* record) {
    const uint32_t scales_high = block[2] | static_cast<uint32_t>(block[3]) << 8;
    uint64_t bits = block[0] | static_cast<uint64_t>(block[1]) << 8;
    for (uint32_t s = 0; s < 8; ++s) {
        const uint32_t low = block[4 + s / 2] >> (4 * (s % 2)) & 15u;
        bits |= static_cast<uint64_t>(low | (scales_high >> (2 * s) & 3u) << 4) << (16 + 6 * s);
        split_nibbles(block + 8 + 16 * s, 0, codes + 32 * s);
    }
    std::memcpy(record, &bits, sizeof bits);
}

PackBlock packer_of(GgmlType type) {
    switch (type) {
        case GgmlType::kQ4_0:
        case GgmlType::kIQ4_NL: return pack_4<2>;
        case GgmlType::kQ4_1: return pack_4<4>;
        case GgmlType::kMXFP4: return pack_mxfp4;
        case GgmlType::kQ5_0: return pack_5<2>;
        case GgmlType::kQ5_1: return pack_5<4>;
        case GgmlType::kQ8_0: return pack_q8_0;
        case GgmlType::kQ3_K: return pack_q3_k;
        case GgmlType::kQ4_K: return pack_q45_k<false>;
        case GgmlType::kQ5_K: return pack_q45_k<true>;
        case GgmlType::kQ6_K: return pack_q6_k;
        case GgmlType::kIQ4_XS: return pack_iq4_xs;
        case GgmlType::kF32:
        case GgmlType::kF16:
        case GgmlType::kBF16: break;
    }
    CHECK(false);
}

}  // namespace

std::optional<gpu::WeightFormat> device_format_of(GgmlType type) {
    switch (type) {
        case GgmlType::kQ4_0: return gpu::WeightFormat::kQ4_0;
        case GgmlType::kQ4_1: return gpu::WeightFormat::kQ4_1;
        case GgmlType::kQ5_0: return gpu::WeightFormat::kQ5_0;
        case GgmlType::kQ5_1: return gpu::WeightFormat::kQ5_1;
        case GgmlType::kQ8_0: return gpu::WeightFormat::kQ8_0;
        case GgmlType::kQ3_K: return gpu::WeightFormat::kQ6_K;
        case GgmlType::kQ4_K: return gpu::WeightFormat::kQ4_K;
        case GgmlType::kQ5_K: return gpu::WeightFormat::kQ5_K;
        case GgmlType::kQ6_K: return gpu::WeightFormat::kQ6_K;
        case GgmlType::kIQ4_NL: return gpu::WeightFormat::kIQ4_NL;
        case GgmlType::kIQ4_XS: return gpu::WeightFormat::kIQ4_XS;
        case GgmlType::kMXFP4: return gpu::WeightFormat::kMXFP4;
        case GgmlType::kF32:
        case GgmlType::kF16:
        case GgmlType::kBF16: break;
    }
    return std::nullopt;
}

void pack_ggml_row(GgmlType type, std::span<const std::byte> blocks, std::span<uint8_t> codes,
                   std::span<std::byte> records) {
    const GgmlTypeInfo& info = info_of(type);
    const uint32_t format = gpu::number_of(*device_format_of(type));
    const uint32_t record = gpu::record_bytes(format) + gpu::second_record_bytes(format),
                   columns = gpu::brick_columns(format);
    CHECK(blocks.size() / info.block_bytes * info.block_numbers == codes.size() &&
          records.size() >= codes.size() / columns * record);
    const PackBlock pack = packer_of(type);
    const auto* at = reinterpret_cast<BlockBytes>(blocks.data());
    for (uint32_t column = 0; column < codes.size(); column += info.block_numbers, at += info.block_bytes) {
        pack(at, column % columns / gpu::kPieceColumns, codes.data() + column,
             records.data() + column / columns * record);
    }
}

}  // namespace lorad::model
