#include "model/files/expert_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "model/quant/linear_tensors.h"
#include "model/quant/matrix_source.h"
#include "proto/base/check.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.";
constexpr std::string_view kBlocks = "_blocks", kScales = "_scales", kBias = "_bias";

// [experts][k][n] read as [experts * n][k].
class TransposedSource final : public MatrixSource {
  public:
    TransposedSource(Tensor tensor, uint64_t n, uint64_t k) : tensor_(std::move(tensor)), n_(n), k_(k) {}
    std::string_view format() const override { return name_of(tensor_.dtype); }
    bool is_plain() const override { return true; }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        // Rows of one expert side by side, so that the file is read along its lines.
        for (uint64_t first = 0, end = 0; first < n_rows; first = end) {
            const uint64_t expert = (row_begin + first) / n_, row = (row_begin + first) % n_;
            end = std::min(n_rows, first + n_ - row);
            for (uint64_t i = 0; i < k_; ++i) {
                const uint64_t line = (expert * k_ + i) * n_ + row;
                for (uint64_t r = first; r < end; ++r) out[r * k_ + i] = number_at(tensor_, line + (r - first));
            }
        }
    }

  private:
    const Tensor tensor_;
    const uint64_t n_, k_;
};

// Blocks of 32 numbers of four bits with one scale of eight, a power of two. The device's own format has the very codes
// and scales, but for -0, which is 0 there.
class Mxfp4Source final : public MatrixSource {
  public:
    static constexpr uint64_t kBlock = 32, kBlockBytes = 16;
    static constexpr uint8_t kMinusZero = 8;
    Mxfp4Source(Tensor blocks, Tensor scales, uint64_t k)
        : blocks_(std::move(blocks)), scales_(std::move(scales)), k_(k) {}
    std::string_view format() const override { return "MXFP4"; }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        constexpr std::array<float, 16> kNumbers = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
        constexpr int kZeroExponent = 127, kNaN = 255;
        const uint64_t blocks_per_row = k_ / kBlock;
        for (uint64_t b = 0; b < n_rows * blocks_per_row; ++b) {
            const uint64_t block = row_begin * blocks_per_row + b;
            const auto exponent = static_cast<int>(scales_.data[block]);
            const float scale =
                exponent == kNaN ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - kZeroExponent);
            for (uint64_t i = 0; i < kBlockBytes; ++i) {
                const auto byte = static_cast<uint8_t>(blocks_.data[block * kBlockBytes + i]);
                out[b * kBlock + 2 * i] = kNumbers[byte & 15] * scale;
                out[b * kBlock + 2 * i + 1] = kNumbers[byte >> 4] * scale;
            }
        }
    }
    std::optional<gpu::WeightFormat> device_format() const override { return gpu::WeightFormat::kMXFP4; }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint64_t blocks_per_row = k_ / kBlock, record_bytes = records.size() / n_rows;
        CHECK(record_bytes >= blocks_per_row);
        for (uint64_t row = 0; row < n_rows; ++row) {
            const uint64_t first = (row_begin + row) * blocks_per_row;
            // Of each brick four neighbouring blocks have a record of four bytes.
            std::ranges::copy(scales_.data.subspan(first, blocks_per_row),
                              records.begin() + static_cast<ptrdiff_t>(row * record_bytes));
            for (uint64_t i = 0; i < blocks_per_row * kBlockBytes; ++i) {
                const auto byte = static_cast<uint8_t>(blocks_.data[first * kBlockBytes + i]);
                const auto low = static_cast<uint8_t>(byte & 15), high = static_cast<uint8_t>(byte >> 4);
                codes[row * k_ + 2 * i] = low == kMinusZero ? 0 : low;
                codes[row * k_ + 2 * i + 1] = high == kMinusZero ? 0 : high;
            }
        }
    }

  private:
    const Tensor blocks_, scales_;
    const uint64_t k_;
};

// A layer's product of all experts.
struct Stack {
    uint64_t experts = 0, n = 0, k = 0;
    bool by_inputs = false;
};

