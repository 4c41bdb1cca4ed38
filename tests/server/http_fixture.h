// The whole server but for device and tokenizer: real sockets, routes, engine thread and registry;
// a fake runner computes.
#pragma once

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "adapters/files/files.h"
#include "model/config/config.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "server/http/listener.h"
#include "server/http/routes.h"
#include "tests/server/fake_runner.h"
#include "tests/server/host_weight_store.h"
#include "tests/server/raw_socket.h"
#include "tests/support/soon.h"
#include "tests/support/source_dir.h"

namespace lorad::server {

inline constexpr uint32_t kPositionsMax = 512;
inline constexpr TokenId kEos = 996;

// Token t is the text "<t>"; a text is its bytes.
class FakeDecoder final : public TextDecoder {
  public:
    explicit FakeDecoder(DecodeOptions options) : options_(std::move(options)) {}
    Result<std::string> push(TokenId token) override {
        std::string piece = "<" + std::to_string(token) + ">";
        if (++n_tokens_ <= options_.n_tokens_min) return piece;
        for (const std::string& stop : options_.stop) {
            found_ = found_ || piece == stop;
            if (piece == stop) matched_ = stop;
        }
        return found_ && !options_.include_stop ? std::string() : piece;
    }
    bool found_stop() const override { return found_; }
    std::string matched_stop() const override { return matched_; }
    Result<std::string> finish() override { return std::string(); }

  private:
    DecodeOptions options_;
    uint32_t n_tokens_ = 0;
    bool found_ = false;
    std::string matched_;
};

class FakeCodec final : public TextCodec {
  public:
    Result<std::vector<TokenId>> encode(std::string_view text, bool) const override {
        return std::vector<TokenId>(text.begin(), text.end());
    }
    Result<std::string> decode(std::span<const TokenId> tokens, bool) const override {
        return std::string(tokens.begin(), tokens.end());
    }
    std::optional<TokenId> token_id(std::string_view spelling) const override {
        TokenId token = 0;
        for (char c : spelling.substr(std::min<size_t>(spelling.size(), 1))) {
            if (c >= '0' && c <= '9') token = token * 10 + (c - '0');
        }
        return token > 0 ? std::optional(token) : std::nullopt;
    }
    std::string token_bytes(TokenId token) const override { return "<" + std::to_string(token) + ">"; }
    // The texts of the messages, behind the adapter's template where it has one; one that ends with '?' shows no tools.
    Result<RenderedChat> render_chat(const ChatInput& chat) const override {
        Result<JsonDocument> document = parse_json(chat.messages_json);
        if (!document.ok()) return document.error();
        RenderedChat rendered;
        std::string& text = rendered.text;
        if (!chat.template_digest.empty()) {
            Result<std::vector<model::NamedTemplate>> own = chat.template_sources();
            if (!own.ok()) return own.error();
            const bool wants_tools = !chat.tools_json.empty();
            for (const model::NamedTemplate& one : *own) {
                if (one.name == (wants_tools && own->size() > 1 ? "tool_use" : "default")) text = one.source;
            }
        }
        if (text.ends_with('?')) rendered.unread = {"tools", "messages[0].name"};
        for (const JsonValue& message : *document->root().as_array()) {
            const std::optional<JsonValue> content = message.find("content");
            if (content && content->is_string()) text += *content->as_string();
            if (!content || !content->is_array()) continue;
            for (const JsonValue& part : *content->as_array()) text += *part.string_or("text", "");
        }
        return rendered;
    }
    std::unique_ptr<TextDecoder> make_decoder(DecodeOptions options) const override {
        return std::make_unique<FakeDecoder>(std::move(options));
    }
    Result<std::unique_ptr<TokenConstraint>> make_constraint(const proto::Structure& structure,
                                                             std::span<const TokenId> eos_ids, uint32_t,
                                                             const access::Holder&) const override {
        const std::lock_guard lock(asked_mutex);
        asked_ends.emplace_back(eos_ids.begin(), eos_ids.end());
        return make_error(ErrorCode::kInvalidRequest, structure.param + ": no grammars here", structure.param);
    }
    model::ToolFormat tool_format() const override { return model::ToolFormat::kHermes; }

    mutable std::mutex asked_mutex;
    mutable std::vector<std::vector<TokenId>> asked_ends;  // of grammars, under asked_mutex
};

inline std::string text_of(const std::vector<TokenId>& tokens) {
    std::string out;
    for (TokenId token : tokens) out += "<" + std::to_string(token) + ">";
    return out;
}
inline std::vector<TokenId> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// A request over a bare socket, for clients that leave without reading the answer.
inline OwnedFd send_request(uint32_t port, const std::string& method_and_path, const std::string& body = {}) {
    OwnedFd fd = connect_raw(port);
    const std::string request =
        method_and_path +
        " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    EXPECT_EQ(send(fd.get(), request.data(), request.size(), 0), ssize_t(request.size()));
    return fd;
}

// What is to be under way while a test looks takes 500 steps, half a minute; then the steps may take no time.
inline constexpr std::chrono::milliseconds kSlowStep{60};

class HttpTest : public ::testing::Test {
  protected:
    explicit HttpTest(uint32_t n_slots = 8)
        : runner(64),
          metrics({"base", model::kBlockTokens, 64, 8, "fake", "none", true}),
          engine(runner, metrics, {{128, 8, model::kBlockTokens}, 64, 16}),
          config(*model::load_model_config(lorad::testing::source_dir() / "deploy/demo-model/base")),
          store(n_slots),
          registry(config, store, {"base", n_slots}),
          context{engine,     metrics,       registry,   codec,      "base",
                  kFakeVocab, kPositionsMax, defaults(), 1700000000, kFakeHidden} {
        set_log_level(LogLevel::kWarn);  // not a line for each request
        add_routes(router, gate);
        ListenerOptions options;
        options.sockets.push_back(*open_tcp("127.0.0.1", 0));
        options.body_bytes_max = 100000;
        options.guard.n_workers = 24;
        auto created =
            Listener::create(std::move(options), router, [this](int status) { metrics.on_http_response(status); });
        EXPECT_TRUE(created.ok());
        listener = std::move(*created);
        EXPECT_TRUE(listener->start().ok());
        engine.start();
        gate = &context;
    }
    ~HttpTest() override {
        engine.drain(std::chrono::milliseconds(0));
        listener->stop();
        set_log_level(LogLevel::kInfo);
    }
    static model::GenerationDefaults defaults() {
        model::GenerationDefaults out;
        out.eos_token_ids = {kEos};
        out.temperature = 0.0f;
        return out;
    }

