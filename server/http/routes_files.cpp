// /v1/files: what users train on.
#include <charconv>
#include <cstdio>
#include <memory>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/printable.h"
#include "proto/json/json.h"
#include "proto/multipart_stream.h"
#include "proto/training/training_write.h"
#include "server/http/place.h"
#include "server/http/training_access.h"

namespace lorad::server {
namespace {

using training::FileStore;
using training::StoredFile;
using training::TrainingService;

constexpr size_t kFilesPageMax = 10'000;
constexpr size_t kFieldBytesMax = 256;
constexpr size_t kFilenameBytesMax = 255;
constexpr size_t kUploadWriteBytes = 256 << 10;

Error no_such_file(std::string_view id) {
    return make_error(ErrorCode::kNotFound, format("no file is called {}", json_quote_short(id)), "file_id");
}

Result<StoredFile> found_file(TrainingService& service, const HttpRequest& http) {
    const std::string& id = http.params.at(0);
    std::optional<StoredFile> file = service.files().find(training_tenant(http), id);
    if (!file) return no_such_file(id);
    return std::move(*file);
}

// The fields and the file of a form, while they come.
class UploadForm {
  public:
    UploadForm(FileStore& files, std::string tenant) : files_(files), tenant_(std::move(tenant)) {}

    proto::MultipartSink sink() {
        return {.begin = [this](const proto::FormPart& part) { return begin(part); },
                .content = [this](std::string_view content) { return take(content); },
                .end = [this] { return end(); }};
    }

    Result<StoredFile> finish() {
        if (!upload_) return make_error(ErrorCode::kInvalidRequest, "file: expected a file in the form", "file");
        TRY(check_purpose());
        return upload_->finish();
    }

  private:
    Status begin(const proto::FormPart& part) {
        field_ = part.name;
        text_.clear();
        is_file_ = part.name == "file";
        if (!is_file_) return ok_status();
        if (upload_) return make_error(ErrorCode::kInvalidRequest, "file: it is there twice", "file");
        if (!part.has_filename)
            return make_error(ErrorCode::kInvalidRequest, "file: expected a file with a name", "file");
        if (part.filename.empty() || part.filename.size() > kFilenameBytesMax || !is_printable(part.filename))
            return make_error(ErrorCode::kInvalidRequest,
                              format("file: expected a name of 1 to {} printable bytes", kFilenameBytesMax), "file");
        TRY(check_purpose(true));
        TRY_ASSIGN(upload_, files_.begin(tenant_, part.filename, "fine-tune", std::nullopt));
        return ok_status();
    }

    Status take(std::string_view content) {
        if (is_file_) {
            text_ += content;
            if (text_.size() < kUploadWriteBytes) return ok_status();
            const Status written = upload_->write(text_);
            text_.clear();
            return written;
        }
        if (text_.size() + content.size() > kFieldBytesMax)
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: longer than {} bytes", json_quote_short(field_), kFieldBytesMax));
        text_ += content;
        return ok_status();
    }

    Status end() {
        if (is_file_) return text_.empty() ? ok_status() : upload_->write(text_);
        if (field_ == "purpose") {
            purpose_ = text_;
            return check_purpose();
        }
        if (field_ == "expires_after[anchor]" || field_ == "expires_after[seconds]")
            return make_error(ErrorCode::kUnsupportedParameter,
                              format("{}: files are kept until they are deleted; leave the parameter out", field_),
                              field_);
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: expected file and purpose in the form", json_quote_short(field_)), field_);
    }

    // may_be_absent: the field may come behind the file.
    Status check_purpose(bool may_be_absent = false) const {
        if (!purpose_)
            return may_be_absent ? ok_status()
                                 : Status(make_error(ErrorCode::kInvalidRequest,
                                                     "purpose: expected fine-tune, found none", "purpose"));
        if (*purpose_ == "fine-tune") return ok_status();
        return make_error(ErrorCode::kUnsupportedParameter,
                          format("purpose: files are for fine-tune here, found {}", json_quote_short(*purpose_)),
                          "purpose");
    }