// "model.layers.3.mlp.experts.gate_up_proj" and what follows; nothing where a name is of something else, also of a
// single expert.
struct StackName {
    uint32_t layer = 0;
    LinearModule module = LinearModule::kExpertGateUp;
    std::string stem;
    std::string_view rest;
};
std::optional<StackName> stack_name(std::string_view name) {
    constexpr std::string_view kLayers = "model.layers.";
    const size_t at = name.find(kExperts);
    if (at == std::string_view::npos || !name.starts_with(kLayers)) return std::nullopt;
    StackName found;
    for (const char digit : name.substr(kLayers.size(), at - kLayers.size())) {
        if (digit < '0' || digit > '9' || found.layer > 100000) return std::nullopt;
        found.layer = found.layer * 10 + static_cast<uint32_t>(digit - '0');
    }
    for (const auto& [word, module] :
         {std::pair("gate_up_proj", LinearModule::kExpertGateUp), std::pair("down_proj", LinearModule::kExpertDown)}) {
        const std::string_view rest = name.substr(at + kExperts.size());
        if (!rest.starts_with(word)) continue;
        found.module = module;
        found.rest = rest.substr(std::string_view(word).size());
        found.stem = name.substr(0, name.size() - found.rest.size());
        return found;
    }
    return std::nullopt;
}

Tensor matrix_of(const std::string& stem, const Stack& stack, const Tensor& of) {
    Tensor matrix = of;
    matrix.name = stem + ".weight";
    matrix.shape = {stack.experts * stack.n, stack.k};
    return matrix;
}

Result<Tensor> stacked(const StackName& name, const Stack& stack, const Tensor& tensor) {
    const std::vector<uint64_t> shape = stack.by_inputs ? std::vector<uint64_t>{stack.experts, stack.k, stack.n}
                                                        : std::vector<uint64_t>{stack.experts, stack.n, stack.k};
    TRY(check_floats(tensor, shape));
    Tensor matrix = matrix_of(name.stem, stack, tensor);
    if (!stack.by_inputs) return matrix;
    matrix.dtype = DType::kPacked;
    matrix.source = std::make_shared<TransposedSource>(tensor, stack.n, stack.k);
    return matrix;
}

Result<Tensor> unpacked(const StackName& name, const Stack& stack, const Tensor& blocks, const Tensor& scales) {
    if (stack.k % Mxfp4Source::kBlock != 0) {
        return make_error(ErrorCode::kInvalidModel, format("tensor {}: expected inputs in whole blocks of {}, found {}",
                                                           blocks.name, Mxfp4Source::kBlock, stack.k));
    }
    const uint64_t n_blocks = stack.k / Mxfp4Source::kBlock;
    TRY(check_tensor(blocks, DType::kU8, {stack.experts, stack.n, n_blocks, Mxfp4Source::kBlockBytes}));
    TRY(check_tensor(scales, DType::kU8, {stack.experts, stack.n, n_blocks}));
    Tensor matrix = matrix_of(name.stem, stack, blocks);
    matrix.dtype = DType::kPacked;
    matrix.source = std::make_shared<Mxfp4Source>(blocks, scales, stack.k);
    return matrix;
}

}  // namespace

Status map_expert_tensors(std::vector<Tensor>& tensors, const ModelConfig& config) {
    std::map<std::string, std::pair<const Tensor*, const Tensor*>> packed;  // blocks and scales, by the matrix' name
    std::vector<Tensor> mapped;
    const auto stack_of = [&](const StackName& name) {
        const LinearShape one = config.shape(name.layer, name.module);
        const ExpertFacts experts = config.layer(name.layer).ffn.experts;
        return Stack{experts.n, one.n, one.k, experts.by_inputs};
    };
    for (const Tensor& tensor : tensors) {
        const std::optional<StackName> name = stack_name(tensor.name);
        if (!name || name->layer >= config.n_layers || config.layer(name->layer).ffn.experts.n == 0) {
            mapped.push_back(tensor);
        } else if (name->rest.empty()) {
            TRY_ASSIGN(Tensor matrix, stacked(*name, stack_of(*name), tensor));
            mapped.push_back(std::move(matrix));
        } else if (name->rest == kBias) {
            mapped.push_back(tensor);
            mapped.back().name = name->stem + ".bias";
        } else if (name->rest == kBlocks || name->rest == kScales) {
            (name->rest == kBlocks ? packed[name->stem].first : packed[name->stem].second) = &tensor;
        } else {
            mapped.push_back(tensor);
        }
    }
    for (const auto& [stem, parts] : packed) {
        const auto& [blocks, scales] = parts;
        if (blocks == nullptr || scales == nullptr) {
            return make_error(ErrorCode::kInvalidModel, format("tensor {}{} is missing: MXFP4 has blocks and scales",
                                                               stem, blocks == nullptr ? kBlocks : kScales));
        }
        const std::optional<StackName> name = stack_name(stem);
        CHECK(name);
        TRY_ASSIGN(Tensor matrix, unpacked(*name, stack_of(*name), *blocks, *scales));
        mapped.push_back(std::move(matrix));
    }
    tensors = std::move(mapped);
    return ok_status();
}

}  // namespace lorad::model
