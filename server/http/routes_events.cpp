// Sends events about adapters, as server-sent events.
#include <charconv>

#include "proto/base/format.h"
#include "server/access/principal.h"
#include "server/http/adapter_access.h"
#include "server/http/adapter_json.h"
#include "server/http/place.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

constexpr std::chrono::milliseconds kPoll{200};  // between two looks at the client and the server
constexpr std::chrono::seconds kHeartbeat{15};   // proxies close what is silent for long

// The number of the last event that the client has seen: those after it are sent, as far as they are
// kept. Without one, only what happens from now on.
Result<uint64_t> first_number(const ServerContext& context, const HttpRequest& request) {
    std::string text = request.last_event_id;
    std::string_view param = "Last-Event-ID";
    if (std::optional<std::string_view> after = request.query_value("after")) {
        text = std::string(*after);
        param = "after";
    }
    uint64_t last = context.registry.events().last_number();
    if (text.empty()) return last;
    uint64_t number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) {
        return make_error(ErrorCode::kInvalidRequest, format("{}: expected the number of an event", param),
                          std::string(param));
    }
    return std::min(number, last);
}

void send_events(ServerContext& context, const std::shared_ptr<const access::Principal>& key, HttpSink& sink,
                 uint64_t last) {
    using Clock = std::chrono::steady_clock;
    if (!sink.write(": lorad\n\n")) return;
    Clock::time_point sent = Clock::now();
    while (context.engine.accepting()) {
        std::string out;
        for (const adapters::AdapterEvent& event : context.registry.events().next(last, kPoll)) {
            // A reader that is too slow for the events that are kept has missed some: it is told so
            // and let go, and can look at the list and begin again.
            if (event.number != last + 1) {
                sink.write(out + format("event: missed\ndata: {{\"object\":\"adapter_event\",\"event\":"
                                        "\"missed\",\"number\":{}}}\n\n",
                                        last + 1));
                return;
            }
            last = event.number;
            // Events without a name, as of uploads, are nobody's whose adapters are told by names.
            const bool is_hidden =
                key != nullptr && key->is_restricted() && (event.name.empty() || !key->may_use(event.name));
            if (!is_hidden) out += event_text(event);
        }
        if (out.empty() && Clock::now() - sent >= kHeartbeat) out = ": heartbeat\n\n";
        if (out.empty()) {
            if (sink.client_gone()) return;
            continue;
        }
        if (!sink.write(out)) return;
        sent = Clock::now();
    }
}

}  // namespace

HttpReply watch_adapters(ServerContext& context, const HttpRequest& request) {
    Result<uint64_t> last = first_number(context, request);
    if (!last.ok()) return error_reply(last.error());
    // Held for as long as the reply lives.
    auto place = std::make_shared<access::SharedPlaces::Place>(context.watchers_now.take(holder_of(request)));
    if (!place->taken())
        return error_reply(make_error(ErrorCode::kOverloaded,
                                      "as many readers of events as there may be, or as one key or address may have"));
    HttpReply reply;
    reply.content_type = "text/event-stream";
    reply.headers.emplace_back("Cache-Control", "no-cache");
    reply.headers.emplace_back("X-Accel-Buffering", "no");
    reply.stream = [&context, place, key = request.principal, last = *last](HttpSink& sink) {
        send_events(context, key, sink, last);
    };
    return reply;
}

}  // namespace lorad::server
