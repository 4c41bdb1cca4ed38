#include "server/access/key_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <set>
#include <span>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/owned_fd.h"
#include "proto/json/json.h"

namespace lorad::server::access {
namespace {

constexpr size_t kIdBytesMax = 64;
constexpr size_t kPatternsMax = 256;
constexpr size_t kPatternBytesMax = 128;
constexpr uint64_t kQuotaMax = 1'000'000'000'000;

std::string hex_of(std::span<const uint8_t> bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (uint8_t byte : bytes) {
        out += kDigits[byte >> 4];
        out += kDigits[byte & 15];
    }
    return out;
}

KeyDigest digest_from_hex(std::string_view hex) {
    KeyDigest digest{};
    for (size_t i = 0; i < digest.size(); ++i)
        std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, digest[i], 16);
    return digest;
}

// For the log and for labels: nothing to be escaped.
bool is_plain(std::string_view text) {
    return !text.empty() && text.size() <= kIdBytesMax && std::ranges::all_of(text, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
               c == '-' || c == '@';
    });
}

Result<std::string> plain_text(const JsonValue& value) {
    TRY_ASSIGN(std::string_view text, value.as_string());
    if (!is_plain(text))
        return value.error(
            format("expected 1 to {} of letters, digits and . _ - @, found {}", kIdBytesMax, value.describe()));
    return std::string(text);
}

Status read_scopes(const JsonValue& value, Scopes& out) {
    TRY_ASSIGN(std::vector<JsonValue> list, value.as_array());
    for (const JsonValue& one : list) {
        TRY_ASSIGN(std::string_view name, one.as_string());
        std::optional<Scope> scope = scope_of(name);
        if (!scope) return one.error(format("expected {}, found {}", scope_names(), one.describe()));
        out.add(*scope);
    }
    if (out.empty()) return value.error("expected at least one scope: a key without any can do nothing");
    return ok_status();
}

Status read_patterns(const JsonValue& value, Principal& out) {
    TRY_ASSIGN(std::vector<JsonValue> list, value.as_array());
    if (list.size() > kPatternsMax) return value.error(format("expected at most {} names or patterns", kPatternsMax));
    out.adapters.emplace();
    for (const JsonValue& one : list) {
        TRY_ASSIGN(std::string_view pattern, one.as_string());
        if (pattern.empty() || pattern.size() > kPatternBytesMax)
            return one.error(format("expected a name or a pattern of 1 to {} bytes", kPatternBytesMax));
        out.adapters->emplace_back(pattern);
    }
    return ok_status();
}

