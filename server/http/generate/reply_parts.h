// Parts of answers that several routes share. HTTP workers.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "server/http/routes.h"

namespace lorad::server {

// Fields of a body that had no effect, for the header x-lorad-ignored-fields; an error, naming the
// first, where the server is strict.
Result<std::string> ignored_fields_header(const ServerContext& context, std::span<const std::string> ignored_fields);
// Adds the header, with unread_fields (not shown by the chat template) behind the ignored fields.
void add_ignored_fields(HttpReply& reply, const std::string& header, std::span<const std::string> unread_fields = {});
// The same for keywords of schemas that no grammar can hold, so that answers need not obey them: x-lorad-not-enforced.
Result<std::string> not_enforced_header(const ServerContext& context, std::span<const std::string> keywords);
void add_not_enforced(HttpReply& reply, const std::string& header);

// Server-sent events that `write` writes.
HttpReply event_stream(std::function<void(HttpSink&)> write);

// The error for a client that went away, or closed its side of the connection, which looks the same.
Error client_closed();

}  // namespace lorad::server
