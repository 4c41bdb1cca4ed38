#include "server/chat/fit.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "proto/generate/generate_request.h"
#include "proto/json/json.h"

namespace lorad::server {
namespace {

constexpr size_t kFitsMax = 1024;
constexpr size_t kFitMessagesMax = 512;        // longer ones are looked at each time
constexpr std::chrono::seconds kSearchMax{2};  // a template that takes so long is given what was sent

std::string template_input(const ChatInput& chat, std::string_view messages, std::string_view tools,
                           std::string_view documents) {
    JsonWriter input;
    input.begin_object().key("messages").raw(messages);
    input.field("add_generation_prompt", chat.add_generation_prompt);
    if (!tools.empty()) input.key("tools").raw(tools);
    if (!documents.empty()) input.key("documents").raw(documents);
    if (!chat.kwargs_json.empty()) input.key("extra").raw(chat.kwargs_json);
    if (!chat.template_name.empty()) input.field("template", chat.template_name);
    return input.end_object().take();
}

// A tool for all: its name, what it is for, and a parameter.
struct MarkedTool {
    size_t name, description, parameter;
    std::string json;

    explicit MarkedTool(Marks& marks) : name(marks.size()), description(name + 1), parameter(name + 2) {
        JsonWriter writer;
        writer.begin_array().begin_object().field("type", "function").key("function").begin_object();
        writer.field("name", marks.add_name()).field("description", marks.add_name());
        const std::string field = marks.add_name();
        writer.key("parameters").begin_object().field("type", "object").key("properties").begin_object();
        writer.key(field).begin_object().field("type", "string").field("description", "x").end_object().end_object();
        writer.key("required").begin_array().value(field).end_array().end_object();
        json = writer.end_object().end_object().end_array().take();
    }
};

// The documents with marks for their texts; `owners`: those of each.
std::string marked_documents(const std::string& documents_json, Marks& marks,
                             std::vector<std::vector<size_t>>& owners) {
    Result<JsonDocument> document = parse_json(documents_json);
    if (!document.ok() || !document->root().is_array()) return documents_json;
    JsonWriter writer;
    writer.begin_array();
    for (const JsonValue& one : *document->root().as_array()) {
        std::vector<size_t>& owned = owners.emplace_back();
        if (!one.is_object()) {
            writer.raw(one.dump());
            continue;
        }
        writer.begin_object();
        for (const JsonMember& member : *one.as_object()) {
            writer.key(member.key);
            if (!member.value.is_string()) {
                writer.raw(member.value.dump());
                continue;
            }
            owned.push_back(marks.size());
            writer.value(marks.add_name());
        }
        writer.end_object();
    }
    return writer.end_array().take();
}

// One way that was tried.
struct Trial {
    Trial(const Conversation& conversation, const ChatInput& chat, const ChatPlan& its_plan) : plan(its_plan) {
        const std::string written = conversation.write_marked(plan, marks, messages);
        if (!chat.tools_json.empty()) tool.emplace(marks);
        std::string marked;
        if (!chat.documents_json.empty()) marked = marked_documents(chat.documents_json, marks, documents);
        input = template_input(chat, written, tool ? tool->json : std::string(), marked);
    }
    bool run(const RenderChat& render) {
        Result<std::string> rendered = render(input);
        is_ok = rendered.ok();
        if (is_ok) text = std::move(*rendered);
        marks.read(text);
        return is_ok;
    }
    bool all_out(const std::vector<size_t>& of) const {
        return std::ranges::all_of(of, [&](size_t mark) { return marks.is_out(mark); });
    }
    bool any_out(const std::vector<size_t>& of) const {
        return of.empty() || std::ranges::any_of(of, [&](size_t mark) { return marks.is_out(mark); });
    }
    // A part has to come out as it is, else the template has printed the list; how it writes a text is its own
    // business.
    bool takes(size_t message) const {
        const bool needs_whole =
            plan.contents[message] == ContentForm::kParts || plan.contents[message] == ContentForm::kOnePart;
        return std::ranges::all_of(messages[message].parts, [&](size_t mark) {
            return needs_whole ? marks.fate(mark) == Marks::Fate::kWhole : marks.is_out(mark);
        });
    }
    size_t n_taken() const {
        size_t n = 0;
        for (size_t i = 0; i < messages.size(); ++i) n += takes(i);
        return n;
    }

