// Writes adapters as JSON, for all routes.
#pragma once

#include <string>
#include <string_view>

#include "adapters/files/adapter.h"
#include "adapters/pool/events.h"
#include "proto/json/json.h"
#include "server/http/http.h"

namespace lorad::server {

// One object with everything known about the adapter.
void write_adapter(JsonWriter& writer, const adapters::AdapterInfo& adapter);
HttpReply adapter_reply(const adapters::AdapterInfo& adapter, int status = 200);

// The answer to a removal: the same, with "deleted" and "in_flight", the requests that still run.
HttpReply removed_reply(const adapters::AdapterInfo& adapter);

// One server-sent event with its number, so that a reader can go on where it was.
std::string event_text(const adapters::AdapterEvent& event);

}  // namespace lorad::server
