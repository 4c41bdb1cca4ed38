// The names and layouts that llama.cpp's convert_lora_to_gguf gives the parts of an adapter.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "adapters/files/foreign.h"
#include "adapters/files/tensor_names.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "model/quant/ggml_blocks.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

using model::DType;
using model::GgmlType;
using model::GgufFile;
using model::GgufTensor;
using model::Tensor;

// Types of tensors that adapters come in.
constexpr std::array<GgmlType, 4> kAdapterTypes = {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0};
constexpr uint32_t kFileQ = 0, kFileK = 1;
constexpr std::string_view kEmbeddingName = "model.embed_tokens";

// A base model, of which the first thing to say is what it is. Older ones do not tell.
Status check_is_no_model(const GgufFile& gguf) {
    const std::string type = gguf.text("general.type");
    const bool is_model = type.empty() ? gguf.field("general.architecture") != nullptr : type == "model";
    if (!is_model) return ok_status();
    return make_error(ErrorCode::kAdapterUnsupported, format("general.type: expected \"adapter\", found {}: a whole "
                                                             "model in GGUF, and no LoRA adapter; give it as --model",
                                                             type.empty() ? "nothing" : "\"model\""));
}

class GgufAdapterReader {
  public:
    GgufAdapterReader(const GgufFile& file, const BaseModel& base) : file_(file), base_(base) {}

    Result<ForeignAdapter> read() {
        TRY(read_fields());
        for (const GgufTensor& tensor : file_.tensors) TRY(read_tensor(tensor));
        return std::move(adapter_);
    }

  private:
    Status read_fields() {
        if (const std::string type = file_.text("general.type"); type != "adapter") {
            return make_error(ErrorCode::kAdapterInvalid,
                              format("{}: general.type: expected \"adapter\", found {}", kGgufFile, json_quote(type)));
        }
        if (const std::string type = file_.text("adapter.type"); type != "lora") {
            return make_error(ErrorCode::kAdapterUnsupported,
                              format("{}: adapter.type = {} is not supported; lora is", kGgufFile, json_quote(type)));
        }
        const model::GgufArchitecture* known = model::gguf_architecture_of(base_.config.architecture);
        const std::string architecture = file_.text("general.architecture");
        if (known == nullptr || known->gguf != architecture) {
            return make_error(ErrorCode::kAdapterInvalid,
                              format("{}: general.architecture: expected {} for {}, found {}", kGgufFile,
                                     known == nullptr ? "none" : json_quote(known->gguf), base_.config.architecture,
                                     json_quote(architecture)));
        }
        permutes_ = known->permutes_q_and_k;
        adapter_.config.base_model_name = file_.text("general.base_model.0.name");
        adapter_.tensors.base_fingerprint = file_.text(kFingerprintKey);
        if (!file_.text("adapter.lora.prompt_prefix").empty()) {
            adapter_.warnings.push_back(
                "adapter.lora.prompt_prefix is not put before prompts; send it with the request");
        }
        TRY(read_alpha());
        if (const model::GgufValue* field = file_.field("adapter.alora.invocation_tokens")) {
            const auto tokens = field->as_integers();
            if (!tokens)
                return make_error(
                    ErrorCode::kAdapterInvalid,
                    format("{}: adapter.alora.invocation_tokens: expected an array of integers", kGgufFile));
            adapter_.config.invocation_tokens = *tokens;
        }
        return ok_status();
    }

    // llama.cpp's scale is alpha / rank of each matrix; without an alpha, or with one of 0, it is 1.
    Status read_alpha() {
        const model::GgufValue* field = file_.field("adapter.lora.alpha");
        const auto alpha = field == nullptr ? std::optional(0.0) : field->as_number();
        if (!alpha || !(std::abs(*alpha) <= kAlphaMax)) {
            return make_error(
                ErrorCode::kAdapterInvalid,
                format("{}: adapter.lora.alpha: expected a finite number, at most {:g}", kGgufFile, kAlphaMax));
        }
        adapter_.config.alpha = *alpha;
        if (*alpha == 0.0) adapter_.config.exact_scale = 1.0;
        return ok_status();
    }

