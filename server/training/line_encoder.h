// Turns a line of a training file into sequences to train on: tokens, and labels that say which of them are predicted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/training/training_line.h"
#include "server/training/chat_mask.h"
#include "server/training/training_text.h"

namespace lorad::server::training {

struct TrainingSequence {
    std::vector<TokenId> tokens;
    // as many: proto::kUntrained, or the token that is predicted from those before. That of the first place is not used
    std::vector<int32_t> labels;
    uint32_t line = 0;  // in the file, from 1
    uint32_t n_trained() const;
};

struct EncodeOptions {
    TrainOn train_on = TrainOn::kAssistant;
    uint32_t max_seq_length = 0;   // tokens of a sequence
    bool refuse_overlong = false;  // else longer ones are cut from their end; texts become several sequences
    uint32_t vocab_size = 0;
};

struct EncodedLine {
    std::vector<TrainingSequence> sequences;
    std::vector<std::string> unread;  // fields that the template does not show
    uint32_t n_cut_tokens = 0;
    bool is_overlong = false;
    bool has_empty_answer = false;
    bool lacks_end = false;  // nothing tells the model where its answer ends
};

// kInvalidRequest with the reason: the line's form, a template that refuses it, no trained token. Any thread.
class LineEncoder {
  public:
    LineEncoder(const TrainingText& text, const EncodeOptions& options) : text_(text), options_(options) {}
    Result<EncodedLine> encode(std::string_view line, proto::LineFormat format) const;

  private:
    Status encode_chat(const proto::TrainingLine& line, EncodedLine& encoded) const;
    Status encode_completion(const proto::TrainingLine& line, EncodedLine& encoded) const;
    Status encode_text(const proto::TrainingLine& line, EncodedLine& encoded) const;
    Status bound(EncodedLine& encoded) const;

    const TrainingText& text_;
    const EncodeOptions options_;
};

}  // namespace lorad::server::training
