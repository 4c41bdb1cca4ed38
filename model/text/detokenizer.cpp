#include "model/text/detokenizer.h"

#include <algorithm>
#include <utility>

namespace lorad::model {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Length of the well-formed character at the front; 0: ill-formed; -1: a character may yet come of
// it. `bad` is then the number of bytes that one replacement character stands for (the longest
// beginning of a character, at least one).
int character_length(std::string_view text, size_t& bad) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t first = byte(0);
    bad = 1;
    if (first < 0x80) return 1;
    size_t length = 0;
    uint8_t low = 0x80,
            high = 0xbf;  // of the second byte: no overlong forms, surrogates or code points too high
    if (first >= 0xc2 && first <= 0xdf) {
        length = 2;
    } else if ((first & 0xf0) == 0xe0) {
        length = 3;
        if (first == 0xe0) low = 0xa0;
        if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
        length = 4;
        if (first == 0xf0) low = 0x90;
        if (first == 0xf4) high = 0x8f;
    } else {
        return 0;
    }
    for (size_t i = 1; i < length; ++i) {
        if (i == text.size()) return -1;
        if (byte(i) < low || byte(i) > high) return 0;
        low = 0x80;
        high = 0xbf;
        bad = i + 1;
    }
    return static_cast<int>(length);
}

}  // namespace

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                         std::vector<std::string> stop_strings, bool include_stop)
    : tokenizer_(std::move(tokenizer)),
      skip_special_tokens_(skip_special_tokens),
      include_stop_(include_stop),
      stop_strings_(std::move(stop_strings)) {
    std::erase_if(stop_strings_, [](const std::string& stop) { return stop.empty(); });
}

Result<std::string> Detokenizer::push(TokenId id, bool may_stop) {
    may_stop_ = may_stop;
    if (stopped_ || !tokenizer_->exists(id) || (skip_special_tokens_ && tokenizer_->is_special(id)))
        return std::string();
    if (tokenizer_->decoder_kind() == DecoderKind::kByteLevel) {
        TRY_ASSIGN(const std::string text, decode_byte_level(id));
        return release(text, false);
    }
    window_.push_back(id);
    // The whole run of bytes around a byte decides whether it becomes a character or a replacement.
    if (tokenizer_->is_byte(id)) return std::string();
    TRY_ASSIGN(const std::string text, decode_window(false));
    return release(text, false);
}

Result<std::string> Detokenizer::flush() {
    if (stopped_) return std::string();
    std::string text;
    if (!cut_character_.empty()) {
        text = kReplacement;
        cut_character_.clear();
    } else if (anchor_end_ < window_.size()) {
        TRY_ASSIGN(text, decode_window(true));
    }
    return release(text, true);
}

Result<std::string> Detokenizer::decode_byte_level(TokenId id) {
    std::string bytes = std::move(cut_character_);
    bytes += tokenizer_->token_bytes(id);
    cut_character_.clear();
    std::string text;
    text.reserve(bytes.size());
    for (std::string_view rest = bytes; !rest.empty();) {
        size_t bad = 0;
        const int length = character_length(rest, bad);
        if (length < 0) {
            cut_character_ = rest;
            break;
        }
        if (length == 0) {
            text += kReplacement;
            rest.remove_prefix(bad);
        } else {
            text += rest.substr(0, static_cast<size_t>(length));
            rest.remove_prefix(static_cast<size_t>(length));
        }
    }
    return text;
}

// Decodes the new tokens behind the last ones that gave text: a decoder may treat the first token
// of a text otherwise (no leading space), so that new tokens alone would not do.
Result<std::string> Detokenizer::decode_window(bool at_end) {
    TRY_ASSIGN(const std::string text, tokenizer_->decode(window_, false));
    if (text.size() <= anchor_text_size_) {
        // The new tokens made nothing visible; they stay in the window, as part of the context.
        if (at_end) anchor_end_ = window_.size();
        return std::string();
    }
    std::string fresh = text.substr(anchor_text_size_);
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(anchor_end_));
    anchor_end_ = window_.size();
    TRY_ASSIGN(const std::string anchor, tokenizer_->decode(window_, false));
    anchor_text_size_ = anchor.size();
    return fresh;
}

std::string Detokenizer::release(std::string_view text, bool at_end) {
    if (stop_strings_.empty()) return std::string(text);
    held_ += text;
    if (!may_stop_) return std::exchange(held_, {});
    size_t begin = std::string::npos;
    for (const std::string& stop : stop_strings_) {
        const size_t at = held_.find(stop);
        // If two begin at the same place, the longer one is reported.
        if (at < begin || (at == begin && at != std::string::npos && stop.size() > matched_stop_.size())) {
            begin = at;
            matched_stop_ = stop;
        }
    }
    if (begin != std::string::npos) {
        stopped_ = true;
        std::string before = held_.substr(0, begin + (include_stop_ ? matched_stop_.size() : 0));
        held_.clear();
        return before;
    }
    size_t keep = 0;
    for (const std::string& stop : stop_strings_) {
        if (at_end) break;
        for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
            if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
        }
    }
    std::string free = held_.substr(0, held_.size() - keep);
    held_.erase(0, free.size());
    return free;
}

}  // namespace lorad::model
