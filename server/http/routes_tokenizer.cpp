// GET /tokenizer_info: how the model's tokenizer is configured; vLLM's name.
#include "server/http/routes.h"

#include "model/files.h"
#include "proto/tokenizer_info.h"

namespace lorad::server {
namespace {

constexpr uint64_t kTokenizerFileBytesMax = 16 << 20;

// Empty where it is not there.
Result<std::string> optional_text(const std::filesystem::path& file) {
    std::error_code error;
    if (!std::filesystem::exists(file, error)) return std::string();
    return model::read_text_file(file, kTokenizerFileBytesMax, ErrorCode::kInvalidModel);
}

HttpReply show_tokenizer(ServerContext& context, const HttpRequest&) {
    if (!context.tokenizer_info.empty()) return json_reply(context.tokenizer_info);
    return error_reply(make_error(ErrorCode::kNotFound, "the served model has no tokenizer_config.json"));
}

constexpr ContextRoute kRoutes[] = {{"GET", "/tokenizer_info", kGenerates, show_tokenizer}};

}  // namespace

Result<std::string> tokenizer_info_of(const std::filesystem::path& folder) {
    TRY_ASSIGN(std::string config, optional_text(folder / "tokenizer_config.json"));
    TRY_ASSIGN(std::string chat_template, optional_text(folder / "chat_template.jinja"));
    if (config.empty() && chat_template.empty()) return std::string();
    return proto::tokenizer_info(config, chat_template);
}

std::span<const ContextRoute> tokenizer_routes() { return kRoutes; }

}  // namespace lorad::server
