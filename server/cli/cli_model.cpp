#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "model/exec/runner.h"
#include "model/files/npy.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "server/cli/cli.h"
#include "server/engine/request.h"
#include "server/model_text.h"

namespace lorad::server {
namespace {

constexpr uint32_t kRowsMax = 2048;
constexpr size_t kTokensFileBytesMax = size_t{64} << 20;

Result<std::vector<TokenId>> parse_ids(std::string_view text, const std::string& place) {
    std::vector<TokenId> ids;
    const char* at = text.data();
    const char* end = text.data() + text.size();
    while (at != end) {
        if (std::string_view(", \t\r\n[]").find(*at) != std::string_view::npos) {
            ++at;
            continue;
        }
        TokenId id = 0;
        auto [stopped, error] = std::from_chars(at, end, id);
        if (error != std::errc() || id < 0) {
            return make_error(
                ErrorCode::kInvalidConfig,
                format("{}: expected token ids, found {}", place,
                       json_quote(std::string_view(at, static_cast<size_t>(std::min<ptrdiff_t>(end - at, 24))))),
                "tokens");
        }
        ids.push_back(id);
        at = stopped;
    }
    if (ids.empty())
        return make_error(ErrorCode::kInvalidConfig, format("{}: expected token ids, found none", place), "tokens");
    return ids;
}

// "1,2,3", or the name of a file that holds ids.
Result<std::vector<TokenId>> read_ids(const std::string& argument) {
    bool is_list = !argument.empty() && argument.find_first_not_of("0123456789, ") == std::string::npos;
    if (is_list) return parse_ids(argument, "--tokens");
    // stdio, whose reads of a folder fail without an exception; a pipe will do as well.
    struct Closer {
        void operator()(std::FILE* f) const { std::fclose(f); }
    };
    std::unique_ptr<std::FILE, Closer> file(std::fopen(argument.c_str(), "rb"));
    std::string text(kTokensFileBytesMax + 1, '\0');
    if (file) text.resize(std::fread(text.data(), 1, text.size(), file.get()));
    if (!file || std::ferror(file.get()) != 0) {
        return make_error(
            ErrorCode::kInvalidConfig,
            format("--tokens: \"{}\" is neither a list such as 1,2,3 nor a file that can be read", argument), "tokens");
    }
    if (text.size() > kTokensFileBytesMax) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("--tokens: \"{}\" is larger than {} bytes", argument, kTokensFileBytesMax), "tokens");
    }
    return parse_ids(text, argument);
}

Result<LoadedModel> load(const ModelArguments& arguments, uint32_t n_sequences_max, uint32_t n_outputs_max) {
    if (arguments.adapters.size() > kLoraUsesMax) {
        return make_error(
            ErrorCode::kInvalidConfig,
            format("--adapter: {} were given, at most {} can be added up", arguments.adapters.size(), kLoraUsesMax),
            "adapter");
    }
    LoadArguments load;
    load.device = arguments.device;
    load.folder = arguments.model;
    load.kernel_path = arguments.kernel_path;
    load.tune = arguments.tune;
    load.dtype = arguments.dtype;
    load.quantize = arguments.quantize;
    load.quantized_weights = arguments.quantized_weights;
    load.kv_cache_dtype = arguments.kv_cache_dtype;
    load.persistent_decode = arguments.persistent_decode;
    load.n_adapters_max = static_cast<uint32_t>(std::max<size_t>(arguments.adapters.size(), 1));
    load.executor.n_rows_max = kRowsMax;
    load.executor.n_sequences_max = n_sequences_max;
    load.executor.n_outputs_max = n_outputs_max;
    load.executor.batch_invariant = arguments.batch_invariant;
    return LoadedModel::load(load);
}

