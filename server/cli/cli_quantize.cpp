#include <chrono>
#include <cstdio>

#include "model/gguf/gguf_export.h"
#include "proto/base/format.h"
#include "server/cli/cli.h"
#include "server/loaded_model.h"

namespace lorad::server {

Status run_quantize(const QuantizeArguments& arguments) {
    TRY_ASSIGN(const model::QuantizeType type, model::parse_quantize_type(arguments.type));
    TRY(warn_of_quantizing(arguments.model, type));
    using Clock = std::chrono::steady_clock;
    auto told = Clock::now();
    uint64_t n_bytes = 0;
    TRY(model::export_gguf(arguments.model, type, arguments.out, [&](uint64_t n_done, uint64_t n) {
        n_bytes = n;
        if (Clock::now() - told < std::chrono::seconds(2)) return;
        told = Clock::now();
        std::fprintf(stderr, "%s: %.0f%% of %.2f GB\n", arguments.out.c_str(),
                     100.0 * static_cast<double>(n_done) / static_cast<double>(n), static_cast<double>(n) * 1e-9);
    }));
    std::printf("%s: %llu bytes of tensors\n", arguments.out.c_str(), static_cast<unsigned long long>(n_bytes));
    return ok_status();
}

}  // namespace lorad::server
