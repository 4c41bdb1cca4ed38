#include "model/gguf/gguf_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <utility>

#include "model/quant/matrix_decoder.h"
#include "proto/base/check.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

constexpr uint64_t kGgufAlign = 32;
enum GgufKind : uint32_t { kGgufU32 = 4, kGgufI32 = 5, kGgufF32 = 6, kGgufBool = 7, kGgufText = 8, kGgufArray = 9 };

template <typename T>
void put_number(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_string(std::string& to, std::string_view text) {
    put_number<uint64_t>(to, text.size());
    to += text;
}

}  // namespace

void GgufWriter::key(std::string_view name, uint32_t type) {
    put_string(fields_, name);
    put_number(fields_, type);
    ++n_fields_;
}

void GgufWriter::text(std::string_view name, std::string_view value) {
    key(name, kGgufText);
    put_string(fields_, value);
}
void GgufWriter::u32(std::string_view name, uint32_t value) {
    key(name, kGgufU32);
    put_number(fields_, value);
}
void GgufWriter::f32(std::string_view name, float value) {
    key(name, kGgufF32);
    put_number(fields_, value);
}
void GgufWriter::flag(std::string_view name, bool value) {
    key(name, kGgufBool);
    put_number<uint8_t>(fields_, value ? 1 : 0);
}
void GgufWriter::texts(std::string_view name, std::span<const std::string> values) {
    key(name, kGgufArray);
    put_number<uint32_t>(fields_, kGgufText);
    put_number<uint64_t>(fields_, values.size());
    for (const std::string& value : values) put_string(fields_, value);
}
void GgufWriter::integers(std::string_view name, std::span<const int32_t> values) {
    key(name, kGgufArray);
    put_number<uint32_t>(fields_, kGgufI32);
    put_number<uint64_t>(fields_, values.size());
    for (const int32_t value : values) put_number(fields_, value);
}
void GgufWriter::copy(std::string_view name, const GgufValue& value) {
    key(name, value.is_array ? uint32_t{kGgufArray} : value.type);
    if (value.is_array) {
        put_number(fields_, value.type);
        put_number(fields_, value.n);
    }
    const std::string_view bytes(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
    if (value.type == kGgufText && !value.is_array)
        put_string(fields_, bytes);
    else
        fields_ += bytes;
}

void GgufWriter::tensor(std::string name, GgmlType type, std::vector<uint64_t> shape, Rows rows) {
    const GgmlTypeInfo& info = info_of(type);
    CHECK(!shape.empty() && shape.back() % info.block_numbers == 0);
    put_string(infos_, name);
    put_number(infos_, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) put_number(infos_, shape[i]);
    put_number(infos_, info.number);
    put_number(infos_, offset_);
    const uint64_t n_rows = shape.size() == 1 ? 1 : shape[0],
                   row_bytes = shape.back() / info.block_numbers * info.block_bytes;
    tensors_.push_back({type, n_rows, row_bytes, std::move(rows)});
    offset_ += round_up(n_rows * row_bytes, kGgufAlign);
}

Status GgufWriter::write(const std::filesystem::path& to, const std::function<void(uint64_t)>& on_bytes) const {
    constexpr uint64_t kPieceBytes = uint64_t{16} << 20;
    constexpr uint64_t kTaskRows = 16;
    std::filesystem::path part = to;
    part += ".part";
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    const auto give_up = [&](Error error) {
        file.close();
        std::error_code ignored;
        std::filesystem::remove(part, ignored);
        return error;
    };
    const auto failed = [&] {
        return give_up(make_error(ErrorCode::kIo, lorad::format("{}: cannot be written", to.string())));
    };
    if (!file)
        return make_error(ErrorCode::kIo, lorad::format("{}: cannot be made: {}", part.string(), std::strerror(errno)));
    std::string head = "GGUF";
    put_number<uint32_t>(head, 3);
    put_number<uint64_t>(head, tensors_.size());
    put_number<uint64_t>(head, n_fields_);
    head += fields_;
    head += infos_;
    head.resize(round_up(head.size(), kGgufAlign));
    file.write(head.data(), static_cast<std::streamsize>(head.size()));
    uint64_t n_done = 0;
    std::vector<std::byte> bytes;
    std::mutex mutex;
    std::optional<Error> error;  // under mutex while pieces are made
    for (const Entry& tensor : tensors_) {
        const uint64_t piece_rows = std::max<uint64_t>(1, kPieceBytes / tensor.row_bytes);
        for (uint64_t row = 0; row < tensor.n_rows; row += piece_rows) {
            const uint64_t n_rows = std::min(piece_rows, tensor.n_rows - row);
            const bool is_last = row + n_rows == tensor.n_rows;
            const uint64_t n_bytes = n_rows * tensor.row_bytes,
                           n_padding = is_last ? round_up(tensor.n_rows * tensor.row_bytes, kGgufAlign) -
                                                     tensor.n_rows * tensor.row_bytes
                                               : 0;
            bytes.assign(n_bytes + n_padding, std::byte{0});
            for_pieces(ceil_div(n_rows, kTaskRows), [&](uint64_t task) {
                const uint64_t begin = task * kTaskRows, n = std::min(kTaskRows, n_rows - begin);
                const Status made = tensor.rows(
                    row + begin, n, std::span(bytes).subspan(begin * tensor.row_bytes, n * tensor.row_bytes));
                std::lock_guard lock(mutex);
                if (!made.ok() && !error) error = made.error();
            });
            if (error) return give_up(std::move(*error));
            file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
            if (!file) return failed();
            n_done += bytes.size();
            if (on_bytes) on_bytes(n_done);
        }
    }
    file.close();
    if (!file) return failed();
    std::error_code error_code;
    std::filesystem::rename(part, to, error_code);
    return error_code ? failed() : ok_status();
}

}  // namespace lorad::model
