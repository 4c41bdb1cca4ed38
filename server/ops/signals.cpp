#include "server/ops/signals.h"

#include <cerrno>
#include <csignal>
#include <cstdint>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace lorad::server::ops {
namespace {

// Written by the handlers.
volatile std::sig_atomic_t g_n_stops = 0;
volatile std::sig_atomic_t g_n_reloads = 0;
volatile std::sig_atomic_t g_drains = 0;
int g_wake = -1;  // an eventfd; written once, before the handlers are there

void wake() {
    const int before = errno;
    const uint64_t one = 1;
    if (write(g_wake, &one, sizeof one) < 0) {
    }
    errno = before;
}

void on_stop(int) {
    g_n_stops = g_n_stops + 1;
    if (!g_drains) _exit(0);
    if (g_n_stops > 1) _exit(kExitAtOnce);
    wake();
}

void on_reload(int) {
    g_n_reloads = g_n_reloads + 1;
    wake();
}

}  // namespace

void install_signals() {
    g_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct sigaction action{};
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_stop;
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
    action.sa_handler = on_reload;
    struct sigaction inherited{};
    if (sigaction(SIGHUP, nullptr, &inherited) == 0 && inherited.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    // Beyond a limit of file sizes the write says so, as on a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
}

void signals_drain() { g_drains = 1; }

void wait_for_signal(std::chrono::milliseconds at_most) {
    pollfd waits{g_wake, POLLIN, 0};
    if (poll(&waits, 1, static_cast<int>(at_most.count())) <= 0) return;
    uint64_t n = 0;
    if (read(g_wake, &n, sizeof n) < 0) return;
}

bool stop_asked() { return g_n_stops > 0; }

bool reload_asked() {
    static std::sig_atomic_t n_taken = 0;
    const std::sig_atomic_t n = g_n_reloads;
    const bool asked = n != n_taken;
    n_taken = n;
    return asked;
}

}  // namespace lorad::server::ops
