#include "server/training/checkpoint_file.h"

#include <cstring>

#include "proto/base/digest.h"
#include "proto/json/json_fields.h"
#include "server/training/durable_file.h"

namespace lorad::server::training {
namespace {

constexpr std::string_view kCheckpointMagic = "LORADCP1";
constexpr uint64_t kCheckpointBytesMax = uint64_t{64} << 30;

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

constexpr auto kHeadFields = [](auto& fields, auto& checkpoint) {
    fields("data_digest", checkpoint.identity.data_digest);
    fields("validation_digest", checkpoint.identity.validation_digest);
    fields("base_fingerprint", checkpoint.identity.base_fingerprint);
    fields("recipe", checkpoint.identity.recipe);
    fields("version", checkpoint.identity.version);
    fields.object("state", checkpoint.state, kRunStateFields);
};

}  // namespace

Status write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
    const std::string head = fields_json(checkpoint, kHeadFields);
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
    if (rest.size() < kCheckpointMagic.size() + digest.size() || !rest.starts_with(kCheckpointMagic))
        return damaged_checkpoint();
    std::memcpy(digest.data(), rest.data() + rest.size() - digest.size(), digest.size());
    rest.remove_suffix(digest.size());
    Sha256 sha;
    sha.add(rest);
    if (sha.digest() != digest) return damaged_checkpoint();
    rest.remove_prefix(kCheckpointMagic.size());
    std::string_view head, trainer;
    if (!take_piece(rest, head) || !take_piece(rest, trainer)) return damaged_checkpoint();
    TRY_ASSIGN(Checkpoint checkpoint, parse_fields<Checkpoint>(head, "checkpoint", kHeadFields));
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
