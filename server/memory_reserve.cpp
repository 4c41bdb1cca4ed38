#include "server/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "model/text/text.h"

namespace lorad::server {

namespace {

// The handler of operator new is the process's own, and so is this.
std::atomic<void*> g_reserve{nullptr};

// Called by operator new, on any thread, as often as an allocation fails; without a handler it throws.
void give_up_reserve() {
    if (void* reserve = g_reserve.exchange(nullptr)) {
        std::free(reserve);
    } else {
        std::set_new_handler(nullptr);
    }
}

bool take_reserve() {
    void* reserve = std::malloc(kMemoryReserveBytes);
    if (reserve == nullptr) return false;
    void* none = nullptr;
    if (!g_reserve.compare_exchange_strong(none, reserve)) std::free(reserve);
    std::set_new_handler(give_up_reserve);
    return true;
}

}  // namespace

void install_memory_reserve() { (void)take_reserve(); }

bool memory_reserve_is_whole() {
    return (g_reserve.load(std::memory_order_relaxed) != nullptr || take_reserve()) && model::text_reserve_is_whole();
}

}  // namespace lorad::server
