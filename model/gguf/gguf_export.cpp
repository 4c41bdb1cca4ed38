#include "model/gguf/gguf_export.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/files/model_files.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_folder_fields.h"
#include "model/gguf/gguf_model.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_writer.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/weights/weights.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr uint32_t kQuantizationVersion = 2;
// general.file_type, as llama.cpp numbers it.
uint32_t gguf_file_type(QuantizeType type) {
    return type == QuantizeType::kQ8_0 ? 7 : type == QuantizeType::kQ4_K ? 14 : 18;
}

GgmlType plain_type_of(DType dtype) {
    return dtype == DType::kF32 ? GgmlType::kF32 : dtype == DType::kF16 ? GgmlType::kF16 : GgmlType::kBF16;
}

// Rows of a plain tensor as the file has them: quantized, or as they are. half: of a head's rows that GGUF has in
// pairs; 0: the same order.
GgufWriter::Rows rows_of(Tensor tensor, GgmlType type, uint64_t half) {
    return [tensor = std::move(tensor), type, half](uint64_t row_begin, uint64_t n_rows,
                                                    std::span<std::byte> out) -> Status {
        const uint64_t k = tensor.shape.back(), row_bytes = out.size() / n_rows;
        std::vector<float> numbers(k);
        NumberCheck plain(gpu::ScalarType::kF32), quantized(gpu::ScalarType::kF32);
        for (uint64_t i = 0; i < n_rows; ++i) {
            const uint64_t row = half == 0 ? row_begin + i : row_from_gguf(row_begin + i, half);
            const std::span<std::byte> to = out.subspan(i * row_bytes, row_bytes);
            for (uint64_t j = 0; j < k; ++j) numbers[j] = number_at(tensor, row * k + j);
            plain.look_at(numbers);
            TRY(plain.verdict(tensor, name_of(tensor.dtype)));
            if (type == plain_type_of(tensor.dtype)) {
                std::memcpy(to.data(), tensor.data.data() + row * row_bytes, row_bytes);
            } else if (type == GgmlType::kF32) {
                std::memcpy(to.data(), numbers.data(), row_bytes);
            } else {
                quantize_row(type, numbers, to);
                decode_ggml(type, to, numbers);  // scales are f16, which not all numbers have room in
                quantized.look_at(numbers);
            }
        }
        return quantized.verdict(tensor, name_of(type));
    };
}

// A vector whose numbers stand in pairs, put into that order.
GgufWriter::Rows paired_vector(Tensor tensor, uint64_t half) {
    return [tensor = std::move(tensor), half](uint64_t, uint64_t, std::span<std::byte> out) {
        NumberCheck check(gpu::ScalarType::kF32);
        for (uint64_t i = 0; i < tensor.shape[0]; ++i) {
            const float number = number_at(tensor, half == 0 ? i : row_from_gguf(i, half));
            check.look_at(std::span(&number, 1));
            std::memcpy(out.data() + i * sizeof number, &number, sizeof number);
        }
        return check.verdict(tensor, name_of(tensor.dtype));
    };
}

Error is_quantized(std::string_view tensor, std::string_view format_of_it) {
    return make_error(ErrorCode::kInvalidModel,
                      format("tensor {}: expected F32, F16 or BF16, found {}: quantize the model as it was before",
                             tensor, format_of_it));
}

// Returns true if the key says how a GGUF file is quantized or split.
bool is_replaced(std::string_view key) {
    return key == "general.file_type" || key == "general.quantization_version" || key == "general.alignment" ||
           key.starts_with("split.");
}

Status add_gguf(const GgufModel& model, QuantizeType type, GgufWriter& writer) {
    const GgufFile& file = model.file();
    TRY(model.tensors());
    const GgufArchitecture* architecture = gguf_architecture_of(model.config().architecture);
    for (const auto& [key, value] : file.fields) {
        if (!is_replaced(key)) writer.copy(key, value);
    }
    for (const GgufTensor& from : file.tensors) {
        if (!is_plain(from.type)) return is_quantized(from.name, name_of(from.type));
        Tensor tensor{from.name,
                      from.type == GgmlType::kF32   ? DType::kF32
                      : from.type == GgmlType::kF16 ? DType::kF16
                                                    : DType::kBF16,
                      from.shape, from.data, nullptr};
        const size_t dot = from.name.rfind('.');
        const auto ours = name_from_gguf(std::string_view(from.name).substr(0, dot), architecture->fused,
                                         architecture->has_norms_after);
        tensor.name = ours ? *ours + from.name.substr(dot) : from.name;
        const GgmlType to = ggml_type_for(tensor, type).value_or(from.type);
        writer.tensor(from.name, to, from.shape, rows_of(tensor, to, 0));
    }
    return ok_status();
}