    ChatPlan plan;
    Marks marks;
    std::vector<MessageMarks> messages;
    std::optional<MarkedTool> tool;
    std::vector<std::vector<size_t>> documents;
    std::string input, text;
    bool is_ok = false;
};

// Looks for the plan with which a template takes a conversation.
class Search {
  public:
    Search(const Conversation& conversation, const ChatInput& chat, const RenderChat& render)
        : conversation_(conversation), chat_(chat), render_(render) {}

    ChatFit run(Trial first) {
        Trial best = with_arguments(with_contents(std::move(first)));
        // A template that refuses system messages is left to say so.
        const bool may_move = best.is_ok ? loses_system(best) : conversation_.first_developer().has_value();
        for (RoleUse roles : {RoleUse::kRenamed, RoleUse::kJoinedAtStart, RoleUse::kJoined, RoleUse::kWithUser}) {
            if (!may_move || (best.is_ok && !loses_system(best))) break;
            if (roles == RoleUse::kWithUser && !best.is_ok) break;
            ChatPlan plan = conversation_.plan();
            plan.thought_names = best.plan.thought_names;
            plan.roles = roles;
            Trial trial = with_arguments(with_contents(try_plan(plan)));
            if (trial.is_ok || !best.is_ok) best = std::move(trial);
        }
        ChatFit fit;
        fit.plan = best.plan;
        fit.is_known = best.is_ok;
        if (best.is_ok) find_losses(best, fit);
        return fit;
    }

  private:
    Trial try_plan(const ChatPlan& plan) {
        Trial trial(conversation_, chat_, plan);
        trial.run(render_);
        return trial;
    }

    // A template that does not take a thought and a text before a call may take both as the thought.
    Trial with_one_thought(Trial trial) {
        if (trial.is_ok || !conversation_.speaks_before_calls()) return trial;
        ChatPlan plan = conversation_.plan();
        plan.thought_names = trial.plan.thought_names;
        plan.roles = trial.plan.roles;
        plan.thinks_aloud = true;
        Trial other = with_contents(try_plan(plan));
        return other.is_ok ? std::move(other) : std::move(trial);
    }

    // A template that does not take arguments that are a text may take them wrapped.
    Trial with_arguments(Trial trial) {
        trial = with_one_thought(std::move(trial));
        if (trial.is_ok || !conversation_.has_text_arguments()) return trial;
        ChatPlan plan = conversation_.plan();
        plan.thought_names = trial.plan.thought_names;
        plan.roles = trial.plan.roles;
        plan.wraps_arguments = true;
        Trial other = with_contents(try_plan(plan));
        return other.is_ok ? std::move(other) : std::move(trial);
    }

    static bool change(ChatPlan& plan, ContentForm from, ContentForm to) {
        const bool is_there = std::ranges::find(plan.contents, from) != plan.contents.end();
        std::ranges::replace(plan.contents, from, to);
        return is_there;
    }

    // The same roles with contents as the template takes them. Where it takes none, what was sent, joined as texts.
    Trial with_contents(Trial trial) {
        ChatPlan plan = trial.plan;
        for (auto [from, to] :
             {std::pair(ContentForm::kParts, ContentForm::kText), std::pair(ContentForm::kNull, ContentForm::kText),
              std::pair(ContentForm::kText, ContentForm::kOnePart)}) {
            if (trial.is_ok || !change(plan, from, to)) continue;
            Trial other = try_plan(plan);
            if (other.is_ok || to == ContentForm::kText) trial = std::move(other);
        }
        if (!trial.is_ok) return trial;
        for (int round = 0; round < 2; ++round) {
            plan = trial.plan;
            bool is_changed = false;
            for (size_t i = 0; i < plan.contents.size(); ++i) {
                ContentForm& form = plan.contents[i];
                if (trial.takes(i) || form == ContentForm::kOnePart) continue;
                form = form == ContentForm::kParts ? ContentForm::kText : ContentForm::kOnePart;
                is_changed = true;
            }
            if (!is_changed || (!improve(trial, plan) &&
                                !(change(plan, ContentForm::kText, ContentForm::kOnePart) && improve(trial, plan))))
                break;
        }
        return without_none(std::move(trial));
    }

    bool improve(Trial& trial, const ChatPlan& plan) {
        Trial other = try_plan(plan);
        if (!other.is_ok || other.n_taken() <= trial.n_taken()) return false;
        trial = std::move(other);
        return true;
    }

