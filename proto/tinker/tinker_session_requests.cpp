// Bodies about the client, its sessions, and what has one id.
#include <array>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/tinker/tinker_request_parts.h"
#include "proto/tinker/tinker_requests.h"

namespace lorad::proto {

using tinker::check_fields;

Status check_tinker_client(std::string_view body) {
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    TRY(check_fields(document.root(), {{"sdk_version"}}));
    TRY(tinker::text_of(document.root(), "sdk_version"));
    return ok_status();
}

Status check_tinker_telemetry(std::string_view body) {
    constexpr std::array<std::string_view, 5> kFields = {"events", "platform", "sdk_version", "session_id",
                                                         "process_uuid"};
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    return check_fields(document.root(), kFields);
}

Result<TinkerCreateSession> parse_tinker_create_session(std::string_view body) {
    constexpr std::array<std::string_view, 6> kFields = {"tags",       "user_metadata", "sdk_version",
                                                         "project_id", "display_name",  "type"};
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    TRY(check_fields(root, kFields));
    if (const std::optional<JsonValue> tags = root.find("tags")) {
        TRY_ASSIGN(const std::vector<JsonValue> all, tags->as_array());
        for (const JsonValue& tag : all) TRY(tag.as_string());
    }
    if (const std::optional<JsonValue> metadata = root.find("user_metadata")) TRY(metadata->as_object());
    for (const std::string_view text : {"sdk_version", "project_id", "display_name", "type"})
        TRY(root.string_or(text, ""));
    TinkerCreateSession request;
    request.ignored_fields =
        tinker::fields_without_effect(root, {{"tags", "user_metadata", "project_id", "display_name"}});
    return request;
}

Status check_tinker_finish_session(std::string_view body) {
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    TRY(check_fields(root, {{"reason", "detail"}}));
    if (const std::optional<JsonValue> reason = root.find("reason")) {
        TRY(check_fields(*reason, {{"type"}}));
        TRY(reason->string_or("type", ""));
    }
    TRY(root.string_or("detail", ""));
    return ok_status();
}

Result<std::string> parse_tinker_id(std::string_view body, std::string_view member) {
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    TRY(check_fields(document.root(), std::array<std::string_view, 2>{member, "type"}));
    return tinker::needed_text(document.root(), member);
}

Result<std::string> parse_tinker_retrieve(std::string_view body) {
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    TRY(check_fields(root, {{"request_id", "allow_metadata_only", "type"}}));
    TRY(root.bool_or("allow_metadata_only", false));  // a server may, and this one never has to
    return tinker::needed_text(root, "request_id");
}

}  // namespace lorad::proto
