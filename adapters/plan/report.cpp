#include "adapters/plan/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "adapters/files/tensor_names.h"
#include "adapters/plan/pack.h"
#include "proto/base/format.h"
#include "proto/error.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

using model::Tensor;

bool is_all_zero(const Tensor& tensor) {
    // -0.0 is a zero too: all bits but the signs.
    const size_t bytes = model::bytes_of(tensor.dtype);
    for (size_t i = 0; i < tensor.data.size(); ++i) {
        const bool has_sign = i % bytes == bytes - 1;
        const auto byte = std::to_integer<uint8_t>(tensor.data[i]);
        if ((has_sign ? byte & 0x7f : byte) != 0) return false;
    }
    return true;
}

std::string_view type_of(const Tensor& a, const Tensor& b) {
    return model::name_of(a.dtype == b.dtype ? a.dtype : model::DType::kF32);
}

// Fills the report from the plan.
class Describer {
  public:
    Describer(const CheckedAdapter& adapter, const model::ModelConfig& config, AdapterReport& report)
        : plan_(adapter.plan), config_(config), report_(report) {}

    void describe() {
        const ExtrasPlan& extras = plan_.extras;
        if (extras.embed.a != nullptr) add_low_rank("model.embed_tokens", extras.embed, false);
        for (uint32_t layer = 0; layer < plan_.layers.size(); ++layer) {
            for (uint32_t module = 0; module < plan_.n_modules; ++module) {
                const ModulePlan& part = plan_.layers[layer][module];
                if (part.is_used())
                    add_linear(
                        name_of({PlaceKind::kLinear, layer,
                                 file_module_of(static_cast<model::LinearModule>(module), config_.layer(layer).mixer)}),
                        part);
            }
        }
        if (extras.head.a != nullptr) add_low_rank("lm_head", extras.head, !extras.head_bias.empty());
        add_replaced();
        for (const AdapterReport::Module& module : report_.modules) {
            const std::string target = module.name.substr(module.name.rfind('.') + 1);
            if (std::ranges::find(report_.targets, target) == report_.targets.end()) report_.targets.push_back(target);
            if (module.rank == 0) continue;
            report_.rank_max = std::max(report_.rank_max, module.rank);
            report_.rank_min = report_.rank_min == 0 ? module.rank : std::min(report_.rank_min, module.rank);
        }
        const auto changes = [](const AdapterReport::Module& module) { return !module.is_zero; };
        report_.changes_something = std::ranges::any_of(report_.modules, changes) || !report_.replaced_parts.empty();
        report_.invocation_tokens = plan_.invocation_tokens;
    }

  private:
    void add_linear(std::string name, const ModulePlan& part) {
        AdapterReport::Module module{.name = std::move(name), .rank = part.rank, .scale = part.scale};
        module.has_dora = part.magnitude != nullptr;
        module.has_bias = std::ranges::any_of(part.bias, [](float value) { return value != 0.0f; });
        module.is_zero = !module.has_dora && !module.has_bias;
        if (part.a != nullptr) {
            module.dtype = type_of(*part.a, *part.b);
            module.is_zero = module.is_zero && (part.scale == 0.0f || is_zero(part.a) || is_zero(part.b));
            count(part.a);
            count(part.b);
            if (part.magnitude) count(part.magnitude);
        }
        if (!part.experts.empty()) {
            const ExpertPiece& first = part.experts.front();
            module.dtype = type_of(*first.a, *first.b);
            bool all_zero = part.scale == 0.0f;
            std::set<const Tensor*> counted;
            for (const ExpertPiece& piece : part.experts) {
                for (const Tensor* tensor : {piece.a, piece.b}) {
                    if (counted.insert(tensor).second) count(tensor);
                }
            }
            if (!all_zero)
                all_zero = std::ranges::all_of(
                    part.experts, [this](const ExpertPiece& piece) { return is_zero(piece.a) || is_zero(piece.b); });
            module.is_zero = module.is_zero && all_zero;
        }
        report_.n_parameters += part.bias.size();
        report_.modules.push_back(std::move(module));
    }

    void add_low_rank(std::string name, const LowRankPlan& part, bool has_bias) {
        AdapterReport::Module module{.name = std::move(name), .rank = part.rank, .scale = part.scale};
        module.dtype = type_of(*part.a, *part.b);
        module.has_bias = has_bias;
        module.is_zero = !has_bias && (part.scale == 0.0f || is_zero(part.a) || is_zero(part.b));
        count(part.a);
        count(part.b);
        report_.modules.push_back(std::move(module));
    }

