#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "proto/adapter_request.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/printable.h"
#include "proto/json/json.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

constexpr size_t kPathBytesMax = 4096;
constexpr size_t kFileNameBytesMax = 255;

Error refused(std::string_view name) {
    return make_error(ErrorCode::kUnsupportedParameter,
                      format("{}: this server does not support it; leave it out", name), std::string(name));
}

// Parts of the routes' paths: an adapter of that name could not be reached by its own.
bool is_reserved(std::string_view name) { return name == "blobs" || name == "events" || name == "validate"; }

// The registry checks the rest of what a name may be.
Result<std::string> parse_name(const JsonValue& root, std::string_view key) {
    TRY_ASSIGN(JsonValue name, root.require(key));
    TRY_ASSIGN(std::string_view text, name.as_string());
    if (text.empty()) return name.error("expected a name, found an empty string");
    if (is_reserved(text)) {
        return make_error(ErrorCode::kInvalidAdapterName,
                          format("{}: {} is a word of this interface", key, json_quote(text)), std::string(key));
    }
    return std::string(text);
}

Result<std::string> parse_path(const JsonValue& path) {
    TRY_ASSIGN(std::string_view text, path.as_string());
    if (text.empty() || text.size() > kPathBytesMax || text.find('\0') != std::string_view::npos)
        return path.error("expected the path of an adapter");
    return std::string(text);
}

// Empty where the field is absent or null.
Result<std::string> parse_generation(const JsonValue& root, std::string_view key) {
    std::optional<JsonValue> value = root.find(key);
    if (!value) return std::string();
    TRY_ASSIGN(std::string_view text, value->as_string());
    if (!is_sha256_hex(text)) {
        return value->error("expected a generation: 64 lower-case hex digits");
    }
    return std::string(text);
}

Result<std::vector<FileDigest>> parse_files(const JsonValue& value) {
    TRY_ASSIGN(std::vector<JsonMember> members, value.as_object());
    if (members.empty() || members.size() > kAdapterFilesMax) {
        return value.error(format("expected 1 to {} files, found {}", kAdapterFilesMax, members.size()));
    }
    std::vector<FileDigest> files;
    for (const JsonMember& member : members) {
        TRY(check_file_name(member.key, value.path()));
        TRY_ASSIGN(std::string_view text, member.value.as_string());
        TRY_ASSIGN(std::string sha256, parse_digest(text, member.value.path()));
        files.push_back({std::string(member.key), std::move(sha256)});
    }
    return files;
}

Result<float> parse_scale(const JsonValue& value) {
    TRY_ASSIGN(double number, value.as_number());
    if (!(std::abs(number) <= kAdapterScaleMax)) {
        return value.error(
            format("expected a number from {} to {}, found {}", -kAdapterScaleMax, kAdapterScaleMax, value.describe()));
    }
    return static_cast<float>(number);
}

Status check_keys(const JsonValue& root, std::span<const std::string_view> known) {
    TRY_ASSIGN(std::vector<JsonMember> members, root.as_object());
    for (const JsonMember& member : members) {
        if (std::find(known.begin(), known.end(), member.key) == known.end()) {
            return member.value.error(format("no such field; there are {}", fmt::join(known, ", ")));
        }
    }
    return ok_status();
}
Status check_keys(const JsonValue& root, std::initializer_list<std::string_view> known) {
    return check_keys(root, std::span(known.begin(), known.size()));
}

// An empty body stands for {}.
Result<JsonDocument> parse_optional(std::string_view body) {
    bool blank = body.find_first_not_of(" \t\r\n") == std::string_view::npos;
    return parse_json(blank ? std::string_view("{}") : body);
}

Status check_expected(const std::string& expected, bool replace, std::string_view replace_key) {
    if (expected.empty() || replace) return ok_status();
    return make_error(ErrorCode::kInvalidRequest, format("expected_generation: needs \"{}\": true", replace_key),
                      "expected_generation");
}

}  // namespace

