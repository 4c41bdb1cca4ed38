#include "adapters/plan/check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "adapters/files/chat_files.h"
#include "adapters/files/foreign.h"
#include "adapters/files/recorded_base.h"
#include "adapters/files/tensor_names.h"
#include "model/text/text.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

Result<AdapterTensors> read_peft_tensors(const AdapterSource& source) {
    AdapterTensors tensors;
    model::Metadata metadata;
    auto parsed = model::parse_safetensors(source.file(kPeftFile).span(), ErrorCode::kAdapterInvalid, &metadata);
    if (!parsed.ok()) {
        Error error = std::move(parsed).error();
        error.message = format("{}: {}", kPeftFile, error.message);
        return error;
    }
    tensors.tensors = std::move(parsed).value();
    if (const auto recorded = metadata.find(kFingerprintKey); recorded != metadata.end()) {
        tensors.base_fingerprint = recorded->second;
    }
    return tensors;
}

// A template that does not parse is no reason to refuse the adapter: completions need none. But better told now than at
// the first chat. One that is no text is a damaged file.
Status check_templates(CheckedAdapter& adapter, const BaseModel& base) {
    for (const model::NamedTemplate& one : chat_templates(adapter.source.chat_files())) {
        const std::string file = one.name == model::kDefaultTemplate ? std::string(kTemplateFile)
                                                                     : one.name + std::string(model::kTemplateSuffix);
        const std::string readable = replace_invalid_utf8(one.source);
        if (readable != one.source) {
            const auto damaged = std::ranges::mismatch(one.source, readable).in1 - one.source.begin();
            return make_error(ErrorCode::kAdapterInvalid, format("{}: byte {}: expected UTF-8", file, damaged));
        }
        const Status status =
            base.check_template ? base.check_template(one.source) : model::ChatTemplate::check_source(one.source);
        if (status.ok()) continue;
        const ErrorCode code = status.error().code;
        if (code == ErrorCode::kOverloaded || code == ErrorCode::kSandboxUnavailable) {
            adapter.warnings.push_back(format("{}: could not be looked at now: {}", file, status.error().message));
            continue;
        }
        adapter.warnings.push_back(
            format("{}: {}; chats with this adapter alone will be refused", file, status.error().message));
    }
    return ok_status();
}

// LoRA on a tied embedding that the output layer follows, in a file that has it once: PEFT makes the second of the
// first when it loads.
Status add_tied_lora(CheckedAdapter& adapter, const BaseModel& base) {
    RegexBudget budget;
    if (!base.config.tied_embeddings) return ok_status();
    TRY_ASSIGN(const bool ties_lora, adapter.peft.ties_lora(budget));
    if (!ties_lora) return ok_status();
    std::array<std::optional<model::Tensor>, 2> of_embedding;  // A and B
    for (const model::Tensor& tensor : adapter.tensors.tensors) {
        const ParsedName parsed = parse_tensor_name(tensor.name, base.config);
        const bool is_low_rank = parsed.role == TensorRole::kA || parsed.role == TensorRole::kB;
        if (!parsed.expected.empty() || parsed.is_elsewhere) continue;
        // The bare decoder has no output layer to follow.
        if (parsed.prefix.empty() || (parsed.place.kind == PlaceKind::kHead && is_low_rank)) return ok_status();
        const bool fits = parsed.place.kind == PlaceKind::kEmbedding && tensor.shape.size() == 2 &&
                          model::is_weight_type(tensor.dtype);
        if (fits && parsed.role == TensorRole::kEmbeddingA) of_embedding[0] = tensor;
        if (fits && parsed.role == TensorRole::kEmbeddingB) of_embedding[1] = tensor;
    }
    if (!of_embedding[0] || !of_embedding[1]) return ok_status();
    TRY(add_transposed(adapter.tensors, tensor_name({PlaceKind::kHead}, TensorRole::kA), *of_embedding[1]));
    return add_transposed(adapter.tensors, tensor_name({PlaceKind::kHead}, TensorRole::kB), *of_embedding[0]);
}

void check_ends(CheckedAdapter& adapter, const BaseModel& base) {
    adapter.ends = chat_ends(adapter.source.chat_files());
    const auto is_unknown = [&](TokenId id) { return static_cast<uint32_t>(id) >= base.config.vocab_size; };
    for (const TokenId id : adapter.ends.ids) {
        if (is_unknown(id)) {
            adapter.warnings.push_back(
                format("{}: eos_token_id {} is not in the base's vocabulary of {} tokens and ends nothing",
                       kGenerationConfigFile, id, base.config.vocab_size));
        }
    }
    std::erase_if(adapter.ends.ids, is_unknown);
}

