// Files that clients send: blobs by their digest, and small adapters whole in one form.
#include <algorithm>

#include "adapters/files/files.h"
#include "adapters/plan/report.h"
#include "proto/adapter_request.h"
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/multipart.h"
#include "server/http/adapter_access.h"
#include "server/http/adapter_json.h"
#include "server/http/place.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

constexpr size_t kWriteBytes = 256 << 10;  // of an upload, written to the store at a time

Error too_many_uploads() {
    return make_error(
        ErrorCode::kAdapterBusy,
        "as many uploads or validations are under way as there may be, or as one key or address may have");
}

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

Status store_blob(ServerContext& context, const std::string& sha256, std::string_view content) {
    if (content.size() > context.uploads.file_bytes_max) {
        return make_error(ErrorCode::kAdapterFileTooLarge,
                          format("{} bytes, at most {} are taken", content.size(), context.uploads.file_bytes_max));
    }
    TRY_ASSIGN(std::unique_ptr<adapters::BlobUpload> upload,
               context.registry.put_blob(sha256, content.size(), nullptr, true));  // it is here whole
    TRY(upload->write(bytes_of(content)));
    return upload->finish();
}

HttpReply put_blob(ServerContext& context, const HttpRequest& request) {
    Result<std::string> sha256 = proto::parse_digest(request.params.at(0), "digest");
    if (!sha256.ok()) return error_reply(sha256.error());
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(request));
    if (!place.taken()) return error_reply(too_many_uploads());
    uint64_t n_bytes = 0;
    Status stored = [&]() -> Status {
        std::optional<uint64_t> length = request.stream ? request.stream->length() : 0;
        if (length && *length > context.uploads.file_bytes_max) {
            return make_error(ErrorCode::kAdapterFileTooLarge,
                              format("{} bytes, at most {} are taken", *length, context.uploads.file_bytes_max));
        }
        // Dropped on any error, with the bytes received so far.
        const adapters::Holder holder = holder_of(context, request);
        TRY_ASSIGN(std::unique_ptr<adapters::BlobUpload> upload,
                   context.registry.put_blob(*sha256, length, &holder, owns_blob(context, request, *sha256)));
        if (request.stream != nullptr) {
            // The library brings pieces of 4 KiB; each write of the store is a system call and a lock.
            std::string pieces;
            TRY(request.stream->read(context.uploads.file_bytes_max, [&](std::string_view piece) -> Status {
                n_bytes += piece.size();
                pieces.append(piece);
                if (pieces.size() < kWriteBytes) return ok_status();
                Status written = upload->write(bytes_of(pieces));
                pieces.clear();
                return written;
            }));
            TRY(upload->write(bytes_of(pieces)));
        }
        return upload->finish();
    }();
    if (!stored.ok()) {
        Error error = stored.error();
        if (error.code == ErrorCode::kPayloadTooLarge) error.code = ErrorCode::kAdapterFileTooLarge;
        return error_reply(error);
    }
    own_blob(context, request, *sha256);
    JsonWriter writer;
    writer.begin_object()
        .field("object", "blob")
        .field("digest", "sha256:" + *sha256)
        .field("bytes", n_bytes)
        .end_object();
    return json_reply(writer.take(), 201);
}

HttpReply head_blob(ServerContext& context, const HttpRequest& request) {
    Result<std::string> sha256 = proto::parse_digest(request.params.at(0), "digest");
    if (!sha256.ok()) return error_reply(sha256.error());
    std::optional<uint64_t> bytes;
    if (owns_blob(context, request, *sha256)) bytes = context.registry.blob_bytes(*sha256);
    if (!bytes) {
        return error_reply(make_error(ErrorCode::kAdapterFileNotFound, "no such blob was uploaded", "digest"));
    }
    HttpReply reply;
    reply.headers.emplace_back("X-Blob-Bytes", format("{}", *bytes));
    return reply;
}