Result<std::string> parse_digest(std::string_view text, std::string_view param) {
    constexpr std::string_view kAlgorithm = "sha256:";
    if (text.starts_with(kAlgorithm) && is_sha256_hex(text.substr(kAlgorithm.size())))
        return std::string(text.substr(kAlgorithm.size()));
    return make_error(
        ErrorCode::kInvalidRequest,
        format("{}: expected sha256: and 64 lower-case hex digits, found {}", param, json_quote(text.substr(0, 100))),
        std::string(param));
}

Status check_file_name(std::string_view name, std::string_view param) {
    const auto refuse = [&](std::string_view what) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: {} is no file name: {}", param, json_quote(name.substr(0, 100)), what),
                          std::string(param));
    };
    if (name.empty() || name.size() > kFileNameBytesMax)
        return refuse(format("expected 1 to {} bytes", kFileNameBytesMax));
    // The one folder that an adapter's files may be in, as save_pretrained writes them.
    constexpr std::string_view kTemplates = "additional_chat_templates/";
    const std::string_view file = name.starts_with(kTemplates) ? name.substr(kTemplates.size()) : name;
    for (char c : file) {
        if (c == '/' || c == '\\') return refuse("it names a folder");
    }
    if (file.empty() || file.front() == '.') return refuse("it begins with a dot");
    if (!is_printable(name))
        return refuse(
            "expected UTF-8 without control characters, line separators, marks of direction or invisible characters");
    return ok_status();
}

Result<LoadAdapterRequest> parse_load_adapter_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    static constexpr KnownField kFields[] = {{"lora_name"}, {"lora_path"},         {"load_inplace"},
                                             {"pinned"},    {"is_3d_lora_weight"}, {"expected_generation"}};
    LoadAdapterRequest request;
    TRY(check_fields(root, kFields, request.ignored_fields));
    TRY_ASSIGN(request.name, parse_name(root, "lora_name"));
    TRY_ASSIGN(JsonValue path, root.require("lora_path"));
    TRY_ASSIGN(request.path, parse_path(path));
    TRY_ASSIGN(request.load_inplace, root.bool_or("load_inplace", false));
    TRY_ASSIGN(request.pin, root.bool_or("pinned", false));
    TRY_ASSIGN(bool is_3d, root.bool_or("is_3d_lora_weight", false));
    if (is_3d) return refused("is_3d_lora_weight");
    TRY_ASSIGN(request.expected_generation, parse_generation(root, "expected_generation"));
    TRY(check_expected(request.expected_generation, request.load_inplace, "load_inplace"));
    return request;
}

Result<UnloadAdapterRequest> parse_unload_adapter_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    // vLLM's number of the adapter is one of another process.
    static constexpr KnownField kFields[] = {
        {"lora_name"}, {"expected_generation"}, {"lora_int_id", false, Neutral::kNone, Neutral::kAny}};
    UnloadAdapterRequest request;
    TRY(check_fields(root, kFields, request.ignored_fields));
    TRY_ASSIGN(request.name, parse_name(root, "lora_name"));
    TRY_ASSIGN(request.expected_generation, parse_generation(root, "expected_generation"));
    return request;
}

Result<RegisterAdapterRequest> parse_register_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    TRY(check_keys(root, {"name", "files", "adapters", "replace", "expected_generation"}));
    RegisterAdapterRequest request;
    TRY_ASSIGN(request.name, parse_name(root, "name"));
    std::optional<JsonValue> files = root.find("files");
    std::optional<JsonValue> mix = root.find("adapters");
    if (files.has_value() == mix.has_value()) {
        return make_error(ErrorCode::kInvalidRequest,
                          "files: expected either files or adapters, a mix of other adapters", "files");
    }
    if (files) {
        TRY_ASSIGN(request.files, parse_files(*files));
    } else {
        TRY_ASSIGN(request.mix, parse_named_scales(*mix));
        if (request.mix.empty()) return mix->error("expected at least one adapter, found none");
    }
    TRY_ASSIGN(request.replace, root.bool_or("replace", false));
    TRY_ASSIGN(request.expected_generation, parse_generation(root, "expected_generation"));
    TRY(check_expected(request.expected_generation, request.replace, "replace"));
    return request;
}