    FileStore& files_;
    const std::string tenant_;
    std::unique_ptr<FileStore::Upload> upload_;
    std::optional<std::string> purpose_;
    std::string field_, text_;
    bool is_file_ = false;
};

Result<HttpReply> uploaded(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(http));
    if (!place.taken())
        return make_error(ErrorCode::kOverloaded,
                          "as many uploads are under way as there may be, or as one key or address may have");
    TRY_ASSIGN(const std::string boundary, proto::multipart_boundary(http.content_type));
    if (boundary.empty())
        return make_error(ErrorCode::kUnsupportedMedia,
                          "expected multipart/form-data with the fields purpose and file");
    UploadForm form(service->files(), training_tenant(http));
    proto::MultipartStream stream(boundary, form.sink());
    if (http.stream != nullptr) {
        // The form around the file is small.
        const uint64_t bytes_max = service->files().limits().file_bytes_max + (64 << 10);
        TRY(http.stream->read(bytes_max, [&](std::string_view piece) { return stream.push(piece); }));
    }
    TRY(stream.finish());
    TRY_ASSIGN(const StoredFile file, form.finish());
    return json_reply(proto::file_json(file.object));
}

Result<HttpReply> listed(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const ListPage page, list_page(http, kFilesPageMax, kFilesPageMax));
    std::vector<StoredFile> files = service->files().list(training_tenant(http));
    if (const std::optional<std::string_view> purpose = http.query_value("purpose"))
        std::erase_if(files, [&](const StoredFile& file) { return file.object.purpose != *purpose; });
    TRY_ASSIGN(const auto part, page_of(std::move(files), page, [](const StoredFile& file) { return file.object.id; }));
    std::vector<std::string> objects;
    for (const StoredFile& file : part.first) objects.push_back(proto::file_json(file.object));
    const bool is_any = !part.first.empty();
    return json_reply(proto::list_json(objects, part.second, is_any ? part.first.front().object.id : "",
                                       is_any ? part.first.back().object.id : ""));
}

Result<HttpReply> shown(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const StoredFile file, found_file(*service, http));
    return json_reply(proto::file_json(file.object));
}

Result<HttpReply> removed(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    const std::string& id = http.params.at(0);
    TRY_ASSIGN(const bool was_there, service->remove_file(training_tenant(http), id));
    if (!was_there) return no_such_file(id);
    return json_reply(proto::deleted_file_json(id));
}

Result<HttpReply> content_of(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const StoredFile file, found_file(*service, http));
    // Opened before the reply begins: a file that is deleted meanwhile is sent to its end.
    std::shared_ptr<std::FILE> opened(std::fopen(service->files().content_of(file.object.id).c_str(), "rbe"),
                                      [](std::FILE* f) {
                                          if (f != nullptr) std::fclose(f);
                                      });
    if (!opened) return no_such_file(file.object.id);
    HttpReply reply;
    reply.content_type = file.object.filename.ends_with(".csv") ? "text/csv" : "application/jsonl";
    reply.stream = [opened](HttpSink& sink) {
        std::string piece(size_t{64} << 10, '\0');
        for (;;) {
            const size_t n = std::fread(piece.data(), 1, piece.size(), opened.get());
            if (n == 0 || !sink.write(std::string_view(piece).substr(0, n))) return;
        }
    };
    return reply;
}

// Checks a file as a job would; lorad's own route.
Result<HttpReply> checked(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const StoredFile file, found_file(*service, http));
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(http));
    if (!place.taken())
        return make_error(ErrorCode::kOverloaded,
                          "as many uploads or checks are under way as there may be, or as one key or address may have");
    TRY_ASSIGN(const training::DataReport report, service->check_file(file, {}));
    return json_reply(report.json());
}

HttpReply upload_file(ServerContext& context, const HttpRequest& http) { return reply_of(uploaded(context, http)); }
HttpReply list_files(ServerContext& context, const HttpRequest& http) { return reply_of(listed(context, http)); }
HttpReply show_file(ServerContext& context, const HttpRequest& http) { return reply_of(shown(context, http)); }
HttpReply remove_file(ServerContext& context, const HttpRequest& http) { return reply_of(removed(context, http)); }
HttpReply show_content(ServerContext& context, const HttpRequest& http) { return reply_of(content_of(context, http)); }
HttpReply check_file(ServerContext& context, const HttpRequest& http) { return reply_of(checked(context, http)); }

constexpr ContextRoute kFileRoutes[] = {
    {"POST", "/v1/files", kWritesTraining, upload_file, BodyUse::kStreamed},
    {"GET", "/v1/files", kReadsTraining, list_files},
    {"GET", "/v1/files/{}", kReadsTraining, show_file},
    {"DELETE", "/v1/files/{}", kWritesTraining, remove_file},
    {"GET", "/v1/files/{}/content", kReadsTraining, show_content},
    {"POST", "/v1/files/{}/check", kReadsTraining, check_file},
};

}  // namespace

std::span<const ContextRoute> file_routes() { return kFileRoutes; }

}  // namespace lorad::server