    struct Answer {
        int status = 0;
        std::string body;
        std::string code;  // of an error
        std::string param;
        std::string message;
        std::string type;
        std::string generation;  // of an adapter
    };
    Answer read(const httplib::Result& result) {
        Answer answer;
        EXPECT_TRUE(bool(result)) << "no answer";
        if (!result) return answer;
        answer.status = result->status;
        answer.body = result->body;
        answer.type = result->get_header_value("Content-Type");
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok()) return answer;
        answer.generation = std::string(*document->root().string_or("generation", ""));
        if (auto error = document->root().find("error")) {
            answer.code = std::string(*error->string_or("code", ""));
            answer.param = std::string(*error->string_or("param", ""));
            answer.message = std::string(*error->string_or("message", ""));
        }
        return answer;
    }
    httplib::Client client() {
        httplib::Client out("127.0.0.1", int(listener->port()));
        out.set_read_timeout(30);
        return out;
    }
    Answer post(const std::string& path, const std::string& body) {
        return read(client().Post(path, body, "application/json"));
    }
    Answer get(const std::string& path) { return read(client().Get(path)); }
    std::string completion_text(const std::string& body) {
        Answer answer = post("/v1/completions", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok() || answer.status != 200) return {};
        return std::string(*document->root().find("choices")->as_array()->at(0).string_or("text", ""));
    }
    // The answer's text and the generation that it names.
    std::pair<std::string, std::string> completed(const std::string& fields) {
        Answer answer =
            post("/v1/completions", "{\"max_tokens\":4,\"ignore_eos\":true,\"prompt\":[5,6]," + fields + "}");
        EXPECT_EQ(answer.status, 200) << fields << answer.body;
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok() || answer.status != 200) return {};
        JsonValue root = document->root();
        return {std::string(*root.find("choices")->as_array()->at(0).string_or("text", "")),
                std::string(*root.string_or("adapter_generation", ""))};
    }
    static std::string continued(const std::vector<LoraUse>& uses) {
        const std::vector<TokenId> prompt{5, 6};
        return text_of(fake_continuation(prompt, model::RowAdapters{uses}, 4));
    }
    uint32_t slot_of(const std::string& name) { return registry.acquire(name)->slot(); }

    static std::string demo_folder(const std::string& name) {
        return (lorad::testing::source_dir() / "deploy/demo-model/adapters" / name).string();
    }
    static std::string file_text(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    static std::string sha256_of(std::string_view text) {
        return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
    }
    // Uploads a file; its digest as "sha256:...".
    std::string put_blob(const std::string& content, int expected_status = 201) {
        std::string digest = "sha256:" + sha256_of(content);
        Answer answer = read(client().Put("/v1/adapters/blobs/" + digest, content, "application/octet-stream"));
        EXPECT_EQ(answer.status, expected_status) << answer.body;
        return digest;
    }
    // The "files" of a demo adapter, uploaded.
    std::string uploaded_files(const std::string& demo) {
        std::string out;
        for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
            out += (out.empty() ? "\"" : ",\"") + std::string(file) + "\":\"" +
                   put_blob(file_text(demo_folder(demo) + "/" + file)) + "\"";
        }
        return "\"files\":{" + out + "}";
    }
    Answer register_demo(const std::string& name, const std::string& demo, const std::string& more = {}) {
        return post("/v1/adapters", "{\"name\":\"" + name + "\"," + uploaded_files(demo) + more + "}");
    }
    Answer del(const std::string& path) { return read(client().Delete(path)); }
    int head(const std::string& path) { return client().Head(path)->status; }
    double metric(const std::string& line_start) {
        std::string text = get("/metrics").body;
        size_t at = text.find("\n" + line_start);
        return at == std::string::npos ? -1.0 : std::stod(text.substr(at + 1 + line_start.size()));
    }
    void load_pirate() {
        Answer answer =
            post("/v1/load_lora_adapter", R"({"lora_name":"pirate","lora_path":")" + demo_folder("pirate") + "\"}");
        ASSERT_EQ(answer.status, 200) << answer.body;
    }

    FakeRunner runner;
    Metrics metrics;
    Engine engine;
    model::ModelConfig config;
    HostWeightStore store;
    adapters::Registry registry;
    FakeCodec codec;
    ServerContext context;
    ContextGate gate{nullptr};
    Router router;
    std::unique_ptr<Listener> listener;
};

}  // namespace lorad::server
