// A library to be preloaded (LD_PRELOAD) that makes the k-th call of a kind fail, or all from the k-th on. A test
// steers it while the program runs, through a file of one page that both map: LORAD_FAIL_AT names it; the layout is
// struct Control, and tests/scorecard/faults.py is the other side.
//
// kAlloc: operator new; kMalloc: what C and Rust call. For good means that memory is full from the k-th call on: what
// is freed can be had again, and no more. Counted are calls of the whole process while it is armed. Calls that a driver
// makes (its name in kNotOurs, anywhere on the stack) are let through: what a driver does without memory is not what is
// tested. write and read: of regular files only.
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

enum Kind : uint32_t {
    kAlloc = 1,
    kOpen = 2,
    kWrite = 4,
    kSync = 8,
    kRename = 16,
    kMap = 32,
    kAccept = 64,
    kThread = 128,
    kRead = 256,
    kPoll = 512,
    kRemove = 1024,
    kMalloc = 2048
};

struct Control {
    std::atomic<uint32_t> armed;
    std::atomic<uint32_t> kinds;       // of Kind
    std::atomic<uint64_t> at;          // fails the at-th call, from 1; 0: counts only
    std::atomic<uint32_t> persistent;  // and all after it
    std::atomic<uint32_t> error;       // errno; 0 for kWrite: half of the bytes are written, and then the disk is full
    std::atomic<uint64_t> n_calls, n_failed, n_let_through;
};

Control* g_control = nullptr;

__attribute__((constructor)) void map_control() {
    const char* path = std::getenv("LORAD_FAIL_AT");
    if (path == nullptr) return;
    const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0));
    if (fd < 0) return;
    auto* mapped = reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (mapped != MAP_FAILED) g_control = static_cast<Control*>(mapped);
    syscall(SYS_close, fd);
}

constexpr const char* kNotOurs[] = {"libvulkan", "LLVM",   "lvp",        "nvidia",         "libdrm",
                                    "libxcb",    "libX11", "libwayland", "fail_at_nothing"};

struct Walk {
    bool foreign = false;
    int depth = 0;
};
_Unwind_Reason_Code look_at(_Unwind_Context* context, void* argument) {
    Walk& walk = *static_cast<Walk*>(argument);
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(_Unwind_GetIP(context)), &info) != 0 && info.dli_fname != nullptr) {
        for (const char* name : kNotOurs) walk.foreign |= std::strstr(info.dli_fname, name) != nullptr;
    }
    return walk.foreign || ++walk.depth > 100 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

// Bytes that were freed since memory is full, and not taken again.
std::atomic<int64_t> g_free_again{0};

thread_local bool t_inside = false;  // what this library calls is not counted

// True: this call is to fail, with errno set. n_bytes: of memory.
bool fails(Kind kind, size_t n_bytes = 0) {
    Control* control = g_control;
    if (control == nullptr || t_inside || control->armed.load() == 0 || (control->kinds.load() & kind) == 0)
        return false;
    const uint64_t n = ++control->n_calls;
    const uint64_t at = control->at.load();
    if (at == 0 || n < at || (n > at && control->persistent.load() == 0)) return false;
    if (n == at) g_free_again = 0;
    if (n > at && n_bytes > 0) {
        if (g_free_again.fetch_sub(int64_t(n_bytes)) >= int64_t(n_bytes)) return false;
        g_free_again += int64_t(n_bytes);
    }
    t_inside = true;
    Walk walk;
    _Unwind_Backtrace(look_at, &walk);
    t_inside = false;
    if (walk.foreign) {
        ++control->n_let_through;
        return false;
    }
    ++control->n_failed;
    errno = static_cast<int>(control->error.load());
    return true;
}

