#include "server/http/generate/answer.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::server {
namespace {

void append(proto::ChoicePart& whole, proto::ChoicePart part) {
    whole.text += part.text;
    whole.reasoning += part.reasoning;
    for (proto::ToolCallPart& call : part.tool_calls) {
        if (call.index < whole.tool_calls.size()) {
            whole.tool_calls[call.index].arguments += call.arguments;
        } else {
            whole.tool_calls.push_back(std::move(call));
        }
    }
    whole.finish_reason = std::move(part.finish_reason);
    whole.stop_text = std::move(part.stop_text);
    if (part.logprobs) {
        auto& tokens = part.logprobs->tokens;
        if (!whole.logprobs) whole.logprobs.emplace();
        std::move(tokens.begin(), tokens.end(), std::back_inserter(whole.logprobs->tokens));
    }
    if (part.token_ids) {
        if (!whole.token_ids) whole.token_ids.emplace();
        whole.token_ids->insert(whole.token_ids->end(), part.token_ids->begin(), part.token_ids->end());
    }
    if (part.prompt_ids) whole.prompt_ids = std::move(part.prompt_ids);
    if (part.prompt_logprobs) whole.prompt_logprobs = std::move(part.prompt_logprobs);
}

// The n of each prompt's answers whose tokens are the most probable on average, the best first;
// without a choice to make all of them in their order.
std::vector<proto::ChoicePart> best_answers(const Generation& generation, std::vector<proto::ChoicePart> answers) {
    uint32_t n = generation.request.n, best_of = generation.request.best_of;
    if (n == best_of) return answers;
    auto mean = [&](uint32_t choice) {
        return generation.logprob_sum(choice) / std::max(generation.n_tokens(choice), 1u);
    };
    std::vector<proto::ChoicePart> best;
    for (uint32_t first = 0; first < answers.size(); first += best_of) {
        std::vector<uint32_t> order(best_of);
        std::iota(order.begin(), order.end(), first);
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return mean(a) > mean(b); });
        for (uint32_t i = 0; i < n; ++i) {
            best.push_back(std::move(answers[order[i]]));
            best.back().index = static_cast<uint32_t>(best.size()) - 1;
        }
    }
    return best;
}

// Mistral's templates take ids of nine letters and digits only.
std::string call_id(model::ToolFormat tool_format) {
    std::string digits = format("{:016x}", random_number());
    return tool_format == model::ToolFormat::kMistral ? digits.substr(0, 9) : "call_" + digits;
}

// An object where the answer would begin calls a function, unless the answer itself has to be such.
bool finds_unmarked(const Generation& generation) {
    const std::optional<proto::Structure>& structure = generation.request.structure;
    const bool is_native = generation.tool_format() == model::ToolFormat::kLlama3 ||
                           generation.request.tool_choice != proto::ToolChoice::kAuto;
    return !structure || structure->kind != proto::StructureKind::kJsonSchema || is_native;
}

std::vector<proto::FunctionTypes> functions_of(const proto::GenerateRequest& request) {
    std::vector<proto::FunctionTypes> functions = proto::argument_types(request.tools_json);
    if (!request.forced_function.empty())
        std::erase_if(functions, [&](const auto& one) { return one.name != request.forced_function; });
    return functions;
}

// The template has begun the thoughts, or the answer that is gone on with has.
bool begins_in_thoughts(const proto::GenerateRequest& request, std::string_view prompt,
                        const model::ThoughtMarks& marks) {
    size_t last = prompt.find_last_not_of(" \t\r\n");
    if (last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(marks.open)) return true;
    if (!request.continued_text) return false;
    std::string_view begun = *request.continued_text;
    size_t first = begun.find_first_not_of(" \t\r\n");
    return first != std::string_view::npos && begun.substr(first).starts_with(marks.open) &&
           begun.find(marks.close) == std::string_view::npos;
}

}  // namespace

AnswerParts::AnswerParts(Generation& generation) : generation_(generation), progress_(generation.n_choices()) {
    const proto::GenerateRequest& request = generation.request;
    for (uint32_t i = 0; i < progress_.size(); ++i) {
        const std::string& prompt = generation.prompt_of(i).text;
        if (generation.has_channels()) {
            progress_[i].channels.emplace(prompt, generation.tool_format().has_value());
            continue;
        }
        if (const auto& marks = generation.thoughts())
            progress_[i].reasoning.emplace(begins_in_thoughts(request, prompt, *marks), *marks);
        if (generation.tool_format()) {
            progress_[i].tools.emplace(*generation.tool_format(), request.forced_function, functions_of(request),
                                       finds_unmarked(generation));
        }
    }
}

