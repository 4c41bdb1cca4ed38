#include "proto/tinker/tinker_requests.h"

#include <algorithm>
#include <array>
#include <limits>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/json/json.h"
#include "proto/tinker/tinker_request_parts.h"

namespace lorad::proto {
namespace {

using tinker::check_fields;
using tinker::kIdBytesMax;
using tinker::Names;
using tinker::needed_text;
using tinker::not_there;
using tinker::sequence_of;
using tinker::text_of;

constexpr std::string_view kSnapshot = "snapshot-", kInflight = "inflight";

// Reads a call: what is wrong beside its model and place becomes its refusal.
template <typename Call, typename Read>
Result<Call> call_of(std::string_view body, Names known, Read read) {
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    Call call;
    TRY_ASSIGN(call.model_id, text_of(root, "model_id"));
    TRY_ASSIGN(call.seq_id, sequence_of(root, "seq_id"));
    const auto rest = [&]() -> Status {
        TRY(check_fields(root, known));
        return read(root, call);
    };
    if (const Status status = rest(); !status.ok()) call.refusal = status.error();
    call.ignored_fields = tinker::fields_without_effect(root, {{"ttl_seconds", "user_metadata"}});
    return call;
}

Status check_name(std::string_view name) {
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
               c == '.';
    };
    if (!name.empty() && name.size() <= kTinkerNameBytesMax && std::ranges::all_of(name, fits)) return ok_status();
    return make_error(ErrorCode::kInvalidRequest,
                      format("path: expected 1 to {} letters, digits, points, hyphens and underscores, found {}",
                             kTinkerNameBytesMax, json_quote_short(name)),
                      "path");
}

// Weights without a name have such names (tinker_unnamed()).
Status check_own_name(std::string_view name) {
    TRY(check_name(name));
    const std::string_view number = name.starts_with(kSnapshot) ? name.substr(kSnapshot.size()) : std::string_view();
    const bool is_number = !number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
    if (name != kInflight && !is_number) return ok_status();
    return make_error(ErrorCode::kInvalidRequest,
                      format("path: {} is what weights without a name are called", json_quote_short(name)), "path");
}

Status check_optimizer(const JsonValue& body) {
    const std::optional<JsonValue> config = body.find("optimizer_config");
    if (!config) return ok_status();
    TRY_ASSIGN(const std::string_view type, config->string_or("type", "adamw"));
    if (type == "adamw") return check_fields(*config, {{"type"}});
    return not_there("optimizer_config", format("{}: adamw is there alone", json_quote_short(type)));
}

Status read_lora(const JsonValue& config, TinkerCreateModel& request) {
    constexpr std::array<std::string_view, 5> kFields = {"rank", "seed", "train_unembed", "train_mlp", "train_attn"};
    TRY(check_fields(config, kFields));
    TRY_ASSIGN(const int64_t rank, config.int_or("rank", 32, 1, 512));
    request.rank = static_cast<uint32_t>(rank);
    if (const std::optional<JsonValue> seed = config.find("seed")) {
        TRY_ASSIGN(const int64_t number, seed->as_int());
        request.seed = static_cast<uint64_t>(number);
    }
    TRY_ASSIGN(request.trains_unembed, config.bool_or("train_unembed", true));
    TRY_ASSIGN(request.trains_mlp, config.bool_or("train_mlp", true));
    TRY_ASSIGN(request.trains_attention, config.bool_or("train_attn", true));
    if (request.trains_unembed || request.trains_mlp || request.trains_attention) return ok_status();
    return make_error(ErrorCode::kInvalidRequest,
                      "lora_config: one of train_attn, train_mlp, train_unembed has to be true", "lora_config");
}

Status read_prompt(const JsonValue& root, uint32_t vocab_size, Prompt& prompt) {
    TRY_ASSIGN(const JsonValue model_input, root.require("prompt"));
    TRY(check_fields(model_input, {{"chunks"}}));
    TRY_ASSIGN(const JsonValue chunks, model_input.require("chunks"));
    TRY_ASSIGN(const std::vector<JsonValue> all, chunks.as_array());
    for (const JsonValue& chunk : all) {
        TRY_ASSIGN(const std::string_view type, chunk.string_or("type", "encoded_text"));
        if (type != "encoded_text")
            return not_there("prompt", format("chunks of {} are not read", json_quote_short(type)));
        TRY(check_fields(chunk, {{"tokens", "type"}}));
        TRY_ASSIGN(const JsonValue tokens, chunk.require("tokens"));
        TRY_ASSIGN(const std::vector<TokenId> ids, parse_ids(tokens, vocab_size, tokens.size()));
        prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    }
    if (!prompt.ids.empty()) return ok_status();
    return make_error(ErrorCode::kInvalidRequest, "prompt: no tokens", "prompt");
}

// A text, texts or tokens; an empty list ends nothing, not even at the model's end tokens.
Status read_stop(const JsonValue& params, uint32_t vocab_size, GenerateRequest& generate) {
    const std::optional<JsonValue> stop = params.find("stop");
    if (!stop) return ok_status();
    generate.ignore_eos = true;
    const auto add_text = [&](const JsonValue& value) -> Status {
        TRY_ASSIGN(const std::string_view text, value.as_string());
        if (text.empty() || text.size() > kStopStringBytesMax || generate.stop.size() == kStopStringsMax)
            return value.error(
                format("expected at most {} texts of 1 to {} bytes", kStopStringsMax, kStopStringBytesMax));
        generate.stop.emplace_back(text);
        return ok_status();
    };
    if (stop->is_string()) return add_text(*stop);
    TRY_ASSIGN(const std::vector<JsonValue> all, stop->as_array());
    for (const JsonValue& value : all) {
        if (value.is_string()) {
            TRY(add_text(value));
            continue;
        }
        TRY_ASSIGN(const int64_t token, value.as_int(0, int64_t{vocab_size} - 1));
        if (generate.stop_token_ids.size() == kStopTokensMax)
            return value.error(format("expected at most {} tokens", kStopTokensMax));
        generate.stop_token_ids.push_back(static_cast<TokenId>(token));
    }
    return ok_status();
}

Status read_params(const JsonValue& root, uint32_t vocab_size, GenerateRequest& generate) {
    constexpr std::array<std::string_view, 6> kFields = {"max_tokens", "seed", "stop", "temperature", "top_k", "top_p"};
    TRY_ASSIGN(const JsonValue params, root.require("sampling_params"));
    TRY(check_fields(params, kFields));
    if (const std::optional<JsonValue> n = params.find("max_tokens")) {
        TRY_ASSIGN(const int64_t n_tokens, n->as_int(1, std::numeric_limits<int32_t>::max()));
        generate.n_tokens_max = static_cast<uint32_t>(n_tokens);
    }
    if (const std::optional<JsonValue> seed = params.find("seed")) {
        TRY_ASSIGN(const int64_t number, seed->as_int());
        generate.seed = static_cast<uint64_t>(number);
    }
    TRY_ASSIGN(const double temperature, params.number_or("temperature", 1.0));
    TRY_ASSIGN(const double top_p, params.number_or("top_p", 1.0));
    TRY_ASSIGN(const int64_t top_k, params.int_or("top_k", -1, -1, std::numeric_limits<int32_t>::max()));
    if (!(temperature >= 0 && temperature <= 100))
        return make_error(ErrorCode::kInvalidRequest,
                          format("temperature: expected from 0 to 100, found {}", temperature), "temperature");
    if (!(top_p > 0 && top_p <= 1))
        return make_error(ErrorCode::kInvalidRequest, format("top_p: expected above 0 and at most 1, found {}", top_p),
                          "top_p");
    generate.temperature = static_cast<float>(temperature);
    generate.top_p = static_cast<float>(top_p);
    generate.top_k = top_k < 0 ? 0 : static_cast<uint32_t>(top_k);
    generate.min_p = 0.0f;
    generate.repetition_penalty = 1.0f;
    return read_stop(params, vocab_size, generate);
}

Status refuse_sample_parts(const JsonValue& root) {
    for (const std::string_view field : {"topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"}) {
        TRY_ASSIGN(const int64_t n, root.int_or(field, 0));
        if (n != 0) return not_there(field, "is not there: expected 0");
    }
    if (root.find("target_prompt_logprobs"))
        return not_there("target_prompt_logprobs", "log-probabilities of chosen tokens are not there");
    TRY_ASSIGN(const bool records, root.bool_or("record_stability_info", false));
    return records ? Status(not_there("record_stability_info", "is not there: expected false")) : ok_status();
}

}  // namespace

