#include "server/training/checkpoint_file.h"

#include <cstring>

#include "proto/base/digest.h"
#include "proto/json.h"
#include "server/training/durable_file.h"

namespace lorad::server::training {
namespace {

constexpr std::string_view kCheckpointMagic = "LORADCP1";
constexpr uint64_t kCheckpointBytesMax = uint64_t(64) << 30;

Error damaged_checkpoint() { return make_error(ErrorCode::kStorageFailed, "the checkpoint is damaged"); }

void append_number(std::string& out, uint64_t number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    out.append(bytes, sizeof(number));
}

// A piece that its length stands before. False where it is cut off.
bool take_piece(std::string_view& rest, std::string_view& piece) {
    uint64_t n = 0;
    if (rest.size() < sizeof(n)) return false;
    std::memcpy(&n, rest.data(), sizeof(n));
    rest.remove_prefix(sizeof(n));
    if (rest.size() < n) return false;
    piece = rest.substr(0, n);
    rest.remove_prefix(n);
    return true;
}

Result<std::string> text_of(const JsonValue& root, std::string_view name) {
    TRY_ASSIGN(const std::string_view text, root.string_or(name, ""));
    return std::string(text);
}

}  // namespace

Status write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
    const RunIdentity& identity = checkpoint.identity;
    JsonWriter writer;
    writer.begin_object().field("data_digest", identity.data_digest).field("validation_digest", identity.validation_digest);
    writer.field("base_fingerprint", identity.base_fingerprint).field("recipe", identity.recipe).field("version", identity.version);
    const std::string head = writer.key("state").raw(checkpoint.state.json()).end_object().take();
    std::string out(kCheckpointMagic);
    out.reserve(out.size() + head.size() + checkpoint.trainer.size() + 64);
    append_number(out, head.size());
    out += head;
    append_number(out, checkpoint.trainer.size());
    out.append(reinterpret_cast<const char*>(checkpoint.trainer.data()), checkpoint.trainer.size());
    Sha256 sha;
    sha.add(out);
    const Sha256Digest digest = sha.digest();
    out.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    return write_durably(path, std::string_view(out));
}

Result<Checkpoint> read_checkpoint(const std::filesystem::path& path) {
    TRY_ASSIGN(const std::string text, read_whole(path, kCheckpointBytesMax));
    std::string_view rest = text;
    Sha256Digest digest{};
    if (rest.size() < kCheckpointMagic.size() + digest.size() || !rest.starts_with(kCheckpointMagic)) return damaged_checkpoint();
    std::memcpy(digest.data(), rest.data() + rest.size() - digest.size(), digest.size());
    rest.remove_suffix(digest.size());
    Sha256 sha;
    sha.add(rest);
    if (sha.digest() != digest) return damaged_checkpoint();
    rest.remove_prefix(kCheckpointMagic.size());
    std::string_view head, trainer;
    if (!take_piece(rest, head) || !take_piece(rest, trainer)) return damaged_checkpoint();
    TRY_ASSIGN(const JsonDocument document, parse_json(head, {.name = "checkpoint"}));
    const JsonValue root = document.root();
    Checkpoint checkpoint;
    TRY_ASSIGN(checkpoint.identity.data_digest, text_of(root, "data_digest"));
    TRY_ASSIGN(checkpoint.identity.validation_digest, text_of(root, "validation_digest"));
    TRY_ASSIGN(checkpoint.identity.base_fingerprint, text_of(root, "base_fingerprint"));
    TRY_ASSIGN(checkpoint.identity.recipe, text_of(root, "recipe"));
    TRY_ASSIGN(checkpoint.identity.version, text_of(root, "version"));
    TRY_ASSIGN(const JsonValue state, root.require("state"));
    TRY_ASSIGN(checkpoint.state, RunState::parse(state.dump()));
    const auto* bytes = reinterpret_cast<const std::byte*>(trainer.data());
    checkpoint.trainer.assign(bytes, bytes + trainer.size());
    return checkpoint;
}

std::string difference(const RunIdentity& kept, const RunIdentity& present) {
    if (kept.base_fingerprint != present.base_fingerprint) return "the base model";
    if (kept.data_digest != present.data_digest) return "the training data";
    if (kept.validation_digest != present.validation_digest) return "the validation data";
    if (kept.recipe != present.recipe) return "the settings";
    return {};
}

}  // namespace lorad::server::training