void AnswerParts::separate(Progress& progress, std::string text, bool at_end, proto::ChoicePart& part) {
    if (progress.reasoning) {
        model::ReasoningParser::Output out = progress.reasoning->push(text);
        text = std::move(out.content);
        std::string reasoning = std::move(out.reasoning);
        if (at_end) {
            out = progress.reasoning->finish();
            text += out.content;
            reasoning += out.reasoning;
        }
        if (generation_.request.include_reasoning) part.reasoning = std::move(reasoning);
    }
    take_content(progress, text, at_end, part);
}

void AnswerParts::take_content(Progress& progress, std::string_view text, bool at_end, proto::ChoicePart& part) {
    if (!progress.tools) {
        part.text += text;
        return;
    }
    auto take = [&](model::ToolCallParser::Output out) {
        const size_t n_before = part.text.size();
        part.text += out.content;
        for (model::ToolCallPiece& piece : out.calls) {
            if (!makes_call(piece.index)) continue;
            part.tool_calls.push_back(call_part(piece.index, std::move(piece.name), std::move(piece.arguments),
                                                n_before + piece.content_before));
        }
    };
    take(progress.tools->push(text));
    if (!at_end) return;
    take(progress.tools->finish(part.finish_reason != "stop" || !part.stop_text.empty()));
    tell_calls(progress.tools->in_call(), progress.tools->n_calls(), part);
}

// Models write several although they are asked for one.
bool AnswerParts::makes_call(uint32_t index) const { return index == 0 || generation_.request.parallel_tool_calls; }

proto::ToolCallPart AnswerParts::call_part(uint32_t index, std::string name, std::string arguments,
                                           size_t text_before) const {
    const bool begins = !name.empty();
    return {index,      begins ? call_id(*generation_.tool_format()) : "", std::move(name), std::move(arguments), false,
            text_before};
}

// An answer that had to be this call ends with "stop", as with OpenAI. A call that a stop string cuts cannot be made.
void AnswerParts::tell_calls(bool in_call, uint32_t n_calls, proto::ChoicePart& part) const {
    const bool named = generation_.request.tool_choice == proto::ToolChoice::kNamed;
    const bool is_cut = !part.stop_text.empty() && in_call;
    if (n_calls > 0 && part.finish_reason == "stop" && !named && !is_cut) part.finish_reason = "tool_calls";
}

// Pieces of the text in their order: thoughts behind an answer begin another part.
void AnswerParts::take_channels(Progress& progress, std::string_view text, std::vector<proto::ChoicePart>& parts) {
    using Kind = model::HarmonyParser::Kind;
    const bool at_end = !parts.back().finish_reason.empty();
    const auto take = [&](std::vector<model::HarmonyParser::Piece> pieces) {
        for (model::HarmonyParser::Piece& piece : pieces) {
            if (piece.kind == Kind::kCall && !makes_call(piece.call)) continue;
            if (piece.kind == Kind::kReasoning && !generation_.request.include_reasoning) continue;
            proto::ChoicePart* part = &parts.back();
            if (piece.kind == Kind::kReasoning && (!part->text.empty() || !part->tool_calls.empty())) {
                proto::ChoicePart next;
                next.index = part->index;
                next.finish_reason = std::exchange(part->finish_reason, {});
                next.stop_text = std::exchange(part->stop_text, {});
                part = &parts.emplace_back(std::move(next));
            }
            if (piece.kind == Kind::kReasoning) {
                part->reasoning += piece.text;
            } else if (piece.kind == Kind::kContent) {
                part->text += piece.text;
            } else {
                part->tool_calls.push_back(
                    call_part(piece.call, std::move(piece.name), std::move(piece.text), part->text.size()));
            }
        }
    };
    take(progress.channels->push(text));
    if (!at_end) return;
    const bool in_call = progress.channels->in_call();
    take(progress.channels->finish(parts.back().finish_reason != "stop" || !parts.back().stop_text.empty()));
    tell_calls(in_call, progress.channels->n_calls(), parts.back());
}

