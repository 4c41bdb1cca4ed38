// Finds how to give a conversation to a chat template so that nothing of it is lost silently. It renders the
// conversation once with marks in place of its texts; conversations of the same shape share the result.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "server/chat/conversation.h"
#include "server/text_codec.h"

namespace lorad::server {

// Renders a template with an input in the form that model::ChatTemplate::render() takes.
using RenderChat = std::function<Result<std::string>(const std::string& input)>;

struct ChatFit {
    ChatPlan plan;
    bool is_known = false;  // the template has rendered it
    // Parts that the template does not show: "tools", "messages[2].tool_calls[0]".
    std::vector<std::string> unread;
    // Set if nothing of a message is shown; names its role.
    std::optional<Error> refused;
};

struct FittedChat {
    std::string input;  // for the template
    std::vector<std::string> unread;
    // The role of a developer's message where no way to put it was found that the template renders; else empty.
    std::string developer = {};
};

// Returns true if the template shows tools to the model; nothing if it cannot render a chat at all.
std::optional<bool> shows_tools(const RenderChat& render);

// The known fits of templates and shapes of conversations, most recently used first. Any thread.
class ChatFits {
  public:
    // `template_id`: equal for equal templates; `appended` is put behind the last message's text. kInvalidRequest for
    // messages of which the template shows nothing, except for those that it takes in a system message. A template that
    // fails here is given the conversation as sent, and reports itself what is wrong. An error of `render` other than
    // kInvalidRequest and kInputTooComplex, such as kOverloaded, is not the template's: it is returned, and nothing is
    // kept. Takes the time of some renderings; none begins after 2 s: `render` should not wait for others.
    Result<FittedChat> fit(std::string_view template_id, const ChatInput& chat, std::string_view appended,
                           const RenderChat& render);

  private:
    std::optional<ChatFit> known(const std::string& shape);
    void keep(const std::string& shape, const ChatFit& fit);

    struct Entry {
        std::string shape;
        ChatFit fit;
    };
    Mutex mutex_;
    std::list<Entry> entries_ GUARDED_BY(mutex_);
    std::unordered_map<std::string_view, std::list<Entry>::iterator> by_shape_ GUARDED_BY(mutex_);  // into entries_
};

}  // namespace lorad::server