    void misfit(const GgufTensor& tensor, std::string expected, std::string found, bool unsupported = false) {
        adapter_.misfits.push_back({tensor.name, std::move(expected), std::move(found), unsupported});
    }

    Status read_tensor(const GgufTensor& tensor) {
        if (std::ranges::find(kAdapterTypes, tensor.type) == kAdapterTypes.end()) {
            return make_error(ErrorCode::kAdapterUnsupported,
                              format("{}: tensor {}: {} is not supported in adapters; F32, F16, BF16 and Q8_0 are",
                                     kGgufFile, json_quote(tensor.name), model::name_of(tensor.type)));
        }
        std::string_view name = tensor.name;
        const bool is_a = name.ends_with(".weight.lora_a"), is_b = name.ends_with(".weight.lora_b");
        const bool is_weight = !is_a && !is_b && name.ends_with(".weight");
        if (!is_a && !is_b && !is_weight) {
            misfit(tensor, "a name ending in .weight.lora_a, .weight.lora_b or _norm.weight", "another name");
            return ok_status();
        }
        name = name.substr(0, name.rfind(".weight"));
        const std::optional<std::string> ours =
            model::name_from_gguf(name, base_.config.fused_gate_up, base_.config.layer(0).mixer_norm.after);
        if (!ours) {
            misfit(tensor, "a matrix of the base, such as blk.0.attn_q",
                   format("{}, which the base does not have", name));
            return ok_status();
        }
        // Their rows lie in another order in GGUF, and experts have an order of their own.
        if (ours->find(".linear_attn.") != std::string::npos || ours->find(".experts.") != std::string::npos) {
            misfit(tensor, "a matrix of attention or a dense feed-forward: others are read from PEFT's folders",
                   std::string(name), true);
            return ok_status();
        }
        // The place alone is asked for: with a part that it may have.
        const std::string_view part = ours->ends_with("norm")   ? ".weight"
                                      : *ours == kEmbeddingName ? ".lora_embedding_A"
                                                                : ".lora_A.weight";
        const ParsedName parsed = parse_tensor_name(*ours + std::string(part), base_.config);
        if (!parsed.expected.empty()) {
            misfit(tensor, parsed.expected, parsed.found, parsed.unsupported);
            return ok_status();
        }
        const Place* place = &parsed.place;
        if (!is_weight && is_norm(place->kind)) {
            misfit(tensor, "all weights of a norm", "LoRA on it");
            return ok_status();
        }
        if (is_weight) {
            if (!is_norm(place->kind)) {
                misfit(tensor, "LoRA or a norm", "all weights of a matrix, which is not supported", true);
                return ok_status();
            }
            return add_plain(tensor, tensor_name(*place, TensorRole::kWeight), tensor.shape);
        }
        const bool is_embedding = place->kind == PlaceKind::kEmbedding;
        const TensorRole a = is_embedding ? TensorRole::kEmbeddingA : TensorRole::kA;
        const TensorRole b = is_embedding ? TensorRole::kEmbeddingB : TensorRole::kB;
        // Both, so that a missing one is missed under the file's name too.
        adapter_.tensors.file_names[tensor_name(*place, a)] = format("{}.weight.lora_a", name);
        adapter_.tensors.file_names[tensor_name(*place, b)] = format("{}.weight.lora_b", name);
        if (tensor.shape.size() != 2) {
            misfit(tensor, "two dimensions", model::shape_text(tensor.shape));
            return ok_status();
        }
        if (is_a) {
            const uint64_t rank = tensor.shape[is_embedding ? 1 : 0];
            if (rank > model::kLoraRankMax) {
                misfit(tensor, format("a rank of at most {}", model::kLoraRankMax), std::to_string(rank), true);
                return ok_status();
            }
            adapter_.config.exact_ranks[name_of(*place)] = static_cast<uint32_t>(rank);
        }
        return add_low_rank(tensor, *place, tensor_name(*place, is_a ? a : b), is_a);
    }

