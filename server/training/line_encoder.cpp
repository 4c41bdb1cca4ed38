#include "server/training/line_encoder.h"

#include <algorithm>

#include "proto/base/format.h"

namespace lorad::server::training {
namespace {

using proto::kUntrained;

// A token is trained where its first character is: one that begins before an answer and reaches into it is not.
void add_labels(const model::PlacedTokens& placed, const std::vector<model::TextSpan>& trained,
                TrainingSequence& sequence) {
    size_t span = 0;
    for (size_t i = 0; i < placed.ids.size(); ++i) {
        const uint32_t begin = placed.begins[i];
        while (span < trained.size() && begin >= trained[span].end) ++span;
        const bool is_in = span < trained.size() && begin >= trained[span].begin;
        sequence.tokens.push_back(placed.ids[i]);
        sequence.labels.push_back(is_in ? placed.ids[i] : kUntrained);
    }
}

Error nothing_trained(std::string_view why) {
    return make_error(ErrorCode::kInvalidRequest, format("no token of the line is trained{}", why));
}

}  // namespace

uint32_t TrainingSequence::n_trained() const {
    if (labels.empty()) return 0;
    return static_cast<uint32_t>(
        std::count_if(labels.begin() + 1, labels.end(), [](int32_t label) { return label != kUntrained; }));
}

Status LineEncoder::encode_chat(const proto::TrainingLine& line, EncodedLine& encoded) const {
    TRY_ASSIGN(const std::vector<MaskedText> texts, mask_chat(line, options_.train_on, text_));
    for (const MaskedText& one : texts) {
        TRY_ASSIGN(const model::PlacedTokens placed, text_.encode(one.text));
        TrainingSequence sequence;
        add_labels(placed, one.trained, sequence);
        encoded.sequences.push_back(std::move(sequence));
        for (const std::string& field : one.unread) {
            if (std::ranges::find(encoded.unread, field) == encoded.unread.end()) encoded.unread.push_back(field);
        }
        encoded.lacks_end = encoded.lacks_end || one.lacks_end;
    }
    encoded.has_empty_answer = std::ranges::any_of(
        line.messages, [](const proto::TrainingMessage& message) { return message.is_trained && message.is_empty; });
    return ok_status();
}

// One text, so that its tokens are those that the model sees when it answers.
Status LineEncoder::encode_completion(const proto::TrainingLine& line, EncodedLine& encoded) const {
    if (!line.messages.empty()) return encode_chat(line, encoded);
    TRY_ASSIGN(const model::PlacedTokens placed, text_.encode(line.prompt + line.completion));
    TrainingSequence sequence;
    for (const TokenId token : text_.begin_tokens()) {
        sequence.tokens.push_back(token);
        sequence.labels.push_back(kUntrained);
    }
    const size_t begin = options_.train_on == TrainOn::kAll ? 0 : line.prompt.size();
    add_labels(placed, {{begin, line.prompt.size() + line.completion.size()}}, sequence);
    if (text_.end_token() >= 0) {
        sequence.tokens.push_back(text_.end_token());
        sequence.labels.push_back(text_.end_token());
    } else {
        encoded.lacks_end = true;
    }
    encoded.has_empty_answer = line.completion.find_first_not_of(" \t\r\n") == std::string::npos;
    encoded.sequences.push_back(std::move(sequence));
    return ok_status();
}

// A longer text is several sequences, each of which begins as texts do.
Status LineEncoder::encode_text(const proto::TrainingLine& line, EncodedLine& encoded) const {
    TRY_ASSIGN(model::PlacedTokens placed, text_.encode(line.text));
    if (text_.end_token() >= 0) placed.ids.push_back(text_.end_token());
    const std::vector<TokenId>& begin = text_.begin_tokens();
    const size_t room = options_.refuse_overlong
                            ? placed.ids.size()
                            : std::max<size_t>(options_.max_seq_length, begin.size() + 2) - begin.size();
    for (size_t from = 0; from < placed.ids.size(); from += room) {
        const size_t to = std::min(placed.ids.size(), from + room);
        TrainingSequence sequence;
        sequence.tokens = begin;
        sequence.tokens.insert(sequence.tokens.end(), placed.ids.begin() + static_cast<ptrdiff_t>(from),
                               placed.ids.begin() + static_cast<ptrdiff_t>(to));
        if (sequence.tokens.size() < 2) break;  // nothing would be predicted
        sequence.labels.assign(sequence.tokens.begin(), sequence.tokens.end());
        encoded.sequences.push_back(std::move(sequence));
    }
    encoded.is_overlong = placed.ids.size() > room;
    return ok_status();
}

Status LineEncoder::bound(EncodedLine& encoded) const {
    uint64_t n_trained = 0;
    for (TrainingSequence& sequence : encoded.sequences) {
        if (!sequence.labels.empty()) sequence.labels[0] = kUntrained;
        const size_t n = sequence.tokens.size();
        if (n > options_.max_seq_length) {
            if (options_.refuse_overlong) {
                return make_error(ErrorCode::kInvalidRequest,
                                  format("{} tokens, max_seq_length is {}", n, options_.max_seq_length),
                                  "max_seq_length");
            }
            encoded.is_overlong = true;
            encoded.n_cut_tokens += static_cast<uint32_t>(n - options_.max_seq_length);
            sequence.tokens.resize(options_.max_seq_length);
            sequence.labels.resize(options_.max_seq_length);
        }
        for (const TokenId token : sequence.tokens) {
            if (static_cast<uint32_t>(token) >= options_.vocab_size)
                return make_error(
                    ErrorCode::kInvalidRequest,
                    format("the tokenizer gives the token {}, the model has {}", token, options_.vocab_size));
        }
        n_trained += sequence.n_trained();
    }
    if (n_trained > 0) {
        std::erase_if(encoded.sequences, [](const TrainingSequence& sequence) { return sequence.n_trained() == 0; });
        return ok_status();
    }
    return nothing_trained(
        encoded.is_overlong ? format(" once it is cut to max_seq_length, {} tokens", options_.max_seq_length) : "");
}

Result<EncodedLine> LineEncoder::encode(std::string_view text, proto::LineFormat format) const {
    TRY_ASSIGN(proto::TrainingLine line, proto::parse_training_line(text, format, options_.vocab_size));
    EncodedLine encoded;
    switch (format) {
        case proto::LineFormat::kChat: TRY(encode_chat(line, encoded)); break;
        case proto::LineFormat::kCompletion: TRY(encode_completion(line, encoded)); break;
        case proto::LineFormat::kText: TRY(encode_text(line, encoded)); break;
        case proto::LineFormat::kTokens:
            encoded.sequences.push_back({std::move(line.tokens), std::move(line.labels), 0});
            break;
    }
    TRY(bound(encoded));
    return encoded;
}

}  // namespace lorad::server::training