// A form of a registration: the request in its fields, and its files.
struct RegisterForm {
    proto::RegisterAdapterRequest request;
    std::vector<std::pair<std::string, std::string_view>> files;
};

Error bad_form(std::string_view param, std::string_view what) {
    return make_error(ErrorCode::kInvalidRequest, format("{}: {}", param, what), std::string(param));
}

// Fields become the JSON that a registration without a form has, so that there is one set of rules.
Result<RegisterForm> read_form(std::string_view body, std::string_view boundary) {
    TRY_ASSIGN(std::vector<proto::FormPart> parts, proto::parse_multipart(body, boundary));
    RegisterForm form;
    JsonWriter writer;
    writer.begin_object();
    std::vector<std::string> seen;
    for (const proto::FormPart& part : parts) {
        const std::string& key = part.has_filename ? part.filename : part.name;
        if (std::find(seen.begin(), seen.end(), key) != seen.end())
            return bad_form(json_quote_short(key), "it is there twice");
        seen.push_back(key);
        if (part.has_filename) {
            TRY(proto::check_file_name(key, "files"));
            form.files.emplace_back(key, part.content);
        } else if (key == "replace") {
            if (part.content != "true" && part.content != "false") return bad_form(key, "expected true or false");
            writer.field(key, part.content == "true");
        } else if (key == "name" || key == "expected_generation") {
            writer.field(key, part.content);
        } else {
            return bad_form(json_quote_short(key), "expected name, replace, expected_generation or a file");
        }
    }
    writer.key("files").begin_object();
    for (const auto& [name, content] : form.files) writer.field(name, "sha256:" + sha256_hex(bytes_of(content)));
    writer.end_object().end_object();
    TRY_ASSIGN(form.request, proto::parse_register_request(writer.take()));
    return form;
}

// On failure, removes what this call has stored.
Result<adapters::AdapterInfo> register_files(ServerContext& context, const RegisterForm& form) {
    const proto::RegisterAdapterRequest& wanted = form.request;
    TRY(adapters::check_adapter_name(wanted.name, context.base_name));
    std::vector<std::string> blobs;
    for (const proto::FileDigest& file : wanted.files) blobs.push_back(file.sha256);
    // Blobs that exist are not stored again, so another call's failure must not remove them.
    const std::shared_ptr<const void> hold = context.registry.hold_blobs(std::move(blobs));
    std::vector<adapters::UploadedFile> files;
    std::vector<std::string> added;
    auto registered = [&]() -> Result<adapters::AdapterInfo> {
        for (size_t i = 0; i < form.files.size(); ++i) {
            const std::string& sha256 = wanted.files[i].sha256;
            if (!context.registry.blob_bytes(sha256)) {
                TRY(store_blob(context, sha256, form.files[i].second));
                added.push_back(sha256);
            }
            files.push_back({wanted.files[i].file, sha256});
        }
        return context.registry.register_adapter(wanted.name, files, {wanted.replace, wanted.expected_generation});
    }();
    if (!registered.ok()) context.registry.discard_blobs(added);
    return registered;
}

HttpReply report_reply(const Result<adapters::AdapterReport>& report) {
    if (report.ok()) return json_reply(adapters::report_json(*report));
    Error error = report.error();
    if (error.param == "lora_name") error.param = "name";
    return error_reply(error);
}

