#include "model/quant/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "model/quant/ggml_blocks.h"
#include "model/quant/ggml_pack.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "proto/base/check.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

uint16_t to_half(float number) {
    uint16_t bits = 0;
    narrow(std::span(&number, 1), gpu::ScalarType::kF16, reinterpret_cast<std::byte*>(&bits));
    return bits;
}
float from_half(uint16_t bits) { return widen(DType::kF16, reinterpret_cast<const std::byte*>(&bits)); }

int code_of(float number, float inverse, int low, int high) {
    return std::clamp(static_cast<int>(std::lround(number * inverse)), low, high);
}

void quantize_q8_0(std::span<const float> x, uint8_t* block) {
    float largest = 0;
    for (const float number : x) largest = std::max(largest, std::fabs(number));
    const float d = largest / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    const uint16_t half = to_half(d);
    std::memcpy(block, &half, 2);
    for (size_t i = 0; i < x.size(); ++i)
        block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::roundf(x[i] * inverse)));
}

// The weight of an error on a number: large numbers move results more.
float weight_of(float number, float mean_square) { return std::sqrt(mean_square) + std::fabs(number); }

float mean_square_of(std::span<const float> x) {
    float sum = 0;
    for (const float number : x) sum += number * number;
    return sum / static_cast<float>(x.size());
}

// Returns the scale with the least error for codes from -32 to 31. It tries some scales around the one that maps the
// number of largest magnitude to the largest code, each fitted to its own codes.
float fit_scale(std::span<const float> x) {
    constexpr int kTries = 9;
    float extreme = 0;
    for (const float number : x) {
        if (std::fabs(number) > std::fabs(extreme)) extreme = number;
    }
    if (extreme == 0) return 0;
    const float mean_square = mean_square_of(x);
    float best = 0, least = INFINITY;
    for (int i = -kTries; i <= kTries; ++i) {
        // the largest number gets the code on the side that has one more
        float scale = extreme / (-32.0f - 0.1f * static_cast<float>(i));
        for (int round = 0; round < 2; ++round) {
            float products = 0, squares = 0;
            for (const float number : x) {
                const auto code = static_cast<float>(code_of(number, 1 / scale, -32, 31));
                const float weight = weight_of(number, mean_square);
                products += weight * number * code;
                squares += weight * code * code;
            }
            if (squares == 0 || products == 0) break;
            scale = products / squares;
        }
        float error = 0;
        for (const float number : x) {
            const float off = number - scale * static_cast<float>(code_of(number, 1 / scale, -32, 31));
            error += weight_of(number, mean_square) * off * off;
        }
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

void quantize_q6_k(std::span<const float> x, uint8_t* block) {
    std::array<float, 16> scales{};
    float extreme = 0;
    for (size_t s = 0; s < 16; ++s) {
        scales[s] = fit_scale(x.subspan(16 * s, 16));
        if (std::fabs(scales[s]) > std::fabs(extreme)) extreme = scales[s];
    }
    std::memset(block, 0, 210);
    const uint16_t half = to_half(extreme / -128.0f);
    const float d = from_half(half), inverse = d != 0 ? 1 / d : 0;
    std::memcpy(block + 208, &half, 2);
    for (uint32_t i = 0; i < 256; ++i) {
        const int a = code_of(scales[i / 16], inverse, -128, 127);
        block[192 + i / 16] = static_cast<uint8_t>(static_cast<int8_t>(a));
        const float scale = d * static_cast<float>(a);
        const auto code = static_cast<uint32_t>(scale != 0 ? code_of(x[i], 1 / scale, -32, 31) + 32 : 32);
        const uint32_t part = i / 128, quarter = i % 128 / 32, l = i % 32;
        block[64 * part + 32 * (quarter % 2) + l] |= static_cast<uint8_t>((code & 15u) << (4 * (quarter / 2)));
        block[128 + 32 * part + l] |= static_cast<uint8_t>((code >> 4) << (2 * quarter));
    }
}

struct ScaleAndOffset {
    float scale = 0, offset = 0;  // number = scale * code - offset; both at least 0
};

// Tries some scales for codes 0 to 15 around the one that spans all numbers, each fitted to its own codes.
ScaleAndOffset fit_scale_and_offset(std::span<const float> x) {
    constexpr int kTries = 12;
    const float low = std::min(0.0f, *std::ranges::min_element(x)), high = std::max(0.0f, *std::ranges::max_element(x));
    if (high == low) return {};
    const float mean_square = mean_square_of(x);
    ScaleAndOffset best;
    float least = INFINITY;
    for (int i = -kTries; i <= kTries; ++i) {
        ScaleAndOffset fit{(high - low) / (15.0f + 0.15f * static_cast<float>(i)), -low};
        for (int round = 0; round < 3; ++round) {
            float error = 0;
            double w = 0, wc = 0, wcc = 0, wx = 0, wcx = 0;
            for (const float number : x) {
                const auto code = static_cast<float>(code_of(number + fit.offset, 1 / fit.scale, 0, 15));
                const float weight = weight_of(number, mean_square), off = number - (fit.scale * code - fit.offset);
                error += weight * off * off;
                w += weight;
                wc += weight * code;
                wcc += weight * code * code;
                wx += weight * number;
                wcx += weight * code * number;
            }
            if (error < least) {
                least = error;
                best = fit;
            }
            const double determinant = w * wcc - wc * wc;
            if (determinant <= 0) break;
            ScaleAndOffset next{static_cast<float>((w * wcx - wc * wx) / determinant),
                                static_cast<float>((wc * wcx - wcc * wx) / determinant)};
            if (next.offset < 0) next = {static_cast<float>(wcx / wcc), 0};
            if (!(next.scale > 0)) break;
            fit = next;
        }
    }
    return best;
}

void quantize_q4_k(std::span<const float> x, uint8_t* block) {
    std::array<ScaleAndOffset, 8> fits;
    float scale_max = 0, offset_max = 0;
    for (size_t s = 0; s < 8; ++s) {
        fits[s] = fit_scale_and_offset(x.subspan(32 * s, 32));
        scale_max = std::max(scale_max, fits[s].scale);
        offset_max = std::max(offset_max, fits[s].offset);
    }
    const std::array<uint16_t, 2> halves = {to_half(scale_max / 63.0f), to_half(offset_max / 63.0f)};
    std::memset(block, 0, 144);
    std::memcpy(block, halves.data(), 4);
    const float d = from_half(halves[0]), dmin = from_half(halves[1]);
    uint8_t* b = block + 4;
    for (uint32_t s = 0; s < 8; ++s) {
        const auto a = static_cast<uint32_t>(d != 0 ? code_of(fits[s].scale, 1 / d, 0, 63) : 0),
                   m = static_cast<uint32_t>(dmin != 0 ? code_of(fits[s].offset, 1 / dmin, 0, 63) : 0);
        if (s < 4) {
            b[s] |= static_cast<uint8_t>(a);
            b[s + 4] |= static_cast<uint8_t>(m);
        } else {
            b[s + 4] |= static_cast<uint8_t>((a & 15u) | (m & 15u) << 4);
            b[s - 4] |= static_cast<uint8_t>((a >> 4) << 6);
            b[s] |= static_cast<uint8_t>((m >> 4) << 6);
        }
        const float scale = d * static_cast<float>(a), offset = dmin * static_cast<float>(m);
        for (uint32_t l = 0; l < 32; ++l) {
            const auto code = static_cast<uint32_t>(scale != 0 ? code_of(x[32 * s + l] + offset, 1 / scale, 0, 15) : 0);
            block[16 + 32 * (s / 2) + l] |= static_cast<uint8_t>(code << (4 * (s % 2)));
        }
    }
}

// Rows at once, as some sources read theirs side by side.
std::vector<float> widened(const Tensor& tensor, uint64_t row_begin, uint64_t n_rows) {
    std::vector<float> numbers(n_rows * tensor.shape[1]);
    if (tensor.source)
        tensor.source->decode(row_begin, n_rows, numbers);
    else
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = number_at(tensor, row_begin * tensor.shape[1] + i);
    return numbers;
}

bool are_finite(std::span<const float> numbers) {
    return std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); });
}

