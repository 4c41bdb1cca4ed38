#include "server/engine/token_stream.h"

#include <thread>

#include <gtest/gtest.h>

#include "server/engine/request_queue.h"

namespace lorad::server {
namespace {

using std::chrono::milliseconds;

TEST(TokenStream, TokensComeInOrderAndBeforeTheEnd) {
    TokenStream stream(1000);
    std::thread producer([&] {
        for (TokenId token = 0; token < 1000; ++token) stream.push(token);
        stream.close({FinishReason::kLength, std::nullopt});
    });
    std::vector<TokenId> tokens;
    std::optional<StreamEnd> end;
    while (!end) {
        TokenStream::Batch batch = stream.pop(milliseconds(1000));
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
        end = batch.end;
    }
    producer.join();
    ASSERT_EQ(tokens.size(), 1000u);
    for (TokenId i = 0; i < 1000; ++i) EXPECT_EQ(tokens[size_t(i)], i);
    EXPECT_EQ(end->reason, FinishReason::kLength);
}

TEST(TokenStream, AnEmptyBatchAfterTheTimeout) {
    TokenStream stream(1);
    TokenStream::Batch batch = stream.pop(milliseconds(1));
    EXPECT_TRUE(batch.tokens.empty());
    EXPECT_FALSE(batch.end);
}

TEST(TokenStream, TheFirstReasonToCancelCounts) {
    TokenStream stream(1);
    EXPECT_FALSE(stream.cancelled());
    stream.cancel(FinishReason::kStop);
    stream.cancel();
    EXPECT_EQ(stream.cancelled(), FinishReason::kStop);
}

TEST(TokenStreamDeathTest, MoreTokensThanAskedForAreABug) {
    TokenStream stream(1);
    stream.push(1);
    EXPECT_DEATH(stream.push(2), "CHECK");
}

TEST(RequestQueue, CountsUntilRequestsLeaveWaiting) {
    RequestQueue queue(2);
    Request a, b, c;
    EXPECT_TRUE(queue.push(a).ok());
    EXPECT_TRUE(queue.push(b).ok());
    EXPECT_EQ(queue.push(c).error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(queue.drain().size(), 2u);
    EXPECT_EQ(queue.push(c).error().code, ErrorCode::kOverloaded) << "drained is not yet admitted";
    queue.leave_waiting(1);
    EXPECT_TRUE(queue.push(c).ok());
    EXPECT_EQ(queue.n_waiting(), 2u);
}

TEST(RequestQueue, AfterCloseEveryPushGetsItsReason) {
    RequestQueue queue(2);
    queue.close(make_error(ErrorCode::kDraining, "bye"));
    Request request;
    Status status = queue.push(request);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kDraining);
}

TEST(RequestQueue, WaitEndsWithARequest) {
    RequestQueue queue(2);
    std::thread producer([&] {
        Request request;
        EXPECT_TRUE(queue.push(request).ok());
    });
    queue.wait(milliseconds(10000));
    producer.join();
    EXPECT_EQ(queue.drain().size(), 1u);
}

}  // namespace
}  // namespace lorad::server