Result<KeyEntry> entry_of(const JsonValue& root) {
    KeyEntry entry;
    Principal& principal = entry.principal;
    bool has_digest = false;
    TRY_ASSIGN(std::vector<JsonMember> members, root.as_object());
    for (const auto& [key, value] : members) {
        if (key == "id") {
            TRY_ASSIGN(principal.id, plain_text(value));
        } else if (key == "tenant") {
            TRY_ASSIGN(principal.tenant, plain_text(value));
        } else if (key == "sha256") {
            TRY_ASSIGN(std::string_view hex, value.as_string());
            // The text may be the key itself, by mistake: it is not repeated.
            if (!is_sha256_hex(hex)) return value.error("expected the SHA-256 of the key, 64 lower-case hex digits");
            entry.digest = digest_from_hex(hex);
            has_digest = true;
        } else if (key == "scopes") {
            TRY(read_scopes(value, principal.scopes));
        } else if (key == "adapters") {
            TRY(read_patterns(value, principal));
        } else if (key == "expires") {
            TRY_ASSIGN(std::string_view text, value.as_string());
            Result<int64_t> expires_s = parse_utc(text);
            if (!expires_s.ok()) return value.error(expires_s.error().message);
            principal.expires_s = *expires_s;
        } else if (key == "requests_per_minute") {
            TRY_ASSIGN(uint64_t n, value.as_uint(1'000'000'000));
            entry.quotas.requests_per_minute = static_cast<uint32_t>(n);
        } else if (key == "tokens_per_minute") {
            TRY_ASSIGN(entry.quotas.tokens_per_minute, value.as_uint(kQuotaMax));
        } else if (key == "max_queued_requests") {
            TRY_ASSIGN(uint64_t n, value.as_uint(1'000'000'000));
            entry.quotas.queued_requests_max = static_cast<uint32_t>(n);
        } else if (key == "max_queued_tokens") {
            TRY_ASSIGN(entry.quotas.queued_tokens_max, value.as_uint(kQuotaMax));
        } else if (key == "priority_min") {
            TRY_ASSIGN(int64_t priority,
                       value.as_int(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
            principal.priority_min = static_cast<int32_t>(priority);
        } else {
            return value.error("no such field: there are id, sha256, scopes, adapters, tenant, expires, "
                               "requests_per_minute, tokens_per_minute, "
                               "max_queued_requests, max_queued_tokens and priority_min");
        }
    }
    if (principal.id.empty()) return root.error("expected an id");
    if (!has_digest) return root.error("expected the sha256 of the key");
    if (principal.scopes.empty()) return root.error("expected scopes");
    if (principal.tenant.empty()) principal.tenant = principal.id;
    return entry;
}

Error bad_file(const std::string& path, std::string_view what) {
    return make_error(ErrorCode::kInvalidConfig, format("{}: {}", path, what), "api-key-file");
}

}  // namespace

KeyDigest key_digest(std::string_view key) {
    Sha256 digest;
    digest.add(key);
    return std::bit_cast<KeyDigest>(digest.digest());
}

Result<int64_t> parse_utc(std::string_view text) {
    constexpr std::string_view kExpected = "expected a day or a time in UTC, as 2027-01-31 or 2027-01-31T12:00:00Z";
    std::array<unsigned, 6> parts{};
    constexpr std::array<size_t, 6> kBegins = {0, 5, 8, 11, 14, 17};
    const std::string_view shape = text.size() == 10 ? "dddd-dd-dd" : "dddd-dd-ddTdd:dd:ddZ";
    auto bad = [&] { return make_error(ErrorCode::kInvalidConfig, std::string(kExpected)); };
    if (text.size() != shape.size()) return bad();
    for (size_t i = 0; i < shape.size(); ++i) {
        bool is_digit = text[i] >= '0' && text[i] <= '9';
        if (shape[i] == 'd' ? !is_digit : text[i] != shape[i]) return bad();
    }
    for (size_t i = 0; i < (text.size() == 10 ? 3u : 6u); ++i)
        std::from_chars(text.data() + kBegins[i], text.data() + kBegins[i] + (i == 0 ? 4 : 2), parts[i]);
    std::chrono::year_month_day day{std::chrono::year(static_cast<int>(parts[0])), std::chrono::month(parts[1]),
                                    std::chrono::day(parts[2])};
    if (!day.ok() || parts[3] > 23 || parts[4] > 59 || parts[5] > 59) return bad();
    int64_t days = std::chrono::sys_days(day).time_since_epoch().count();
    return days * 86400 + static_cast<int64_t>(parts[3]) * 3600 + parts[4] * 60 + parts[5];
}

Result<std::vector<KeyEntry>> parse_keys(std::string_view text, std::string_view name) {
    std::vector<KeyEntry> entries;
    std::set<std::string, std::less<>> ids;
    std::set<KeyDigest> digests;
    size_t number = 0;
    while (!text.empty()) {
        ++number;
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.find_first_not_of(" \t") == std::string_view::npos || line.starts_with('#')) continue;
        const std::string place = format("{}:{}", name, number);
        if (entries.size() == kKeysMax)
            return make_error(ErrorCode::kInvalidConfig, format("{}: more than {} keys", place, kKeysMax));
        TRY_ASSIGN(JsonDocument document,
                   parse_json(line, {.name = place, .code = ErrorCode::kInvalidConfig, .max_bytes = 64 << 10}));
        TRY_ASSIGN(KeyEntry entry, entry_of(document.root()));
        if (!ids.insert(entry.principal.id).second)
            return make_error(ErrorCode::kInvalidConfig,
                              format("{}: the id {} is there twice", place, entry.principal.id));
        if (!digests.insert(entry.digest).second)
            return make_error(ErrorCode::kInvalidConfig,
                              format("{}: the key of {} is there twice", place, entry.principal.id));
        entries.push_back(std::move(entry));
    }
    if (entries.empty())
        return make_error(ErrorCode::kInvalidConfig, format("{}: holds no key; `lorad key new` makes one", name));
    return entries;
}

Result<std::vector<KeyEntry>> read_key_file(const std::string& path) {
    const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.ok()) return bad_file(path, std::strerror(errno));
    struct stat about{};
    if (fstat(file.get(), &about) != 0) return bad_file(path, std::strerror(errno));
    if (!S_ISREG(about.st_mode)) return bad_file(path, "expected a regular file");
    if ((about.st_mode & S_IWOTH) != 0)
        return bad_file(path, "everybody may write to it, so anybody could give himself a key: chmod o-w");
    if (static_cast<size_t>(about.st_size) > kKeyFileBytesMax)
        return bad_file(path, format("{} bytes, at most {} are read", about.st_size, kKeyFileBytesMax));
    std::string text;
    char buffer[16 << 10];
    for (;;) {
        ssize_t n = read(file.get(), buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return bad_file(path, std::strerror(errno));
        if (n == 0) break;
        text.append(buffer, static_cast<size_t>(n));
        if (text.size() > kKeyFileBytesMax) return bad_file(path, format("more than {} bytes", kKeyFileBytesMax));
    }
    return parse_keys(text, path);
}

std::string key_line(const KeyEntry& entry) {
    const Principal& principal = entry.principal;
    JsonWriter writer;
    writer.begin_object().field("id", principal.id).field("sha256", hex_of(entry.digest)).key("scopes").begin_array();
    for (Scope scope : kAllScopes) {
        if (principal.scopes.has(scope)) writer.value(name_of(scope));
    }
    writer.end_array();
    if (principal.adapters) {
        writer.key("adapters").begin_array();
        for (const std::string& pattern : *principal.adapters) writer.value(pattern);
        writer.end_array();
    }
    if (principal.tenant != principal.id) writer.field("tenant", principal.tenant);
    if (principal.expires_s != std::numeric_limits<int64_t>::max())
        writer.field("expires", utc_text(principal.expires_s));
    auto quota = [&](std::string_view name, uint64_t n) {
        if (n > 0) writer.field(name, n);
    };
    quota("requests_per_minute", entry.quotas.requests_per_minute);
    quota("tokens_per_minute", entry.quotas.tokens_per_minute);
    quota("max_queued_requests", entry.quotas.queued_requests_max);
    quota("max_queued_tokens", entry.quotas.queued_tokens_max);
    if (principal.priority_min != 0) writer.field("priority_min", static_cast<int64_t>(principal.priority_min));
    return writer.end_object().take();
}

Result<std::string> new_key() {
    KeyDigest bits{};
    if (getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size()))
        return make_error(ErrorCode::kIo, "the system gives no random bits");
    return "lorad-" + hex_of(bits);
}

}  // namespace lorad::server::access
