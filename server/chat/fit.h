// How a conversation is given to a chat template, so that nothing of it is lost in silence. Found out by rendering it
// once with marks in the place of its texts; conversations of the same shape share what was found.
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

// What a template makes of its input, which is as model::ChatTemplate::render() takes it.
using RenderChat = std::function<Result<std::string>(const std::string& input)>;

struct ChatFit {
    ChatPlan plan;
    bool is_known = false;  // the template has rendered it
    // What the template does not show: "tools", "messages[2].tool_calls[0]".
    std::vector<std::string> unread;
    // A message of which nothing is shown; naming its role.
    std::optional<Error> refused;
};

struct FittedChat {
    std::string input;  // for the template
    std::vector<std::string> unread;
    // The role of a developer's message where no way to put it was found that the template renders; else empty.
    std::string developer = {};
};

// Whether the template shows tools to the model; nothing where it does not render a chat at all.
std::optional<bool> shows_tools(const RenderChat& render);

// What is known of templates and shapes of conversations, the last used first. Any thread.
class ChatFits {
  public:
    // `template_id`: the same for the same template; `appended` stands behind the last message's text. kInvalidRequest
    // for messages of which the template shows nothing, but for those that it lets stand in a system message. A
    // template that fails here is given the conversation as it was sent, and says itself what is wrong. What `render`
    // answers that is neither kInvalidRequest nor kInputTooComplex, such as kOverloaded, is no word of the template: it
    // is returned, and nothing kept.
    // Takes the time of some renderings, of which no new one begins after 2 s: `render` should not wait for others.
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