    Status add_low_rank(const GgufTensor& tensor, const Place& place, const std::string& name, bool is_a) {
        if (place.kind == PlaceKind::kEmbedding && is_a) {
            // Stored [vocab][rank].
            TRY_ASSIGN(const Tensor plain, plain_of(tensor, name, tensor.shape));
            return add_transposed(adapter_.tensors, name, plain);
        }
        const bool is_turned = place.kind == PlaceKind::kLinear && (place.linear == kFileQ || place.linear == kFileK);
        if (permutes_ && !is_a && is_turned)
            return add_permuted(tensor, name, place.linear == kFileQ ? base_.config.n_heads : base_.config.n_kv_heads);
        return add_plain(tensor, name, tensor.shape);
    }

    Status add_plain(const GgufTensor& tensor, const std::string& name, std::vector<uint64_t> shape) {
        adapter_.tensors.file_names[name] = tensor.name;
        TRY_ASSIGN(Tensor plain, plain_of(tensor, name, std::move(shape)));
        adapter_.tensors.tensors.push_back(std::move(plain));
        return ok_status();
    }

    Status add_permuted(const GgufTensor& tensor, const std::string& name, uint32_t n_heads) {
        TRY_ASSIGN(const Tensor plain, plain_of(tensor, name, tensor.shape));
        const uint64_t rows = tensor.shape[0];
        if (rows % (uint64_t{2} * n_heads) != 0) {
            misfit(tensor, format("rows of {} heads", n_heads), model::shape_text(tensor.shape));
            return ok_status();
        }
        const uint64_t half = rows / n_heads / 2;
        const uint64_t row_bytes = tensor.shape[1] * model::bytes_of(plain.dtype);
        TRY_ASSIGN(const std::span<std::byte> to, add_owned(adapter_.tensors, name, plain.dtype, tensor.shape));
        for (uint64_t row = 0; row < rows; ++row) {
            std::memcpy(to.data() + model::row_from_gguf(row, half) * row_bytes, plain.data.data() + row * row_bytes,
                        row_bytes);
        }
        return ok_status();
    }

    // Converts to a type the kernels read: Q8_0 to f32, exactly, as each number is a product of 11 and 8 bits.
    Result<Tensor> plain_of(const GgufTensor& tensor, const std::string& name, std::vector<uint64_t> shape) {
        switch (tensor.type) {
            case GgmlType::kF32: return Tensor{name, DType::kF32, std::move(shape), tensor.data};
            case GgmlType::kF16: return Tensor{name, DType::kF16, std::move(shape), tensor.data};
            case GgmlType::kBF16: return Tensor{name, DType::kBF16, std::move(shape), tensor.data};
            default: break;
        }
        const model::GgmlTypeInfo& type = model::info_of(tensor.type);
        const uint64_t n_numbers = tensor.data.size() / type.block_bytes * type.block_numbers;
        TRY_ASSIGN(FileBytes wide, FileBytes::allocate(n_numbers * sizeof(float), name));
        model::decode_ggml(tensor.type, tensor.data, std::span(reinterpret_cast<float*>(wide.bytes.get()), n_numbers));
        const Tensor plain{name, DType::kF32, std::move(shape), wide.span()};
        adapter_.tensors.owned.push_back(std::move(wide));
        return plain;
    }

    const GgufFile& file_;
    const BaseModel& base_;
    bool permutes_ = false;
    ForeignAdapter adapter_;
};

}  // namespace

Result<ForeignAdapter> read_gguf_adapter(const AdapterSource& source, const BaseModel& base) {
    const auto named = [](const Error& error) {
        return make_error(error.code, format("{}: {}", kGgufFile, error.message));
    };
    const Result<GgufFile> file = model::parse_gguf(source.file(kGgufFile).span(), model::kGgufAdapterCodes);
    if (!file.ok()) return named(file.error());
    if (const Status no_model = check_is_no_model(*file); !no_model.ok()) return named(no_model.error());
    return GgufAdapterReader(*file, base).read();
}

}  // namespace lorad::adapters