// A plain matrix, quantized row by row when it is read.
class QuantizedMatrix final : public MatrixSource {
  public:
    QuantizedMatrix(Tensor tensor, GgmlType type) : tensor_(std::move(tensor)), type_(type) {}

    std::string_view format() const override { return name_of(type_); }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        const uint64_t k = tensor_.shape[1];
        const std::vector<std::byte> blocks = blocks_of(row_begin, n_rows);
        for (uint64_t i = 0; i < n_rows; ++i) decode_ggml(type_, row_of(blocks, i), out.subspan(i * k, k));
    }
    std::optional<gpu::WeightFormat> device_format() const override { return device_format_of(type_); }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint64_t k = tensor_.shape[1], record_bytes = records.size() / n_rows;
        const std::vector<std::byte> blocks = blocks_of(row_begin, n_rows);
        for (uint64_t i = 0; i < n_rows; ++i)
            pack_ggml_row(type_, row_of(blocks, i), codes.subspan(i * k, k),
                          records.subspan(i * record_bytes, record_bytes));
    }

  private:
    uint64_t row_bytes() const {
        const GgmlTypeInfo& info = info_of(type_);
        return tensor_.shape[1] / info.block_numbers * info.block_bytes;
    }
    std::span<const std::byte> row_of(std::span<const std::byte> blocks, uint64_t i) const {
        return blocks.subspan(i * row_bytes(), row_bytes());
    }
    std::vector<std::byte> blocks_of(uint64_t row_begin, uint64_t n_rows) const {
        const uint64_t k = tensor_.shape[1];
        const std::vector<float> numbers = widened(tensor_, row_begin, n_rows);
        std::vector<std::byte> blocks(n_rows * row_bytes(), kNanScale);
        for (uint64_t i = 0; i < n_rows; ++i) {
            const std::span<const float> row = std::span(numbers).subspan(i * k, k);
            if (are_finite(row)) quantize_row(type_, row, std::span(blocks).subspan(i * row_bytes(), row_bytes()));
        }
        return blocks;
    }

    // bytes of a half that is NaN: what reads such a block refuses the matrix
    static constexpr std::byte kNanScale{0xff};

    Tensor tensor_;
    GgmlType type_;
};

