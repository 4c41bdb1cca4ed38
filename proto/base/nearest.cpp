#include "proto/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace lorad {
namespace {

constexpr size_t kNamesMax = 2000;
constexpr size_t kNameBytesMax = 128;

std::string lower_case(std::string_view name) {
    std::string out(name.substr(0, kNameBytesMax));
    std::ranges::transform(out, out.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
    return out;
}

// Bytes to change, put in, leave out or swap with their neighbour; n_max + 1 where it is more than n_max.
size_t edit_distance(std::string_view a, std::string_view b, size_t n_max) {
    if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > n_max) return n_max + 1;
    std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); ++i) {
        next[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            next[j + 1] = std::min({next[j] + 1, row[j + 1] + 1, row[j] + size_t{a[i] != b[j]}});
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
                next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
        }
        if (*std::ranges::min_element(next) > n_max && *std::ranges::min_element(row) > n_max) return n_max + 1;
        before.swap(row);
        row.swap(next);
    }
    return std::min(row.back(), n_max + 1);
}

// Less is nearer; nothing where it is another name.
std::optional<size_t> remoteness(std::string_view name, std::string_view other) {
    constexpr size_t kPartBytesMin = 3, kBeginBytesMin = 6;
    const size_t n_max = std::max<size_t>(1, std::min(name.size(), other.size()) / 3);
    const size_t distance = edit_distance(name, other, n_max);
    if (distance <= n_max) return distance;
    const std::string_view shorter = name.size() < other.size() ? name : other,
                           longer = name.size() < other.size() ? other : name;
    const size_t n_same = static_cast<size_t>(std::ranges::mismatch(shorter, longer).in1 - shorter.begin());
    const bool begins_alike = n_same >= kBeginBytesMin && 4 * n_same >= 3 * shorter.size();
    if (!begins_alike && (shorter.size() < kPartBytesMin || longer.find(shorter) == std::string_view::npos))
        return std::nullopt;
    return kNameBytesMax + longer.size() - std::min(shorter.size(), begins_alike ? n_same : shorter.size());
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> names, size_t n_max) {
    const std::string wanted = lower_case(name);
    std::vector<std::pair<size_t, std::string_view>> found;
    for (const std::string& one : names.first(std::min(names.size(), kNamesMax))) {
        if (std::optional<size_t> far = remoteness(wanted, lower_case(one))) found.emplace_back(*far, one);
    }
    std::ranges::sort(found);
    std::vector<std::string> out;
    for (size_t i = 0; i < std::min(n_max, found.size()); ++i) out.emplace_back(found[i].second);
    return out;
}

}  // namespace lorad
