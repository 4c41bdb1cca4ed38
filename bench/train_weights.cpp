#include "bench/train_weights.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "bench/bench_util.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/upload.h"
#include "model/quant/brick_packer.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"

namespace lorad::bench {
namespace {

constexpr size_t kBlockBytes = size_t{64} << 20;
constexpr uint32_t kRows = 128;  // that a quantized matrix repeats; whole bricks

}  // namespace

RandomWeights::RandomWeights(gpu::Device& device, const RandomWeightOptions& options)
    : device_(device), options_(options), block_(kBlockBytes) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> value(-0.03f, 0.03f);
    for (size_t at = 0; at < block_.size(); at += gpu::bytes_of(options_.type)) {
        const float number = value(random);
        uint32_t bits;
        std::memcpy(&bits, &number, sizeof(bits));
        if (options_.type == gpu::ScalarType::kBf16) bits >>= 16;
        // f16: a sign, 2^-6 to 2^-5 and random digits.
        if (options_.type == gpu::ScalarType::kF16) bits = (bits >> 16 & 0x8000u) | 9u << 10 | (bits >> 8 & 0x3ffu);
        std::memcpy(block_.data() + at, &bits, gpu::bytes_of(options_.type));
    }
}

const RandomWeights::Rows& RandomWeights::quantized_rows(std::string_view name, uint32_t k) {
    const auto [found, is_new] = rows_.try_emplace({!name.starts_with("model.layers."), k});
    Rows& rows = found->second;
    if (!is_new) return rows;
    constexpr std::array<model::DType, 3> kTypes = {model::DType::kF32, model::DType::kF16, model::DType::kBF16};
    model::Tensor plain{.name = std::string(name),
                        .dtype = kTypes[static_cast<uint32_t>(options_.type)],
                        .shape = {kRows, k},
                        .data = std::span(block_).first(uint64_t{kRows} * k * gpu::bytes_of(options_.type))};
    model::TensorFiles files = model::TensorFiles::of({std::move(plain)}, {});
    model::quantize_tensors(files, *options_.quantize);
    const model::Tensor& tensor = files.tensors().front();
    if (tensor.source && !options_.is_decoded) {
        rows.format = *tensor.source->device_format();
        rows.table.assign(tensor.source->table().begin(), tensor.source->table().end());
        rows.bytes.resize(gpu::bytes_of(rows.format, kRows, k));
        stop_on_error(model::pack_rows(tensor, 0, kRows, options_.type, rows.bytes));
    } else {
        rows.bytes.resize(uint64_t{kRows} * k * gpu::bytes_of(options_.type));
        stop_on_error(model::decode_rows(tensor, 0, kRows, options_.type, rows.bytes));
    }
    return rows;
}

void RandomWeights::repeat(const gpu::Buffer& to, uint64_t begin, uint64_t n_bytes, std::span<const std::byte> block) {
    std::vector<std::byte> several;
    while (several.size() < std::min<uint64_t>(kBlockBytes / 4, n_bytes))
        several.insert(several.end(), block.begin(), block.end());
    for (uint64_t at = 0; at < n_bytes; at += several.size()) {
        stop_on_error(device_.uploader().upload(
            to, begin + at, std::span(several).first(std::min<uint64_t>(several.size(), n_bytes - at))));
    }
}

void RandomWeights::fill(model::Matrix& matrix, std::string_view name, uint32_t n, uint32_t k) {
    matrix.n = n;
    matrix.k = k;
    matrix.n_padded = gpu::padded(n);
    matrix.k_stride = gpu::padded(k);
    matrix.type = options_.type;
    CHECK(matrix.k_stride == k);  // rows without gaps
    const Rows* rows = options_.quantize ? &quantized_rows(name, k) : nullptr;
    const bool is_packed = rows != nullptr && gpu::is_packed(rows->format);
    if (is_packed) matrix.parts = {{.format = rows->format, .row_begin = 0, .n = n, .offset = gpu::kPartAlign}};
    const uint64_t n_bytes = matrix.device_bytes();
    matrix.buffer = must(device_.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "weights"));
    const uint64_t begin = is_packed ? gpu::kPartAlign : 0;
    if (is_packed && !rows->table.empty()) {
        stop_on_error(device_.uploader().upload(matrix.buffer, gpu::kPartAlign - gpu::kPartTableBytes,
                                                std::as_bytes(std::span(rows->table))));
    }
    if (rows != nullptr)
        repeat(matrix.buffer, begin, n_bytes - begin, rows->bytes);
    else
        repeat(matrix.buffer, 0, n_bytes, block_);
    n_bytes_ += n_bytes;
}

void RandomWeights::fill(model::Vector& vector, uint32_t n, float value) {
    vector.n = n;
    const std::vector<float> values(gpu::padded(n), value);
    vector.buffer =
        must(device_.create_buffer(values.size() * sizeof(float), gpu::MemoryKind::kDeviceLocal, "weights"));
    stop_on_error(device_.uploader().upload(vector.buffer, 0, std::as_bytes(std::span(values))));
}

void RandomWeights::fill(model::ModelWeights& weights, const model::ModelConfig& config) {
    fill(weights.embedding, "model.embed_tokens.weight", config.vocab_size, config.hidden_size);
    weights.layers.resize(config.n_layers);
    for (model::LayerWeights& layer : weights.layers) {
        const uint32_t n_qkv = config.q_size() + 2 * config.kv_size();
        const std::string_view linear = "model.layers.0.self_attn.q_proj.weight";
        fill(layer.input_norm, config.hidden_size, 1.0f);
        fill(layer.qkv, linear, n_qkv, config.hidden_size);
        fill(layer.qkv_bias, n_qkv, 0.0f);
        fill(layer.o, linear, config.hidden_size, config.q_size());
        fill(layer.ffn_norm, config.hidden_size, 1.0f);
        fill(layer.gate_up, linear, 2 * config.intermediate_size, config.hidden_size);
        fill(layer.down, linear, config.hidden_size, config.intermediate_size);
    }
    fill(weights.final_norm, config.hidden_size, 1.0f);
    if (!config.tied_embeddings) fill(weights.lm_head, "lm_head.weight", config.vocab_size, config.hidden_size);
    stop_on_error(device_.uploader().finish());
}

}  // namespace lorad::bench