Result<TinkerCreateModel> parse_tinker_create_model(std::string_view body) {
    constexpr std::array<std::string_view, 7> kFields = {
        "session_id", "model_seq_id", "base_model", "user_metadata", "lora_config", "optimizer_config", "type"};
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    TRY(check_fields(root, kFields));
    TinkerCreateModel request;
    TRY_ASSIGN(request.session_id, needed_text(root, "session_id"));
    TRY_ASSIGN(request.model_seq_id, sequence_of(root, "model_seq_id"));
    TRY_ASSIGN(request.base_model, needed_text(root, "base_model"));
    TRY(check_optimizer(root));
    const std::optional<JsonValue> lora = root.find("lora_config");
    if (!lora) return not_there("lora_config", "is missing: all weights of the base are not trained");
    TRY(read_lora(*lora, request));
    request.ignored_fields = tinker::fields_without_effect(root, {{"user_metadata"}});
    return request;
}

Result<TinkerOptimStep> parse_tinker_optim_step(std::string_view body) {
    constexpr std::array<std::string_view, 5> kFields = {"model_id", "seq_id", "type", "adam_params",
                                                         "optimizer_params"};
    return call_of<TinkerOptimStep>(body, kFields, [](const JsonValue& root, TinkerOptimStep& call) -> Status {
        if (root.find("optimizer_params")) return not_there("optimizer_params", "adamw is there alone");
        TRY_ASSIGN(const JsonValue adam, root.require("adam_params"));
        constexpr std::array<std::string_view, 6> kAdam = {"learning_rate", "beta1",        "beta2",
                                                           "eps",           "weight_decay", "grad_clip_norm"};
        TRY(check_fields(adam, kAdam));
        const auto number = [&](std::string_view name, double& value, double below) -> Status {
            TRY_ASSIGN(value, adam.number_or(name, value));
            if (value >= 0 && value < below) return ok_status();
            return make_error(ErrorCode::kInvalidRequest,
                              format("adam_params.{}: expected a number from 0{}, found {}", name,
                                     below == 1.0 ? " to below 1" : " on", value),
                              format("adam_params.{}", name));
        };
        constexpr double kAny = std::numeric_limits<double>::infinity();
        TRY(number("learning_rate", call.learning_rate, kAny));
        TRY(number("beta1", call.beta1, 1.0));
        TRY(number("beta2", call.beta2, 1.0));
        TRY(number("eps", call.eps, kAny));
        TRY(number("weight_decay", call.weight_decay, kAny));
        return number("grad_clip_norm", call.grad_clip_norm, kAny);
    });
}

