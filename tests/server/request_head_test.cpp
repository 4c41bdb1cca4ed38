// The guard's reader of heads, without a socket.
#include "server/http/guard/request_head.h"

#include <gtest/gtest.h>

#include "proto/error.h"

namespace lorad::server::request_head_test {
namespace {

TEST(RequestHead, VerdictsDoNotDependOnSegments) {
    struct Case {
        const char* text;
        int status;  // 0: accepted
    };
    const Case cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0},
        {"GET / HTTP/1.0\r\n\r\n", 0},
        {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 0},
        {"POST /a?b HTTP/1.1\r\nHost: [::1]:1\r\nContent-Length: 007\r\nContent-Encoding: identity\r\n\r\n", 0},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\nHost: x\n\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nREMOTE_ADDR: 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nX: %0d%0a\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\n\r\n", 415},
        {"POST / HTTP/1.1\r\nHost: x\r\nExpect: x\r\n\r\n", 417},
    };
    for (const Case& c : cases) {
        const std::string text = c.text;
        for (size_t cut = 0; cut <= text.size(); ++cut) {
            HeadReader reader;
            HeadReader::Verdict verdict = reader.read(std::string_view(text).substr(0, cut));
            if (verdict == HeadReader::Verdict::kMore) verdict = reader.read(text);
            ErrorCode code = reader.refusal().code;
            bool accepted = false;
            if (verdict == HeadReader::Verdict::kComplete) {
                RequestHead head;
                HeadRefusal refusal;
                accepted = parse_head(std::string_view(text).substr(0, reader.n_bytes()), head, refusal);
                code = refusal.code;
            }
            EXPECT_NE(verdict, HeadReader::Verdict::kMore) << text;
            EXPECT_EQ(accepted ? 0 : proto::error_info(code).http_status, c.status) << text << " cut at " << cut;
        }
    }
}

}  // namespace
}  // namespace lorad::server::request_head_test
