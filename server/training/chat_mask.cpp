#include "server/training/chat_mask.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::server::training {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
// The limit for one line: its time grows with the square of its answers.
constexpr std::chrono::seconds kLineTimeMax{10};

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// The chats that a line's answers are found with.
class Masker {
  public:
    Masker(const proto::TrainingLine& line, const TrainingText& text) : line_(line), text_(text) {}

    Result<std::vector<MaskedText>> run(TrainOn train_on) {
        if (train_on == TrainOn::kExpand) return expand();
        TRY_ASSIGN(TrainingChat chat, render(line_.messages.size(), false));
        whole_ = std::move(chat.text);
        MaskedText masked;
        masked.unread = std::move(chat.unread);
        std::vector<size_t> answers = trained_answers();
        if (train_on == TrainOn::kLast) answers = {answers.back()};
        if (train_on == TrainOn::kAll) {
            masked.trained = {{0, whole_.size()}};
        } else if (use_marks(chat.marked, answers, masked.trained)) {
            masked.lacks_end =
                std::ranges::none_of(masked.trained, [&](model::TextSpan span) { return has_end(span); });
        } else {
            for (const size_t message : answers) {
                TRY_ASSIGN(const Answer answer, find_answer(message));
                masked.trained.push_back(answer.span);
                masked.lacks_end = masked.lacks_end || !answer.has_end;
            }
        }
        masked.text = std::move(whole_);
        return std::vector<MaskedText>{std::move(masked)};
    }

  private:
    struct Answer {
        model::TextSpan span;
        bool has_end = false;
    };

    std::vector<size_t> trained_answers() const {
        std::vector<size_t> answers;
        for (size_t i = 0; i < line_.messages.size(); ++i) {
            if (line_.messages[i].is_trained) answers.push_back(i);
        }
        return answers;
    }

    // The first n messages, the last of them `last` where that is given.
    Result<TrainingChat> render(size_t n, bool add_generation_prompt, const std::string* last = nullptr) const {
        if (std::chrono::steady_clock::now() - begun_ > kLineTimeMax) {
            return make_error(
                ErrorCode::kInputTooComplex,
                format("the chat template takes more than {} s for the answers of this line; split the conversation",
                       kLineTimeMax.count()));
        }
        ChatInput chat;
        chat.messages_json = "[";
        for (size_t i = 0; i < n; ++i) {
            if (i > 0) chat.messages_json += ',';
            chat.messages_json += last != nullptr && i + 1 == n ? *last : line_.messages[i].json;
        }
        chat.messages_json += ']';
        chat.tools_json = line_.tools_json;
        chat.add_generation_prompt = add_generation_prompt;
        return text_.render(chat);
    }

    // True where the template's marks tell the answers apart.
    bool use_marks(const std::vector<model::TextSpan>& marked, const std::vector<size_t>& answers,
                   std::vector<model::TextSpan>& trained) const {
        if (marked.empty()) return false;
        const auto n_assistant =
            static_cast<size_t>(std::ranges::count_if(line_.messages, &proto::TrainingMessage::is_assistant));
        if (marked.size() != n_assistant) {
            if (answers.size() != n_assistant) return false;
            trained = marked;
            return true;
        }
        size_t at = 0;
        for (size_t i = 0; i < line_.messages.size(); ++i) {
            if (!line_.messages[i].is_assistant) continue;
            if (std::ranges::find(answers, i) != answers.end()) trained.push_back(marked[at]);
            ++at;
        }
        return true;
    }

    bool has_end(model::TextSpan span) const {
        const std::string_view part = std::string_view(whole_).substr(span.begin, span.end - span.begin);
        return std::ranges::any_of(text_.end_texts(),
                                   [&](const std::string& end) { return part.find(end) != std::string_view::npos; });
    }

