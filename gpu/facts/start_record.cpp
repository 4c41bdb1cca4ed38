#include "gpu/facts/start_record.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/facts/cache_file.h"
#include "proto/base/check.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu {
namespace {

constexpr std::string_view kFirstLine = "lorad start record 1", kDevice = "device ", kBuild = "build ",
                           kDigest = "sha256 ";

std::string digest_of(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

// The next line of the rest, which loses it.
std::string_view take_line(std::string_view& rest) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    return line;
}

}  // namespace

StartRecord::StartRecord(std::filesystem::path file, RecordOwner owner)
    : file_(std::move(file)), owner_(std::move(owner)) {
    std::error_code error;
    if (!file_.empty() && !owner_.build.empty() && std::filesystem::exists(file_, error)) read();
}

void StartRecord::read() {
    const std::vector<char> bytes = read_cache_file(file_);
    const std::string_view whole(bytes.data(), bytes.size());
    const auto ignore = [&](const std::string& why) {
        log_warn("start record {} {}: ignored, the tests at the start run again", file_.string(), why);
    };
    const size_t end = whole.rfind(kDigest);
    if (!whole.starts_with(kFirstLine) || end == std::string_view::npos ||
        whole.substr(end) != format("{}{}\n", kDigest, digest_of(whole.substr(0, end)))) {
        return ignore("is damaged, or none");
    }
    std::string_view rest = whole.substr(0, end);
    take_line(rest);
    std::string_view device = take_line(rest), build = take_line(rest);
    if (device != std::string(kDevice) + owner_.device) {
        device.remove_prefix(std::min(device.size(), kDevice.size()));
        return ignore(format("is of another device or driver ({}; this is {})", device, owner_.device));
    }
    if (build != std::string(kBuild) + owner_.build) {
        log_info("start record {} is of another build of lorad: the tests at the start run again", file_.string());
        return;
    }
    while (!rest.empty()) {
        const std::string_view line = take_line(rest);
        const size_t space = line.find(' ');
        if (space != std::string_view::npos)
            known_.emplace(std::string(line.substr(0, space)), std::string(line.substr(space + 1)));
    }
    facts_ = known_;
    was_there_ = true;
}

std::optional<std::string> StartRecord::find(std::string_view key) const {
    const auto found = known_.find(std::string(key));
    return found == known_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> StartRecord::find_all(std::string_view begin) const {
    std::vector<std::string> values;
    for (const auto& [key, value] : known_) {
        if (key.starts_with(begin)) values.push_back(value);
    }
    return values;
}

void StartRecord::put(const std::string& key, std::string value) {
    CHECK(key.find_first_of(" \n") == std::string::npos && value.find('\n') == std::string::npos);
    const std::lock_guard lock(mutex_);
    std::string& known = facts_[key];
    is_changed_ = is_changed_ || known != value;
    known = std::move(value);
}

std::string StartRecord::text() const {
    std::string text = format("{}\n{}{}\n{}{}\n", kFirstLine, kDevice, owner_.device, kBuild, owner_.build);
    for (const auto& [key, value] : facts_) text += format("{} {}\n", key, value);
    return text + format("{}{}\n", kDigest, digest_of(text));
}

void StartRecord::save() {
    const std::lock_guard lock(mutex_);
    if (file_.empty() || owner_.build.empty() || !std::exchange(is_changed_, false)) return;
    write_cache_file(file_, text(), "start record");
}

}  // namespace lorad::gpu