// bitsandbytes' table, and the largest magnitude of each 64.
class Nf4Matrix final : public MatrixSource {
  public:
    static constexpr uint64_t kBlock = 64;

    explicit Nf4Matrix(Tensor tensor) : tensor_(std::move(tensor)) {}

    std::string_view format() const override { return "NF4"; }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        const uint64_t k = tensor_.shape[1];
        std::vector<uint8_t> codes(n_rows * k);
        std::vector<std::byte> scales(n_rows * (k / kBlock) * sizeof(float));
        pack(row_begin, n_rows, codes, scales);
        for (uint64_t i = 0; i < out.size(); ++i) {
            float scale = 0;
            std::memcpy(&scale, scales.data() + i / kBlock * sizeof scale, sizeof scale);
            out[i] = kTable[codes[i]] * scale;
        }
    }
    std::optional<gpu::WeightFormat> device_format() const override { return gpu::WeightFormat::kTable; }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint64_t k = tensor_.shape[1], record_bytes = records.size() / n_rows;
        const std::vector<float> numbers = widened(tensor_, row_begin, n_rows);
        for (uint64_t r = 0; r < n_rows; ++r) {
            const std::span<const float> x = std::span(numbers).subspan(r * k, k);
            for (uint64_t begin = 0; begin < k; begin += kBlock) {
                float largest = 0;
                for (uint64_t i = begin; i < begin + kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
                if (!are_finite(x.subspan(begin, kBlock))) largest = NAN;
                std::memcpy(records.data() + r * record_bytes + begin / kBlock * sizeof largest, &largest,
                            sizeof largest);
                const float inverse = largest != 0 ? 1 / largest : 0;
                for (uint64_t i = begin; i < begin + kBlock; ++i) codes[r * k + i] = nearest(x[i] * inverse);
            }
        }
    }
    std::span<const float> table() const override { return kTable; }

  private:
    static uint8_t nearest(float number) {
        uint8_t code = 0;
        while (code < 15 && number > (kTable[code] + kTable[code + 1]) / 2) ++code;
        return code;
    }

    static constexpr std::array<float, 16> kTable = {-1.0f,
                                                     -0.6961928009986877f,
                                                     -0.5250730514526367f,
                                                     -0.39491748809814453f,
                                                     -0.28444138169288635f,
                                                     -0.18477343022823334f,
                                                     -0.09105003625154495f,
                                                     0.0f,
                                                     0.07958029955625534f,
                                                     0.16093020141124725f,
                                                     0.24611230194568634f,
                                                     0.33791524171829224f,
                                                     0.44070982933044434f,
                                                     0.5626170039176941f,
                                                     0.7229568362236023f,
                                                     1.0f};
    Tensor tensor_;
};

bool is_table(const Tensor& tensor) {
    return tensor.name == "model.embed_tokens.weight" || tensor.name == "lm_head.weight";
}
// Layers of a decoder have matrices of no other kind, but for routers, which stay.
bool is_linear(const Tensor& tensor) {
    return tensor.name.starts_with("model.layers.") && tensor.name.ends_with("_proj.weight");
}
bool is_plain_matrix(const Tensor& tensor) {
    return tensor.shape.size() == 2 && (tensor.source ? tensor.source->is_plain() : is_weight_type(tensor.dtype));
}

// Whatever the length of its rows. Not of NF4.
GgmlType wanted_type(const Tensor& tensor, QuantizeType type) {
    if (type == QuantizeType::kQ8_0) return GgmlType::kQ8_0;
    return type == QuantizeType::kQ6_K || is_table(tensor) ? GgmlType::kQ6_K : GgmlType::kQ4_K;
}
bool has_whole_blocks(const Tensor& tensor, uint64_t block_numbers) { return tensor.shape[1] % block_numbers == 0; }

constexpr std::array<std::pair<std::string_view, QuantizeType>, 4> kTypes = {{{"q8_0", QuantizeType::kQ8_0},
                                                                              {"q4_k", QuantizeType::kQ4_K},
                                                                              {"q6_k", QuantizeType::kQ6_K},
                                                                              {"nf4", QuantizeType::kNf4}}};