Result<TinkerSaveForSampler> parse_tinker_save_for_sampler(std::string_view body) {
    constexpr std::array<std::string_view, 8> kFields = {"model_id", "path",        "sampling_session_seq_id", "kind",
                                                         "seq_id",   "ttl_seconds", "user_metadata",           "type"};
    return call_of<TinkerSaveForSampler>(
        body, kFields, [](const JsonValue& root, TinkerSaveForSampler& call) -> Status {
            TRY_ASSIGN(call.name, text_of(root, "path"));
            if (root.find("sampling_session_seq_id")) {
                TRY_ASSIGN(call.sampling_session_seq_id, sequence_of(root, "sampling_session_seq_id"));
            }
            TRY_ASSIGN(const std::string_view kind, root.string_or("kind", "snapshot"));
            if (kind != "snapshot" && kind != "inflight")
                return not_there("kind", format("{}: expected \"snapshot\" or \"inflight\"", json_quote_short(kind)));
            call.is_inflight = kind == "inflight";
            if (!call.name.empty()) return check_own_name(call.name);
            if (call.sampling_session_seq_id) return ok_status();
            return make_error(ErrorCode::kInvalidRequest, "path: expected a name, or sampling_session_seq_id", "path");
        });
}

std::string tinker_unnamed(const TinkerSaveForSampler& call) {
    if (call.is_inflight) return std::string(kInflight);
    return format("{}{}", kSnapshot, call.sampling_session_seq_id.value_or(0));
}

Result<TinkerSaveState> parse_tinker_save_state(std::string_view body) {
    constexpr std::array<std::string_view, 7> kFields = {"model_id",    "path",          "seq_id", "overwrite",
                                                         "ttl_seconds", "user_metadata", "type"};
    return call_of<TinkerSaveState>(body, kFields, [](const JsonValue& root, TinkerSaveState& call) -> Status {
        TRY_ASSIGN(call.name, needed_text(root, "path"));
        TRY_ASSIGN(call.overwrites, root.bool_or("overwrite", false));
        return check_name(call.name);
    });
}

Result<TinkerLoadState> parse_tinker_load_state(std::string_view body) {
    constexpr std::array<std::string_view, 10> kFields = {
        "model_id",      "seq_id", "session_id", "model_seq_id",     "base_model",
        "user_metadata", "path",   "optimizer",  "optimizer_config", "type"};
    return call_of<TinkerLoadState>(body, kFields, [](const JsonValue& root, TinkerLoadState& call) -> Status {
        TRY_ASSIGN(call.session_id, text_of(root, "session_id"));
        TRY_ASSIGN(call.model_seq_id, sequence_of(root, "model_seq_id"));
        TRY_ASSIGN(call.base_model, text_of(root, "base_model"));
        TRY(check_optimizer(root));
        TRY_ASSIGN(call.path, needed_text(root, "path", 1024));
        TRY_ASSIGN(call.with_optimizer, root.bool_or("optimizer", false));
        TRY(parse_tinker_path(call.path, kTinkerWeights, "path"));
        return ok_status();
    });
}

