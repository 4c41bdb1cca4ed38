// The names and layouts that llama.cpp's convert_lora_to_gguf gives the parts of an adapter.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "adapters/foreign.h"
#include "adapters/gguf.h"
#include "adapters/tensor_names.h"
#include "model/lora_table.h"
#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::adapters {

namespace {

using model::DType;
using model::Tensor;

struct Architecture {
    std::string_view ours, gguf;
    bool permutes_q_and_k;  // rows of each head: pairs that RoPE turns lie beside each other in GGUF, half a head apart in ours
};
constexpr std::array<Architecture, 5> kArchitectures = {{
    {"LlamaForCausalLM", "llama", true},
    {"MistralForCausalLM", "llama", true},
    {"Qwen2ForCausalLM", "qwen2", false},
    {"Qwen3ForCausalLM", "qwen3", false},
    {"Phi3ForCausalLM", "phi3", false},
}};

struct BlockName {
    std::string_view name;
    Place place;
};
constexpr std::array<BlockName, 12> kBlockNames = {{
    {"attn_q", {PlaceKind::kLinear, 0, 0}},
    {"attn_k", {PlaceKind::kLinear, 0, 1}},
    {"attn_v", {PlaceKind::kLinear, 0, 2}},
    {"attn_output", {PlaceKind::kLinear, 0, 3}},
    {"ffn_gate", {PlaceKind::kLinear, 0, 4}},
    {"ffn_up", {PlaceKind::kLinear, 0, 5}},
    {"ffn_down", {PlaceKind::kLinear, 0, 6}},
    {"attn_qkv", {PlaceKind::kLinear, 0, 7}},
    {"attn_norm", {PlaceKind::kInputNorm}},
    {"ffn_norm", {PlaceKind::kPostAttentionNorm}},
    {"attn_q_norm", {PlaceKind::kQNorm}},
    {"attn_k_norm", {PlaceKind::kKNorm}},
}};
constexpr uint32_t kFileUp = 5, kFileGateUp = 8, kFileQ = 0, kFileK = 1;

// "blk.3.attn_q" -> q_proj of layer 3
std::optional<Place> place_of(std::string_view name, const model::ModelConfig& config) {
    if (name == "token_embd") return Place{PlaceKind::kEmbedding};
    if (name == "output") return Place{PlaceKind::kHead};
    if (name == "output_norm") return Place{PlaceKind::kFinalNorm};
    if (!name.starts_with("blk.")) return std::nullopt;
    name.remove_prefix(4);
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return std::nullopt;
    uint32_t layer = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + dot, layer);
    if (error != std::errc() || end != name.data() + dot || dot == 0) return std::nullopt;
    const auto* known = std::ranges::find(kBlockNames, name.substr(dot + 1), &BlockName::name);
    if (known == kBlockNames.end()) return std::nullopt;
    Place place = known->place;
    place.layer = layer;
    // Where gate and up are one matrix it is called by the second.
    if (place.kind == PlaceKind::kLinear && place.linear == kFileUp && config.fused_gate_up) place.linear = kFileGateUp;
    return place;
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
    std::string text(std::string_view key) const {
        const auto field = file_.fields.find(key);
        const auto value = field == file_.fields.end() ? std::nullopt : field->second.as_text();
        return value ? std::string(*value) : std::string();
    }

    Status read_fields() {
        if (const std::string type = text("general.type"); type != "adapter") {
            return make_error(ErrorCode::kAdapterInvalid, format("{}: general.type: expected \"adapter\", found {}", kGgufFile, json_quote(type)));
        }
        if (const std::string type = text("adapter.type"); type != "lora") {
            return make_error(ErrorCode::kAdapterUnsupported, format("{}: adapter.type = {} is not supported; lora is", kGgufFile, json_quote(type)));
        }
        const auto* known = std::ranges::find(kArchitectures, std::string_view(base_.config.architecture), &Architecture::ours);
        const std::string architecture = text("general.architecture");
        if (known == kArchitectures.end() || known->gguf != architecture) {
            return make_error(ErrorCode::kAdapterInvalid,
                              format("{}: general.architecture: expected {} for {}, found {}", kGgufFile,
                                     known == kArchitectures.end() ? "none" : json_quote(known->gguf), base_.config.architecture,
                                     json_quote(architecture)));
        }
        permutes_ = known->permutes_q_and_k;
        adapter_.config.base_model_name = text("general.base_model.0.name");
        adapter_.tensors.base_fingerprint = text(kFingerprintKey);
        if (!text("adapter.lora.prompt_prefix").empty()) {
            adapter_.warnings.push_back("adapter.lora.prompt_prefix is not put before prompts; send it with the request");
        }
        TRY(read_alpha());
        if (const auto field = file_.fields.find("adapter.alora.invocation_tokens"); field != file_.fields.end()) {
            const auto tokens = field->second.as_integers();
            if (!tokens) return make_error(ErrorCode::kAdapterInvalid, format("{}: adapter.alora.invocation_tokens: expected an array of integers", kGgufFile));
            adapter_.config.invocation_tokens = *tokens;
        }
        return ok_status();
    }