// "PATH@SCALE"; what exists with its @ is a path.
Result<std::pair<std::string, float>> parse_adapter(const std::string& text) {
    std::error_code ignored;
    size_t at = text.rfind('@');
    if (at == std::string::npos || std::filesystem::exists(text, ignored)) return std::pair(text, 1.0f);
    float scale = 0;
    const char* end = text.data() + text.size();
    auto [stopped, error] = std::from_chars(text.data() + at + 1, end, scale);
    if (error != std::errc() || stopped != end || !(std::abs(scale) <= adapters::kMixScaleMax)) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("--adapter: expected PATH or PATH@SCALE with a number of at most "
                                 "{} as the scale, found {}",
                                 adapters::kMixScaleMax, json_quote(text)),
                          "adapter");
    }
    return std::pair(text.substr(0, at), scale);
}

// The sum of all that were asked for; empty if there are none.
Result<adapters::MixLease> load_adapters(LoadedModel& loaded, const ModelArguments& arguments) {
    std::vector<adapters::AdapterTerm> terms;
    for (const std::string& argument : arguments.adapters) {
        TRY_ASSIGN(const auto adapter, parse_adapter(argument));
        terms.push_back({format("adapter-{}", terms.size()), adapter.second});
        const auto known = loaded.registry->load(terms.back().name, adapter.first);
        if (!known.ok())
            return make_error(known.error().code, format("adapter {}: {}", adapter.first, known.error().message));
    }
    return loaded.registry->acquire(terms);
}

uint32_t uses_from(const adapters::MixLease& lease, std::span<const TokenId> tokens) {
    if (!lease || lease.invocation_tokens().empty()) return 0;
    return activation_position(tokens, lease.invocation_tokens());
}

}  // namespace

Status run_logits(const LogitsArguments& arguments) {
    TRY_ASSIGN(std::vector<TokenId> tokens, read_ids(arguments.tokens));
    TRY_ASSIGN(LoadedModel loaded, load(arguments.model, 1, arguments.all_positions ? 64 : 1));
    TRY_ASSIGN(adapters::MixLease lease, load_adapters(loaded, arguments.model));
    model::Runner runner(*loaded.executor);
    TRY_ASSIGN(std::vector<float> logits, runner.logits(tokens, arguments.all_positions,
                                                        model::RowAdapters{lease.uses(), uses_from(lease, tokens)}));
    std::vector<uint64_t> shape{loaded.config.vocab_size};
    if (arguments.all_positions) shape.insert(shape.begin(), tokens.size());
    TRY(model::write_npy(arguments.out, shape, logits));
    log_info("{}: {} logits of {} tokens", arguments.out, logits.size(), tokens.size());
    return ok_status();
}

Status run_generate(const GenerateArguments& arguments) {
    TRY_ASSIGN(std::unique_ptr<ModelText> text, ModelText::load(arguments.model.model));
    std::vector<TokenId> prompt;
    if (arguments.tokens.empty()) {
        if (!text->has_tokenizer()) {
            return make_error(ErrorCode::kInvalidConfig,
                              format("{} has no tokenizer: give --tokens instead of --prompt", arguments.model.model),
                              "prompt");
        }
        TRY_ASSIGN(prompt, text->encode(arguments.prompt, true));
        if (prompt.empty()) return make_error(ErrorCode::kInvalidConfig, "--prompt: the text has no tokens", "prompt");
    } else {
        TRY_ASSIGN(prompt, read_ids(arguments.tokens));
    }
    TRY_ASSIGN(LoadedModel loaded, load(arguments.model, 1, 1));
    TRY_ASSIGN(adapters::MixLease lease, load_adapters(loaded, arguments.model));
    std::unique_ptr<TextDecoder> decoder = text->make_decoder({});
    std::string answer;
    Status decoded = ok_status();
    auto take = [&](Result<std::string> piece) {
        if (!piece.ok()) {
            decoded = piece.error();
            return;
        }
        answer += *piece;
        if (arguments.as_json) return;
        std::fputs(piece->c_str(), stdout);
        std::fflush(stdout);
    };
    model::GenerateOptions options;
    options.n_tokens_max = arguments.max_tokens;
    options.ignore_eos = arguments.ignore_eos;
    options.sampling = arguments.sampling;
    options.uses = lease.uses();
    options.uses_from = uses_from(lease, prompt);
    options.on_token = [&](TokenId token) { take(decoder->push(token)); };
    model::Runner runner(*loaded.executor);
    TRY_ASSIGN(model::Generated generated, runner.generate(prompt, options));
    take(decoder->finish());
    TRY(decoded);
    if (!arguments.as_json) {
        std::puts("");
        return ok_status();
    }
    JsonWriter writer;
    writer.begin_object().key("token_ids").begin_array();
    for (TokenId id : generated.ids) writer.value(static_cast<int64_t>(id));
    writer.end_array();
    if (text->has_tokenizer()) {
        writer.field("text", answer);
    } else {
        writer.key("text").null();
    }
    writer.end_object();
    std::printf("%s\n", writer.take().c_str());
    return ok_status();
}

