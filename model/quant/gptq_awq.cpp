#include "model/quant/gptq_awq.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/quant/integer_records.h"
#include "model/quant/matrix_source.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

uint64_t groups_of(uint64_t k, uint32_t size) { return size == 0 ? 1 : ceil_div(k, size); }

// One value of each field of a word.
uint32_t in_each_field(uint32_t value, uint32_t bits) { return bits == 4 ? value * 0x11111111u : value * 0x01010101u; }

// Scales and zero points [groups][n] of a matrix [n][k], and which group an input belongs to.
struct Groups {
    Tensor scales;
    std::span<const std::byte> zeros;  // words along a group's row
    uint32_t bits = 4;
    // what GPTQ's first version subtracted from whole words, with borrows between fields
    uint32_t add_to_words = 0;
    std::array<uint8_t, 8> order{};  // where in a word each of its outputs lies
    uint64_t n = 0, n_groups = 0;
    uint32_t size = 0;               // inputs of a group; 0: all
    std::vector<uint32_t> group_of;  // [k], where groups have no order; else empty

    std::optional<gpu::WeightFormat> device_format(uint64_t k) const {
        if (!group_of.empty()) return std::nullopt;
        return integer_format(bits, size == 0 ? k : size, k, scales.dtype);
    }
    // Writes the device's records of rows [begin, begin + count), with an entry for each piece of a group.
    void write_records(gpu::WeightFormat format, uint64_t begin, uint64_t count, uint64_t k,
                       std::span<std::byte> records) const {
        std::vector<float> scale;
        std::vector<int32_t> zero;
        read(begin, count, scale, zero);
        const uint64_t record_bytes = records.size() / count, step = group_columns(format);
        for (uint64_t r = 0; r < count; ++r) {
            for (uint64_t i = 0; i < k; i += step) {
                const uint64_t g = of(i);
                put_integer_record(i / step, scale_bits(scales, g * n + begin + r), zero[g * count + r],
                                   records.subspan(r * record_bytes, record_bytes));
            }
        }
    }

    uint32_t of(uint64_t input) const {
        return !group_of.empty() ? group_of[input] : size == 0 ? 0 : static_cast<uint32_t>(input / size);
    }

    // Reads scales and zeros of outputs [begin, begin + count), group after group.
    void read(uint64_t begin, uint64_t count, std::vector<float>& scale, std::vector<int32_t>& zero) const {
        const uint32_t per_word = kWordBits / bits, mask = (1u << bits) - 1;
        const uint64_t row_words = words_of(n, bits);
        scale.resize(n_groups * count);
        zero.resize(n_groups * count);
        for (uint64_t g = 0; g < n_groups; ++g) {
            for (uint64_t c = 0; c < count; ++c) {
                const uint64_t output = begin + c;
                const uint32_t word = word_at(zeros, g * row_words + output / per_word) + add_to_words;
                scale[g * count + c] = number_at(scales, g * n + output);
                zero[g * count + c] = static_cast<int32_t>((word >> (bits * order[output % per_word])) & mask);
            }
        }
    }
};

// qweight [k / per word][n]: a word holds neighbouring inputs of one output.
class GptqMatrix final : public MatrixSource {
  public:
    GptqMatrix(const Tensor& words, Groups groups, uint64_t k)
        : words_(words.data), groups_(std::move(groups)), k_(k) {}

    std::string_view format() const override { return groups_.bits == 4 ? "GPTQ int4" : "GPTQ int8"; }

    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        if (groups_.bits == 4)
            decode_bits<4>(row_begin, n_rows, out);
        else
            decode_bits<8>(row_begin, n_rows, out);
    }

    std::optional<gpu::WeightFormat> device_format() const override { return groups_.device_format(k_); }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint32_t per_word = kWordBits / groups_.bits, mask = (1u << groups_.bits) - 1;
        for (uint64_t word_row = 0; word_row < k_ / per_word; ++word_row) {
            for (uint64_t row = 0; row < n_rows; ++row) {
                const uint32_t word = word_at(words_, word_row * groups_.n + row_begin + row);
                uint8_t* to = codes.data() + row * k_ + word_row * per_word;
                for (uint32_t j = 0; j < per_word; ++j) to[j] = static_cast<uint8_t>(word >> (j * groups_.bits) & mask);
            }
        }
        groups_.write_records(*device_format(), row_begin, n_rows, k_, records);
    }

  private:
    template <uint32_t kBits>
    void decode_bits(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const {
        constexpr uint32_t kPerWord = kWordBits / kBits, kMask = (1u << kBits) - 1;
        std::vector<float> scale;
        std::vector<int32_t> zero;
        groups_.read(row_begin, n_rows, scale, zero);
        for (uint64_t word_row = 0; word_row < k_ / kPerWord; ++word_row) {
            std::array<uint64_t, kPerWord> group_at{};  // of each input of the word, where its scales begin
            for (uint32_t j = 0; j < kPerWord; ++j) group_at[j] = groups_.of(word_row * kPerWord + j) * n_rows;
            const bool is_one_group = std::ranges::all_of(group_at, [&](uint64_t at) { return at == group_at[0]; });
            for (uint64_t row = 0; row < n_rows; ++row) {
                const uint32_t word = word_at(words_, word_row * groups_.n + row_begin + row);
                float* to = out.data() + row * k_ + word_row * kPerWord;
                if (is_one_group) {
                    const float s = scale[group_at[0] + row];
                    const int32_t z = zero[group_at[0] + row];
                    for (uint32_t j = 0; j < kPerWord; ++j)
                        to[j] = static_cast<float>(static_cast<int32_t>((word >> (j * kBits)) & kMask) - z) * s;
                    continue;
                }
                for (uint32_t j = 0; j < kPerWord; ++j) {
                    const uint64_t at = group_at[j] + row;
                    to[j] =
                        static_cast<float>(static_cast<int32_t>((word >> (j * kBits)) & kMask) - zero[at]) * scale[at];
                }
            }
        }
    }

    std::span<const std::byte> words_;
    Groups groups_;
    uint64_t k_;
};