    void add_replaced() {
        const ExtrasPlan& extras = plan_.extras;
        const auto add = [&](const Tensor* tensor, std::string name) {
            if (tensor == nullptr) return;
            count(tensor);
            report_.replaced_parts.push_back(std::move(name));
        };
        add(extras.embed_table, "model.embed_tokens");
        add(extras.token_rows, format("rows of {} tokens in model.embed_tokens", extras.token_ids.size()));
        for (uint32_t layer = 0; layer < extras.norms.size(); ++layer) {
            const ExtrasPlan::LayerNorms& norms = extras.norms[layer];
            add(norms.input, name_of({PlaceKind::kInputNorm, layer}));
            add(norms.mixer_after, name_of({PlaceKind::kPostAttentionNorm, layer}));
            add(norms.ffn,
                name_of(
                    {extras.has_norms_after ? PlaceKind::kPreFeedForwardNorm : PlaceKind::kPostAttentionNorm, layer}));
            add(norms.ffn_after, name_of({PlaceKind::kPostFeedForwardNorm, layer}));
            add(norms.q, name_of({PlaceKind::kQNorm, layer}));
            add(norms.k, name_of({PlaceKind::kKNorm, layer}));
            const bool is_mamba = config_.layer(layer).mixer == model::Mixer::kMamba;
            add(norms.mixer, name_of({is_mamba ? PlaceKind::kMambaNorm : PlaceKind::kDeltaNorm, layer}));
        }
        add(extras.final_norm, "model.norm");
        add(extras.head_table, "lm_head");
    }

    // Fused names are several modules with one A.
    bool is_zero(const Tensor* tensor) {
        const auto known = zeros_.find(tensor);
        return known != zeros_.end() ? known->second : zeros_.emplace(tensor, is_all_zero(*tensor)).first->second;
    }
    void count(const Tensor* tensor) {
        if (counted_.emplace(tensor, true).second) report_.n_parameters += tensor->n_elements();
    }

    const AdapterPlan& plan_;
    const model::ModelConfig& config_;
    AdapterReport& report_;
    std::map<const Tensor*, bool> zeros_, counted_;
};

std::string_view name_of(AdapterReport::Fingerprint fingerprint) {
    switch (fingerprint) {
        case AdapterReport::Fingerprint::kNotRecorded: return "not recorded";
        case AdapterReport::Fingerprint::kFits: return "fits";
        case AdapterReport::Fingerprint::kDiffers: return "differs";
        case AdapterReport::Fingerprint::kUnknownBase: return "recorded";
    }
    return "";
}

AdapterReport::Fingerprint compare_fingerprint(const std::string& recorded, const BaseModel& base) {
    if (recorded.empty()) return AdapterReport::Fingerprint::kNotRecorded;
    if (base.fingerprint.empty()) return AdapterReport::Fingerprint::kUnknownBase;
    return recorded == base.fingerprint ? AdapterReport::Fingerprint::kFits : AdapterReport::Fingerprint::kDiffers;
}

// Modules that differ in nothing but the layer, on one line.
std::string modules_text(const AdapterReport& report) {
    std::vector<std::pair<std::string, uint32_t>> lines;  // and how many
    for (const AdapterReport::Module& module : report.modules) {
        std::string line =
            format("  {:<14} rank {:<4} scale {:<10.6g} {:<5}{}{}{}", module.name.substr(module.name.rfind('.') + 1),
                   module.rank, module.scale, module.dtype, module.has_dora ? " DoRA" : "",
                   module.has_bias ? " bias" : "", module.is_zero ? " all zero" : "");
        const auto known = std::ranges::find(lines, line, &std::pair<std::string, uint32_t>::first);
        if (known == lines.end()) {
            lines.emplace_back(std::move(line), 1);
        } else {
            ++known->second;
        }
    }
    std::string text;
    for (const auto& [line, n] : lines) text += format("{}  x {}\n", line, n);
    return text;
}

}  // namespace

AdapterReport inspect_adapter(AdapterSource source, const BaseModel& base) {
    Inspection inspection = compare_adapter(std::move(source), base);
    const CheckedAdapter& adapter = *inspection.adapter;
    AdapterReport report;
    report.kind = adapter.source.kind;
    report.generation = adapter.generation();
    report.file_bytes = adapter.source.n_bytes();
    report.base_model_name = one_line(adapter.peft.base_model_name);
    report.fingerprint = compare_fingerprint(adapter.tensors.base_fingerprint, base);
    report.base_fingerprint = base.fingerprint;
    report.warnings = adapter.warnings;
    report.ends = adapter.ends;
    report.ends.token = one_line(report.ends.token);
    report.refused = std::move(inspection.misfits);
    if (report.refused.size() > kMisfitsMax) report.refused.resize(kMisfitsMax);
    report.error = std::move(inspection.error);
    Describer(adapter, base.config, report).describe();
    report.device_bytes = packed_bytes(adapter);
    if (report.fits() && !report.changes_something) {
        report.warnings.push_back("the adapter changes nothing: in every module A or B is zero, or the scale is");
    }
    for (Misfit& misfit : report.refused) {
        for (std::string* text : {&misfit.tensor, &misfit.expected, &misfit.found}) *text = one_line(std::move(*text));
    }
    return report;
}

