#include "server/http/adapter_json.h"

#include "proto/base/format.h"

namespace lorad::server {
namespace {

void write_terms(JsonWriter& writer, const std::vector<adapters::AdapterTerm>& terms) {
    writer.begin_array();
    for (const adapters::AdapterTerm& term : terms)
        writer.begin_object().field("name", term.name).field("scale", term.scale).end_object();
    writer.end_array();
}

void write_fields(JsonWriter& writer, const adapters::AdapterInfo& adapter) {
    writer.field("id", adapter.name)
        .field("object", "lora_adapter")
        .field("generation", adapter.generation)
        .field("state", adapter.draining ? "draining" : adapters::name_of(adapter.state))
        .field("tier", adapters::name_of(adapter.tier))
        .field("mode", adapters::name_of(adapter.mode))
        .field("pinned", adapter.pinned)
        .field("rank", adapter.rank)
        .field("modules", adapter.n_modules)
        .field("bytes", adapter.device_bytes)
        .field("stored_bytes", adapter.stored_bytes)
        .field("active_requests", adapter.n_leases)
        .field("waiting_requests", adapter.n_waiting)
        .field("created", adapter.loaded_at_s);
    if (!adapter.mix.empty()) {
        writer.key("adapters");
        write_terms(writer, adapter.mix);
    }
    if (!adapter.problem.empty()) writer.field("problem", adapter.problem);
    if (!adapter.warnings.empty()) {
        writer.key("warnings").begin_array();
        for (const std::string& warning : adapter.warnings) writer.value(warning);
        writer.end_array();
    }
    writer.key("history").begin_array();
    for (const adapters::PastTarget& past : adapter.history) {
        writer.begin_object()
            .field("generation", past.generation)
            .field("from", past.from_s)
            .field("until", past.until_s);
        if (!past.mix.empty()) {
            writer.key("adapters");
            write_terms(writer, past.mix);
        }
        writer.end_object();
    }
    writer.end_array();
}

}  // namespace

void write_adapter(JsonWriter& writer, const adapters::AdapterInfo& adapter) {
    writer.begin_object();
    write_fields(writer, adapter);
    writer.end_object();
}

HttpReply adapter_reply(const adapters::AdapterInfo& adapter, int status) {
    JsonWriter writer;
    write_adapter(writer, adapter);
    return json_reply(writer.take(), status);
}

HttpReply removed_reply(const adapters::AdapterInfo& adapter) {
    JsonWriter writer;
    writer.begin_object();
    write_fields(writer, adapter);
    writer.field("deleted", true).field("in_flight", adapter.n_leases).end_object();
    return json_reply(writer.take());
}

std::string event_text(const adapters::AdapterEvent& event) {
    JsonWriter writer;
    writer.begin_object()
        .field("object", "adapter_event")
        .field("number", event.number)
        .field("at_ms", event.at_ms)
        .field("event", adapters::name_of(event.kind))
        .field("id", event.name)
        .field("generation", event.generation);
    if (!event.detail.empty()) writer.field("detail", event.detail);
    if (!event.blob.empty()) {
        writer.field("digest", "sha256:" + event.blob).field("bytes", event.bytes);
        if (event.bytes_total) writer.field("bytes_total", *event.bytes_total);
    }
    writer.end_object();
    return format("id: {}\nevent: {}\ndata: {}\n\n", event.number, adapters::name_of(event.kind), writer.take());
}

}  // namespace lorad::server