// qweight [k][n / 8]: a word holds eight outputs of one input, in the order of Groups::order.
class AwqMatrix final : public MatrixSource {
  public:
    AwqMatrix(const Tensor& words, Groups groups, uint64_t k) : words_(words.data), groups_(std::move(groups)), k_(k) {}

    std::string_view format() const override { return "AWQ int4"; }

    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        constexpr uint64_t kInputsAtATime = 16;  // a cache line of each row that is written
        std::vector<float> scale;
        std::vector<int32_t> zero;
        groups_.read(row_begin, n_rows, scale, zero);
        const uint64_t row_words = groups_.n / 8;
        for (uint64_t begin = 0; begin < k_; begin += kInputsAtATime) {
            const uint64_t n_inputs = std::min(k_ - begin, kInputsAtATime);
            std::array<uint64_t, kInputsAtATime> group_at{};
            for (uint64_t i = 0; i < n_inputs; ++i) group_at[i] = groups_.of(begin + i) * n_rows;
            for (uint64_t row = 0; row < n_rows; ++row) {
                const uint64_t output = row_begin + row;
                const uint32_t shift = 4u * groups_.order[output % 8];
                float* to = out.data() + row * k_ + begin;
                for (uint64_t i = 0; i < n_inputs; ++i) {
                    const uint32_t word = word_at(words_, (begin + i) * row_words + output / 8);
                    const uint64_t at = group_at[i] + row;
                    to[i] = static_cast<float>(static_cast<int32_t>((word >> shift) & 15) - zero[at]) * scale[at];
                }
            }
        }
    }

    std::optional<gpu::WeightFormat> device_format() const override { return groups_.device_format(k_); }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint64_t row_words = groups_.n / 8;
        for (uint64_t i = 0; i < k_; ++i) {
            for (uint64_t row = 0; row < n_rows; ++row) {
                const uint64_t output = row_begin + row;
                codes[row * k_ + i] = static_cast<uint8_t>(
                    word_at(words_, i * row_words + output / 8) >> (4u * groups_.order[output % 8]) & 15);
            }
        }
        groups_.write_records(*device_format(), row_begin, n_rows, k_, records);
    }

  private:
    std::span<const std::byte> words_;
    Groups groups_;
    uint64_t k_;
};

// Returns true if every zero point is stored as `value`; fields beyond the last output do not count.
bool all_zeros_are(const Groups& groups, uint32_t value) {
    const uint32_t per_word = kWordBits / groups.bits;
    const uint64_t row_words = words_of(groups.n, groups.bits);
    const uint32_t whole = in_each_field(value, groups.bits);
    for (uint64_t g = 0; g < groups.n_groups; ++g) {
        for (uint64_t w = 0; w < row_words; ++w) {
            const uint64_t n_fields = std::min<uint64_t>(per_word, groups.n - w * per_word);
            const uint32_t used = n_fields == per_word ? ~0u : (1u << (n_fields * groups.bits)) - 1;
            if (((word_at(groups.zeros, g * row_words + w) ^ whole) & used) != 0) return false;
        }
    }
    return true;
}

bool has_zeros_v2(const Groups& groups, const QuantizationConfig& config) {
    if (config.symmetric) {
        const uint32_t middle = 1u << (groups.bits - 1);
        if (all_zeros_are(groups, middle)) return true;
        if (all_zeros_are(groups, middle - 1)) return false;
    }
    return config.zeros_v2;
}

