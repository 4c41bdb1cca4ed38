#include "model/text/harmony.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lorad::model {
namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kConstrain = "<|constrain|>";
constexpr std::array<std::string_view, 7> kMarks = {kStart,    kChannel,   kMessage,    kConstrain,
                                                    "<|end|>", "<|call|>", "<|return|>"};
constexpr std::string_view kHeaderBlanks = " \t\r\n";
constexpr size_t kHeaderBytesMax = 4096;

// The word behind `key`, which ends at a blank or a mark.
std::string_view word_behind(std::string_view header, std::string_view key) {
    const size_t at = header.find(key);
    if (at == std::string_view::npos) return {};
    header.remove_prefix(at + key.size());
    return header.substr(0, header.find_first_of(" \t\r\n<"));
}

}  // namespace

HarmonyParser::HarmonyParser(std::string_view prompt, bool has_functions) : has_functions_(has_functions) {
    const size_t start = prompt.rfind(kStart);
    if (start == std::string_view::npos) return;
    (void)push(prompt.substr(start));
    n_given_ = header_.size();
    any_message_ = any_reasoning_ = any_content_ = false;
}

std::vector<HarmonyParser::Piece> HarmonyParser::push(std::string_view text) {
    std::vector<Piece> out;
    pending_ += text;
    read(false, out);
    return out;
}

std::vector<HarmonyParser::Piece> HarmonyParser::finish(bool cut) {
    std::vector<Piece> out;
    if (cut && pending_.starts_with("<|")) pending_.clear();
    read(true, out);
    end_message(out);
    return out;
}

void HarmonyParser::read(bool at_end, std::vector<Piece>& out) {
    while (!pending_.empty()) {
        size_t at = std::string::npos;
        std::string_view first;
        for (std::string_view mark : kMarks) {
            const size_t found = pending_.find(mark);
            if (found < at) {
                at = found;
                first = mark;
            }
        }
        size_t n_text = at;
        if (at == std::string::npos) {
            // The longest end that a mark may begin with; all begin with "<|".
            size_t n_held = 0;
            const size_t bracket = pending_.rfind('<');
            if (!at_end && bracket != std::string::npos) {
                const std::string_view rest = std::string_view(pending_).substr(bracket);
                if (std::ranges::any_of(kMarks, [&](std::string_view mark) { return mark.starts_with(rest); }))
                    n_held = rest.size();
            }
            n_text = pending_.size() - n_held;
        }
        say(std::string_view(pending_).substr(0, n_text), out);
        pending_.erase(0, n_text + first.size());
        if (at == std::string::npos) return;
        take_mark(first, out);
    }
}

void HarmonyParser::take_mark(std::string_view mark, std::vector<Piece>& out) {
    if (mark == kMessage && !in_body_) {
        begin_message(out);
    } else if (mark == kMessage || mark == kConstrain || mark == kChannel) {
        if (in_body_) end_message(out);
        header_ += mark;
    } else {  // the message has ended
        end_message(out);
        header_.clear();
        n_given_ = 0;
    }
}

// The header has come whole.
void HarmonyParser::begin_message(std::vector<Piece>& out) {
    const std::string_view channel = word_behind(header_, kChannel);
    const std::string_view recipient = word_behind(header_, "to=");
    constexpr std::string_view kFunctions = "functions.";
    kind_ = Kind::kContent;
    if (has_functions_ && recipient.starts_with(kFunctions) && recipient.size() > kFunctions.size()) {
        kind_ = Kind::kCall;
        function_ = recipient.substr(kFunctions.size());
        call_is_empty_ = true;
        out.push_back({Kind::kCall, {}, function_, n_calls_++});
    } else if (channel == "analysis" || !recipient.empty()) {
        kind_ = Kind::kReasoning;
    }
    header_.clear();
    in_body_ = any_message_ = begins_ = true;
}

void HarmonyParser::end_message(std::vector<Piece>& out) {
    if (!in_body_) return;
    if (kind_ == Kind::kCall && call_is_empty_) say("{}", out);
    in_body_ = false;
}

// An answer that begins as no message does: the model does not write in channels.
bool HarmonyParser::is_plain() const {
    if (any_message_) return false;
    const size_t begin = header_.find_first_not_of(kHeaderBlanks, n_given_);
    if (begin == std::string::npos) return false;
    const std::string_view text = std::string_view(header_).substr(begin);
    const auto fits = [&](std::string_view word) { return text.starts_with(word) || word.starts_with(text); };
    return !fits("assistant") && !fits("to=") && !fits("<|") && !fits("user") && !fits("system") &&
           !fits("developer") && !fits("tool") && !fits("functions.");
}

void HarmonyParser::say(std::string_view text, std::vector<Piece>& out) {
    if (text.empty()) return;
    std::string header;  // which turns out to be text
    if (!in_body_) {
        // Letter by letter, so that what it is taken for does not depend on how it was cut.
        size_t n = 0;
        while (n < text.size() && !is_plain()) {
            if (header_.size() < kHeaderBytesMax) header_ += text[n];
            ++n;
        }
        text.remove_prefix(n);
        if (!is_plain()) return;
        header = header_.substr(n_given_).append(text);
        header_.clear();
        text = header;
        kind_ = Kind::kContent;
        in_body_ = any_message_ = begins_ = true;
    }
    if (kind_ == Kind::kCall) call_is_empty_ = false;
    bool& any = kind_ == Kind::kReasoning ? any_reasoning_ : any_content_;
    const bool is_apart = kind_ != Kind::kCall && begins_ && any;
    begins_ = false;
    if (kind_ != Kind::kCall) any = true;
    const uint32_t call = kind_ == Kind::kCall ? n_calls_ - 1 : 0;
    if (out.empty() || out.back().kind != kind_ || out.back().call != call) out.push_back({kind_, {}, {}, call});
    if (is_apart) out.back().text += "\n\n";
    out.back().text += text;
}

}  // namespace lorad::model