    // A template that joins a content with texts prints "None" where there is none.
    Trial without_none(Trial trial) {
        ChatPlan plan = trial.plan;
        if (!change(plan, ContentForm::kNull, ContentForm::kText)) return trial;
        const size_t n_none = count_none(trial.text);
        if (n_none == 0) return trial;
        Trial other = try_plan(plan);
        return other.is_ok && count_none(other.text) < n_none ? std::move(other) : std::move(trial);
    }
    static size_t count_none(std::string_view text) {
        size_t n = 0;
        for (size_t at = text.find("None"); at != std::string_view::npos; at = text.find("None", at + 4)) ++n;
        return n;
    }

    bool loses_system(const Trial& trial) const {
        for (size_t i = 0; i < conversation_.size(); ++i) {
            if (conversation_.is_system(i) && !trial.all_out(trial.messages[i].parts)) return true;
        }
        return false;
    }

    bool shows_anything(const Trial& trial, size_t message) const {
        const MessageMarks& marks = trial.messages[message];
        const auto is_out = [&](const std::optional<size_t>& mark) { return mark && trial.marks.is_out(*mark); };
        return trial.any_out(marks.parts) || is_out(marks.reasoning) ||
               std::ranges::any_of(marks.calls, [&](const MessageMarks::Call& call) { return is_out(call.name); });
    }

    // A message that a client wants to be gone on with is looked for where the prompt is cut.
    bool is_continued(size_t message) const { return chat_.continued_text && message + 1 == conversation_.size(); }

    void find_losses(const Trial& trial, ChatFit& fit) const {
        std::set<std::string_view> shown_roles;
        for (size_t i = 0; i < conversation_.size(); ++i) {
            if (shows_anything(trial, i)) shown_roles.insert(conversation_.role(i));
        }
        for (size_t i = 0; i < conversation_.size(); ++i) {
            const bool is_dropped = conversation_.is_system(i) ? !trial.all_out(trial.messages[i].parts)
                                                               : !shown_roles.contains(conversation_.role(i));
            if (is_dropped && !is_continued(i)) {
                const std::string param = format("messages[{}].role", i);
                fit.refused =
                    make_error(ErrorCode::kInvalidRequest,
                               format("{}: the chat template shows the model nothing of this message of the role {}",
                                      param, json_quote_short(conversation_.role(i))),
                               param);
                return;
            }
            find_losses_of(trial, i, fit.unread);
        }
        const auto lost = [&](size_t mark) { return !trial.marks.is_out(mark); };
        if (trial.tool && lost(trial.tool->name)) {
            fit.unread.push_back("tools");
        } else if (trial.tool) {
            if (lost(trial.tool->description)) fit.unread.push_back("tools.function.description");
            if (lost(trial.tool->parameter)) fit.unread.push_back("tools.function.parameters");
        }
        for (size_t i = 0; i < trial.documents.size(); ++i) {
            if (!trial.any_out(trial.documents[i])) fit.unread.push_back(format("documents[{}]", i));
        }
        if (fit.unread.size() > proto::kIgnoredFieldsMax) fit.unread.resize(proto::kIgnoredFieldsMax);
    }

    void find_losses_of(const Trial& trial, size_t message, std::vector<std::string>& unread) const {
        const MessageMarks& marks = trial.messages[message];
        const std::string path = format("messages[{}]", message);
        const auto lost = [&](const std::optional<size_t>& mark) { return mark && !trial.marks.is_out(*mark); };
        if (!trial.all_out(marks.parts)) unread.push_back(path + ".content");
        // A template that reads thoughts leaves those of earlier turns out on purpose.
        if (lost(marks.reasoning) && trial.plan.thought_names.empty())
            unread.push_back(path + "." + conversation_.reasoning_name(message));
        if (lost(marks.name)) unread.push_back(path + ".name");
        for (size_t i = 0; i < marks.calls.size(); ++i) {
            const std::string call = format("{}.tool_calls[{}]", path, i);
            if (lost(marks.calls[i].name)) {
                unread.push_back(call);
            } else if (lost(marks.calls[i].arguments)) {
                unread.push_back(call + ".function.arguments");
            }
        }
    }