    // llama.cpp's scale is alpha / rank of each matrix; without an alpha, or with one of 0, it is 1.
    Status read_alpha() {
        const auto field = file_.fields.find("adapter.lora.alpha");
        const auto alpha = field == file_.fields.end() ? std::optional(0.0) : field->second.as_number();
        if (!alpha || !(std::abs(*alpha) <= kAlphaMax)) {
            return make_error(ErrorCode::kAdapterInvalid,
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
        std::string_view name = tensor.name;
        const bool is_a = name.ends_with(".weight.lora_a"), is_b = name.ends_with(".weight.lora_b");
        const bool is_weight = !is_a && !is_b && name.ends_with(".weight");
        if (!is_a && !is_b && !is_weight) {
            misfit(tensor, "a name ending in .weight.lora_a, .weight.lora_b or _norm.weight", "another name");
            return ok_status();
        }
        name = name.substr(0, name.rfind(".weight"));
        const std::optional<Place> place = place_of(name, base_.config);
        if (!place) {
            misfit(tensor, "a matrix of the base, such as blk.0.attn_q", format("{}, which the base does not have", name));
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
        if (permutes_ && !is_a && is_turned) return add_permuted(tensor, name, place.linear == kFileQ ? base_.config.n_heads : base_.config.n_kv_heads);
        return add_plain(tensor, name, tensor.shape);
    }

    Status add_plain(const GgufTensor& tensor, const std::string& name, std::vector<uint64_t> shape) {
        adapter_.tensors.file_names[name] = tensor.name;
        TRY_ASSIGN(Tensor plain, plain_of(tensor, name, std::move(shape)));
        adapter_.tensors.tensors.push_back(std::move(plain));
        return ok_status();
    }

    // Row 2j + i of a head is the file's; ours is i * half + j, so that j and half + j turn together.
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
        for (uint64_t head = 0; head < n_heads; ++head) {
            for (uint64_t i = 0; i < 2; ++i) {
                for (uint64_t j = 0; j < half; ++j) {
                    std::memcpy(to.data() + ((head * 2 + i) * half + j) * row_bytes,
                                plain.data.data() + (head * 2 * half + 2 * j + i) * row_bytes, row_bytes);
                }
            }
        }
        return ok_status();
    }

    // In a type that the kernels read: Q8_0 widened, each number the product of 11 and 8 bits and so exact in f32.
    Result<Tensor> plain_of(const GgufTensor& tensor, const std::string& name, std::vector<uint64_t> shape) {
        switch (tensor.type) {
            case GgufType::kF32: return Tensor{name, DType::kF32, std::move(shape), tensor.data};
            case GgufType::kF16: return Tensor{name, DType::kF16, std::move(shape), tensor.data};
            case GgufType::kBF16: return Tensor{name, DType::kBF16, std::move(shape), tensor.data};
            case GgufType::kQ8_0: break;
        }
        const uint64_t n_blocks = tensor.data.size() / kQ8Bytes;
        TRY_ASSIGN(FileBytes wide, FileBytes::allocate(n_blocks * kQ8Numbers * sizeof(float), name));
        for (uint64_t block = 0; block < n_blocks; ++block) {
            const std::byte* from = tensor.data.data() + block * kQ8Bytes;
            const float factor = model::widen(DType::kF16, from);
            for (uint32_t i = 0; i < kQ8Numbers; ++i) {
                const float value = factor * static_cast<float>(static_cast<int8_t>(from[2 + i]));
                std::memcpy(wide.bytes.get() + (block * kQ8Numbers + i) * sizeof(float), &value, sizeof(value));
            }
        }
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
    Result<GgufFile> file = parse_gguf(source.file(kGgufFile).span());
    if (!file.ok()) return make_error(file.error().code, format("{}: {}", kGgufFile, file.error().message));
    return GgufAdapterReader(*file, base).read();
}

}  // namespace lorad::adapters