    // Finds where the answer begins in `tail`, the chat that ends with it: behind the generation prompt; if the
    // template does not write answers that way, where two other answers would begin to differ.
    Result<size_t> begin_of(size_t message, std::string_view tail) const {
        const Result<TrainingChat> head = render(message, true);
        if (head.ok() && tail.starts_with(head->text)) return head->text.size();
        std::array<std::string, 2> others;
        for (size_t i = 0; i < others.size(); ++i) {
            const std::string other = JsonWriter()
                                          .begin_object()
                                          .field("role", "assistant")
                                          .field("content", i == 0 ? "1" : "2")
                                          .end_object()
                                          .take();
            TRY_ASSIGN(TrainingChat chat, render(message + 1, false, &other));
            others[i] = std::move(chat.text);
        }
        const auto [first, second] = std::ranges::mismatch(others[0], others[1]);
        const auto n_same = static_cast<size_t>(first - others[0].begin());
        if (n_same < others[0].size() && tail.starts_with(std::string_view(others[0]).substr(0, n_same))) return n_same;
        return make_error(ErrorCode::kInvalidRequest,
                          format("messages[{}]: the chat template has no {{% generation %}} marks and does not show "
                                 "where this answer begins; use train_on: all, or "
                                 "a template with marks",
                                 message));
    }

    // The end of the answer: behind the first end token at or behind its content.
    Answer cut(size_t message, size_t begin, std::string_view tail) const {
        const std::string_view content = line_.messages[message].content;
        size_t from = begin;
        for (const std::string_view wanted : {content, trimmed(content)}) {
            const size_t found = wanted.empty() ? std::string_view::npos : tail.find(wanted, begin);
            if (found == std::string_view::npos) continue;
            from = found + wanted.size();
            break;
        }
        size_t nearest = std::string_view::npos, end = 0;
        for (const std::string& text : text_.end_texts()) {
            const size_t found = tail.find(text, from);
            if (found < nearest) nearest = found, end = found + text.size();
        }
        if (nearest != std::string_view::npos) return {{begin, end}, true};
        const size_t last = tail.find_last_not_of(kBlanks);
        return {{begin, std::max(from, last == std::string_view::npos ? 0 : last + 1)}, false};
    }

    Result<Answer> find_answer(size_t message) const {
        std::string tail = whole_;
        if (message + 1 < line_.messages.size()) {
            TRY_ASSIGN(TrainingChat chat, render(message + 1, false));
            tail = std::move(chat.text);
        }
        TRY_ASSIGN(const size_t begin, begin_of(message, tail));
        const Answer answer = cut(message, begin, tail);
        if (std::string_view(whole_).substr(0, answer.span.end) == std::string_view(tail).substr(0, answer.span.end))
            return answer;
        return make_error(ErrorCode::kInvalidRequest,
                          format("messages[{}]: the chat template shows this answer differently once more follows, so "
                                 "its place in the whole is not known; use "
                                 "train_on: last, or expand (each answer becomes an example of its own)",
                                 message));
    }

    // Each answer at the end of the conversation before it, as the model would have to give it.
    Result<std::vector<MaskedText>> expand() {
        std::vector<MaskedText> examples;
        for (const size_t message : trained_answers()) {
            TRY_ASSIGN(TrainingChat chat, render(message + 1, false));
            whole_ = std::move(chat.text);
            TRY_ASSIGN(const size_t begin, begin_of(message, whole_));
            const Answer answer = cut(message, begin, whole_);
            examples.push_back({std::move(whole_), {answer.span}, std::move(chat.unread), !answer.has_end});
        }
        return examples;
    }

    const proto::TrainingLine& line_;
    const TrainingText& text_;
    const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    std::string whole_;
};

}  // namespace

std::optional<TrainOn> train_on_of(std::string_view name) {
    static constexpr std::array<std::pair<std::string_view, TrainOn>, 4> kNames = {{{"assistant", TrainOn::kAssistant},
                                                                                    {"last", TrainOn::kLast},
                                                                                    {"expand", TrainOn::kExpand},
                                                                                    {"all", TrainOn::kAll}}};
    const auto found = std::ranges::find(kNames, name, [](const auto& entry) { return entry.first; });
    return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

Result<std::vector<MaskedText>> mask_chat(const proto::TrainingLine& line, TrainOn train_on, const TrainingText& text) {
    return Masker(line, text).run(train_on);
}

}  // namespace lorad::server::training