std::string matrices(size_t n, std::string_view one_does, std::string_view several_do) {
    return n == 1 ? format("1 matrix {}", one_does) : format("{} matrices {}", n, several_do);
}

}  // namespace

Result<QuantizeType> parse_quantize_type(std::string_view text) {
    for (const auto& [name, type] : kTypes) {
        if (name == text) return type;
    }
    return make_error(ErrorCode::kInvalidConfig,
                      format("quantize: expected q8_0, q4_k, q6_k or nf4, found \"{}\"", text), "quantize");
}

void quantize_row(GgmlType type, std::span<const float> numbers, std::span<std::byte> blocks) {
    const GgmlTypeInfo& info = info_of(type);
    CHECK(numbers.size() % info.block_numbers == 0 &&
          blocks.size() == numbers.size() / info.block_numbers * info.block_bytes);
    auto* block = reinterpret_cast<uint8_t*>(blocks.data());
    for (size_t i = 0; i < numbers.size(); i += info.block_numbers, block += info.block_bytes) {
        const auto x = numbers.subspan(i, info.block_numbers);
        switch (type) {
            case GgmlType::kQ8_0: quantize_q8_0(x, block); break;
            case GgmlType::kQ4_K: quantize_q4_k(x, block); break;
            case GgmlType::kQ6_K: quantize_q6_k(x, block); break;
            default: CHECK(false);
        }
    }
}

std::optional<GgmlType> ggml_type_for(const Tensor& tensor, QuantizeType type) {
    if (!is_plain_matrix(tensor) || (!is_linear(tensor) && !is_table(tensor)) || type == QuantizeType::kNf4)
        return std::nullopt;
    const auto fits = [&](GgmlType to) { return has_whole_blocks(tensor, info_of(to).block_numbers); };
    if (const GgmlType wanted = wanted_type(tensor, type); fits(wanted)) return wanted;
    return fits(GgmlType::kQ8_0) ? std::optional(GgmlType::kQ8_0) : std::nullopt;
}

std::string quantize_note(const TensorFiles& files, QuantizeType type) {
    const bool is_nf4 = type == QuantizeType::kNf4;
    const uint64_t least_block = is_nf4 ? Nf4Matrix::kBlock : info_of(GgmlType::kQ8_0).block_numbers;
    size_t n_packed = 0, n_q8 = 0, n_stay = 0;
    for (const Tensor& tensor : files.tensors()) {
        if (tensor.shape.size() != 2 || !(is_linear(tensor) || (is_table(tensor) && !is_nf4))) continue;
        if (!is_plain_matrix(tensor))
            ++n_packed;
        else if (!has_whole_blocks(tensor, least_block))
            ++n_stay;
        else if (!is_nf4 && ggml_type_for(tensor, type) != wanted_type(tensor, type))
            ++n_q8;
    }
    std::vector<std::string> parts;
    if (n_packed > 0)
        parts.push_back(matrices(n_packed, "is in few bits already and stays", "are in few bits already and stay"));
    if (n_q8 > 0)
        parts.push_back(matrices(n_q8, "gets Q8_0", "get Q8_0") +
                        format(", as rows are no whole blocks of {}", info_of(GgmlType::kQ4_K).block_numbers));
    if (n_stay > 0)
        parts.push_back(matrices(n_stay, "stays in 16 or 32 bits", "stay in 16 or 32 bits") +
                        format(", as rows are no whole blocks of {}", least_block));
    std::string note;
    for (const std::string& part : parts) note += (note.empty() ? "" : "; ") + part;
    if (note.empty()) return note;
    const auto name = std::ranges::find(kTypes, type, [](const auto& entry) { return entry.second; });
    return format("quantize {}: {}", name->first, note);
}

void quantize_tensors(TensorFiles& files, QuantizeType type) {
    std::vector<Tensor> tensors(files.tensors().begin(), files.tensors().end());
    for (Tensor& tensor : tensors) {
        std::shared_ptr<const MatrixSource> source;
        if (const auto ggml = ggml_type_for(tensor, type)) {
            source = std::make_shared<QuantizedMatrix>(tensor, *ggml);
        } else if (type == QuantizeType::kNf4 && is_plain_matrix(tensor) && is_linear(tensor) &&
                   has_whole_blocks(tensor, Nf4Matrix::kBlock)) {
            source = std::make_shared<Nf4Matrix>(tensor);
        }
        if (!source) continue;
        tensor.dtype = DType::kPacked;
        tensor.source = std::move(source);
    }
    std::vector<std::string> left_out = files.left_out();
    files.set_tensors(std::move(tensors), std::move(left_out));
}

}  // namespace lorad::model