    const Conversation& conversation_;
    const ChatInput& chat_;
    const RenderChat& render_;
};

// Returns true if a thought under this name is ever shown: some templates show only those since the last question, some
// only those before a call.
bool reads_thoughts(std::string_view name, const RenderChat& render) {
    for (std::string_view behind :
         {R"(}])", R"(},{"role":"user","content":"q"}])",
          R"(,"tool_calls":[{"id":"c12345678","type":"function","function":{"name":"f","arguments":{"a":"b"}}}]},)"
          R"({"role":"tool","tool_call_id":"c12345678","content":"r"}])"}) {
        Marks marks;
        std::string messages = R"([{"role":"user","content":"q"},{"role":"assistant","content":"",)";
        messages += format(R"("{}":"{}")", name, marks.add_name());
        Result<std::string> rendered = render(template_input({}, messages.append(behind), {}, {}));
        if (!rendered.ok()) continue;
        marks.read(*rendered);
        if (marks.is_out(0)) return true;
    }
    return false;
}

// The names under which the template looks for what the assistant thought, the usual ones first.
std::vector<std::string> thought_names(const RenderChat& render) {
    std::vector<std::string> names;
    for (std::string_view name : {"reasoning_content", "reasoning", "thinking"}) {
        if (reads_thoughts(name, render)) names.emplace_back(name);
    }
    return names;
}

std::string shape_of(std::string_view template_id, std::string_view input) {
    Sha256 hash;
    hash.add(template_id);
    hash.add("\n");
    hash.add(input);
    return hash.hex();
}

}  // namespace

std::optional<bool> shows_tools(const RenderChat& render) {
    Marks marks;
    const MarkedTool tool(marks);
    for (std::string_view messages :
         {R"([{"role":"user","content":"q"}])", R"([{"role":"system","content":"s"},{"role":"user","content":"q"}])"}) {
        Result<std::string> rendered = render(template_input({}, messages, tool.json, {}));
        if (!rendered.ok()) continue;
        marks.read(*rendered);
        return marks.is_out(tool.name);
    }
    return std::nullopt;
}

Result<FittedChat> ChatFits::fit(std::string_view template_id, const ChatInput& chat, std::string_view appended,
                                 const RenderChat& render) {
    TRY_ASSIGN(const Conversation conversation, Conversation::parse(chat.messages_json));
    // A rendering that takes too much, or fails for other reasons, proves nothing about the template.
    bool is_certain = true;
    std::optional<Error> failure;  // the first outside of the template: nothing is rendered after it
    const auto begun = std::chrono::steady_clock::now();
    const RenderChat observed = [&](const std::string& input) -> Result<std::string> {
        if (failure) return *failure;
        if (std::chrono::steady_clock::now() - begun > kSearchMax) {
            is_certain = false;
            return make_error(ErrorCode::kInvalidRequest, "the chat template takes too long");
        }
        Result<std::string> rendered = render(input);
        if (rendered.ok() || rendered.error().code == ErrorCode::kInvalidRequest) return rendered;
        is_certain = false;
        // One form may take more than there is where another does not; if that which is chosen does, its own rendering
        // says so.
        if (rendered.error().code != ErrorCode::kInputTooComplex) failure = rendered.error();
        return rendered;
    };
    ChatPlan plan = conversation.plan();
    if (conversation.has_reasoning()) {
        const std::string shape = shape_of(template_id, "thoughts");
        std::optional<ChatFit> fit = known(shape);
        if (!fit) {
            fit.emplace().plan.thought_names = thought_names(observed);
            if (failure) return *failure;
            if (is_certain) keep(shape, *fit);
        }
        plan.thought_names = fit->plan.thought_names;
    }
    Trial first(conversation, chat, plan);
    const std::string shape = shape_of(template_id, first.input);
    std::optional<ChatFit> fit = known(shape);
    if (!fit) {
        first.run(observed);
        fit = Search(conversation, chat, observed).run(std::move(first));
        if (failure) return *failure;
        if (is_certain && conversation.size() <= kFitMessagesMax) keep(shape, *fit);
    }
    if (fit->refused) return *fit->refused;
    FittedChat fitted{
        template_input(chat, conversation.write(fit->plan, appended), chat.tools_json, chat.documents_json),
        std::move(fit->unread)};
    if (const std::optional<size_t> developer = conversation.first_developer(); developer && !fit->is_known)
        fitted.developer = format("messages[{}].role", *developer);
    return fitted;
}

std::optional<ChatFit> ChatFits::known(const std::string& shape) {
    MutexLock lock(mutex_);
    const auto found = by_shape_.find(shape);
    if (found == by_shape_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->fit;
}

void ChatFits::keep(const std::string& shape, const ChatFit& fit) {
    MutexLock lock(mutex_);
    if (by_shape_.contains(shape)) return;
    entries_.push_front({shape, fit});
    by_shape_.emplace(entries_.front().shape, entries_.begin());
    if (entries_.size() <= kFitsMax) return;
    by_shape_.erase(entries_.back().shape);
    entries_.pop_back();
}

}  // namespace lorad::server
