#include "gpu/kernels/kernels.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "gpu/kernels/launch.h"

namespace lorad::gpu {

struct KernelSet::Impl {
    // Compiled outside the lock, by whoever asks first; others that want the same one wait for it alone.
    struct Entry {
        std::once_flag once;
        std::optional<Kernel> kernel;
    };
    mutable std::mutex mutex;
    std::map<std::pair<std::string, std::vector<uint32_t>>, Entry> kernels;  // guarded by mutex; entries stay where they are
    std::optional<Error> error;                                             // guarded by mutex; the first one
};

KernelSet::KernelSet(Device& device, const KernelSetOptions& options)
    : device_(device), options_(options), impl_(std::make_unique<Impl>()) {}

KernelSet::~KernelSet() = default;

Result<std::unique_ptr<KernelSet>> KernelSet::create(Device& device, const KernelSetOptions& options) {
    std::unique_ptr<KernelSet> kernels(new KernelSet(device, options));
    TRY(kernels->climb_ladder());
    return kernels;
}

Status KernelSet::status() const {
    std::lock_guard lock(impl_->mutex);
    if (impl_->error) return *impl_->error;
    return ok_status();
}

void KernelSet::forget_error() {
    std::lock_guard lock(impl_->mutex);
    impl_->error.reset();
}

const Kernel* KernelSet::kernel(const char* module, const std::vector<uint32_t>& constants, uint32_t subgroup_size) {
    std::vector<uint32_t> key = constants;
    key.push_back(subgroup_size);
    Impl::Entry* entry = nullptr;
    {
        std::lock_guard lock(impl_->mutex);
        entry = &impl_->kernels[{module, std::move(key)}];
    }
    std::call_once(entry->once, [&] {
        KernelOptions kernel_options;
        kernel_options.module = module;
        kernel_options.constants = constants;
        kernel_options.required_subgroup_size = subgroup_size;
        // Shaders that give work to lanes need all lanes; that may be asked for only if subgroups divide the workgroup.
        uint32_t divisor = subgroup_size != 0 ? subgroup_size : device_.capabilities().subgroup_size_max;
        kernel_options.require_full_subgroups = divisor != 0 && constants.at(0) % divisor == 0;
        Result<Kernel> made = Kernel::create(device_, kernel_options);
        if (made.ok()) {
            entry->kernel = std::move(made).value();
            return;
        }
        std::lock_guard lock(impl_->mutex);
        if (!impl_->error) impl_->error = made.error();
    });
    return entry->kernel ? &*entry->kernel : nullptr;
}

uint32_t KernelSet::threads(uint32_t on_gpu, uint32_t small) const { return workgroup_size(device_.capabilities(), on_gpu, small); }

}  // namespace lorad::gpu
