#include "model/quant/brick_packer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "proto/base/check.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

using gpu::kBrickRows;
using gpu::kPieceColumns;

// 32 codes of one row. place: the piece's number in its plane.
class PieceWriter {
  public:
    PieceWriter(uint32_t format, std::byte* brick) : format_(format), brick_(brick) {}

    void write(uint32_t place, const uint8_t* codes) const {
        if (gpu::has_8bit_codes(format_))
            write_8(place, codes);
        else
            write_4(place, codes);
    }

  private:
    void put(uint64_t offset, uint32_t word) const { std::memcpy(brick_ + offset, &word, sizeof word); }

    void write_8(uint32_t place, const uint8_t* codes) const {
        const uint64_t plane_bytes = gpu::high_offset(format_) / 2;
        for (uint32_t w = 0; w < 8; ++w) {
            const uint8_t* c = codes + 4 * w;
            put(w / 4 * plane_bytes + place * 16 + w % 4 * 4,
                c[0] | uint32_t{c[2]} << 8 | uint32_t{c[1]} << 16 | uint32_t{c[3]} << 24);
        }
    }

    void write_4(uint32_t place, const uint8_t* codes) const {
        const uint32_t high_bits = gpu::high_bits_of(format_);
        uint32_t high[2] = {0, 0};
        for (uint32_t w = 0; w < 4; ++w) {
            const uint8_t* c = codes + 8 * w;
            uint32_t word = 0;
            for (uint32_t i = 0; i < 4; ++i) {
                word |= (c[2 * i] & 15u) << (4 * i) | (c[2 * i + 1] & 15u) << (4 * i + 16);
                const uint32_t pair = static_cast<uint32_t>(c[2 * i] >> 4) | static_cast<uint32_t>(c[2 * i + 1] >> 4)
                                                                                 << 16;
                if (high_bits == 1) high[0] |= pair << (4 * w + i);
                if (high_bits == 2) high[w / 2] |= pair << (8 * (w % 2) + 2 * i);
            }
            put(place * 16 + w * 4, word);
        }
        for (uint32_t i = 0; i < high_bits; ++i)
            put(gpu::high_offset(format_) + place * 4 * high_bits + i * 4, high[i]);
    }

    uint32_t format_;
    std::byte* brick_;
};

// One row of its bricks.
void write_row(uint32_t format, uint32_t row, std::span<const uint8_t> codes, std::span<const std::byte> records,
               std::byte* bricks) {
    const uint32_t columns = gpu::brick_columns(format), first = gpu::record_bytes(format),
                   second = gpu::second_record_bytes(format);
    for (uint32_t brick = 0; brick * columns < codes.size(); ++brick) {
        std::byte* at = bricks + uint64_t{brick} * gpu::brick_bytes(format);
        const PieceWriter writer(format, at);
        for (uint32_t piece = 0; piece < columns / kPieceColumns; ++piece) {
            const uint32_t column = brick * columns + piece * kPieceColumns;
            if (column < codes.size())
                writer.write((piece / 4 * kBrickRows + row) * 4 + piece % 4, codes.data() + column);
        }
        const std::byte* record = records.data() + brick * (first + second);
        std::byte* to = at + gpu::record_offset(format);
        std::memcpy(to + row * first, record, first);
        std::memcpy(to + kBrickRows * first + row * second, record + first, second);
    }
}

}  // namespace

Status pack_rows(const Tensor& tensor, uint64_t row_begin, uint64_t n_rows, gpu::ScalarType type,
                 std::span<std::byte> out) {
    const MatrixSource& source = *tensor.source;
    const gpu::WeightFormat of = source.device_format().value();
    const uint32_t format = gpu::number_of(of);
    const auto k = static_cast<uint32_t>(tensor.shape[1]);
    const uint32_t columns = round_up(k, kPieceColumns);  // those beyond k have no codes of their own
    CHECK(row_begin % kBrickRows == 0 && row_begin + n_rows <= tensor.shape[0] &&
          out.size() == gpu::bytes_of(of, n_rows, k));
    const uint64_t record_stride =
        uint64_t{gpu::bricks_per_row(format, k)} * (gpu::record_bytes(format) + gpu::second_record_bytes(format));
    const uint64_t brick_row_bytes = uint64_t{gpu::bricks_per_row(format, k)} * gpu::brick_bytes(format);
    NumberCheck check(type);
    for_pieces(ceil_div(n_rows, uint64_t{kBrickRows}), [&](uint64_t piece) {
        const uint64_t row = piece * kBrickRows, n = std::min<uint64_t>(kBrickRows, n_rows - row);
        std::vector<float> numbers(n * k);
        source.decode(row_begin + row, n, numbers);
        check.look_at(numbers);
        std::vector<uint8_t> codes(n * k), padded(columns);
        std::vector<std::byte> records(n * record_stride);
        source.pack(row_begin + row, n, codes, records);
        std::byte* bricks = out.data() + piece * brick_row_bytes;
        std::memset(bricks, 0, brick_row_bytes);
        for (uint32_t r = 0; r < n; ++r) {
            std::copy_n(codes.begin() + static_cast<ptrdiff_t>(r * uint64_t{k}), k, padded.begin());
            write_row(format, r, padded, std::span(records).subspan(r * record_stride, record_stride), bricks);
        }
    });
    return check.verdict(tensor, source.format());
}

}  // namespace lorad::model
