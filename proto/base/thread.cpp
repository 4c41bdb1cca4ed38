#include "proto/base/thread.h"

#include <system_error>

namespace lorad {

bool start_thread(std::thread& to, std::function<void()> run) {
    try {
        to = std::thread(std::move(run));
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

}  // namespace lorad