// Tensors in PEFT's words, whatever the file; `misfits` gets those without a meaning.
Status read_tensors(CheckedAdapter& adapter, const BaseModel& base, std::vector<Misfit>& misfits) {
    if (adapter.source.kind == AdapterKind::kPeft) {
        TRY_ASSIGN(adapter.peft, parse_peft_config(adapter.source.file(kConfigFile).text()));
        TRY_ASSIGN(adapter.tensors, read_peft_tensors(adapter.source));
        return add_tied_lora(adapter, base);
    }
    auto read = adapter.source.kind == AdapterKind::kGguf ? read_gguf_adapter(adapter.source, base)
                                                          : read_mlx_adapter(adapter.source, base);
    if (!read.ok()) return std::move(read).error();
    ForeignAdapter foreign = std::move(read).value();
    adapter.peft = std::move(foreign.config);
    adapter.tensors = std::move(foreign.tensors);
    adapter.warnings = std::move(foreign.warnings);
    misfits = std::move(foreign.misfits);
    return ok_status();
}

Status check_tensors(CheckedAdapter& adapter, const BaseModel& base, std::vector<Misfit>& misfits) {
    TRY_ASSIGN(PlanOutcome outcome, compare_with_base(adapter.peft, adapter.tensors.tensors, base));
    std::ranges::move(outcome.misfits, std::back_inserter(misfits));
    const std::string& recorded = adapter.tensors.base_fingerprint;
    if (!recorded.empty() && !base.fingerprint.empty() && recorded != base.fingerprint) {
        if (base.formats.is_quantized) {
            adapter.warnings.push_back(format("{} is not that of this base, whose weights are quantized: it was made "
                                              "for the model in another form, or for another model",
                                              kFingerprintKey));
        } else {
            misfits.push_back({std::string(kFingerprintKey), base.fingerprint + ", the base's", recorded});
        }
    }
    if (auto warning = quantization_warning(adapter.peft.base_model_name, base.formats))
        adapter.warnings.push_back(std::move(*warning));
    for (Misfit& misfit : misfits) {
        const auto name = adapter.tensors.file_names.find(misfit.tensor);
        if (name != adapter.tensors.file_names.end()) misfit.tensor = name->second;
    }
    adapter.plan = std::move(outcome.plan);
    std::ranges::move(outcome.warnings, std::back_inserter(adapter.warnings));
    const auto count = [&](uint32_t rank, bool is_used) {
        adapter.rank_max = std::max(adapter.rank_max, rank);
        adapter.n_modules += is_used;
    };
    for (const LayerPlan& layer : adapter.plan.layers) {
        for (const ModulePlan& module : layer) count(module.rank, module.is_used());
    }
    const ExtrasPlan& extras = adapter.plan.extras;
    count(extras.embed.rank, extras.embed.a || extras.embed_table || extras.token_rows);
    count(extras.head.rank, extras.head.a || extras.head_table);
    return ok_status();
}

}  // namespace

Inspection compare_adapter(AdapterSource source, const BaseModel& base) {
    Inspection inspection;
    inspection.adapter = std::make_unique<CheckedAdapter>();
    inspection.adapter->source = std::move(source);
    Status status = read_tensors(*inspection.adapter, base, inspection.misfits);
    const Status template_status = check_templates(*inspection.adapter, base);
    if (status.ok()) status = template_status;
    check_ends(*inspection.adapter, base);
    if (status.ok()) status = check_tensors(*inspection.adapter, base, inspection.misfits);
    if (!status.ok()) {
        inspection.error = one_line(std::move(status).error());
    } else if (!inspection.misfits.empty()) {
        inspection.error = one_line(misfit_error(inspection.misfits));
    }
    return inspection;
}

Result<std::unique_ptr<CheckedAdapter>> check_adapter(AdapterSource source, const BaseModel& base) {
    Inspection inspection = compare_adapter(std::move(source), base);
    if (inspection.error) return std::move(*inspection.error);
    return std::move(inspection.adapter);
}

Result<std::unique_ptr<CheckedAdapter>> check_adapter(const AdapterLocation& location, const BaseModel& base) {
    Result<AdapterSource> source = read_adapter_source(location);
    if (!source.ok()) return one_line(std::move(source).error());
    return check_adapter(std::move(source).value(), base);
}

}  // namespace lorad::adapters
