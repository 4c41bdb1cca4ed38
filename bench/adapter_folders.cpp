#include "bench/adapter_folders.h"

#include <filesystem>

#include "adapters/pool/registry.h"
#include "bench/results.h"
#include "proto/base/format.h"

namespace lorad::bench {

std::vector<std::string> adapter_folders(const std::vector<std::string>& names, uint32_t n) {
    std::vector<std::string> folders;
    for (const std::string& name : names) {
        const size_t at = name.find("{}");
        if (at == std::string::npos) folders.push_back(name);
        for (uint32_t i = 1; at != std::string::npos && i <= n; ++i)
            folders.push_back(name.substr(0, at) + std::to_string(i) + name.substr(at + 2));
    }
    if (folders.size() < n) {
        stop_on_error(make_error(ErrorCode::kInvalidConfig,
                                 lorad::format("--adapters {}: only {} adapter folders are named", n, folders.size())));
    }
    folders.resize(n);
    return folders;
}

LoadedAdapters load_adapters(server::LoadedModel& loaded, const std::vector<std::string>& folders) {
    LoadedAdapters out;
    for (size_t i = 0; i < folders.size(); ++i) {
        const std::string name = lorad::format("a{}", i);
        must(loaded.registry->load(name, folders[i]));
        out.leases.push_back(must(loaded.registry->acquire(name)));
        out.slots.push_back(out.leases.back().slot());
        out.bytes.push_back(
            std::filesystem::file_size(std::filesystem::path(folders[i]) / "adapter_model.safetensors"));
    }
    return out;
}

}  // namespace lorad::bench
