#include "server/chat/marks.h"

#include <algorithm>

#include "proto/base/format.h"

namespace lorad::server {
namespace {

// Eight digits that nobody says, then seven of the number.
constexpr std::string_view kMarkStart = "80517293";
constexpr size_t kMarkDigits = 7;
constexpr std::string_view kMarkEnd = "'\"";

}  // namespace

std::string Marks::add_name() {
    is_name_.push_back(true);
    fates_.push_back(Fate::kLost);
    return format("{}{:07}", kMarkStart, fates_.size() - 1);
}

std::string Marks::add() {
    std::string text = add_name();
    is_name_.back() = false;
    return text.append(kMarkEnd);
}

void Marks::read(std::string_view rendered) {
    std::ranges::fill(fates_, Fate::kLost);
    for (size_t at = rendered.find(kMarkStart); at != std::string_view::npos; at = rendered.find(kMarkStart, at)) {
        at += kMarkStart.size();
        const std::string_view digits = rendered.substr(at, kMarkDigits);
        size_t mark = 0;
        bool is_number = digits.size() == kMarkDigits;
        for (char c : digits) {
            is_number = is_number && c >= '0' && c <= '9';
            mark = mark * 10 + static_cast<size_t>(c - '0');
        }
        if (!is_number || mark >= fates_.size()) continue;
        at += kMarkDigits;
        const bool is_whole = is_name_[mark] || rendered.substr(at).starts_with(kMarkEnd);
        fates_[mark] = std::max(fates_[mark], is_whole ? Fate::kWhole : Fate::kChanged);
    }
}

}  // namespace lorad::server