Status add_folder(const std::filesystem::path& folder, const ModelFiles& files, const TensorFiles& tensors,
                  QuantizeType type, GgufWriter& writer) {
    TRY_ASSIGN(const ModelConfig config, files.config());
    TRY(write_folder_fields(folder, files, config, writer));
    const GgufArchitecture& architecture = *gguf_architecture_of(config.architecture);
    if (const std::vector<float> factors = llama3_factors(config.rope); !factors.empty()) {
        writer.tensor(std::string(kRopeFreqs), GgmlType::kF32, {factors.size()},
                      [factors](uint64_t, uint64_t, std::span<std::byte> out) {
                          std::memcpy(out.data(), factors.data(), out.size());
                          return ok_status();
                      });
    }
    // All that is read below has to lie where the config says.
    ModelWeights weights;
    TRY(WeightLoader::create(tensors, config, weights));
    for (const Tensor& tensor : tensors.tensors()) {
        if (tensor.source || !is_weight_type(tensor.dtype))
            return is_quantized(tensor.name, tensor.source ? tensor.source->format() : name_of(tensor.dtype));
        const size_t dot = tensor.name.rfind('.');
        const std::string module = tensor.name.substr(0, dot), kind = tensor.name.substr(dot);
        const auto theirs = name_in_gguf(module);
        if (!theirs) {
            if (kind == ".inv_freq") continue;
            return make_error(ErrorCode::kInvalidModel,
                              format("tensor {}: no name in GGUF is known for it", json_quote(tensor.name)));
        }
        if (module == "lm_head" && config.tied_embeddings) continue;
        const bool is_paired =
            architecture.permutes_q_and_k && (module.ends_with("q_proj") || module.ends_with("k_proj"));
        const uint64_t half = is_paired ? config.head_dim / 2 : 0;
        if (tensor.shape.size() == 1) {
            writer.tensor(*theirs + kind, GgmlType::kF32, tensor.shape, paired_vector(tensor, half));
            continue;
        }
        const GgmlType to = ggml_type_for(tensor, type).value_or(plain_type_of(tensor.dtype));
        writer.tensor(*theirs + kind, to, tensor.shape, rows_of(tensor, to, half));
    }
    return ok_status();
}

}  // namespace

Status export_gguf(const std::filesystem::path& model, QuantizeType type, const std::filesystem::path& out,
                   const std::function<void(uint64_t, uint64_t)>& on_bytes) {
    if (type == QuantizeType::kNf4) {
        return make_error(ErrorCode::kInvalidConfig,
                          "type: GGUF has none for NF4; expected q8_0, q6_k or q4_k. `lorad serve --quantize nf4` "
                          "quantizes while it loads",
                          "type");
    }
    std::error_code ignored;
    if (std::filesystem::exists(out, ignored))
        return make_error(ErrorCode::kInvalidConfig,
                          format("{}: is there already; give another name, or remove it", out.string()), "out");
    TRY_ASSIGN(const std::unique_ptr<const ModelFiles> files, ModelFiles::open(model));
    TRY(files->check_kind());
    GgufWriter writer;
    std::optional<GgufModel> gguf;
    std::optional<TensorFiles> tensors;
    if (is_gguf_path(model)) {
        TRY_ASSIGN(GgufModel opened, GgufModel::open(model));
        gguf.emplace(std::move(opened));
        TRY(add_gguf(*gguf, type, writer));
    } else {
        TRY_ASSIGN(TensorFiles mapped, files->tensors());
        tensors.emplace(std::move(mapped));
        TRY(add_folder(model, *files, *tensors, type, writer));
    }
    writer.u32("general.file_type", gguf_file_type(type));
    writer.u32("general.quantization_version", kQuantizationVersion);
    return writer.write(out, [&](uint64_t n_done) {
        if (on_bytes) on_bytes(n_done, writer.tensor_bytes());
    });
}

}  // namespace lorad::model