bool is_file(int fd) {
    struct stat status{};
    return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

template <typename Function>
Function next(const char* name) {
    t_inside = true;
    auto* found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
    t_inside = false;
    return found;
}
#define NEXT(name)                                                \
    (static_cast<decltype(&::name)>([] {                          \
        static const auto found = next<decltype(&::name)>(#name); \
        return found;                                             \
    }()))

// As the standard has it: the handler is asked until there is memory, or no handler any more.
void* allocated(size_t size) {
    size = size == 0 ? 1 : size;
    for (;;) {
        if (void* memory = fails(kAlloc, size) ? nullptr : __libc_malloc(size)) return memory;
        const std::new_handler handler = std::get_new_handler();
        if (handler == nullptr) throw std::bad_alloc();
        handler();
    }
}
void* allocated_or_null(size_t size) noexcept {
    try {
        return allocated(size);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

}  // namespace

// operator new calls these in the library that defines it; here, so that the caller is seen.
void* operator new(size_t size) { return allocated(size); }
void* operator new[](size_t size) { return allocated(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocated_or_null(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocated_or_null(size); }
void operator delete(void* memory) noexcept { ::free(memory); }
void operator delete[](void* memory) noexcept { ::free(memory); }
void operator delete(void* memory, size_t) noexcept { ::free(memory); }
void operator delete[](void* memory, size_t) noexcept { ::free(memory); }

extern "C" {

void* malloc(size_t size) {
    if (fails(kMalloc, size)) return errno = ENOMEM, nullptr;
    return __libc_malloc(size);
}
void* calloc(size_t n, size_t size) {
    if (fails(kMalloc, n * size)) return errno = ENOMEM, nullptr;
    return __libc_calloc(n, size);
}
void* realloc(void* memory, size_t size) {
    if (fails(kMalloc, size)) return errno = ENOMEM, nullptr;
    const size_t n_before = malloc_usable_size(memory);
    void* moved = __libc_realloc(memory, size);
    if (moved != nullptr) g_free_again += int64_t(n_before);
    return moved;
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
    if (fails(kMalloc, size)) return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return *memory == nullptr ? ENOMEM : 0;
}
void* aligned_alloc(size_t alignment, size_t size) {
    if (fails(kMalloc, size)) return errno = ENOMEM, nullptr;
    return __libc_memalign(alignment, size);
}

void free(void* memory) {
    if (g_control != nullptr && g_control->armed.load() != 0) g_free_again += int64_t(malloc_usable_size(memory));
    __libc_free(memory);
}

#define WITH_MODE                               \
    mode_t mode = 0;                            \
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) { \
        va_list arguments;                      \
        va_start(arguments, flags);             \
        mode = va_arg(arguments, mode_t);       \
        va_end(arguments);                      \
    }

int open(const char* path, int flags, ...) {
    WITH_MODE
    return fails(kOpen) ? -1 : NEXT(open)(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    WITH_MODE
    return fails(kOpen) ? -1 : NEXT(open)(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
    WITH_MODE
    return fails(kOpen) ? -1 : NEXT(openat)(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
    WITH_MODE
    return fails(kOpen) ? -1 : NEXT(openat)(folder, path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t n) {
    if (g_control != nullptr && g_control->armed.load() != 0 && is_file(fd)) {
        const bool is_short = g_control->error.load() == 0;
        if (fails(kWrite)) {
            if (is_short && n > 1 && g_control->n_failed.load() % 2 == 1) return NEXT(write)(fd, bytes, n / 2);
            errno = is_short ? ENOSPC : static_cast<int>(g_control->error.load());
            return -1;
        }
    }
    return NEXT(write)(fd, bytes, n);
}
ssize_t read(int fd, void* bytes, size_t n) {
    if (g_control != nullptr && g_control->armed.load() != 0 && is_file(fd) && fails(kRead)) return -1;
    return NEXT(read)(fd, bytes, n);
}

int fsync(int fd) { return fails(kSync) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return fails(kSync) ? -1 : NEXT(fdatasync)(fd); }
int rename(const char* from, const char* to) { return fails(kRename) ? -1 : NEXT(rename)(from, to); }
int renameat(int folder, const char* from, int other, const char* to) {
    return fails(kRename) ? -1 : NEXT(renameat)(folder, from, other, to);
}
int unlink(const char* path) { return fails(kRemove) ? -1 : NEXT(unlink)(path); }
int unlinkat(int folder, const char* path, int flags) {
    return fails(kRemove) ? -1 : NEXT(unlinkat)(folder, path, flags);
}

void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
    return fails(kMap) ? MAP_FAILED : NEXT(mmap)(at, n, protection, flags, fd, offset);
}

int accept(int fd, sockaddr* address, socklen_t* n) { return fails(kAccept) ? -1 : NEXT(accept)(fd, address, n); }
int accept4(int fd, sockaddr* address, socklen_t* n, int flags) {
    return fails(kAccept) ? -1 : NEXT(accept4)(fd, address, n, flags);
}
int epoll_wait(int fd, epoll_event* events, int n, int timeout) {
    return fails(kPoll) ? -1 : NEXT(epoll_wait)(fd, events, n, timeout);
}
int epoll_ctl(int fd, int operation, int other, epoll_event* event) {
    return fails(kPoll) ? -1 : NEXT(epoll_ctl)(fd, operation, other, event);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    if (fails(kThread)) return EAGAIN;
    return NEXT(pthread_create)(thread, attributes, run, argument);
}

}  // extern "C"
