#include <cmath>

#include "adapters/files/foreign.h"
#include "adapters/files/peft_config.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

using model::Tensor;

constexpr std::string_view kMlxEmbedding = "model.embed_tokens";
constexpr std::string_view kPeftPrefix = "base_model.model.";

Result<PeftConfig> read_config(std::string_view text) {
    TRY_ASSIGN(const JsonDocument document, parse_config_file(text));
    const JsonValue root = document.root();
    if (root.find("peft_type")) {
        return make_error(ErrorCode::kAdapterInvalid,
                          format("{}: a PEFT config beside {}: expected {}", kConfigFile, kMlxFile, kPeftFile));
    }
    PeftConfig config;
    TRY_ASSIGN(const std::string_view type, root.string_or("fine_tune_type", "lora"));
    if (type != "lora" && type != "dora") {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("{}: not supported: fine_tune_type = {}{}; lora and dora are", kConfigFile,
                                 json_quote(type), type == "full" ? " (all weights of the model)" : ""));
    }
    config.use_dora = type == "dora";
    TRY_ASSIGN(const JsonValue parameters, root.require("lora_parameters"));
    TRY_ASSIGN(const JsonValue rank, parameters.require("rank"));
    TRY_ASSIGN(const int64_t rank_value, rank.as_int());
    if (rank_value < 1 || rank_value > int64_t{model::kLoraRankMax}) {
        Error error = rank.error(format("expected a rank of 1 to {}, found {}", model::kLoraRankMax, rank_value));
        if (rank_value > 0) error.code = ErrorCode::kAdapterUnsupported;
        return error;
    }
    config.rank = static_cast<uint32_t>(rank_value);
    TRY_ASSIGN(const JsonValue scale, parameters.require("scale"));
    TRY_ASSIGN(const double scale_value, scale.as_number());
    if (!std::isfinite(static_cast<float>(scale_value))) {
        return scale.error(format("expected a number within float32, found {}", scale.dump()));
    }
    if (std::abs(scale_value) > kAlphaMax)
        return scale.error(format("expected at most {:g}, found {}", kAlphaMax, scale.dump()));
    config.exact_scale = scale_value;
    if (const auto name = root.find("model"); name && name->is_string()) config.base_model_name = *name->as_string();
    return config;
}

class MlxAdapterReader {
  public:
    MlxAdapterReader(const BaseModel& base, ForeignAdapter& adapter) : base_(base), adapter_(adapter) {}

    Status read(const Tensor& tensor) {
        const std::string_view name = tensor.name;
        const size_t dot = name.rfind('.');
        const std::string_view end = dot == std::string_view::npos ? name : name.substr(dot);
        const std::string module(name.substr(0, std::min(dot, name.size())));
        if (end == ".m") {
            add(tensor, ".lora_magnitude_vector", module);
            return ok_status();
        }
        if (end != ".lora_a" && end != ".lora_b") {
            const bool is_quantized = end == ".lora_a_scales" || end == ".lora_b_scales" || end == ".lora_a_biases" ||
                                      end == ".lora_b_biases";
            adapter_.misfits.push_back({tensor.name, "a name ending in .lora_a, .lora_b or .m",
                                        is_quantized ? "a quantized adapter, which is not supported" : "another name",
                                        is_quantized});
            return ok_status();
        }
        if (tensor.shape.size() != 2) {
            adapter_.misfits.push_back({tensor.name, "two dimensions", model::shape_text(tensor.shape)});
            return ok_status();
        }
        const bool is_a = end == ".lora_a";
        if (module != kMlxEmbedding) return add_turned(tensor, is_a ? ".lora_A.weight" : ".lora_B.weight", module);
        TRY(add_turned(tensor, is_a ? ".lora_embedding_A" : ".lora_embedding_B", module));
        // mlx-lm's tied output layer has the embedding's A and B the other way round: x B^T A^T.
        if (base_.config.tied_embeddings) add(tensor, is_a ? ".lora_B.weight" : ".lora_A.weight", "lm_head");
        return ok_status();
    }

  private:
    std::string renamed(const Tensor& tensor, std::string_view end, std::string_view module) {
        std::string name = format("{}{}{}", kPeftPrefix, module, end);
        adapter_.tensors.file_names[name] = tensor.name;
        return name;
    }
    void add(const Tensor& tensor, std::string_view end, std::string_view module) {
        adapter_.tensors.tensors.push_back({renamed(tensor, end, module), tensor.dtype, tensor.shape, tensor.data});
    }
    Status add_turned(const Tensor& tensor, std::string_view end, std::string_view module) {
        return add_transposed(adapter_.tensors, renamed(tensor, end, module), tensor);
    }

    const BaseModel& base_;
    ForeignAdapter& adapter_;
};

}  // namespace

Result<ForeignAdapter> read_mlx_adapter(const AdapterSource& source, const BaseModel& base) {
    ForeignAdapter adapter;
    TRY_ASSIGN(adapter.config, read_config(source.file(kConfigFile).text()));
    model::Metadata metadata;
    auto tensors = model::parse_safetensors(source.file(kMlxFile).span(), ErrorCode::kAdapterInvalid, &metadata);
    if (!tensors.ok()) return make_error(tensors.error().code, format("{}: {}", kMlxFile, tensors.error().message));
    if (const auto recorded = metadata.find(kFingerprintKey); recorded != metadata.end()) {
        adapter.tensors.base_fingerprint = recorded->second;
    }
    MlxAdapterReader reader(base, adapter);
    for (const Tensor& tensor : *tensors) TRY(reader.read(tensor));
    return adapter;
}

}  // namespace lorad::adapters