AdapterReport inspect_adapter(const AdapterLocation& location, const BaseModel& base) {
    Result<AdapterSource> source = read_adapter_source(location);
    if (source.ok()) return inspect_adapter(std::move(source).value(), base);
    AdapterReport report;
    report.error = one_line(std::move(source).error());
    return report;
}

std::string report_json(const AdapterReport& report) {
    JsonWriter writer;
    writer.begin_object().field("fits", report.fits()).field("kind", name_of(report.kind));
    writer.field("generation", report.generation).field("base_model_name", report.base_model_name);
    writer.field("file_bytes", report.file_bytes).field("device_bytes", report.device_bytes);
    writer.field("parameters", report.n_parameters);
    writer.key("rank").begin_object().field("min", report.rank_min).field("max", report.rank_max).end_object();
    const auto texts = [&](std::string_view key, const std::vector<std::string>& list) {
        writer.key(key).begin_array();
        for (const std::string& text : list) writer.value(text);
        writer.end_array();
    };
    texts("targets", report.targets);
    writer.key("modules").begin_array();
    for (const AdapterReport::Module& module : report.modules) {
        writer.begin_object().field("name", module.name).field("rank", module.rank).field("scale", module.scale);
        writer.field("dtype", module.dtype).field("dora", module.has_dora).field("bias", module.has_bias);
        writer.field("zero", module.is_zero).end_object();
    }
    writer.end_array();
    texts("replaced_parts", report.replaced_parts);
    writer.key("alora_invocation_tokens").begin_array();
    for (const TokenId token : report.invocation_tokens) writer.value(int64_t{token});
    writer.end_array();
    writer.key("end_token");
    if (report.ends.token.empty()) {
        writer.null();
    } else {
        writer.value(report.ends.token);
    }
    writer.key("end_token_ids").begin_array();
    for (const TokenId token : report.ends.ids) writer.value(int64_t{token});
    writer.end_array();
    writer.field("changes_something", report.changes_something).field("base_fingerprint", report.base_fingerprint);
    writer.field("recorded_fingerprint", name_of(report.fingerprint));
    texts("warnings", report.warnings);
    writer.key("refused").begin_array();
    for (const Misfit& misfit : report.refused) {
        writer.begin_object()
            .field("tensor", misfit.tensor)
            .field("expected", misfit.expected)
            .field("found", misfit.found);
        writer.field("reason", misfit.unsupported ? "unsupported" : "invalid").end_object();
    }
    writer.end_array().key("error");
    if (report.error) {
        writer.begin_object().field("code", proto::error_info(report.error->code).wire_code);
        writer.field("message", report.error->message).end_object();
    } else {
        writer.null();
    }
    writer.end_object();
    return writer.take();
}

std::string report_text(const AdapterReport& report) {
    std::string text = report.fits() ? "fits the base model\n" : "refused\n";
    if (!report.generation.empty()) {
        text += format("  kind           {}, {} bytes in files\n  generation     {}\n", name_of(report.kind),
                       report.file_bytes, report.generation);
    }
    if (!report.base_model_name.empty()) text += format("  made for       {}\n", report.base_model_name);
    if (!report.modules.empty() || !report.replaced_parts.empty()) {
        text += format("  on the GPU     {} bytes, {} numbers\n", report.device_bytes, report.n_parameters);
        text += format("  base           {} (fingerprint in the adapter: {})\n", report.base_fingerprint,
                       name_of(report.fingerprint));
        text += modules_text(report);
    }
    for (const std::string& part : report.replaced_parts) text += format("  replaced       {}\n", part);
    if (!report.invocation_tokens.empty()) {
        text += "  acts from the last";
        for (const TokenId token : report.invocation_tokens) text += format(" {}", token);
        text += " in the prompt on\n";
    }
    if (!report.ends.empty()) {
        text += "  answers end    also with";
        if (!report.ends.token.empty()) text += format(" {} ({})", json_quote(report.ends.token), kTokenizerConfigFile);
        for (const TokenId token : report.ends.ids) text += format(" {}", token);
        text += report.ends.ids.empty() ? "\n" : format(" ({})\n", kGenerationConfigFile);
    }
    for (const std::string& warning : report.warnings) text += format("warning: {}\n", warning);
    for (const Misfit& misfit : report.refused) {
        text += format("refused: {}: expected {}, found {}\n", misfit.tensor, misfit.expected, misfit.found);
    }
    if (report.refused.empty() && report.error) text += format("refused: {}\n", report.error->message);
    return text;
}

}  // namespace lorad::adapters
