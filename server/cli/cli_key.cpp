#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/owned_fd.h"
#include "server/access/key_file.h"
#include "server/cli/cli.h"

namespace lorad::server {
namespace {

using namespace access;

// The entry in one write behind what is there, on the disk before the key is told.
Status append_line(const std::string& path, std::string line) {
    const OwnedFd file(open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640));
    auto failed = [&] { return make_error(ErrorCode::kIo, format("{}: {}", path, std::strerror(errno))); };
    if (!file.ok()) return failed();
    struct stat about{};
    if (fstat(file.get(), &about) != 0) return failed();
    char last = '\n';
    if (about.st_size > 0 && pread(file.get(), &last, 1, about.st_size - 1) != 1) return failed();
    line = (last == '\n' ? "" : "\n") + line + "\n";
    if (write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) || fsync(file.get()) != 0)
        return failed();
    return ok_status();
}

Status check_prefix(std::string_view prefix) {
    constexpr size_t kBytesMax = 32;
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    };
    if (prefix.size() <= kBytesMax && std::ranges::all_of(prefix, fits)) return ok_status();
    return make_error(
        ErrorCode::kInvalidConfig,
        format("prefix: expected up to {} letters, digits, hyphens and underscores, found \"{}\"", kBytesMax, prefix));
}

}  // namespace

Status run_key_new(const KeyArguments& arguments) {
    KeyEntry entry;
    Principal& principal = entry.principal;
    principal.id = arguments.id;
    principal.tenant = arguments.tenant.empty() ? arguments.id : arguments.tenant;
    for (const std::string& name : arguments.scopes) {
        std::optional<Scope> scope = scope_of(name);
        if (!scope)
            return make_error(ErrorCode::kInvalidConfig,
                              format("scope: expected {}, found \"{}\"", scope_names(), name));
        principal.scopes.add(*scope);
    }
    if (!arguments.adapters.empty()) principal.adapters = arguments.adapters;
    if (!arguments.expires.empty()) {
        TRY_ASSIGN(principal.expires_s, parse_utc(arguments.expires));
    }
    entry.quotas = {arguments.requests_per_minute, arguments.tokens_per_minute, arguments.max_queued_requests,
                    arguments.max_queued_tokens};
    principal.priority_min = arguments.priority_min;
    TRY_ASSIGN(std::string key, new_key());
    if (!arguments.prefix.empty()) {
        TRY(check_prefix(arguments.prefix));
        key.replace(0, key.find('-') + 1, arguments.prefix);
    }
    entry.digest = key_digest(key);
    const std::string line = key_line(entry);
    // Whatever the server would refuse is refused here, with its words.
    TRY(parse_keys(line, "the new key"));
    if (!arguments.file.empty()) {
        std::error_code ignored;
        if (std::filesystem::exists(arguments.file, ignored) &&
            std::filesystem::file_size(arguments.file, ignored) > 0) {
            TRY_ASSIGN(std::vector<KeyEntry> known, read_key_file(arguments.file));
            for (const KeyEntry& one : known) {
                if (one.principal.id == principal.id)
                    return make_error(ErrorCode::kInvalidConfig,
                                      format("{}: the id {} is there already", arguments.file, principal.id));
            }
        }
        TRY(append_line(arguments.file, line));
        std::printf("%s\n", key.c_str());
    } else {
        std::printf("%s\n%s\n", key.c_str(), line.c_str());
    }
    return ok_status();
}

Status run_key_check(const std::string& file) {
    TRY_ASSIGN(std::vector<KeyEntry> entries, read_key_file(file));
    for (const KeyEntry& entry : entries) {
        std::string scopes;
        for (Scope scope : kAllScopes) {
            if (entry.principal.scopes.has(scope)) scopes += " " + std::string(name_of(scope));
        }
        std::printf("%s: tenant %s,%s%s\n", entry.principal.id.c_str(), entry.principal.tenant.c_str(), scopes.c_str(),
                    entry.principal.is_restricted() ? ", some adapters" : "");
    }
    return ok_status();
}

}  // namespace lorad::server