// A dry run; nothing is registered, whatever it says.
HttpReply validate(ServerContext& context, const HttpRequest& request) {
    Result<proto::ValidateAdapterRequest> parsed = proto::parse_validate_request(request.body);
    if (!parsed.ok()) return error_reply(parsed.error());
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(request));
    if (!place.taken()) return error_reply(too_many_uploads());
    if (parsed->files.empty()) {
        Status admin = check_admin(request, "path");
        if (!admin.ok()) return error_reply(admin.error());
        Result<adapters::AdapterLocation> location = allowed_path(context, parsed->path, "path");
        if (!location.ok()) return error_reply(location.error());
        const adapters::AdapterReport report = context.registry.inspect(*location);
        if (!report.error || report.error->code != ErrorCode::kAdapterPathForbidden) return report_reply(report);
        Error forbidden = *report.error;
        forbidden.param = "path";
        return error_reply(forbidden);
    }
    Status own = check_own_blobs(context, request, parsed->files);
    if (!own.ok()) return error_reply(own.error());
    std::vector<adapters::UploadedFile> files;
    for (const proto::FileDigest& file : parsed->files) files.push_back({file.file, file.sha256});
    return report_reply(context.registry.inspect(files));
}

HttpReply validate_name(ServerContext& context, const HttpRequest& request) {
    Status empty = proto::parse_empty_request(request.body);
    if (!empty.ok()) return error_reply(empty.error());
    Status known = check_visible(context.registry, request, request.params.at(0));
    if (!known.ok()) return report_reply(known.error());
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(request));
    if (!place.taken()) return error_reply(too_many_uploads());
    return report_reply(context.registry.inspect(std::string_view(request.params.at(0))));
}

constexpr ContextRoute kUploadRoutes[] = {
    {"PUT", "/v1/adapters/blobs/{}", kWritesAdapters, put_blob, BodyUse::kStreamed},
    {"HEAD", "/v1/adapters/blobs/{}", kWritesAdapters, head_blob},
    {"POST", "/v1/adapters/validate", kWritesAdapters, validate},
    {"POST", "/v1/adapters/{}/validate", kWritesAdapters, validate_name},
};

}  // namespace

Result<adapters::AdapterLocation> allowed_path(const ServerContext& context, const std::string& path,
                                               std::string_view param) {
    if (context.adapter_root.empty()) return adapters::AdapterLocation(path);
    // Checked by its text: a path outside of the root is not even opened. A path inside is opened without following
    // links.
    std::error_code error;
    const std::filesystem::path asked = std::filesystem::absolute(path, error).lexically_normal();
    const std::filesystem::path given = std::filesystem::absolute(context.adapter_root, error).lexically_normal();
    const std::filesystem::path real = std::filesystem::canonical(context.adapter_root, error);
    const bool has_nul = path.find('\0') != std::string::npos;
    for (const std::filesystem::path& root : {given, real}) {
        const std::filesystem::path folder = root.has_filename() ? root : root.parent_path();
        std::filesystem::path below = asked.lexically_relative(folder);
        if (error || has_nul || below.empty() || *below.begin() == "..") continue;
        if (!below.has_filename()) below = below.parent_path();
        return adapters::AdapterLocation(real, below == "." ? std::filesystem::path() : below);
    }
    return make_error(ErrorCode::kAdapterPathForbidden,
                      format("{}: adapters are read from one folder only, this is outside", param), std::string(param));
}

HttpReply register_form(ServerContext& context, const HttpRequest& request) {
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(request));
    if (!place.taken()) return error_reply(too_many_uploads());
    Result<adapters::AdapterInfo> registered = [&]() -> Result<adapters::AdapterInfo> {
        TRY_ASSIGN(std::string boundary, proto::multipart_boundary(request.content_type));
        std::string body;
        if (request.stream != nullptr) {
            TRY(request.stream->read(context.uploads.form_bytes_max, [&](std::string_view piece) {
                body.append(piece);
                return ok_status();
            }));
        }
        TRY_ASSIGN(RegisterForm form, read_form(body, boundary));
        TRY(check_may_name(request, form.request.name));
        return register_files(context, form);
    }();
    if (registered.ok()) return adapter_reply(visible(request, {*registered}).at(0), 201);
    Error error = registered.error();
    if (error.param == "lora_name") error.param = "name";
    return error_reply(error);
}

std::span<const ContextRoute> upload_routes() { return kUploadRoutes; }

}  // namespace lorad::server