void AnswerParts::begin_choice(uint32_t choice, proto::ChoicePart& part) {
    const proto::GenerateRequest& request = generation_.request;
    const PreparedPrompt& prompt = generation_.prompt_of(choice);
    const std::vector<proto::TokenLogprobs>& known = generation_.prompt_logprobs_of(choice);
    part.is_first = true;
    if (request.return_token_ids) part.prompt_ids = prompt.tokens;
    if (request.n_prompt_logprobs) part.prompt_logprobs = known;
    if (!request.echo) return;
    part.text = generation_.prompt_text(choice);
    if (!request.n_logprobs) return;
    part.logprobs.emplace();
    part.logprobs->tokens.push_back({{prompt.tokens.front(), 0.0f, 0}, {}});
    part.logprobs->tokens.insert(part.logprobs->tokens.end(), known.begin(), known.end());
}

std::vector<proto::ChoicePart> AnswerParts::parts_of(Generation::Piece piece) {
    std::vector<proto::ChoicePart> parts(1);
    proto::ChoicePart& part = parts.front();
    part.index = piece.choice;
    part.finish_reason = std::move(piece.finish_reason);
    part.stop_text = std::move(piece.stop_text);
    const proto::GenerateRequest& request = generation_.request;
    Progress& progress = progress_[piece.choice];
    if (!std::exchange(progress.begun, true)) begin_choice(piece.choice, part);
    if (!progress.channels) separate(progress, std::move(piece.text), !part.finish_reason.empty(), part);
    if (request.return_token_ids) part.token_ids = std::move(piece.ids);
    if (request.n_logprobs) {
        if (!part.logprobs) part.logprobs.emplace();
        std::move(piece.logprobs.begin(), piece.logprobs.end(), std::back_inserter(part.logprobs->tokens));
        part.logprobs->text_offset = progress.n_characters;
        for (const proto::TokenLogprobs& token : part.logprobs->tokens) {
            progress.n_characters +=
                proto::n_characters(replace_invalid_utf8(generation_.head.token_bytes(token.token.id)));
        }
    }
    if (progress.channels) take_channels(progress, piece.text, parts);
    return parts;
}

bool AnswerParts::worth_a_chunk(const proto::ChoicePart& part) const {
    // A chat's first chunk says whose the message is, whether its text is held back or not.
    if (part.is_first && generation_.request.kind == proto::ApiKind::kChat) return true;
    return !part.finish_reason.empty() || !part.text.empty() || !part.reasoning.empty() || !part.tool_calls.empty() ||
           (part.logprobs && !part.logprobs->tokens.empty()) || (part.token_ids && !part.token_ids->empty());
}

namespace {

// Takes all parts until the generation ends; false: the client has gone, and the generation is cancelled.
Result<bool> for_all_parts(Generation& generation, const HttpRequest& http,
                           const std::function<void(uint32_t choice, proto::ChoicePart part)>& take) {
    AnswerParts parts(generation);
    while (!generation.ended()) {
        for (Generation::Piece& piece : generation.next()) {
            if (piece.error) return *piece.error;
            const uint32_t choice = piece.choice;
            for (proto::ChoicePart& part : parts.parts_of(std::move(piece))) take(choice, std::move(part));
        }
        if (http.client_gone && http.client_gone()) {
            generation.cancel();
            return false;
        }
    }
    return true;
}

}  // namespace

Result<std::optional<std::vector<proto::ChoicePart>>> whole_answer(Generation& generation, const HttpRequest& http) {
    std::vector<proto::ChoicePart> answers(generation.n_choices());
    for (uint32_t i = 0; i < answers.size(); ++i) answers[i].index = i;
    TRY_ASSIGN(const bool is_whole, for_all_parts(generation, http, [&](uint32_t choice, proto::ChoicePart part) {
                   append(answers[choice], std::move(part));
               }));
    if (!is_whole) return std::optional<std::vector<proto::ChoicePart>>();
    return std::optional(best_answers(generation, std::move(answers)));
}

Result<std::optional<proto::ChoicePart>> whole_blocks(Generation& generation, const HttpRequest& http,
                                                      proto::AnswerBlocks& blocks) {
    proto::ChoicePart last;
    TRY_ASSIGN(const bool is_whole, for_all_parts(generation, http, [&](uint32_t, proto::ChoicePart part) {
                   last = std::move(part);
                   blocks.take(last);
               }));
    if (!is_whole) return std::optional<proto::ChoicePart>();
    return std::optional(std::move(last));
}

}  // namespace lorad::server