Result<TinkerCreateSampler> parse_tinker_create_sampler(std::string_view body) {
    constexpr std::array<std::string_view, 5> kFields = {"session_id", "sampling_session_seq_id", "base_model",
                                                         "model_path", "type"};
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    TRY(check_fields(root, kFields));
    TinkerCreateSampler request;
    TRY_ASSIGN(request.session_id, needed_text(root, "session_id"));
    TRY_ASSIGN(request.seq_id, sequence_of(root, "sampling_session_seq_id"));
    TRY_ASSIGN(request.base_model, text_of(root, "base_model"));
    TRY_ASSIGN(request.model_path, text_of(root, "model_path", 1024));
    if (request.base_model.empty() && request.model_path.empty())
        return make_error(ErrorCode::kInvalidRequest, "base_model: expected it, or model_path", "base_model");
    return request;
}

Result<TinkerSampleRequest> parse_tinker_sample(std::string_view body, uint32_t vocab_size) {
    constexpr std::array<std::string_view, 15> kFields = {"num_samples",
                                                          "prompt",
                                                          "sampling_params",
                                                          "base_model",
                                                          "model_path",
                                                          "sampling_session_id",
                                                          "seq_id",
                                                          "prompt_logprobs",
                                                          "topk_prompt_logprobs",
                                                          "topk_sample_logprobs",
                                                          "target_prompt_logprobs",
                                                          "prompt_alt_tokens_k",
                                                          "prompt_logprobs_last_n",
                                                          "record_stability_info",
                                                          "type"};
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    TRY(check_fields(root, kFields));
    TRY(refuse_sample_parts(root));
    TinkerSampleRequest request;
    TRY_ASSIGN(request.sampler_id, text_of(root, "sampling_session_id"));
    TRY_ASSIGN(request.base_model, text_of(root, "base_model"));
    TRY_ASSIGN(request.model_path, text_of(root, "model_path", 1024));
    if (root.find("seq_id")) {
        TRY_ASSIGN(const int64_t seq, root.int_or("seq_id", 0, 0));
        request.seq_id = static_cast<uint64_t>(seq);
    }
    GenerateRequest& generate = request.generate;
    generate.kind = ApiKind::kCompletion;
    TRY_ASSIGN(const int64_t n, root.int_or("num_samples", 1, 1, kChoicesMax));
    generate.n = generate.best_of = static_cast<uint32_t>(n);
    TRY(read_prompt(root, vocab_size, generate.prompts.emplace_back()));
    TRY(read_params(root, vocab_size, generate));
    generate.n_logprobs = 0;
    generate.include_stop = true;
    generate.skip_special_tokens = false;
    TRY_ASSIGN(const bool scores_prompt, root.bool_or("prompt_logprobs", false));
    if (scores_prompt) generate.n_prompt_logprobs = 0;
    if (const std::optional<JsonValue> last = root.find("prompt_logprobs_last_n")) {
        if (!scores_prompt) return last->error("expected prompt_logprobs beside it");
        const auto n_max = static_cast<int64_t>(generate.prompts[0].ids.size()) - 1;
        TRY_ASSIGN(const int64_t n_scored, last->as_int(1, std::max<int64_t>(n_max, 1)));
        request.n_scored = static_cast<uint32_t>(n_scored);
    }
    return request;
}

Result<TinkerPath> parse_tinker_path(std::string_view text, std::string_view kind, std::string_view param) {
    constexpr std::string_view kScheme = "tinker://";
    const auto refuse = [&] {
        return make_error(
            ErrorCode::kInvalidRequest,
            format("{}: expected tinker://MODEL/{}/NAME of this server, found {}", param, kind, json_quote_short(text)),
            std::string(param));
    };
    if (!text.starts_with(kScheme)) return refuse();
    const std::string_view rest = text.substr(kScheme.size());
    const size_t first = rest.find('/'), second = first == rest.npos ? rest.npos : rest.find('/', first + 1);
    if (second == rest.npos) return refuse();
    TinkerPath path{std::string(rest.substr(0, first)), std::string(rest.substr(first + 1, second - first - 1)),
                    std::string(rest.substr(second + 1))};
    if (path.model_id.empty() || path.model_id.size() > kIdBytesMax || path.kind != kind || !check_name(path.name).ok())
        return refuse();
    return path;
}

}  // namespace lorad::proto