Result<ValidateAdapterRequest> parse_validate_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    TRY(check_keys(root, {"files", "path"}));
    ValidateAdapterRequest request;
    std::optional<JsonValue> files = root.find("files");
    std::optional<JsonValue> path = root.find("path");
    if (files.has_value() == path.has_value()) {
        return make_error(ErrorCode::kInvalidRequest, "files: expected either files or path", "files");
    }
    if (files) {
        TRY_ASSIGN(request.files, parse_files(*files));
    } else {
        TRY_ASSIGN(request.path, parse_path(*path));
    }
    return request;
}

Result<ActivateRequest> parse_activate_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_optional(body));
    JsonValue root = document.root();
    TRY(check_keys(root, {"mode", "pin"}));
    ActivateRequest request;
    if (std::optional<JsonValue> mode = root.find("mode")) {
        TRY_ASSIGN(std::string_view text, mode->as_string());
        if (text != "unmerged" && text != "merged" && text != "auto") {
            return make_error(ErrorCode::kInvalidLoadPolicy,
                              format("mode: expected unmerged, merged or auto, found {}", mode->describe()), "mode");
        }
        request.mode = std::string(text);
    }
    TRY_ASSIGN(request.pin, root.bool_or("pin", false));
    return request;
}

Result<RollbackRequest> parse_rollback_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_optional(body));
    JsonValue root = document.root();
    TRY(check_keys(root, {"generation"}));
    RollbackRequest request;
    TRY_ASSIGN(request.generation, parse_generation(root, "generation"));
    return request;
}

Status parse_empty_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_optional(body));
    return check_keys(document.root(), {});
}

Result<LoraScalesRequest> parse_lora_scales_request(std::string_view body) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    LoraScalesRequest request;
    TRY_ASSIGN(request.scales, parse_id_scales(document.root(), request.ignored_fields));
    return request;
}

Result<std::vector<NamedScale>> parse_named_scales(const JsonValue& list) {
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.size() > kAdapterTermsMax) {
        return list.error(format("expected at most {} adapters, found {}", kAdapterTermsMax, elements.size()));
    }
    std::vector<NamedScale> terms;
    std::set<std::string_view> seen;
    for (const JsonValue& element : elements) {
        TRY(check_keys(element, {"name", "scale"}));
        TRY_ASSIGN(JsonValue name, element.require("name"));
        TRY_ASSIGN(std::string_view text, name.as_string());
        if (text.empty()) return name.error("expected a name, found an empty string");
        if (!seen.insert(text).second) return name.error(format("{} is named twice", json_quote(text)));
        NamedScale term{std::string(text), 1.0f};
        if (std::optional<JsonValue> scale = element.find("scale")) {
            TRY_ASSIGN(term.scale, parse_scale(*scale));
        }
        terms.push_back(std::move(term));
    }
    return terms;
}

Result<std::vector<IdScale>> parse_id_scales(const JsonValue& list, std::vector<std::string>& ignored) {
    // Includes the fields that GET /lora-adapters shows: clients send them back.
    static constexpr KnownField kFields[] = {{"id"}, {"scale"}, {"path"}, {"task_name"}, {"prompt_prefix"}};
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.size() > kLoraEntriesMax) {
        return list.error(format("expected at most {} entries, found {}", kLoraEntriesMax, elements.size()));
    }
    std::vector<IdScale> entries;
    std::set<uint32_t> seen;
    size_t n_used = 0;
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(JsonValue id, element.require("id"));
        TRY(check_fields(element, kFields, ignored));
        TRY_ASSIGN(int64_t number, id.as_int(0, 0x7fffffff));
        TRY_ASSIGN(JsonValue scale, element.require("scale"));
        IdScale entry{static_cast<uint32_t>(number), 0.0f};
        TRY_ASSIGN(entry.scale, parse_scale(scale));
        if (!seen.insert(entry.id).second) return id.error(format("{} is given twice", number));
        n_used += entry.scale != 0.0f;
        entries.push_back(entry);
    }
    if (n_used > kAdapterTermsMax) {
        return list.error(
            format("expected at most {} adapters with a scale other than 0, found {}", kAdapterTermsMax, n_used));
    }
    return entries;
}

}  // namespace lorad::proto
