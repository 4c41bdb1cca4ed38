#include "server/http/bounded_body.h"

#include "proto/base/format.h"

namespace lorad::server {

Status BoundedBody::read(uint64_t bytes_max, const Take& take) {
    CHECK(!was_read_);
    was_read_ = true;
    if (exchange_.head().body_bytes > bytes_max) {
        return make_error(
            ErrorCode::kPayloadTooLarge,
            format("the request body is larger than {} bytes, the most that is accepted here", bytes_max));
    }
    for (;;) {
        std::string_view piece;
        switch (exchange_.read_body(piece)) {
            case Exchange::Piece::kData: TRY(take(piece)); break;
            case Exchange::Piece::kEnd: return ok_status();
            case Exchange::Piece::kTooSlow:
                return make_error(ErrorCode::kRequestTimeout, "the request's body comes too slowly");
            case Exchange::Piece::kBrokeOff:
                return make_error(ErrorCode::kInvalidRequest, "the request's body breaks off before its declared end");
        }
    }
}

}  // namespace lorad::server
