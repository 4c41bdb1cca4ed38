#include "proto/adapter_request.h"
#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::proto {
namespace {

Result<std::string> parse_name(const JsonValue& root) {
    TRY_ASSIGN(JsonValue name, root.require("lora_name"));
    TRY_ASSIGN(std::string_view text, name.as_string());
    if (text.empty()) return name.error("expected a name, found an empty string");
    return std::string(text);
}

Error refused(std::string_view name) {
    return make_error(ErrorCode::kUnsupportedParameter,
                      format("{}: this server does not support it; leave it out", name),
                      std::string(name));
}

}  // namespace

Result<LoadAdapterRequest> parse_load_adapter_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    LoadAdapterRequest request;
    TRY_ASSIGN(request.name, parse_name(root));
    TRY_ASSIGN(JsonValue path, root.require("lora_path"));
    TRY_ASSIGN(std::string_view path_text, path.as_string());
    if (path_text.empty() || path_text.size() > 4096 ||
        path_text.find('\0') != std::string_view::npos) {
        return path.error("expected the path of an adapter folder");
    }
    request.path = std::string(path_text);
    TRY_ASSIGN(request.load_inplace, root.bool_or("load_inplace", false));
    TRY_ASSIGN(bool is_3d, root.bool_or("is_3d_lora_weight", false));
    if (is_3d) return refused("is_3d_lora_weight");
    TRY_ASSIGN(std::string_view generation, root.string_or("expected_generation", ""));
    if (!generation.empty() && !request.load_inplace) {
        return make_error(ErrorCode::kInvalidRequest,
                          "expected_generation: needs \"load_inplace\": true",
                          "expected_generation");
    }
    request.expected_generation = std::string(generation);
    return request;
}

Result<std::string> parse_unload_adapter_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (root.find("expected_generation")) return refused("expected_generation");
    return parse_name(root);
}

}  // namespace lorad::proto
