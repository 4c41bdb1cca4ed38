#include "gpu/kernels/kernel_cache.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "gpu/kernels/launch.h"
#include "proto/base/format.h"

namespace lorad::gpu {

struct KernelCache::Impl {
    // Compiled outside the lock, by whoever asks first; others that want the same one wait for it alone.
    struct Entry {
        std::mutex mutex;
        std::optional<Kernel> kernel;  // guarded by mutex; stays once it is there
        std::optional<Error> refusal;  // guarded by mutex; not asked again. Memory may be there the next time
    };
    std::mutex mutex;
    // guarded by mutex; entries stay where they are
    std::map<std::pair<std::string, std::vector<uint32_t>>, Entry> kernels;
    // guarded by mutex; each thread's first one since its last status()
    std::map<std::thread::id, Error> errors;
    // guarded by mutex; by module, a refusal before a lack of memory
    std::map<std::string, ErrorCode> failed;

    void note(const char* module, Error error) {
        std::lock_guard lock(mutex);
        ErrorCode& why = failed.try_emplace(module, error.code).first->second;
        if (error.code == ErrorCode::kKernelRefused) why = error.code;
        errors.try_emplace(std::this_thread::get_id(), std::move(error));
    }
};

KernelCache::KernelCache(Device& device) : device_(device), impl_(std::make_unique<Impl>()) {}
KernelCache::~KernelCache() = default;

Status KernelCache::status() {
    std::lock_guard lock(impl_->mutex);
    const auto found = impl_->errors.find(std::this_thread::get_id());
    if (found == impl_->errors.end()) return ok_status();
    Error error = std::move(found->second);
    impl_->errors.erase(found);
    return error;
}

std::vector<std::string> KernelCache::failures(ErrorCode code) const {
    std::vector<std::string> found;
    std::lock_guard lock(impl_->mutex);
    for (const auto& [module, why] : impl_->failed) {
        if (why == code) found.push_back(module);
    }
    return found;
}

void KernelCache::forget_failures() {
    std::lock_guard lock(impl_->mutex);
    impl_->failed.clear();
}

std::vector<KernelReport> KernelCache::reports() const {
    std::vector<KernelReport> all;
    std::lock_guard lock(impl_->mutex);
    for (auto& [key, entry] : impl_->kernels) {
        std::lock_guard made(entry.mutex);
        KernelReport report{.module = key.first,
                            .constants = {key.second.begin(), key.second.end() - 1},
                            .subgroup_size = key.second.back(),
                            .refusal = {}};
        if (entry.kernel) {
            report.statistics = entry.kernel->statistics();
            report.use = entry.kernel->use();
        } else {
            report.refusal = entry.refusal ? entry.refusal->message : "there was no memory to make it";
        }
        all.push_back(std::move(report));
    }
    return all;
}

void KernelCache::refuse(std::vector<std::string> modules) { refused_ = std::move(modules); }

namespace {

// Returns true if a module is an operation by itself, which no step of a model has: in chains of operations the
// parameters stay in the cache.
bool is_operation(std::string_view module) {
    return module == "row_normalize" || module == "lora_vector" || module == "lora_vector_shared";
}

}  // namespace

const Kernel* KernelCache::find_or_make(const char* module, std::span<const uint32_t> constants,
                                        uint32_t subgroup_size) {
    std::vector<uint32_t> key(constants.begin(), constants.end());
    key.push_back(subgroup_size);
    Impl::Entry* entry = nullptr;
    {
        std::lock_guard lock(impl_->mutex);
        entry = &impl_->kernels[{module, std::move(key)}];
    }
    std::lock_guard making(entry->mutex);
    if (entry->kernel) return &*entry->kernel;
    if (!entry->refusal) {
        Result<Kernel> made = make(module, constants, subgroup_size);
        if (made.ok()) return &entry->kernel.emplace(std::move(made).value());
        if (made.error().code != ErrorCode::kKernelRefused) {
            impl_->note(module, std::move(made).error());
            return nullptr;
        }
        entry->refusal = std::move(made).error();
    }
    impl_->note(module, *entry->refusal);
    return nullptr;
}

Result<Kernel> KernelCache::make(const char* module, std::span<const uint32_t> constants,
                                 uint32_t subgroup_size) const {
    if (std::ranges::find(refused_, module) != refused_.end()) {
        return make_error(ErrorCode::kKernelRefused,
                          lorad::format("kernel '{}' is refused, as a test wants it", module));
    }
    CHECK(!constants.empty());
    KernelOptions kernel_options;
    kernel_options.module = module;
    kernel_options.constants.assign(constants.begin(), constants.end());
    kernel_options.params_in_buffer = is_operation(module);
    if (is_from_text(module)) {
        kernel_options.text = kernel_text(module, kernel_options.constants);
        kernel_options.threads = constants[0];
    }
    kernel_options.required_subgroup_size = subgroup_size;
    // Shaders that give work to lanes need all lanes; that may be required only if subgroups divide the workgroup.
    const uint32_t divisor = subgroup_size != 0 ? subgroup_size : device_.capabilities().subgroup_size_max;
    kernel_options.require_full_subgroups = divisor != 0 && constants[0] % divisor == 0;
    Result<Kernel> made = Kernel::create(device_, kernel_options);
    if (made.ok() || made.error().code != ErrorCode::kInternal) return made;
    Error error = std::move(made).error();
    error.code = ErrorCode::kKernelRefused;
    if (error.message.find(module) == std::string::npos) error.message += lorad::format(" for kernel '{}'", module);
    return error;
}

}  // namespace lorad::gpu