// qzeros and scales, which must fit each other and the inputs.
Result<Groups> read_groups(LinearTensors& linear, std::string_view who, uint64_t k, uint32_t bits,
                           const QuantizationConfig& config) {
    TRY_ASSIGN(const Tensor* scales, linear.require("scales", who));
    TRY_ASSIGN(const Tensor* zeros, linear.require("qzeros", who));
    Groups groups{.scales = *scales,
                  .zeros = zeros->data,
                  .bits = bits,
                  .n = scales->shape[1],
                  .n_groups = scales->shape[0],
                  .size = config.group_size};
    if (!config.has_overrides && config.group_size != 0 && k % config.group_size != 0) {
        return make_error(ErrorCode::kInvalidModel,
                          format("tensor {}.scales: expected groups that divide its {} inputs, found group_size {}",
                                 linear.name(), k, config.group_size));
    }
    const uint64_t n_groups = config.has_overrides ? groups.n_groups : groups_of(k, config.group_size);
    TRY(check_floats(*scales, {n_groups, groups.n}));
    TRY(check_tensor(*zeros, DType::kI32, {n_groups, words_of(groups.n, bits)}));
    return groups;
}

// Outputs of the matrix, which the scales tell.
Result<uint64_t> outputs_of(LinearTensors& linear, std::string_view who) {
    TRY_ASSIGN(const Tensor* scales, linear.require("scales", who));
    if (!is_weight_type(scales->dtype) || scales->shape.size() != 2 || scales->data.empty())
        return wrong_tensor(*scales, "F32, F16 or BF16 of groups and outputs");
    return scales->shape[1];
}

// The group of each input, checked; empty where they follow each other.
Result<std::vector<uint32_t>> read_g_idx(const Tensor& tensor, uint64_t k, const Groups& groups) {
    TRY_ASSIGN(std::vector<uint32_t> group_of, input_groups(tensor, k, groups.n_groups));
    bool is_in_order = true;
    for (uint64_t i = 0; i < k && is_in_order; ++i) is_in_order = group_of[i] == groups.of(i);
    if (is_in_order) group_of.clear();
    return group_of;
}

}  // namespace

Result<Tensor> make_gptq_matrix(LinearTensors& linear, const QuantizationConfig& config) {
    constexpr std::string_view kWho = "GPTQ";
    TRY_ASSIGN(const Tensor* words, linear.require("qweight", kWho));
    TRY_ASSIGN(const uint64_t n, outputs_of(linear, kWho));
    if (words->dtype != DType::kI32 || words->shape.size() != 2 || words->shape[1] != n || words->data.empty()) {
        return wrong_tensor(*words, format("I32 of two dimensions, the second {} as scales has it", n));
    }
    const Tensor* g_idx = linear.take("g_idx");
    if (g_idx && g_idx->data.empty()) g_idx = nullptr;
    uint32_t bits = config.bits;
    if (config.has_overrides && g_idx && g_idx->n_elements() * 8 == words->shape[0] * kWordBits) bits = 8;
    if (config.has_overrides && g_idx && g_idx->n_elements() * 4 == words->shape[0] * kWordBits) bits = 4;
    const uint64_t k = words->shape[0] * (kWordBits / bits);
    TRY_ASSIGN(Groups groups, read_groups(linear, kWho, k, bits, config));
    for (uint8_t i = 0; i < groups.order.size(); ++i) groups.order[i] = i;
    if (g_idx) {
        TRY_ASSIGN(groups.group_of, read_g_idx(*g_idx, k, groups));
    } else if (config.act_order) {
        return make_error(
            ErrorCode::kInvalidModel,
            format("tensor {}.g_idx is missing: desc_act, which {} has, needs it", linear.name(), config.where));
    } else if (groups.n_groups != groups_of(k, config.group_size)) {
        return make_error(ErrorCode::kInvalidModel,
                          format("tensor {}.g_idx is missing: the groups of {} are not those of {}", linear.name(),
                                 linear.name(), config.where));
    }
    if (!has_zeros_v2(groups, config)) groups.add_to_words = in_each_field(1, bits);
    TRY(linear.check_all_taken("a matrix in GPTQ"));
    return packed_matrix(linear, n, k, words->data, std::make_shared<GptqMatrix>(*words, std::move(groups), k));
}

Result<Tensor> make_awq_matrix(LinearTensors& linear, const QuantizationConfig& config) {
    constexpr std::string_view kWho = "AWQ";
    TRY_ASSIGN(const Tensor* words, linear.require("qweight", kWho));
    TRY_ASSIGN(const uint64_t n, outputs_of(linear, kWho));
    if (n % 8 != 0 || words->dtype != DType::kI32 || words->shape.size() != 2 || words->shape[1] != n / 8 ||
        words->data.empty()) {
        return wrong_tensor(*words,
                            format("I32 of two dimensions, the second an eighth of the {} outputs that scales has", n));
    }
    const uint64_t k = words->shape[0];
    TRY_ASSIGN(Groups groups, read_groups(linear, kWho, k, config.bits, config));
    groups.order = {0, 4, 1, 5, 2, 6, 3, 7};  // nibble p holds output 0, 2, 4, 6, 1, 3, 5, 7
    TRY(linear.check_all_taken("a matrix in AWQ"));
    return packed_matrix(linear, n, k, words->data, std::make_shared<AwqMatrix>(*words, std::move(groups), k));
}

}  // namespace lorad::model