Status run_profile(const ProfileArguments& arguments) {
    TRY_ASSIGN(LoadedModel loaded,
               load(arguments.model, arguments.prompt ? 1 : std::min(arguments.n_rows, kRowsMax), 0));
    TRY_ASSIGN(adapters::MixLease lease, load_adapters(loaded, arguments.model));
    std::vector<uint32_t> slots;
    for (const LoraUse& use : lease.uses()) slots.push_back(use.slot);
    const model::Executor::ProfileStep step{.n_rows = arguments.n_rows,
                                            .n_context = arguments.n_context,
                                            .is_prompt = arguments.prompt,
                                            .sampling = arguments.sampling};
    if (arguments.plan) {
        TRY_ASSIGN(const std::string text, loaded.executor->describe_step(step, slots));
        std::fputs(text.c_str(), stdout);
        return ok_status();
    }
    TRY_ASSIGN(std::vector<gpu::KernelProfile> kernels, loaded.executor->profile(step, slots, arguments.n_repeats));
    double total_us = 0;
    for (gpu::KernelProfile& kernel : kernels) {
        // Sums over all repeats become those of one step.
        kernel.us /= arguments.n_repeats;
        kernel.n_calls /= arguments.n_repeats;
        kernel.bytes /= arguments.n_repeats;
        kernel.flops /= arguments.n_repeats;
        total_us += kernel.us;
    }
    auto gb_per_s = [](const gpu::KernelProfile& kernel) {
        return kernel.us > 0 ? static_cast<double>(kernel.bytes) / kernel.us * 1e-3 : 0;
    };
    if (arguments.as_json) {
        JsonWriter writer;
        writer.begin_object().field("rows", arguments.n_rows).field("context", arguments.n_context);
        writer.field("total_us", total_us).key("kernels").begin_array();
        for (const gpu::KernelProfile& kernel : kernels) {
            writer.begin_object().field("name", kernel.name).field("calls", kernel.n_calls).field("us", kernel.us);
            writer.field("bytes", kernel.bytes)
                .field("flops", kernel.flops)
                .field("gb_per_s", gb_per_s(kernel))
                .end_object();
        }
        writer.end_array().end_object();
        std::printf("%s\n", writer.take().c_str());
        return ok_status();
    }
    const char* device = loaded.device->capabilities().name.c_str();
    if (arguments.prompt)
        std::printf("one step of a prompt of %u tokens, on %s\n", arguments.n_rows, device);
    else
        std::printf("one step of %u rows that each see %u tokens, on %s\n", arguments.n_rows, arguments.n_context,
                    device);
    std::printf("%-40s %7s %12s %7s %12s %10s\n", "kernel", "calls", "us", "share", "MB", "GB/s");
    for (const gpu::KernelProfile& kernel : kernels) {
        std::printf("%-40s %7llu %12.1f %6.1f%% %12.2f %10.1f\n", kernel.name.c_str(),
                    static_cast<unsigned long long>(kernel.n_calls), kernel.us,
                    total_us > 0 ? 100 * kernel.us / total_us : 0, static_cast<double>(kernel.bytes) * 1e-6,
                    gb_per_s(kernel));
    }
    std::printf("%-40s %7s %12.1f\n", "sum", "", total_us);
    return ok_status();
}

}  // namespace lorad::server
